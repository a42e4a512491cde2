"""Find branches of a graph that threads may run at the same time: fork-join parallelism.

Consecutive nodes without a path from one to the other are in different branches; all branches end
before their readers begin. Each call of a branch runs in one thread. Every result is computed by
the same kernel as without forks, so that it has the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import seconds
from atc.backends.kernel import Candidate, Launch, Workload, split_of
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import Graph, Node, reads
from atc.ir.ops import Reshape, SubView
from atc.ir.ops.data import Concat
from atc.ir.ops.external import External
from atc.program.partition import cycles, is_long, partitions, shared
from atc.select.cost import MODELLED, NANOSECONDS
from atc.select.select import Choice, Selection

JOIN = 6000.0
"""Cycles to start and join other threads, without the work itself."""
MARGIN = 0.1
"""The part of its time that a fork must save: estimates of unequal calls are rough."""
OTHERS = 4.0
"""Bytes per cycle that a core reads if another one has just written them. Measured on a Xeon: 36 kB
take 4.7 us, a fork of 2 x 10 us that passes 54 kB gains 5 %."""
REACH = 300
"""The most nodes between a fork's begin and end, so that the search takes linear time."""

STREAMS = 3000.0
"""Nanoseconds that streams of a GPU wait for each other at a fork's begin and end."""
RESIDENT = 1024
"""Threads of a multiprocessor that keep it busy."""

Branches = tuple[tuple[Node, ...], ...]
"""Nodes that run one after another, or two or more lists of such nodes that may overlap."""


@dataclass(frozen=True)
class Workers:
    """Numbers of branches that may run at the same time and of threads that share one call.

    With `always`, all independent branches are forked, else only where that is estimated to be
    faster than running one call after another, each shared by the threads. On a GPU the branches
    are streams, and times are in nanoseconds.
    """

    branches: int = 1
    threads: int = 1
    always: bool = False


ALONE = Workers()


def forked(
    graph: Graph, selection: Selection, target: Target, workers: Workers, reach: int = REACH
) -> Iterator[Branches]:
    """Yield all nodes of a graph in an order in which they can run, with the forks among them.

    A fork has at most `reach` nodes.
    """
    nodes, begin = graph.nodes, 0
    if workers.branches > 1:
        for first, last in _Search(graph, selection, target, workers, reach).forks():
            if begin < first:
                yield (nodes[begin:first],)
            yield _spread(nodes[first:last], selection, target, workers.branches)
            begin = last
    if begin < len(nodes):
        yield (nodes[begin:],)


def part_of(graph: Graph, nodes: tuple[Node, ...]) -> Graph:
    """Return some of a graph's nodes as a graph, whose outputs are the results read elsewhere."""
    if len(nodes) == len(graph.nodes):
        return graph
    own = {value for node in nodes for value in node.outputs}
    inside = {id(node) for node in nodes}
    others = [v for node in graph.nodes if id(node) not in inside for v in reads(node)]
    outputs = dict.fromkeys(v for v in (*graph.outputs, *others) if v in own)
    return replace(graph, nodes=nodes, outputs=tuple(outputs))


def _spread(
    nodes: Sequence[Node], selection: Selection, target: Target, most: int
) -> tuple[tuple[Node, ...], ...]:
    """Return the components of nodes in at most `most` branches of about equal time."""
    components = _Components(_producers(nodes))
    for k, node in enumerate(nodes):
        components.add(k, _alone(node, selection, target))
    branch = _balanced(components.times(), most)
    lists: dict[int, list[Node]] = {}
    for k, node in enumerate(nodes):
        lists.setdefault(branch[components.root(k)], []).append(node)
    return tuple(map(tuple, lists.values()))


def _balanced(times: dict[int, float], most: int) -> dict[int, int]:
    """Return the branch of each component: longest first, to the branch with the least time."""
    loads = [0.0] * most
    found = {}
    for root in sorted(times, key=lambda k: (-times[k], k)):
        found[root] = loads.index(min(loads))
        loads[found[root]] += times[root]
    return found


def _makespan(times: dict[int, float], most: int) -> float:
    """Return the time of the longest branch."""
    loads = [0.0] * most
    for root, branch in _balanced(times, most).items():
        loads[branch] += times[root]
    return max(loads)


def _producers(nodes: Sequence[Node]) -> list[tuple[int, ...]]:
    """Return for each node the numbers of those whose results it reads."""
    makers: dict[str, int] = {}
    found = []
    for k, node in enumerate(nodes):
        found.append(tuple(sorted({makers[v] for v in reads(node) if v in makers})))
        makers.update((v, k) for v in node.outputs)
    return found


class _Components:
    """Connected components of the nodes added so far, and the time of each."""

    def __init__(self, producers: Sequence[tuple[int, ...]]) -> None:
        self._producers = producers
        self._above: dict[int, int] = {}
        self._times: dict[int, float] = {}
        self.busy = 0
        """The number of components that take time."""

    def root(self, k: int) -> int:
        while self._above[k] != k:
            self._above[k] = k = self._above[self._above[k]]
        return k

    def joined_by(self, k: int) -> set[int]:
        """Return the components that node k, which isn't added yet, reads."""
        return {self.root(p) for p in self._producers[k] if p in self._above}

    def add(self, k: int, time: float) -> None:
        """Add a node, and merge the components of its operands."""
        joined = sorted(self.joined_by(k))
        base = joined[0] if joined else k
        self._above[k] = base
        for other in joined[1:]:
            self._above[other] = base
        times = [self._times.pop(r) for r in joined]
        self._times[base] = time + sum(times)
        self.busy += (self._times[base] > 0) - sum(t > 0 for t in times)

    def times(self) -> dict[int, float]:
        """Return the time of each component by its root."""
        return dict(self._times)


class _Search:
    """A search for the forks of a graph that gain most in total, from its end to its begin."""

    def __init__(
        self, graph: Graph, selection: Selection, target: Target, workers: Workers, reach: int
    ) -> None:
        nodes = self._nodes = graph.nodes
        self._workers, self._reach = workers, reach
        self._on_gpu = bool(target.device)
        self._may = [_may_overlap(node, selection, target) for node in nodes]
        self._alone = [_alone(node, selection, target) for node in nodes]
        self._one_by_one = (
            self._alone
            if workers.always
            else [_divided(n, selection, target, workers.threads) for n in nodes]
        )
        self._busy = [
            time * _part_of_gpu(node, selection, target) if target.device else 0.0
            for node, time in zip(nodes, self._alone, strict=True)
        ]
        self._producers = _producers(nodes)
        self._reads = [{v for v in reads(n) if v not in graph.constants} for n in nodes]
        self._bytes = {v: max_value(t.nbytes) for v, t in graph.types.items()}
        self._last = {v: k for k, values in enumerate(self._reads) for v in values}
        self._last |= dict.fromkeys(graph.outputs, len(nodes))

    def forks(self) -> list[tuple[int, int]]:
        """Return the begin and end of each fork, in order."""
        count = len(self._nodes)
        gains = [0.0] * (count + 1)
        ends = [0] * (count + 1)
        begins = self._begins()
        for begin in reversed(range(count)):
            gains[begin] = gains[begin + 1]
            for end, gain in self._ends(begin) if begins[begin] else ():
                if gain + gains[end] > gains[begin]:
                    gains[begin], ends[begin] = gain + gains[end], end
        found, at = [], 0
        while at < count:
            if ends[at]:
                found.append((at, ends[at]))
            at = ends[at] or at + 1
        return found

    def _begins(self) -> list[bool]:
        """Return the nodes at which a fork may begin: two can run, and the one before can't join.

        A fork is longest if several of its branches read the node before it.
        """
        count = len(self._nodes)
        latest = [max(p, default=-1) for p in self._producers]
        readers = [0] * count
        changes = [0] * (count + 1)
        for k, producers in enumerate(self._producers):
            for p in producers:
                readers[p] += 1
            changes[latest[k] + 1] += 1  # the first place at which it can run
            changes[k + 1] -= 1
        found, ready = [], 0
        for k in range(count):
            ready += changes[k]
            after = k == 0 or readers[k - 1] != 1 or not self._may[k - 1]
            found.append(ready > 1 and (after or len(self._producers[k]) > 1))
        return found

    def _ends(self, begin: int) -> Iterator[tuple[int, float]]:
        """Yield the ends of a fork that begins here, with the cycles that it gains."""
        components = _Components(self._producers)
        spent, several = 0.0, False
        entering: set[str] = set()
        last = min(begin + self._reach, len(self._nodes))
        for k in range(begin, last):
            joins = len(components.joined_by(k)) > 1
            if several and (joins or not self._may[k]):
                yield k, self._gain(begin, k, components.times(), spent, entering)
            if not self._may[k]:
                return
            components.add(k, self._alone[k])
            entering.update(self._reads[k])
            spent += self._one_by_one[k]
            if several and joins and components.busy < 2:
                return
            several = components.busy > 1
        if several:
            yield last, self._gain(begin, last, components.times(), spent, entering)

    def _gain(
        self, begin: int, end: int, times: dict[int, float], spent: float, read: set[str]
    ) -> float:
        """Return the cycles that a fork of nodes gains whose components take these times."""
        together = _makespan(times, self._workers.branches)
        if self._on_gpu:  # whose multiprocessors all branches share
            gain = spent - max(together, sum(self._busy[begin:end]))
            return gain if self._workers.always else max(gain - spent * MARGIN - STREAMS, 0.0)
        gain = spent - together
        if self._workers.always or gain <= spent * MARGIN + JOIN:
            return gain if self._workers.always else 0.0
        made = {v for node in self._nodes[begin:end] for v in node.outputs}
        handed = sum(self._bytes.get(v, 0) for v in read - made)
        handed += sum(self._bytes.get(v, 0) for v in made if self._last.get(v, 0) >= end) // 2
        return gain - spent * MARGIN - JOIN - handed / OTHERS


def _may_overlap(node: Node, selection: Selection, target: Target) -> bool:
    """Return whether a node has only calls that can't fail and use no state of the run.

    On a GPU target they have to be the GPU's.
    """
    if isinstance(node.op, Reshape | SubView):
        return True
    choice = selection.get(node.outputs[0]) if node.outputs else None
    if choice is None or isinstance(node.op, External) or node.op.written:
        return False
    if target.device and _launch(choice, target) is None:
        return False
    return not choice.candidate.kernel.fallible and not is_dynamic(choice.workload)


def _alone(node: Node, selection: Selection, target: Target) -> float:
    """Return the cycles that a node takes in one thread."""
    choice = selection.get(node.outputs[0]) if node.outputs else None
    if choice is None or (isinstance(node.op, Concat) and node.op.outer == 1):
        return 0.0  # its operands are computed in the result
    return time_of(choice.workload, choice.candidate, choice, target)


def _launch(choice: Choice, target: Target) -> Launch | None:
    own = choice.candidate
    return own.kernel.launch(choice.workload, own.params, target)


def _part_of_gpu(node: Node, selection: Selection, target: Target) -> float:
    """Return the fraction of a GPU that a node keeps busy."""
    choice = selection.get(node.outputs[0]) if node.outputs else None
    launch = _launch(choice, target) if choice is not None else None
    if launch is None:
        return 0.0
    room = gpu_of(target.device).multiprocessors * RESIDENT
    return min(1.0, launch.blocks * launch.threads / room)


def time_of(w: Workload, candidate: Candidate, choice: Choice, target: Target) -> float:
    """Return the cycles of a call, measured if possible, else estimated."""
    for m in choice.measurements:
        if m.label == candidate.label and m.time_ns is not None:
            return m.time_ns if target.device else m.time_ns / NANOSECONDS
    if target.device:
        own: float = candidate.kernel.cost(w, candidate.params, target)
        return 1e9 * max(own, seconds(w, 0.0, gpu_of(target.device)))
    least = cycles(w, target)
    if not isinstance(w.op, MODELLED) or candidate.kernel.portable:
        return least
    estimated: float = candidate.kernel.cost(w, candidate.params, target)
    return max(least, estimated)


def _divided(node: Node, selection: Selection, target: Target, threads: int) -> float:
    """Return the cycles that a node takes if threads share it, where they can."""
    whole = _alone(node, selection, target)
    if threads < 2 or not whole:
        return whole
    choice = selection[node.outputs[0]]
    w, candidate = choice.workload, choice.candidate
    if not is_long(w, target):
        return whole
    work_split = split_of(
        candidate.kernel, w, shared(w, candidate, target, threads).params, target
    )
    count = max(len(partitions(w, candidate, target, threads)), work_split.partitions)
    if count < 2:
        return whole
    operands = zip(w.inputs, w.constant, strict=True)
    handed = sum(max_value(t.nbytes) for t, known in operands if t is not None and not known)
    spent = whole / count + JOIN * work_split.phases + (1 - 1 / count) * handed / OTHERS
    return min(whole, spent)
