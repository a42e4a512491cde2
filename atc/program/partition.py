"""Partition a kernel call into pieces of equal work that threads may run at the same time.

A piece is the same kernel with the same parameters on a shorter outermost axis of the result, so
that it writes a contiguous range of memory, and every result is computed in the same order of
operations whatever the number of pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from atc.backends.flops import operations, traffic
from atc.backends.kernel import Candidate, Splittable, Workload
from atc.backends.target import Target
from atc.dims import Dim, concrete, is_dynamic
from atc.ir.graph import Op, TensorType
from atc.ir.ops import (
    Attention,
    Block,
    Conv,
    ConvBlocked,
    Epilogue,
    Map,
    MatMul,
    Normalize,
    Pool,
    Reduce,
    Softmax,
    Unblock,
)
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View

LINE = 64
"""Elements that are never separated: at least a cache line."""
WORTH = 12000
"""Cycles of a call below which another thread costs more than it saves."""
WORTH_PHASE = 1500
"""The same for a phase of a call: its threads, which wait for each other, are awake already."""
BYTES_PER_CYCLE = 16
"""The bandwidth of a call that only moves data."""


_Nest = TypeVar("_Nest", bound=Map | Reduce)


@dataclass(frozen=True)
class Worth:
    """The calls worth more than one thread: long ones, or with `always` all of them.

    Calls that only copy are worth it from `copies` elements on, if that is given.
    """

    always: bool = False
    copies: int | None = None


ESTIMATED = Worth()


@dataclass(frozen=True)
class Range:
    """Elements of a tensor from `begin` on, as a dense tensor of their own."""

    begin: int
    type: TensorType


@dataclass(frozen=True)
class Slice:
    """A part of a call: its workload and the ranges of its operands, None for a whole operand."""

    op: Op
    operands: Mapping[int, Range]
    result: Range
    candidate: Candidate

    def workload(self, w: Workload) -> Workload:
        """Return the workload of the piece."""
        inputs = tuple(
            self.operands[k].type if k in self.operands else t for k, t in enumerate(w.inputs)
        )
        return replace(w, op=self.op, inputs=inputs, outputs=(self.result.type,))


def pieces(
    w: Workload, candidate: Candidate, target: Target, threads: int, worth: Worth = ESTIMATED
) -> tuple[Slice, ...]:
    """Return the pieces for so many threads; none if the call is short or can't be partitioned.

    Where the run decides extents, these are filters of a convolution: `axis_partition` cuts others.
    """
    cut = _CUTS.get(type(w.op))
    if is_dynamic(w) and cut is not _conv:
        return ()
    if threads < 2 or cut is None or len(w.outputs) != 1 or not is_long(w, target, worth):
        return ()
    found = cut(w, candidate, threads)
    if len(found) < 2 or not all(candidate.kernel.accepts(p.workload(w), target) for p in found):
        return ()
    return tuple(_fitted(p, w, target) for p in found)


def shared(
    w: Workload, candidate: Candidate, target: Target, threads: int, worth: Worth = ESTIMATED
) -> Candidate:
    """Return a candidate whose call threads share, if it is long and its kernel supports that."""
    if threads < 2 or not is_long(w, target, worth):
        return candidate
    kernel = candidate.kernel
    if not isinstance(kernel, Splittable):
        return candidate
    largest = concrete(w)
    for params in kernel.cuts(w, candidate.params, target, threads):
        work_split = kernel.work_split(largest, params, target)
        least = 0 if worth.always or work_split.phases == 1 else work_split.phases * WORTH_PHASE
        if work_split.pieces > 1 and cycles(largest, target) > least:
            return replace(candidate, params=params)
    return candidate


def _fitted(piece: Slice, w: Workload, target: Target) -> Slice:
    """Return a piece with parameters of its own, if that doesn't change results."""
    kernel, own = piece.candidate.kernel, piece.workload(w)
    if not kernel.bitwise_reproducible:
        return piece
    sets = kernel.parameters(own, target)
    if piece.candidate.params in sets:
        return piece
    return replace(piece, candidate=Candidate(kernel, sets[0]))


def is_long(w: Workload, target: Target, worth: Worth = ESTIMATED) -> bool:
    """Return whether a call, of its largest shapes, is long enough for another thread to save more
    than it costs."""
    return gain(concrete(w), target, worth) > 0


def gain(w: Workload, target: Target, worth: Worth = ESTIMATED) -> int:
    """Return an extent that is above 0 where a call is long enough for several threads."""
    if worth.copies is not None and is_copy(w):
        return w.outputs[0].size - worth.copies + 1
    if worth.always:
        return 1
    return _work(w, target) - WORTH * _units(target)


def is_copy(w: Workload) -> bool:
    """Return whether a call only moves elements."""
    return isinstance(w.op, Block | Unblock) or (isinstance(w.op, Map) and w.op.is_movement)


def cycles(w: Workload, target: Target) -> float:
    """Return an estimate of a call's cycles."""
    return _work(w, target) / _units(target)


def _work(w: Workload, target: Target) -> int:
    """Return a call's cycles in parts, of which `_units` are a cycle: an extent, if w has some."""
    return operations(w) * BYTES_PER_CYCLE + traffic(w) * _at_once(target)


def _units(target: Target) -> int:
    return _at_once(target) * BYTES_PER_CYCLE


def _at_once(target: Target) -> int:
    """Return the operations of a cycle."""
    return 4 * max(target.vector_bytes // 4, 1)


def _ranges(extent: int, threads: int, step: int = 1) -> list[tuple[int, int]]:
    """Return the begin and end of parts of about equal size that begin at multiples of `step`."""
    units = -(-extent // step)
    count = min(threads, units)
    ends = [min((k + 1) * units // count * step, extent) for k in range(count)]
    return list(zip([0, *ends], ends, strict=False))


def _outermost(shape: Sequence[int]) -> int | None:
    """Return the outermost axis, if it can be partitioned when compiling."""
    axis = next((d for d, n in enumerate(shape) if n != 1), None)
    return None if axis is None or isinstance(shape[axis], Dim) or shape[axis] == 0 else axis


def _moved(view: View, axis: int, begin: int) -> View:
    return replace(view, offset=view.offset + begin * view.strides[axis])


def _epilogue(epilogue: Epilogue, axis: int, begin: int) -> Epilogue:
    return replace(epilogue, views=tuple(_moved(v, axis, begin) for v in epilogue.views))


def _shorter(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _flat(type_: TensorType, begin: int, size: int) -> Range:
    """Return a range as a tensor with one axis."""
    return Range(begin, TensorType(type_.dtype, (size,)))


def _of_loops(
    loops: Sequence[int], w: Workload, candidate: Candidate, threads: int,
    make: Callable[[int, int, int], Op], each: int = 1,
) -> tuple[Slice, ...]:  # fmt: skip
    """Cut the outermost of the loops that fill the result with `each` elements per iteration.

    `make` takes axis, begin and extent.
    """
    axis = _outermost(loops)
    if axis is None:
        return ()
    row = prod(loops[axis + 1 :]) * each
    step = LINE if row == 1 else 1  # no two threads write to one line of the cache
    return tuple(
        Slice(make(axis, b, e - b), {}, _flat(w.outputs[0], b * row, (e - b) * row), candidate)
        for b, e in _ranges(loops[axis], threads, step)
    )


def cut_axis(op: _Nest, axis: int, begin: int, extent: int) -> _Nest:
    """Return the loop nest over a range of one axis of its result."""
    views, coordinates = (
        tuple(_moved(v, axis, begin) for v in every) for every in (op.views, op.coordinates)
    )
    shape = _shorter(op.shape, axis, extent)
    return replace(op, shape=shape, views=views, coordinates=coordinates)


def _map(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    op = w.op
    assert isinstance(op, Map)

    def make(axis: int, begin: int, extent: int) -> Op:
        return cut_axis(op, axis, begin, extent)

    return _of_loops(op.shape, w, candidate, threads, make)


def _reduce(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    op = w.op
    assert isinstance(op, Reduce)

    def make(axis: int, begin: int, extent: int) -> Op:
        own = cut_axis(op, axis, begin, extent)
        return replace(own, epilogue=_epilogue(op.epilogue, axis, begin))

    return _of_loops(op.shape, w, candidate, threads, make)


def _matmul(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    op = w.op
    assert isinstance(op, MatMul)
    rows, columns = len(op.batch), len(op.batch) + 1

    def make(axis: int, begin: int, extent: int) -> Op:
        cut = replace(op, epilogue=_epilogue(op.epilogue, axis, begin))
        if axis != columns:
            cut = replace(cut, a_view=_moved(op.a_view, axis, begin))
        if axis != rows:
            cut = replace(cut, b_view=_moved(op.b_view, axis, begin))
        if axis == columns:
            return replace(cut, n=extent)
        return replace(cut, m=extent) if axis == rows else replace(
            cut, batch=_shorter(op.batch, axis, extent)
        )

    return _of_loops(op.loops, w, candidate, threads, make)


def _matmul_packed(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    """Cut the rows of x, else the columns with their weights."""
    op = w.op
    assert isinstance(op, MatMulPacked)
    if op.m > 1:

        def make(axis: int, begin: int, extent: int) -> Op:
            return replace(op, m=extent, epilogue=_epilogue(op.epilogue, axis, begin))

        cut = _of_loops((op.m,), w, candidate, threads, make, op.n)
        begins = [p.result.begin // op.n * op.k for p in cut]
        sizes = [p.result.type.size // op.n * op.k for p in cut]
        x = w.inputs[0]
        assert x is not None
        return tuple(
            replace(p, operands={0: _flat(x, b, s)})
            for p, b, s in zip(cut, begins, sizes, strict=True)
        )
    found: list[Slice] = []
    for b, e in _ranges(op.n, threads, LINE):
        parts = {k: _part(t, op.n, b, e) for k, t in enumerate(w.inputs[1:4], 1) if t is not None}
        part = replace(op, n=e - b, epilogue=_epilogue(op.epilogue, 1, b))
        found.append(Slice(part, parts, _flat(w.outputs[0], b, e - b), candidate))
    return tuple(found)


def _part(type_: TensorType, rows: int, begin: int, end: int) -> Range:
    """Return a range of the rows of equal size that a tensor consists of."""
    return _along(TensorType(type_.dtype, (rows, type_.size // rows)), 0, begin, end)


def _conv(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    """Cut the images, else the filters (groups with their channels), else the rows."""
    op, (x, weights) = w.op, w.inputs[:2]
    assert isinstance(op, Conv | ConvBlocked)
    assert x is not None
    assert weights is not None
    (y,) = w.outputs
    axis = _outermost(y.shape[: op.window.rank + 2])
    if axis is None or (axis == 1 and isinstance(op, Conv) and op.zero_points):
        return ()
    row = prod(y.shape[axis + 1 :])
    block = y.shape[-1] if isinstance(op, ConvBlocked) else 1
    found: list[Slice] = []
    for b, e in _ranges(y.shape[axis], threads):
        result = Range(b * row, replace(y, shape=_shorter(y.shape, axis, e - b)))
        cut: Conv | ConvBlocked = replace(op, epilogue=_epilogue(op.epilogue, axis, b))
        operands: dict[int, Range] = {}
        if axis == 0:
            operands[0] = _along(x, 0, b, e)
        elif axis == 1:
            filters = b * block, min(e * block, weights.shape[0])
            operands[1] = _along(weights, 0, *filters)
            if op.group > 1:
                plain = isinstance(op, ConvBlocked) and len(x.shape) == op.plain
                if plain or op.group != weights.shape[0] or weights.shape[1] != 1:
                    return ()
                operands[0] = _along(x, 1, b, e)
                cut = replace(cut, group=filters[1] - filters[0])
        else:
            if not (candidate.kernel.portable or candidate.kernel.bitwise_reproducible):
                return ()
            pads = list(op.window.pads)
            pads[axis - 2] -= b * op.window.strides[axis - 2]
            cut = replace(cut, window=replace(op.window, pads=tuple(pads)))
        found.append(Slice(cut, operands, result, candidate))
    return tuple(found)


def _along(type_: TensorType, axis: int, begin: int, end: int) -> Range:
    """Return the slice of a range of an axis; those before it have extent 1."""
    row = prod(type_.shape[axis + 1 :])
    return Range(begin * row, replace(type_, shape=_shorter(type_.shape, axis, end - begin)))


def _rows_alike(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    """Cut images or channels of an op that treats each alike."""
    x, (y,) = w.inputs[0], w.outputs
    assert x is not None
    axis = _outermost(y.shape[:2])
    if axis is None or (isinstance(w.op, Block | Unblock) and axis == 1):
        return ()
    return tuple(
        Slice(w.op, {0: _along(x, axis, b, e)}, _along(y, axis, b, e), candidate)
        for b, e in _ranges(y.shape[axis], threads)
    )


def _each_alike(w: Workload, found: Sequence[Slice]) -> tuple[Slice, ...]:
    """Let each piece read of the first operand what lies where its results go."""
    x = w.inputs[0]
    assert x is not None
    return tuple(
        replace(p, operands={0: _flat(x, p.result.begin, p.result.type.size)}) for p in found
    )


def _softmax(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    op = w.op
    assert isinstance(op, Softmax)

    def make(axis: int, begin: int, extent: int) -> Op:
        return replace(op, outer=extent, epilogue=_epilogue(op.epilogue, axis, begin))

    cut = _of_loops((op.outer,), w, candidate, threads, make, op.axis * op.inner)
    return _each_alike(w, cut)


def _normalize(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    op = w.op
    assert isinstance(op, Normalize)

    def make(axis: int, begin: int, extent: int) -> Op:
        outer = _shorter(op.outer, axis, extent)
        return replace(op, outer=outer, epilogue=_epilogue(op.epilogue, axis, begin))

    each = prod(op.axis) * prod(op.inner)
    cut = _of_loops(op.outer, w, candidate, threads, make, each)
    return _each_alike(w, cut)


def _attention(w: Workload, candidate: Candidate, threads: int) -> tuple[Slice, ...]:
    """Cut the axis that is outermost in the result: queries where heads lie side by side."""
    op, (y,) = w.op, w.outputs
    assert isinstance(op, Attention)
    rows = len(op.batch)
    whole = [
        d for d, n in enumerate(op.loops[:-1]) if n > 1 and op.y_view.strides[d] * n == y.size
    ]
    if not whole:
        return ()
    axis = whole[0]
    row = op.y_view.strides[axis]
    found: list[Slice] = []
    for b, e in _ranges(op.loops[axis], threads):
        cut = replace(
            op, q_view=_moved(op.q_view, axis, b), scores=_epilogue(op.scores, axis, b),
            result=_epilogue(op.result, axis, b),
        )  # fmt: skip
        if axis == rows:
            cut = replace(cut, queries=e - b)
        else:
            cut = replace(
                cut, batch=_shorter(op.batch, axis, e - b),
                k_view=_moved(op.k_view, axis, b), v_view=_moved(op.v_view, axis, b),
            )  # fmt: skip
        found.append(Slice(cut, {}, _flat(y, b * row, (e - b) * row), candidate))
    return tuple(found)


_CUTS: Mapping[type[Op], Callable[[Workload, Candidate, int], tuple[Slice, ...]]] = {
    Map: _map,
    Reduce: _reduce,
    MatMul: _matmul,
    MatMulPacked: _matmul_packed,
    Conv: _conv,
    ConvBlocked: _conv,
    Pool: _rows_alike,
    Block: _rows_alike,
    Unblock: _rows_alike,
    Softmax: _softmax,
    Normalize: _normalize,
    Attention: _attention,
}
