"""Cascades of calls: each computes a stripe of rows, which the next one reads while it is hot.

Nodes, each the only reader of the one before, compute a stripe of rows one after the other, so that
large results in the middle pass through a few rows of memory that stay in the second-level cache.
Every number is computed as before, by the same kernels in the same order of operations.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from atc.backends.kernel import Candidate, Stripable, StripedParams
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Graph, Node, TensorType
from atc.ir.ops import Block, Conv, ConvBlocked, Pool
from atc.select.select import Choice, Selection

CALM = 3 / 4
"""Part of the second-level cache's size that a result costs next to nothing to write and read."""
RESIDENT = 5 / 8
"""Part of it that a cascade's rows and weights may take."""
STREAM = 5 / 3
"""Bytes that go to and from the third-level cache while it delivers one to a tile."""
COPY = 1 / 2
"""Part of the second-level cache's rate at which rows are moved within it."""
STRIPE = 150.0
"""Cycles that a call loses in each of its stripes."""
PRICE = 0.05
"""Cycles that a byte of a cascade's rows must save: less memory is worth a little time."""
LONGEST = 8
"""Nodes of a cascade."""
HEIGHTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32, 40, 56)
"""Rows of a cascade's result in a stripe."""


@dataclass(frozen=True)
class Stripe:
    """Rows [begin, end) that a call computes; the first ones that memory holds of x and y."""

    begin: int
    end: int
    x_first: int
    y_first: int


@dataclass(frozen=True)
class CascadeStage:
    """A node of a cascade with its kernel, and the window through which it reads its operand."""

    node: Node
    choice: Choice
    params: StripedParams
    ends: tuple[int, ...]
    """The rows at which its stripes may end."""
    rows: int
    """The rows of its operand."""
    kernel: int
    stride: int
    pad: int

    @property
    def candidate(self) -> Candidate:
        """The kernel with the parameters of stripes."""
        return Candidate(self.choice.candidate.kernel, self.params)

    @property
    def result(self) -> TensorType:
        """The whole result."""
        return self.choice.workload.outputs[0]

    def scratch(self, target: Target) -> int:
        """Return the bytes of scratch that its kernel needs."""
        return self.candidate.kernel.scratch(self.choice.workload, self.params, target)

    def first(self, row: int) -> int:
        """Return the first row of the operand that is read for a row and those after it."""
        return min(max(row * self.stride - self.pad, 0), self.rows)

    def last(self, end: int) -> int:
        """Return the end of the rows of the operand that are read for rows before `end`."""
        return min(max((end - 1) * self.stride + self.kernel - self.pad, 0), self.rows)

    def held(self, x_rows: int, y_rows: int) -> Candidate:
        """Return the candidate for memory that holds so many rows; 0: all."""
        params = replace(self.params, x_rows=x_rows, y_rows=y_rows)
        return Candidate(self.candidate.kernel, params)


@dataclass(frozen=True)
class Cascade:
    """Nodes computed stripe by stripe; `parts` are for threads, [part][stripe][stage]."""

    stages: tuple[CascadeStage, ...]
    parts: tuple[tuple[tuple[Stripe, ...], ...], ...]

    @property
    def buffer_rows(self) -> tuple[int, ...]:
        """The rows in the rolling buffer of each result but the last."""
        stripes = [t for part in self.parts for t in part]
        return tuple(
            max(t[k].end - t[k].y_first for t in stripes) for k in range(len(self.stages) - 1)
        )

    @cached_property
    def lead(self) -> int | None:
        """Bytes that the result has to begin before the operand so that it may overwrite it.

        Then rows are only written where no row is that is still read; None: for no such distance.
        """
        if len(self.parts) > 1:
            return None
        operand = self.stages[0].choice.workload.inputs[0]
        assert operand is not None
        result = self.stages[-1].result
        row, line = _row_bytes(operand), _row_bytes(result)
        before_last = result.nbytes - result.shape[2] * line  # in planes before the last
        begins = [self.stages[0].first(stripe[0].begin) * row for stripe in self.parts[0]]
        if len(self.stages) > 1:  # the last call of a stripe writes after the first has read
            begins = [*begins[1:], operand.nbytes + result.nbytes]
        ends = [before_last + stripe[-1].end * line for stripe in self.parts[0]]
        lead = max(0, *(end - begin for begin, end in zip(begins, ends, strict=True)))
        return lead if lead < result.nbytes else None

    def candidates(self) -> Iterator[Candidate]:
        """Yield each stage's kernel for the memory that it reads and writes.

        It doesn't depend on how many rows of a single plane that holds: kernels for these are the
        same wherever they stand in a cascade.
        """
        rows = (0, *self.buffer_rows, 0)
        for stage, held in zip(self.stages, pairwise(rows), strict=True):
            types = (stage.choice.workload.inputs[0], stage.result)
            if all(t is not None and prod(t.shape[:2]) == 1 for t in types):
                held = (stage.rows, stage.result.shape[2])
            yield stage.held(*held)

    def buffer_types(self) -> Iterator[TensorType]:
        """Yield the types of the rolling buffers."""
        for stage, rows in zip(self.stages, self.buffer_rows, strict=False):
            shape = stage.result.shape
            yield TensorType(stage.result.dtype, (*shape[:2], rows, *shape[3:]))


def _row_bytes(type_: TensorType) -> int:
    """Return the bytes of a row in one plane."""
    return type_.nbytes // prod(type_.shape[:3])


def find_cascades(
    graph: Graph, selection: Selection, target: Target, threads: int
) -> list[Cascade]:
    """Return the cascades of a graph that are estimated to save time."""
    found: list[Cascade] = []
    for path in find_paths(graph, selection, target, alone=threads > 1):
        found += _best_cascades(path, target, threads)
    return found


def find_paths(
    graph: Graph, selection: Selection, target: Target, *, alone: bool = False, least: int = 2
) -> Iterator[list[CascadeStage]]:
    """Yield the longest paths of at least so many stages, each the only reader of the one before.

    With `alone` they are of kernels without scratch, of which several threads would need several.
    """
    counts = graph.uses()
    stages = {
        n.outputs[0]: stage for n in graph.nodes
        if (stage := _stage(n, selection, target)) and not (alone and stage.scratch(target))
    }  # fmt: skip
    ends = {v: [stage] for v, stage in stages.items()}
    for value, stage in stages.items():  # in order: the path to an operand is known
        source = stage.node.inputs[0]
        if source in ends and counts[source] == 1:
            ends[value] = ends.pop(source)
            ends[value].append(stage)
    yield from (path for path in ends.values() if len(path) >= least)


def _stage(node: Node, selection: Selection, target: Target) -> CascadeStage | None:
    """Return a node as a stage, None where its kernel computes no stripes."""
    choice = selection.get(node.outputs[0]) if node.outputs else None
    if choice is None or not isinstance(node.op, Conv | ConvBlocked | Pool | Block):
        return None
    if len(node.outputs) != 1:
        return None
    w, chosen = choice.workload, choice.candidate
    x = w.inputs[0]
    if is_dynamic(w) or x is None:
        return None
    if not isinstance(chosen.kernel, Stripable):
        return None
    params = chosen.kernel.striped_params(w, chosen.params, target, 1, 1)
    if params is None:
        return None
    ends = tuple(chosen.kernel.stripe_ends(w, params, target))
    if isinstance(node.op, Block):
        return CascadeStage(node, choice, params, ends, x.shape[2], 1, 1, 0)
    window = node.op.window
    reach = (window.kernel[0] - 1) * window.dilations[0] + 1
    return CascadeStage(
        node, choice, params, ends, x.shape[2], reach, window.strides[0], window.pads[0]
    )


def _best_cascades(path: Sequence[CascadeStage], target: Target, threads: int) -> list[Cascade]:
    """Return the cascades that a path is cut into for the largest estimated gain."""
    gains = [0.0]
    last: list[tuple[int, Cascade | None]] = [(0, None)]
    for end in range(1, len(path) + 1):
        best = gains[end - 1]
        chosen: tuple[int, Cascade | None] = (end - 1, None)
        for begin in range(max(0, end - LONGEST), end - 1):
            gain, cascade = _best_height(path[begin:end], target, threads)
            if cascade is not None and gains[begin] + gain > best:
                best, chosen = gains[begin] + gain, (begin, cascade)
        gains.append(best)
        last.append(chosen)
    found: list[Cascade] = []
    end = len(path)
    while end:
        end, cascade = last[end]
        found += [_lowered(cascade, target, threads)] if cascade is not None else []
    return found[::-1]


def _best_height(
    stages: Sequence[CascadeStage], target: Target, threads: int
) -> tuple[float, Cascade | None]:
    """Return the largest gain of all heights of stripes in cycles, and its cascade if any."""
    best: tuple[float, Cascade | None] = (0.0, None)
    saved = _saved(stages, target)
    for height in HEIGHTS:
        if saved <= best[0] or height >= stages[-1].ends[-1]:
            break
        cascade = make_cascade(stages, height, threads)
        gain = saved - _spent(cascade, target)
        if gain > best[0]:
            best = gain, cascade
    return best


def _lowered(cascade: Cascade, target: Target, threads: int) -> Cascade:
    """Return a cascade in lower stripes where the memory that its rows spare is worth the time."""
    stages = cascade.stages

    def cost(each: Cascade) -> float:
        return _spent(each, target) + PRICE * sum(t.nbytes for t in each.buffer_types())

    heights = [h for h in HEIGHTS if h < stages[-1].ends[-1]]
    return min([cascade, *(make_cascade(stages, h, threads) for h in heights)], key=cost)


def _cycles(stage: CascadeStage, target: Target) -> float:
    """Return the cycles of a stage's kernel, in stripes."""
    return stage.candidate.kernel.cost(stage.choice.workload, stage.params, target)


def _saved(stages: Sequence[CascadeStage], target: Target) -> float:
    """Return the cycles that results in the middle cost beyond the cache, less what tiles lose."""
    machine = target.machine
    far = (max(0.0, k.result.nbytes - CALM * machine.l2.size) for k in stages[:-1])
    streams = 2 * sum(far) / (STREAM * machine.far_rate)
    lost = 0.0
    for stage in stages:
        w, chosen = stage.choice.workload, stage.choice.candidate
        lost += max(0.0, _cycles(stage, target) - chosen.kernel.cost(w, chosen.params, target))
    return streams - lost


def _spent(cascade: Cascade, target: Target) -> float:
    """Return the cycles that stripes cost; infinite where they keep too much in the cache."""
    buffer_rows = list(cascade.buffer_types())
    weights = sum(
        t.nbytes for stage in cascade.stages for t in stage.choice.workload.inputs[1:2] if t
    )
    if sum(t.nbytes for t in buffer_rows) + weights > RESIDENT * target.machine.l2.size:
        return float("inf")
    stripes = [t for part in cascade.parts for t in part]
    moved = sum(
        (stripe.begin - stripe.y_first) * buffer.nbytes / buffer.shape[2]
        for each in stripes
        for stripe, buffer in zip(each, buffer_rows, strict=False)
    )
    return moved / (COPY * target.machine.l2.rate) + STRIPE * len(stripes) * len(cascade.stages)


def make_cascade(stages: Sequence[CascadeStage], height: int, threads: int) -> Cascade:
    """Return a cascade whose result is computed by so many rows at a time, in a part per thread."""
    ends = stages[-1].ends
    marks = [*range(height, ends[-1], height), ends[-1]]
    stops = sorted({ends[bisect_left(ends, m)] for m in marks})
    count = min(threads, len(stops))
    cuts = [len(stops) * k // count for k in range(count + 1)]
    return Cascade(
        tuple(stages),
        tuple(
            tuple(_stripes(stages, stops[a - 1] if a else 0, stops[a:b])) for a, b in pairwise(cuts)
        ),
    )


def _stripes(
    stages: Sequence[CascadeStage], begin: int, stops: Sequence[int]
) -> Iterator[tuple[Stripe, ...]]:
    """Yield who computes which rows, for a result from `begin` on by rows up to each of `stops`."""
    pairs = list(pairwise(stages))
    begins = [begin]
    for before, stage in reversed(pairs):
        at = bisect_right(before.ends, stage.first(begins[0]))
        begins.insert(0, before.ends[at - 1] if at else 0)
    for stop in stops:
        ends = [stop]
        for before, stage in reversed(pairs):
            need = stage.last(ends[0])
            ends.insert(0, before.ends[bisect_left(before.ends, need)] if need else 0)
        ends = [max(own) for own in zip(begins, ends, strict=True)]
        firsts = [
            min(at, stage.first(own))
            for (at, own), (_, stage) in zip(pairwise(begins), pairs, strict=True)
        ]
        rows = zip(begins, ends, (0, *firsts), (*firsts, 0), strict=True)
        yield tuple(Stripe(*numbers) for numbers in rows)
        begins = ends
