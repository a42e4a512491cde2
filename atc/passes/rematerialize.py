"""Computes values again instead of keeping them: less memory for more time.

A value that is live, but not used, at the step that needs most memory is dropped after its last use
before that step and computed again for its next one, together with those of its operands that
aren't there any more (Chen et al., "Training deep nets with sublinear memory cost", 2016). Which
value goes is chosen as in dynamic tensor rematerialization (Kirisame et al., ICLR 2021): the least
cost per byte and per step that it lies idle. Everything is decided when compiling, and a value that
is computed again has the same bits, since the same kernel gets the same operands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from atc.ir.graph import Alias, Graph, Node, TensorType, reads
from atc.ir.ops import Map, Reshape

_ALIGNMENT = 64
_DEPTH = 16  # operands that are computed again for one value, one needing the other
_HEAVY = 64  # what an op that sums products costs, per byte, where an elementwise one costs 1


@dataclass(frozen=True)
class Rule:
    """Which value goes first: that of the least cost^a / (size^b * idle^c), times its `bias`.

    A value without one has 1; what was computed again before has that of the first one.
    """

    cost: float = 1.0
    size: float = 1.0
    idle: float = 1.0
    bias: Mapping[str, float] = field(default_factory=dict)

    def price(self, value: str, cost: float, size: int, idle: int) -> float:
        """Return the price of dropping a value, in no unit."""
        price: float = cost**self.cost / (size**self.size * idle**self.idle)
        return price * self.bias.get(value, 1.0)


@dataclass(frozen=True)
class RematerializationGoal:
    """The goal: no step needs more than `goal` bytes, or nothing helps any more.

    `cheap` leaves out all but elementwise ops. Values under `minimum` bytes are kept. `tries` is
    how many values are tried at a time before the search ends, in the order of the `rule`.
    """

    goal: int = 0
    cheap: bool = False
    minimum: int = 0
    tries: int = 10
    rule: Rule = Rule()  # noqa: RUF009


def rematerialize(graph: Graph, aim: RematerializationGoal) -> Graph:
    """Return a graph that computes values again as far as that lowers the memory it needs.

    Only the graph itself is changed, not those of branches and loops.
    """
    for changed, peak in rematerialized(graph, aim):
        if peak <= aim.goal:
            return changed
    return changed


def rematerialized(graph: Graph, aim: RematerializationGoal) -> Iterator[tuple[Graph, int]]:
    """Yield the graph, then ones that compute more and more again, with the bytes that each needs.

    What one of them computes again is computed again by those that follow, too: where to end is
    left to whoever reads them, and has no influence on what comes before.
    """
    lives: _Lives | None = _Lives(graph)
    while lives is not None:
        yield lives.graph, lives.peak
        lives = next(_improved(lives, aim), None)


def work_again(graph: Graph) -> float:
    """Return about how long it takes to compute again what is: bytes moved, or as long."""
    return sum(map(_Cost(graph.types), recomputed_nodes(graph)))


def recomputed_nodes(graph: Graph) -> list[Node]:
    """Return the nodes that compute again what others have computed."""
    return [n for n in graph.nodes if _is_recomputed(n.outputs[0], graph)]


def _is_recomputed(name: str, graph: Graph) -> bool:
    return name in graph.aliases and graph.aliases[name].kind == "recomputed"


def _first(name: str, graph: Graph) -> str:
    """Return the value that was computed first, of one that may be computed again."""
    return graph.aliases[name].of if _is_recomputed(name, graph) else name


def droppable(graph: Graph) -> tuple[str, ...]:
    """Return the values that might be computed again, in the order in which they are made."""
    return tuple(_Lives(graph).sizes)


class _Lives:
    """Lifetimes of a graph's values: places by name, steps by place, bytes by step."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.home: dict[str, str] = {}
        self.made: dict[str, int] = {}
        self.used: dict[str, list[int]] = {}
        for step, node in enumerate(graph.nodes):
            for name in reads(node):
                self.used.setdefault(self.place(name), []).append(step)
            for name in node.outputs:
                if isinstance(node.op, Reshape):
                    self.home[name] = self.place(node.inputs[0])
                else:
                    self.made[name] = step
        outside = {*graph.inputs, *graph.constants, *graph.outputs}
        self.outside = {self.place(name) for name in outside}
        self.sizes = {
            name: -(-graph.types[name].nbytes // _ALIGNMENT) * _ALIGNMENT
            for name in self.made
            if name not in self.outside
        }
        self.load = self._loads()
        self.peak = max(self.load, default=0)

    def place(self, name: str) -> str:
        """Return the value in whose memory another one lies."""
        return self.home.get(name, name)

    def last(self, place: str) -> int:
        """Return the step of a value's last use."""
        return self.used.get(place, [self.made.get(place, 0)])[-1]

    @property
    def weight(self) -> tuple[int, int]:
        """The measure that a change has to lower: the peak, or the steps that reach it."""
        return self.peak, self.load.count(self.peak)

    def _loads(self) -> list[int]:
        change = [0] * (len(self.graph.nodes) + 1)
        for name, size in self.sizes.items():
            change[self.made[name]] += size
            change[self.last(name) + 1] -= size
        load, now = [], 0
        for step in change[:-1]:
            now += step
            load.append(now)
        return load


@dataclass(frozen=True)
class _Plan:
    """To compute `value` again before step `at`: copies of `nodes`, in order, at a price."""

    value: str
    at: int
    nodes: tuple[Node, ...]
    price: float


def _improved(lives: _Lives, aim: RematerializationGoal) -> Iterator[_Lives]:
    """Yield graphs that need less at the worst step, the most promising first."""
    step = lives.load.index(lives.peak)
    plans = sorted(_plans(lives, step, aim), key=lambda plan: (plan.price, plan.value))
    for plan in plans[: aim.tries]:
        changed = _Lives(_applied(lives, plan))
        if changed.weight < lives.weight:
            yield changed


def _plans(lives: _Lives, step: int, aim: RematerializationGoal) -> Iterator[_Plan]:
    """Yield what could be computed again so that it needn't live at a step."""
    for value, size in lives.sizes.items():
        if size < max(aim.minimum, 1) or lives.made[value] >= step or lives.last(value) <= step:
            continue
        uses = lives.used[value]
        if step in uses or not all(_plain(lives.graph.nodes[k]) for k in uses if k > step):
            continue
        at = next(k for k in uses if k > step)
        nodes = tuple(_needed(lives, value, step, aim, 0))
        if not nodes:
            continue
        idle = at - max((k for k in uses if k < step), default=lives.made[value])
        cost, first = sum(map(_cost(lives), nodes)), _first(value, lives.graph)
        price = aim.rule.price(first, cost, size, idle)
        yield _Plan(value, at, nodes, price)


def _needed(
    lives: _Lives, value: str, step: int, aim: RematerializationGoal, depth: int
) -> Iterator[Node]:
    """Yield the nodes that make a value from what is live at a step; none where that can't be."""
    node = lives.graph.nodes[lives.made[value]]
    if depth > _DEPTH or not _may_repeat(node, aim.cheap):
        return
    found: list[Node] = []
    for name in dict.fromkeys(n for n in node.inputs if n):
        place = lives.place(name)
        if place in lives.outside or lives.last(place) > step:
            continue
        inner = [*_needed(lives, place, step, aim, depth + 1)]
        if not inner:
            return
        found += inner
    yield from dict.fromkeys([*found, node])


def _may_repeat(node: Node, cheap: bool) -> bool:
    plain = len(node.outputs) == 1 and _plain(node)
    return plain and (not cheap or isinstance(node.op, Map))


def _plain(node: Node) -> bool:
    return not node.op.subgraphs()


def _cost(lives: _Lives) -> _Cost:
    return _Cost(lives.graph.types)


@dataclass(frozen=True)
class _Cost:
    types: Mapping[str, TensorType]

    def __call__(self, node: Node) -> float:
        bytes_ = sum(self.types[n].nbytes for n in (*node.inputs, *node.outputs) if n)
        return bytes_ * (1 if isinstance(node.op, Map) else _HEAVY)


def _applied(lives: _Lives, plan: _Plan) -> Graph:
    """Return the graph with a plan's copies before the step, read by all that comes after."""
    graph, new = lives.graph, dict[str, str]()
    types, aliases = dict(graph.types), dict(graph.aliases)

    def renamed(node: Node) -> Node:
        return replace(node, inputs=tuple(new.get(n, n) for n in node.inputs))

    def copied(node: Node) -> Node:
        (old,) = node.outputs
        fresh = f"{old}#again{len(types)}"
        types[fresh] = types[old]
        aliases[fresh] = Alias("recomputed", _first(old, graph))
        copy = replace(renamed(node), outputs=(fresh,))
        new[old] = fresh
        return copy

    copies: list[Node] = []
    for node in plan.nodes:
        copies += [copied(r) for r in _views(lives, node.inputs, new)]
        copies.append(copied(node))
    later = graph.nodes[plan.at :]
    again = {plan.value: new[plan.value]}
    views = _views(lives, [n for node in later for n in reads(node)], again, before=plan.at)
    new = {**again}
    copies += [copied(r) for r in views]
    nodes = (*graph.nodes[: plan.at], *copies, *(renamed(node) for node in later))
    return replace(graph, nodes=nodes, types=types, aliases=aliases)


def _views(
    lives: _Lives, names: Iterator[str] | tuple[str, ...] | list[str], new: Mapping[str, str],
    before: int | None = None,
) -> list[Node]:  # fmt: skip
    """Return the reshapes, in order, through which these names see values that are made again."""
    producers = lives.graph.producers()
    wanted: set[str] = set()
    for name in names:
        while name in producers and isinstance(producers[name].op, Reshape):
            if lives.place(name) in new and name not in new:
                wanted.add(name)
            name = producers[name].inputs[0]
    end = len(lives.graph.nodes) if before is None else before
    return [n for n in lives.graph.nodes[:end] if n.outputs[0] in wanted]
