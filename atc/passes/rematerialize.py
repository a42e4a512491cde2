"""Recompute values instead of keeping them: less memory for more time.

The run of the nodes is simulated, with a goal for the bytes that values take. If the next result
has no room, values that are needed later are dropped, the cheapest first: those with the least cost
of recomputation per byte and per step until their next use. A dropped value is recomputed before it
is read, with all of its dropped operands. That is dynamic tensor rematerialization (Kirisame et
al., ICLR 2021) with the future known, as everything is decided at compile time. A recomputed value
has the same bits: the same kernel gets the same operands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from atc.ir.graph import Alias, Graph, Node, reads
from atc.ir.ops import Map, Reshape
from atc.passes.lifetimes import Lifetimes

_CHAIN = 256
"""The most values that are recomputed for one."""
_TIMES = 4
"""The most runs of nodes in total, as a multiple of the graph's own."""
_SMALL = 100
"""The smallest values, which together are one part in so many of the peak, are never dropped."""

CostOf = Callable[[Graph, Node], float]
"""The cost of running a node, in any unit."""


def bytes_moved(graph: Graph, node: Node) -> float:
    """Return the bytes of a node's operands and results."""
    return float(sum(graph.types[n].nbytes for n in (*node.inputs, *node.outputs) if n))


@dataclass(frozen=True)
class Rule:
    """The value to drop first: that of the least cost^a / (size^b * idle^c), times its `bias`."""

    cost: float = 1.0
    size: float = 1.0
    idle: float = 1.0
    bias: Mapping[str, float] = field(default_factory=dict)

    def price(self, value: str, cost: float, size: int, idle: int) -> float:
        """Return the price of dropping a value, without a unit."""
        price: float = cost**self.cost / (size**self.size * idle**self.idle)
        return price * self.bias.get(value, 1.0)


@dataclass(frozen=True)
class RematerializationGoal:
    """No step may need more than `goal` bytes.

    `cheap` leaves out all but elementwise ops. Values under `minimum` bytes aren't dropped.
    """

    goal: int = 0
    cheap: bool = False
    minimum: int = 0
    rule: Rule = Rule()  # noqa: RUF009
    cost: CostOf = bytes_moved


def rematerialize(graph: Graph, aim: RematerializationGoal) -> Graph | None:
    """Return a graph that recomputes values so that the goal is met; None if none is found.

    Only the graph itself is changed, not those of branches and loops.
    """
    return Rematerializer(graph, aim.cheap, aim.minimum, aim.cost).run(aim.goal, aim.rule)


def recomputed_work(graph: Graph, cost: CostOf = bytes_moved) -> float:
    """Return the cost of all recomputation in a graph."""
    return sum(cost(graph, node) for node in recomputed_nodes(graph))


def recomputed_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that recompute what others have computed."""
    return [n for n in graph.nodes if _is_recomputed(n.outputs[0], graph)]


def _is_recomputed(name: str, graph: Graph) -> bool:
    return name in graph.aliases and graph.aliases[name].kind == "recomputed"


class Rematerializer:
    """The state shared by all goals and rules for one graph."""

    def __init__(
        self, graph: Graph, cheap: bool = False, minimum: int = 0, cost: CostOf = bytes_moved
    ) -> None:
        self.graph = graph
        self.lives = lives = Lifetimes(graph)
        self.peak = lives.peak
        self.sizes = lives.sizes
        self.cost = {name: cost(graph, graph.nodes[k]) for name, k in lives.made.items()}
        self.reads = [
            tuple(dict.fromkeys(p for n in reads(node) if (p := lives.base(n)) in self.sizes))
            for node in graph.nodes
        ]
        fixed = {
            place for k, node in enumerate(graph.nodes) if not _plain(node)
            for place in self.reads[k]
        }  # fmt: skip
        repeats = {
            name for name, k in lives.made.items()
            if name in self.sizes and _may_repeat(graph.nodes[k], cheap)
        }  # fmt: skip
        small = self._small(fixed)
        self.kept = fixed | small
        """Values that aren't dropped; small ones count as if they were live all the time."""
        self.always = sum(self.sizes[name] for name in small)
        self.small = small
        self.repeatable = self._repeatable(repeats)
        """Values that can be computed from those that are always live."""
        self.repeats = repeats
        self.minimum = max(minimum, 1)
        self.cost_of = cost

    @property
    def droppable(self) -> tuple[str, ...]:
        """The values that can be recomputed, in the order in which they are computed."""
        names = (n for n in self.sizes if n in self.repeats and n not in self.kept)
        return tuple(n for n in names if self.sizes[n] >= self.minimum)

    @property
    def least(self) -> int:
        """The lower bound of any goal: the bytes of the node whose operands and results need most.

        A result may share an operand's memory; so the larger of them counts.
        """
        return max(map(self._needed, range(len(self.graph.nodes))), default=0)

    def run(self, goal: int, rule: Rule = Rule()) -> Graph | None:  # noqa: B008, a value
        """Return a graph within a goal; None if none is found."""
        if goal >= self.peak:
            return self.graph
        steps = _Simulation(self, goal, rule).steps()
        return None if steps is None else _written(self.graph, steps)

    def _needed(self, step: int) -> int:
        made = sum(self.sizes.get(o, 0) for o in self.graph.nodes[step].outputs)
        return max(made, sum(self.sizes[p] for p in self.reads[step]))

    def _small(self, fixed: set[str]) -> set[str]:
        left, found = self.peak // _SMALL, set[str]()
        for name in sorted(self.sizes, key=lambda n: (self.sizes[n], self.lives.made[n])):
            left -= self.sizes[name]
            if left < 0:
                break
            found.add(name)
        return found - fixed

    def _repeatable(self, repeats: set[str]) -> set[str]:
        found: set[str] = set()
        for name, step in self.lives.made.items():
            if name in repeats and all(
                p in found or p in self.small for p in self.reads[step]
            ):
                found.add(name)
        return found


def _may_repeat(node: Node, cheap: bool) -> bool:
    plain = len(node.outputs) == 1 and _plain(node)
    return plain and (not cheap or isinstance(node.op, Map))


def _plain(node: Node) -> bool:
    return not node.op.subgraphs()


class _NoRoomError(Exception):
    """Nothing is left to drop."""


class _Simulation:
    """One simulated run of the nodes."""

    def __init__(self, of: Rematerializer, goal: int, rule: Rule) -> None:
        self.of = of
        self.rule = rule
        self.room = goal - of.always
        """Bytes that are free."""
        self.live: set[str] = set()
        """The values that are live, without small ones."""
        self.pins: dict[str, int] = {}
        """For each value, how many of the nodes that are about to run read it."""
        self.past_uses = dict.fromkeys(of.sizes, 0)
        """For each value, how many of its uses are past."""
        self.now = 0
        self.done: list[tuple[int, bool]] = []
        """The nodes that were run, each with whether that was a recomputation."""
        self.most = _TIMES * len(of.graph.nodes)

    def steps(self) -> list[tuple[int, bool]] | None:
        """Return the nodes to run, or None if the goal can't be met."""
        lives = self.of.lives
        try:
            for step, node in enumerate(self.of.graph.nodes):
                self.now = step
                self._bring(self.of.reads[step])
                for name in node.outputs:
                    if name in lives.made:
                        self._place(name)
                self.done.append((step, False))
                for name in self.of.reads[step]:
                    self.past_uses[name] = self._past(name)
                    self._unpin(name)
                self._clean((*self.of.reads[step], *node.outputs))
        except _NoRoomError:
            return None
        return self.done

    def _past(self, name: str) -> int:
        uses, k = self.of.lives.used[name], self.past_uses[name]
        while k < len(uses) and uses[k] <= self.now:
            k += 1
        return k

    def _next(self, name: str) -> int:
        """Return the step of a value's next use; -1 if there is none."""
        uses, k = self.of.lives.used.get(name, ()), self.past_uses[name]
        return uses[k] if k < len(uses) else -1

    def _place(self, name: str) -> None:
        if name not in self.of.sizes or name in self.of.small:
            return
        size = self.of.sizes[name]
        self._make_room(size)
        self.room -= size
        self.live.add(name)

    def _drop(self, name: str) -> None:
        self.live.remove(name)
        self.room += self.of.sizes[name]

    def _clean(self, names: Iterable[str]) -> None:
        """Drop values that nothing reads any more."""
        for name in names:
            if name in self.live and not self.pins.get(name) and self._next(name) < 0:
                self._drop(name)

    def _pin(self, name: str) -> None:
        self.pins[name] = self.pins.get(name, 0) + 1

    def _unpin(self, name: str) -> None:
        self.pins[name] -= 1

    def _gone(self, name: str) -> bool:
        return name not in self.live and name not in self.of.small

    def _bring(self, names: tuple[str, ...]) -> None:
        """Recompute those of these values that were dropped, and pin all of them."""
        for name in names:
            self._pin(name)
        wanted = self._chain([n for n in names if self._gone(n)])
        if wanted is None or len(self.done) + len(wanted) > self.most:
            raise _NoRoomError
        of = self.of
        steps = [of.lives.made[name] for name in wanted]
        for step in steps:
            for name in of.reads[step]:
                self._pin(name)
        for name, step in zip(wanted, steps, strict=True):
            self._place(name)
            self.done.append((step, True))
            for operand in of.reads[step]:
                self._unpin(operand)
            self._clean(of.reads[step])

    def _chain(self, names: Iterable[str]) -> list[str] | None:
        """Return the nodes that recompute dropped values, in order; None if that can't be done."""
        of, found = self.of, set[str]()
        stack = list(names)
        while stack:
            name = stack.pop()
            if name in found:
                continue
            if name not in of.repeats or len(found) == _CHAIN:
                return None
            found.add(name)
            stack += (p for p in of.reads[of.lives.made[name]] if self._gone(p))
        return sorted(found, key=of.lives.made.__getitem__)

    def _make_room(self, size: int) -> None:
        while self.room < size:
            self._drop(self._cheapest())

    def _cheapest(self) -> str:
        """Return the value to drop; the costs of dropped values around it are computed last."""
        of, rule = self.of, self.rule
        least: list[tuple[float, str]] = []
        for name in self.live:
            if self.pins.get(name) or name in of.kept or of.sizes[name] < of.minimum:
                continue
            if (after := self._next(name)) < 0:
                return name
            if name in of.repeats:
                idle = after - self.now + 1
                least.append((rule.price(name, of.cost[name], of.sizes[name], idle), name))
        least.sort()
        best: tuple[float, str] | None = None
        for bound, name in least:
            if best is not None and best[0] <= bound:
                break
            after = self._next(name)
            if (cost := self._cost(name, after)) is None:
                continue
            price = rule.price(name, cost, of.sizes[name], after - self.now + 1)
            best = min(best or (price, name), (price, name))
        if best is None:
            raise _NoRoomError
        return best[1]

    def _cost(self, name: str, until: int) -> float | None:
        """Return the cost of recomputing a value at a step; None if that may be impossible."""
        of = self.of
        chain = self._chain([name])
        if chain is None:
            return None
        operands = {o for each in chain for o in of.reads[of.lives.made[each]]}
        for operand in (operands & self.live) - of.repeatable - {name}:
            if of.lives.last(operand) < until:
                return None
        return sum(of.cost[each] for each in chain)


def _written(graph: Graph, steps: Iterable[tuple[int, bool]]) -> Graph:
    """Return the graph that runs these nodes, with new names for recomputed values."""
    now: dict[str, str] = {}
    """The name of a value's latest instance, if it isn't the first one."""
    of: dict[str, str] = {}
    """The instance of its value that a view is of."""
    types, aliases = dict(graph.types), dict(graph.aliases)
    views = {n.outputs[0]: n for n in graph.nodes if isinstance(n.op, Reshape)}
    nodes: list[Node] = []

    def fresh(old: str) -> str:
        name = f"{old}#recomputed{len(types)}"
        types[name], aliases[name] = types[old], Alias("recomputed", old)
        return name

    def current(name: str) -> Iterator[Node]:
        """Update `now` for a name; yields the views that this needs."""
        if name not in views:
            return
        (below,) = views[name].inputs[:1]
        yield from current(below)
        if of.get(name, below) != now.get(below, below):
            now[name] = fresh(name)
            of[name] = now.get(below, below)
            inputs = tuple(now.get(n, n) for n in views[name].inputs)
            yield replace(views[name], inputs=inputs, outputs=(now[name],))

    for step, recomputed in steps:
        node = graph.nodes[step]
        for name in node.inputs:
            nodes += current(name)
        changed = replace(node, inputs=tuple(now.get(n, n) for n in node.inputs))
        if recomputed:
            (old,) = node.outputs
            now[old] = fresh(old)
            changed = replace(changed, outputs=(now[old],))
        elif node.outputs[0] in views:
            of[node.outputs[0]] = changed.inputs[0]
        nodes.append(changed)
    return replace(graph, nodes=tuple(nodes), types=types, aliases=aliases)
