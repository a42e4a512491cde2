"""Cascades that need the least memory: where RAM is scarce, results exist a few rows at a time.

The memory that each call needs is known before anything is placed: the values live at it, and its
scratch. As long as a cascade lowers the peak, the one that lowers it most is chosen; nothing is
computed twice, so that it only costs more calls and moved rows. Then stripes are made as high as
that memory allows. Where a cascade's operand dies, its rows are written over those that were read,
and so are those of a single call, such as a depthwise convolution in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from atc.backends.target import Target
from atc.ir.graph import Graph, Node
from atc.ir.ops import Reshape
from atc.program.cascade import Cascade, CascadeStage, find_cascades, find_paths, make_cascade
from atc.select.select import Selection

LONGEST = 16
"""The most nodes of a cascade."""
LEAST_GAIN = 1 / 64
"""The least part of the memory that a cascade has to save."""
HEIGHTS = (8, 6, 4, 3, 2)
"""Rows of a stripe that are tried instead of one."""


def cascades_of(
    graph: Graph, selection: Selection, target: Target, threads: int, io: bool, enough: int
) -> list[Cascade]:
    """Return the cascades of a graph that save memory where it is scarce, time elsewhere."""
    if target.scarce_memory:
        return least_memory_cascades(graph, selection, target, io=io, enough=enough)
    return find_cascades(graph, selection, target, threads)


def least_memory_cascades(
    graph: Graph, selection: Selection, target: Target, *, io: bool, enough: int = 0
) -> list[Cascade]:
    """Return the cascades of a graph that bring it to `enough` bytes or to the least.

    With `io` the arena holds inputs and outputs, too.
    """
    memory = _Memory(graph, selection, target, io, enough)
    paths = list(find_paths(graph, selection, target, least=1))
    segments = [
        path[begin:end]
        for path in paths
        for begin in range(len(path))
        for end in range(begin + 1, min(begin + LONGEST, len(path)) + 1)
    ]
    alone = [segment for segment in segments if len(segment) == 1]
    in_place = _descended(memory, alone, [])
    ways = [_descended(memory, segments, found) for found in (in_place, [])]
    ways.append(_descended(replace(memory, overlaps=False), segments, []))
    best = min(ways, key=lambda found: (max(memory.most(found).bytes, enough), _calls(found)))
    least = max(memory.most(best).bytes, enough)
    return _sharing(memory.heightened(_needed(memory, best, least), least), paths)


def _sharing(
    found: Sequence[Cascade], paths: Sequence[Sequence[CascadeStage]]
) -> list[Cascade]:
    """Return cascades, and of other layers those, in one stripe, that have the kernel of one."""
    made = {stage.node.outputs[0] for cascade in found for stage in cascade.stages}
    kernels = {
        (stage.choice.workload, candidate)
        for cascade in found
        for stage, candidate in zip(cascade.stages, cascade.candidates(), strict=True)
    }
    alone = [
        make_cascade([stage], stage.ends[-1], 1)
        for path in paths for stage in path if stage.node.outputs[0] not in made
    ]  # fmt: skip
    shared = (c for c in alone if (c.stages[0].choice.workload, *c.candidates()) in kernels)
    return [*found, *shared]


def _descended(
    memory: _Memory, segments: Sequence[Sequence[CascadeStage]], found: list[Cascade]
) -> list[Cascade]:
    """Return cascades, of what is given and those of segments, that lower the peak step by step."""
    need = memory.most(found)
    kept, least = found, need.bytes
    while segments and need.bytes > memory.enough:
        best: tuple[tuple[int, int, int], list[Cascade]] | None = None
        for segment in segments:
            if not memory.shortens(segment, need):
                continue
            others = [c for c in found if _disjoint(c, segment)]
            chosen = [*others, make_cascade(segment, 1, 1)]
            order = (*memory.most(chosen).key, len(segment))
            if best is None or order < best[0]:
                best = order, chosen
        if best is None or not memory.most(best[1]).gains_on(need):
            break
        found = best[1]
        need = memory.most(found)
        if need.bytes < least:  # else it only made way for the next one
            kept, least = found, need.bytes
    return kept


def _needed(memory: _Memory, cascades: Sequence[Cascade], most: int) -> list[Cascade]:
    """Return the cascades less those without which the memory isn't more."""
    found = list(cascades)
    for cascade in sorted(cascades, key=lambda c: -len(c.stages)):
        others = [c for c in found if c is not cascade]
        if memory.most(others).bytes <= most:
            found = others
    return found


def _calls(cascades: Sequence[Cascade]) -> int:
    return sum(len(cascade.stages) for cascade in cascades)


@dataclass(frozen=True)
class _Need:
    """The peak memory of the steps, how many reach it, and the values live at the first of them."""

    bytes: int
    steps: int
    living: frozenset[str]

    @property
    def key(self) -> tuple[int, int]:
        """The key to minimise."""
        return self.bytes, self.steps

    def gains_on(self, other: _Need) -> bool:
        """Return whether it is enough below another one to be worth a cascade."""
        fewer = self.bytes == other.bytes and self.steps < other.steps
        return fewer or self.bytes < other.bytes * (1 - LEAST_GAIN)


@dataclass(frozen=True)
class _Memory:
    """The memory that the calls of a graph's nodes need, one after another."""

    graph: Graph
    selection: Selection
    target: Target
    io: bool
    enough: int
    """Bytes that needn't be lowered."""
    overlaps: bool = True
    """Whether results may lie over what cascades have read."""

    def shortens(self, segment: Sequence[CascadeStage], need: _Need) -> bool:
        """Return whether the cascade removes a value that is live at the peak.

        A single call has its operand and its result at the same place.
        """
        if len(segment) > 1:
            return any(stage.node.outputs[0] in need.living for stage in segment[:-1])
        (node,) = (stage.node for stage in segment)
        return {self._base(node.inputs[0]), node.outputs[0]} <= need.living

    def most(self, cascades: Sequence[Cascade]) -> _Need:
        """Return the peak; a cascade runs at the place of its last call."""
        place = {node.outputs[0]: k for k, node in enumerate(self._nodes)}
        own = list(self._scratch)
        inner: set[str] = set()
        for cascade in cascades:
            last = place[cascade.stages[-1].node.outputs[0]]
            for stage in cascade.stages[:-1]:
                name = stage.node.outputs[0]
                own[last] += own[place[name]]
                own[place[name]], place[name] = 0, last
                inner.add(name)
            own[last] += sum(t.nbytes for t in cascade.buffer_types())
        lives = {name: [at, at] for name, at in self._outside.items()}
        for node in self._nodes:
            at = place[node.outputs[0]]
            for value in node.inputs:
                if (base := self._base(value)) in lives:
                    lives[base][1] = max(lives[base][1], at)
                    lives[base][0] = min(lives[base][0], at)
            for value in node.outputs:
                if value not in inner and self._counts(value):
                    lives.setdefault(value, [at, at])
        end = len(self._nodes) - 1
        for output in self.graph.outputs:
            if (base := self._base(output)) in lives:
                lives[base][1] = end
        for name in self.graph.inputs:
            if name in lives:
                lives[name][0] = 0
        overwritten = self._overwritten(lives, inner)
        change = [0] * (end + 2)
        for name, (first, last) in lives.items():
            size = self.graph.types[name].nbytes
            change[first] += size
            change[last + (name not in overwritten)] -= size
        over: dict[str, tuple[str, int]] = {}
        for cascade in cascades:
            operand, result = self._ends(cascade)
            less = self._overlap(cascade, lives)
            own[place[result]] -= less
            if less and cascade.lead is not None:
                over[result] = operand, cascade.lead
        need, living = [], 0
        for step in range(end + 1):
            living += change[step]
            need.append(living + own[step])
        most = max(need, default=0)
        at = need.index(most) if need else 0
        names = frozenset(n for n, (first, last) in lives.items() if first <= at <= last)
        return _Need(max(most, self._drift(over)), need.count(most), names)

    def _overlap(self, cascade: Cascade, lives: dict[str, list[int]]) -> int:
        """Return the bytes that a cascade's result shares with its operand, which dies there."""
        operand, result = self._ends(cascade)
        first, *rest = (stage.node for stage in cascade.stages)
        others = [*first.inputs[1:], *(v for node in rest for v in node.inputs)]
        if not self.overlaps or cascade.lead is None or operand not in lives or result not in lives:
            return 0
        if lives[operand][1] != lives[result][0] or operand in map(self._base, others):
            return 0
        size, under = (self.graph.types[v].nbytes for v in (result, operand))
        return max(0, size + under - max(size, cascade.lead + under))

    def _ends(self, cascade: Cascade) -> tuple[str, str]:
        """Return a cascade's operand and its result."""
        first, last = cascade.stages[0].node, cascade.stages[-1].node
        return self._base(first.inputs[0]), last.outputs[0]

    def _drift(self, over: Mapping[str, tuple[str, int]]) -> int:
        """Return the bytes of the longest chain of results that each begin before their operand."""
        begins: dict[str, int] = {}
        most = 0
        tops: dict[str, int] = {}
        for node in self._nodes:
            result = node.outputs[0]
            if result not in over:
                continue
            operand, lead = over[result]
            at = begins.get(operand, 0)
            top = tops.get(operand, at + self.graph.types[operand].nbytes)
            begins[result] = (at - lead) // self.target.alignment * self.target.alignment
            tops[result] = max(top, begins[result] + self.graph.types[result].nbytes)
            most = max(most, tops[result] - begins[result])
        return most

    def heightened(self, cascades: Sequence[Cascade], most: int) -> list[Cascade]:
        """Return the cascades with stripes as high as `most` bytes of memory allow."""
        found = list(cascades)
        for k, cascade in enumerate(found):
            for height in HEIGHTS:
                if height >= cascade.stages[-1].ends[-1]:
                    continue
                others = [*found[:k], make_cascade(cascade.stages, height, 1), *found[k + 1 :]]
                if self.most(others).bytes <= most:
                    found = others
                    break
        return found

    @cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return tuple(n for n in self.graph.nodes if n.outputs and not isinstance(n.op, Reshape))

    def _base(self, value: str) -> str:
        """Return the value that one is a reshape of, or that itself."""
        return self._bases.get(value, value)

    @cached_property
    def _bases(self) -> dict[str, str]:
        """The values that others are reshapes of."""
        bases: dict[str, str] = {}
        for node in self.graph.nodes:
            if isinstance(node.op, Reshape):
                bases[node.outputs[0]] = bases.get(node.inputs[0], node.inputs[0])
        return bases

    @cached_property
    def _outside(self) -> dict[str, int]:
        """Inputs that the arena holds, from the first step on."""
        return dict.fromkeys(self.graph.inputs, 0) if self.io else {}

    @cached_property
    def _scratch(self) -> list[int]:
        found = []
        for node in self._nodes:
            choice = self.selection.get(node.outputs[0])
            if choice is None:
                found.append(0)
                continue
            kernel, params = choice.candidate.kernel, choice.candidate.params
            found.append(kernel.scratch(choice.workload, params, self.target))
        return found

    def _counts(self, value: str) -> bool:
        """Return whether the arena holds a value that is computed here."""
        bases = (self._base(o) for o in self.graph.outputs)
        return self.io or value not in bases

    def _overwritten(self, lives: dict[str, list[int]], inner: set[str]) -> set[str]:
        """Return the values whose memory a result takes over at their last reader."""
        found: set[str] = set()
        for k, node in enumerate(self._nodes):
            choice, result = self.selection.get(node.outputs[0]), node.outputs[0]
            if choice is None or result in inner or result not in lives:
                continue
            for index in choice.candidate.kernel.in_place(choice.workload):
                base = self._base(node.inputs[index])
                same = base in lives and self.graph.types[base].nbytes
                if same == self.graph.types[result].nbytes and lives[base][1] == k:
                    found.add(base)
                    break
        return found


def _disjoint(cascade: Cascade, segment: Sequence[CascadeStage]) -> bool:
    own = {stage.node.outputs[0] for stage in cascade.stages}
    return own.isdisjoint(stage.node.outputs[0] for stage in segment)
