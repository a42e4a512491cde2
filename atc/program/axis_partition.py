"""Partition an axis of a call among threads when the network runs, by the extents that it then has.

A piece is the same kernel on fewer iterations of the outermost axis; it finds its operands, and
where its results go, so many elements further on. One C function does for all pieces, which is why
the axis' extent may be known only at run time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

from atc.backends.kernel import Candidate, Workload
from atc.backends.target import Target
from atc.dims import Symbol, Undecided, dim, most
from atc.ir.graph import Op, TensorType
from atc.ir.ops import (
    Attention,
    Conv,
    ConvBlocked,
    Map,
    MatMul,
    Normalize,
    Pool,
    Reduce,
    Softmax,
)
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.program.partition import LINE, cut_axis

OWN = "own"
"""The iterations of a piece, in C."""


@dataclass(frozen=True)
class AxisPartition:
    """Pieces, at most so many, of `extent` iterations of an axis, in multiples of `unit`.

    `workload` is that of a piece. `steps` are the elements from an iteration to the next of each
    operand that is there, and of the result.
    """

    workload: Workload
    extent: int
    pieces: int
    unit: int
    steps: tuple[int, ...]


@dataclass(frozen=True)
class _Own(Symbol):
    """The extent of a piece, which its task computes."""

    @cached_property
    def text(self) -> str:
        return OWN


@dataclass(frozen=True)
class _Cut:
    """An op on `own` iterations of an axis, with the steps of all operands and of the result.

    `inputs` and `outputs` are the types of a piece's.
    """

    op: Op
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    steps: tuple[int, ...]
    step: int


def axis_partition(
    w: Workload, candidate: Candidate, target: Target, threads: int
) -> AxisPartition | None:
    """Return how threads share the outermost axis of a call; None where they can't.

    Results are the same bits for any number of threads.
    """
    kernel = candidate.kernel
    if threads < 2 or len(w.outputs) != 1 or w.op.written or kernel.fallible:
        return None
    loops = _loops(w)
    axis = next((d for d, n in enumerate(loops) if n != 1), None)
    if axis is None or loops[axis] == 0:
        return None
    own = dim(_Own(-1, OWN, 1, most(loops[axis])))
    try:
        cut = _cut(w, candidate, axis, own)
        if cut is None:
            return None
        piece = replace(w, op=cut.op, inputs=cut.inputs, outputs=cut.outputs)
        if not (kernel.supports_extents(piece) and kernel.accepts(piece, target)):
            return None
        packed = kernel.packs(piece, candidate.params, target)
    except Undecided:
        return None
    if any(cut.steps[k] != 0 for k in packed):
        return None  # what lies elsewhere than in the model
    present = (s for s, t in zip(cut.steps, cut.inputs, strict=True) if t is not None)
    single = cut.step == 1  # no two threads write to one line of the cache
    return AxisPartition(piece, loops[axis], threads, LINE if single else 1, (*present, cut.step))


def _loops(w: Workload) -> Sequence[int]:
    """Return the loops of which the outermost may be cut; none where there are none."""
    match w.op:
        case Map(shape=shape) | Reduce(shape=shape):
            return shape
        case MatMul() | Attention():
            return w.op.loops[:-1]
        case MatMulPacked():
            return (w.op.m,)
        case Softmax():
            return (w.op.outer,)
        case Normalize():
            return w.op.outer
        case Conv() | ConvBlocked() | Pool():
            return w.outputs[0].shape[:1]
    return ()


def _cut(w: Workload, candidate: Candidate, axis: int, own: int) -> _Cut | None:
    """Return an op on `own` iterations of an axis, those before which are 1."""
    op, y = w.op, w.outputs[0]
    match op:
        case Map() | Reduce():
            return _nest(op, w, axis, own)
        case MatMul():
            return _matmul(op, w, candidate, axis, own)
        case Attention():
            return _attention(op, w, axis, own)
        case MatMulPacked():
            if not _alike(candidate):
                return None
            steps = (op.k, 0, 0, 0, *_steps(op.epilogue.views, 0))
            rows = (_flat(w.input(0), own * op.k), *w.inputs[1:])
            return _Cut(replace(op, m=own), rows, (_flat(y, own * op.n),), steps, op.n)
        case Softmax():
            each = op.axis * op.inner
            return _along(w, replace(op, outer=own), each, each * own, op.epilogue.views, 0)
        case Normalize():
            outer = (*op.outer[:axis], own, *op.outer[axis + 1 :])
            each = prod((*op.outer[axis + 1 :], *op.axis, *op.inner))
            return _along(w, replace(op, outer=outer), each, each * own, op.epilogue.views, axis)
        case Conv() | ConvBlocked():
            if len(w.inputs) != 2 + len(op.epilogue.views):
                return None
            x = w.input(0)
            steps = (prod(x.shape[1:]), 0, *_steps(op.epilogue.views, 0))
            images = (_images(x, own), *w.inputs[1:])
            return _Cut(op, images, (_images(y, own),), steps, prod(y.shape[1:]))
        case Pool():
            if len(w.inputs) != 1:
                return None
            x = w.input(0)
            steps = (prod(x.shape[1:]),)
            return _Cut(op, (_images(x, own),), (_images(y, own),), steps, prod(y.shape[1:]))
    return None


def _nest(op: Map | Reduce, w: Workload, axis: int, own: int) -> _Cut | None:
    """Cut a nest of loops; a Map's operands that are read where its result goes go along."""
    if any(c.strides[axis] != 0 for c in op.coordinates):
        return None
    y, row = w.outputs[0], prod(op.shape[axis + 1 :])
    views, inputs = op.views, w.inputs
    if isinstance(op, Reduce):
        views = (*views, *op.epilogue.views)
    else:
        along = [_goes_along(v, op.shape, t, y) for v, t in zip(views, inputs, strict=True)]
        inputs = tuple(
            _flat(t, row * own) if t is not None and same else t
            for t, same in zip(inputs, along, strict=True)
        )
    part = cut_axis(op, axis, 0, own)
    return _Cut(part, inputs, (_flat(y, row * own),), _steps(views, axis), row)


def _matmul(op: MatMul, w: Workload, candidate: Candidate, axis: int, own: int) -> _Cut | None:
    """Cut a batch, or rows where their sums don't depend on how many there are."""
    rows = len(op.batch)
    if axis == rows and not _alike(candidate):
        return None
    row = prod(op.loops[axis + 1 :])
    b = 0 if axis == rows else op.b_view.strides[axis]
    steps = (op.a_view.strides[axis], b, *_steps(op.epilogue.views, axis))
    batch = (*op.batch[:axis], own, *op.batch[axis + 1 :])
    part = replace(op, m=own) if axis == rows else replace(op, batch=batch)
    return _Cut(part, w.inputs, (_flat(w.outputs[0], row * own),), steps, row)


def _attention(op: Attention, w: Workload, axis: int, own: int) -> _Cut | None:
    """Cut a batch, heads among them, or queries."""
    rows = len(op.batch)
    views = (*op.scores.views, *op.result.views)
    shown = zip(views, w.inputs[3:], strict=True)
    if any(t is None and v.strides[axis] != 0 for v, t in shown):
        return None
    k, v = (0 if axis == rows else each.strides[axis] for each in (op.k_view, op.v_view))
    steps = (op.q_view.strides[axis], k, v, *_steps(views, axis))
    batch = (*op.batch[:axis], own, *op.batch[axis + 1 :])
    part = replace(op, queries=own) if axis == rows else replace(op, batch=batch)
    return _Cut(part, w.inputs, w.outputs, steps, op.y_view.strides[axis])


def _along(w: Workload, op: Op, each: int, size: int, views: Sequence[View], axis: int) -> _Cut:
    """Return the cut of an op that reads its first operand where its results go."""
    inputs = (_flat(w.input(0), size), *w.inputs[1:])
    steps = (each, *_steps(views, axis))
    return _Cut(op, inputs, (_flat(w.outputs[0], size),), steps, each)


def _alike(candidate: Candidate) -> bool:
    """Return whether a row's results don't depend on how many rows there are."""
    return candidate.kernel.portable or candidate.kernel.bitwise_reproducible


def _steps(views: Sequence[View], axis: int) -> tuple[int, ...]:
    return tuple(v.strides[axis] for v in views)


def _goes_along(view: View, shape: Sequence[int], type_: TensorType | None, y: TensorType) -> bool:
    """Return whether an operand is read where the result goes."""
    if type_ is None:
        return False
    return type_.size == y.size and view.offset == 0 and view.is_dense(shape)


def _flat(type_: TensorType, size: int) -> TensorType:
    return TensorType(type_.dtype, (size,))


def _images(type_: TensorType, own: int) -> TensorType:
    return replace(type_, shape=(own, *type_.shape[1:]))
