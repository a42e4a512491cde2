"""Ops on a range of an axis: by these threads share calls, cut when compiling or in a run.

A cut is the same op on fewer iterations of an axis of its result, so that a kernel writes a range
of memory, or rows of one, and computes every result in the same order of operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TypeVar

from atc.backends.kernel import Workload
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
from atc.ir.ops.sampling import Resample
from atc.ir.view import View

_Nest = TypeVar("_Nest", bound=Map | Reduce)


@dataclass(frozen=True)
class Range:
    """Elements of a tensor from `begin` on, as a dense tensor of their own."""

    begin: int
    type: TensorType


@dataclass(frozen=True)
class Cut:
    """A part of a call: its op and the ranges of its operands; others are whole."""

    op: Op
    operands: Mapping[int, Range]
    result: Range

    def workload(self, w: Workload) -> Workload:
        """Return the workload of the part."""
        inputs = tuple(
            self.operands[k].type if k in self.operands else t for k, t in enumerate(w.inputs)
        )
        return replace(w, op=self.op, inputs=inputs, outputs=(self.result.type,))

    def begins(self, w: Workload) -> tuple[int, ...]:
        """Return the element at which the part begins to read each operand."""
        views = views_of(self.op, len(w.inputs))
        return tuple(
            self.operands[k].begin if k in self.operands else view.offset if view else 0
            for k, view in enumerate(views)
        )


def axes_of(w: Workload) -> Sequence[int]:
    """Return the extents of the axes along which a call can be cut; none where there are none."""
    op = w.op
    match op:
        case Map() | Reduce():
            return op.shape
        case MatMul():
            return op.loops
        case Attention():
            return op.loops[:-1]
        case MatMulPacked():
            return (op.m, op.n)
        case Softmax():
            return (op.outer,)
        case Normalize():
            return op.outer
        case Conv() | ConvBlocked():
            return w.outputs[0].shape[: op.window.rank + 2]
        case Pool() | Block() | Unblock():
            return w.outputs[0].shape[:2]
        case Resample():
            return (op.outer, op.out)
    return ()


def cut(w: Workload, axis: int, begin: int, extent: int) -> Cut | None:
    """Return a call on a range of one of `axes_of`, those before which are 1; None if it can't."""
    op = w.op
    match op:
        case Map():
            return Cut(_nest(op, axis, begin, extent), {}, _filled(w, axis, begin, extent))
        case Reduce():
            own = replace(
                _nest(op, axis, begin, extent), epilogue=_epilogue(op.epilogue, axis, begin)
            )
            return Cut(own, {}, _filled(w, axis, begin, extent))
        case MatMul():
            return _matmul(op, w, axis, begin, extent)
        case MatMulPacked():
            return _matmul_packed(op, w, axis, begin, extent)
        case Softmax():
            epilogue = _epilogue(op.epilogue, axis, begin)
            result = _filled(w, axis, begin, extent, op.axis * op.inner)
            return _each_alike(replace(op, outer=extent, epilogue=epilogue), w, result)
        case Normalize():
            outer, epilogue = _shorter(op.outer, axis, extent), _epilogue(op.epilogue, axis, begin)
            result = _filled(w, axis, begin, extent, prod(op.axis) * prod(op.inner))
            return _each_alike(replace(op, outer=outer, epilogue=epilogue), w, result)
        case Conv() | ConvBlocked():
            return _conv(op, w, axis, begin, extent)
        case Pool() | Block() | Unblock():
            if axis == 1 and not isinstance(op, Pool):
                return None
            x, y = (_along(t, axis, begin, extent) for t in (w.input(0), w.outputs[0]))
            return Cut(op, {0: x}, y)
        case Attention():
            return _attention(op, w, axis, begin, extent)
        case Resample():
            return _resample(op, w, axis, begin, extent)
    return None


def views_of(op: Op, count: int) -> tuple[View | None, ...]:
    """Return the view through which each operand is read; None where all of it is."""
    match op:
        case Map():
            return op.views
        case Reduce():
            return (*op.views, *op.epilogue.views)
        case MatMul():
            return (op.a_view, op.b_view, *op.epilogue.views)
        case Attention():
            return (op.q_view, op.k_view, op.v_view, *op.scores.views, *op.result.views)
        case Conv() | ConvBlocked() | MatMulPacked() | Normalize() | Softmax():
            return (*[None] * (count - len(op.epilogue.views)), *op.epilogue.views)
    return (None,) * count


def _moved(view: View, axis: int, begin: int) -> View:
    return replace(view, offset=view.offset + begin * view.strides[axis])


def _epilogue(epilogue: Epilogue, axis: int, begin: int) -> Epilogue:
    return replace(epilogue, views=tuple(_moved(v, axis, begin) for v in epilogue.views))


def _shorter(shape: Sequence[int], axis: int, extent: int) -> tuple[int, ...]:
    return (*shape[:axis], extent, *shape[axis + 1 :])


def _flat(type_: TensorType, begin: int, size: int) -> Range:
    """Return a range as a tensor with one axis."""
    return Range(begin, TensorType(type_.dtype, (size,)))


def _filled(w: Workload, axis: int, begin: int, extent: int, each: int = 1) -> Range:
    """Return the range of a result that is filled, `each` elements at a time, axis by axis."""
    row = prod(axes_of(w)[axis + 1 :]) * each
    return _flat(w.outputs[0], begin * row, extent * row)


def _along(type_: TensorType, axis: int, begin: int, extent: int) -> Range:
    """Return the slice of a range of an axis; those before it have extent 1."""
    row = prod(type_.shape[axis + 1 :])
    return Range(begin * row, replace(type_, shape=_shorter(type_.shape, axis, extent)))


def _each_alike(op: Op, w: Workload, result: Range) -> Cut:
    """Return the cut of an op that reads of its first operand what lies where its result goes."""
    return Cut(op, {0: _flat(w.input(0), result.begin, result.type.size)}, result)


def _nest(op: _Nest, axis: int, begin: int, extent: int) -> _Nest:
    """Return a loop nest over a range of one axis of its result."""
    views, coordinates = (
        tuple(_moved(v, axis, begin) for v in every) for every in (op.views, op.coordinates)
    )
    shape = _shorter(op.shape, axis, extent)
    return replace(op, shape=shape, views=views, coordinates=coordinates)


def _matmul(op: MatMul, w: Workload, axis: int, begin: int, extent: int) -> Cut:
    rows, columns = len(op.batch), len(op.batch) + 1
    own = replace(op, epilogue=_epilogue(op.epilogue, axis, begin))
    if axis != columns:
        own = replace(own, a_view=_moved(op.a_view, axis, begin))
    if axis != rows:
        own = replace(own, b_view=_moved(op.b_view, axis, begin))
    if axis == columns:
        own = replace(own, n=extent)
    elif axis == rows:
        own = replace(own, m=extent)
    else:
        own = replace(own, batch=_shorter(op.batch, axis, extent))
    return Cut(own, {}, _filled(w, axis, begin, extent))


def _matmul_packed(op: MatMulPacked, w: Workload, axis: int, begin: int, extent: int) -> Cut:
    """Cut the rows of x, or the columns with their weights."""
    epilogue, result = _epilogue(op.epilogue, axis, begin), _filled(w, axis, begin, extent)
    if axis == 0:
        x = _flat(w.input(0), begin * op.k, extent * op.k)
        return Cut(replace(op, m=extent, epilogue=epilogue), {0: x}, result)
    parts = {
        k: _along(TensorType(t.dtype, (op.n, t.size // op.n)), 0, begin, extent)
        for k, t in enumerate(w.inputs[1:4], 1)
        if t is not None
    }
    return Cut(replace(op, n=extent, epilogue=epilogue), parts, result)


def _conv(op: Conv | ConvBlocked, w: Workload, axis: int, begin: int, extent: int) -> Cut | None:
    """Cut the images, the filters (groups with their channels) or the rows."""
    x, weights, y = w.input(0), w.input(1), w.outputs[0]
    result = _along(y, axis, begin, extent)
    own: Conv | ConvBlocked = replace(op, epilogue=_epilogue(op.epilogue, axis, begin))
    if axis == 0:
        return Cut(own, {0: _along(x, 0, begin, extent)}, result)
    if axis > 1:
        pads = list(op.window.pads)
        pads[axis - 2] -= begin * op.window.strides[axis - 2]
        return Cut(replace(own, window=replace(op.window, pads=tuple(pads))), {}, result)
    if isinstance(op, Conv) and op.zero_points:
        return None
    block = y.shape[-1] if isinstance(op, ConvBlocked) else 1
    first, end = begin * block, min((begin + extent) * block, weights.shape[0])
    operands = {1: _along(weights, 0, first, end - first)}
    if op.group > 1:
        plain = isinstance(op, ConvBlocked) and len(x.shape) == op.plain
        if plain or op.group != weights.shape[0] or weights.shape[1] != 1:
            return None
        operands[0] = _along(x, 1, begin, extent)
        own = replace(own, group=end - first)
    return Cut(own, operands, result)


def _attention(op: Attention, w: Workload, axis: int, begin: int, extent: int) -> Cut:
    """Cut a batch, heads among them, or queries."""
    row = op.y_view.strides[axis]
    own = replace(
        op, q_view=_moved(op.q_view, axis, begin), scores=_epilogue(op.scores, axis, begin),
        result=_epilogue(op.result, axis, begin),
    )  # fmt: skip
    if axis == len(op.batch):
        own = replace(own, queries=extent)
    else:
        own = replace(
            own, batch=_shorter(op.batch, axis, extent),
            k_view=_moved(op.k_view, axis, begin), v_view=_moved(op.v_view, axis, begin),
        )  # fmt: skip
    return Cut(own, {}, _flat(w.outputs[0], begin * row, extent * row))


def _resample(op: Resample, w: Workload, axis: int, begin: int, extent: int) -> Cut:
    """Cut what lies outside of the axis, or the rows of the tables."""
    result = _filled(w, axis, begin, extent, op.inner)
    if axis == 0:
        image = op.size * op.inner
        x = _flat(w.input(0), begin * image, extent * image)
        return Cut(replace(op, outer=extent), {0: x}, result)
    rows = {
        k: Range(begin * op.taps, replace(w.input(k), shape=(extent, op.taps))) for k in (1, 2)
    }
    return Cut(replace(op, out=extent), rows, result)
