"""Lowerings of operators that read at computed places (see `atc/lower/indexed_access.py`)."""

from __future__ import annotations

from math import prod

from atc.dims import lower_bound, upper_bound
from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import (
    IndexedAccess,
    element_access,
    gather,
    gather_axis,
    index,
    index_operand,
    known_indices,
    slice_access,
    take,
    times,
    total,
    tuple_extents,
)  # fmt: skip
from atc.lower.registry import lowers


@lowers("Gather")
def lower_gather(ctx: LoweringContext) -> str:
    """ONNX Gather-13: constant even indices are a view, such as one row or every second."""
    shape = ctx.shape(0)
    ctx.require(len(shape) > 0, "the data is a scalar")
    axis = ctx.axis(ctx.int("axis", 0), len(shape))
    known = known_indices(ctx, 1, [shape[axis]])
    if known is not None:
        return take(ctx.b, ctx.input(0), axis, known)
    single = ctx.const(1)
    if single is not None and single.size == 1 and -lower_bound(shape[axis]) <= single.item() < 0:
        return _from_end(ctx, axis, int(single.item()))
    indices, _ = index_operand(ctx, 1, [shape[axis]])
    ctx.require(upper_bound(shape[axis]) > 0 or not ctx.type(1).size, f"axis {axis} is empty")
    return gather_axis(ctx.b, ctx.input(0), axis, indices, proven=False)


def _from_end(ctx: LoweringContext, axis: int, index: int) -> str:
    """Read one element of an axis of unknown extent, counted from its end."""
    shape = ctx.shape(0)
    strides = row_major(shape)
    kept = View((*strides[:axis], *strides[axis + 1 :]), (shape[axis] + index) * strides[axis])
    row = ctx.b.view(ctx.input(0), (*shape[:axis], *shape[axis + 1 :]), kept)
    return ctx.b.reshape(row, (*shape[:axis], *ctx.shape(1), *shape[axis + 1 :]))


@lowers("GatherElements")
def gather_elements(ctx: LoweringContext) -> str:
    """ONNX GatherElements-13."""
    shape = ctx.shape(0)
    axis = ctx.axis(ctx.int("axis", 0), len(shape))
    indices, proven = index_operand(ctx, 1, [shape[axis]])
    place = element_access(ctx, axis, indices, proven)
    return gather(ctx.b, ctx.input(0), place, 1, place.loops)


@lowers("GatherND")
def gather_nd(ctx: LoweringContext) -> str:
    """ONNX GatherND-13."""
    batch = ctx.int("batch_dims", 0)
    indices, proven = index_operand(ctx, 1, tuple_extents(ctx, batch))
    place, run = slice_access(ctx, batch, indices, proven)
    rest = ctx.shape(0)[batch + ctx.shape(1)[-1] :]
    return gather(ctx.b, ctx.input(0), place, run, (*place.loops, *rest))


@lowers("ReverseSequence")
def reverse_sequence(ctx: LoweringContext) -> str:
    """ONNX ReverseSequence-10: the first lens[b] steps of each sequence backwards."""
    shape = ctx.shape(0)
    time, batch = ctx.int("time_axis", 0), ctx.int("batch_axis", 1)
    ctx.require({time, batch} == {0, 1}, f"time_axis {time}, batch_axis {batch}")
    ctx.require(len(shape) >= 2 and ctx.shape(1) == (shape[batch],), f"lengths {ctx.type(1)}")
    if not prod(shape):
        return ctx.input(0)
    strides = row_major(shape)

    def address(length: Expr, step: Expr, sequence: Expr) -> Expr:
        length = call("Min", cast(length, DType.INT64), index(shape[time]))
        mirrored = call("Sub", call("Sub", length, index(1)), step)
        step = call("Where", call("Less", step, length), mirrored, step)
        return total(times(step, strides[time]), times(sequence, strides[batch]))

    on_time, on_batch = (View(tuple(int(d == axis) for d in (0, 1))) for axis in (time, batch))
    place = IndexedAccess(
        shape[:2], (ctx.input(1),), (on_batch,), (on_time, on_batch), address, True
    )
    return gather(ctx.b, ctx.input(0), place, prod(shape[2:]), shape)
