"""Lowerings of operators whose results' shapes depend on values."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.dims import Dim, lower_bound, maximum, minimum, upper_bound
from atc.ir.expr import call
from atc.ir.graph import DType, TensorType
from atc.ir.ops.data_dependent import NonMaxSuppression, NonZero, ReadExtents, ResolveSlice, Unique
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import gather_axis, take
from atc.lower.registry import lowers


def read_extent(ctx: LoweringContext, i: int, lowest: int, highest: int, what: str) -> int:
    """Return an input's one integer as an extent; out of its bounds, the network stops."""
    type_ = ctx.type(i)
    ctx.require(type_.size == 1 and not type_.dtype.is_float, f"{what} is {type_}")
    extent = ctx.b.symbol(f"{what} of {ctx.name}", lowest, highest)
    if isinstance(extent, Dim):
        ctx.b.emit(ReadExtents((extent,)), [ctx.input(i)], TensorType(DType.INT64, (1,)))
    return extent


def resolve_slice(
    ctx: LoweringContext, start: str, end: str, step: int, size: int, apart: int | None = None
) -> tuple[int, int]:
    """Return where a slice begins and its count; `start` and `end` are single integers.

    With `apart` the end is that much more than the start.
    """
    b = ctx.b
    if not upper_bound(size):
        return 0, 0
    first = b.symbol(f"start of {ctx.name}", 0, maximum(size - 1, 1))  # one that only 0 is is none
    most = -(-(size - first) // step) if step > 0 else minimum(first // -step + 1, size)
    if apart is not None and apart * step > 0:  # else one may count from the axis' other end
        most = minimum(most, -(-apart // step))
    count = b.symbol(f"elements of {ctx.name}", 0, most)
    op = ResolveSlice(size, step, first, count)
    b.emit(op, [start, end], TensorType(DType.INT64, (2,)))
    return first, count


@lowers("NonZero")
def non_zero(ctx: LoweringContext) -> str:
    """ONNX NonZero-13: as many columns as there are elements that aren't zero."""
    x = ctx.input(0)
    if ctx.type(0).dtype is DType.STRING:  # numpy's rule: an empty string is no
        empty = ctx.b.constant(np.asarray(b"", DType.STRING.numpy))
        x = ctx.b.map(lambda v, e: call("Not", call("Equal", v, e)), x, empty)
    return indices_of(ctx, x)


def indices_of(ctx: LoweringContext, x: str) -> str:
    """Return the indices [rank, count] of what isn't zero.

    Those of one value are found once: detectors ask again, and rely on the same count.
    """
    shape = ctx.b.shape(x)
    for node in ctx.b.nodes:
        if isinstance(node.op, NonZero) and node.inputs == (x,):
            return node.outputs[0]
    count = ctx.b.symbol(f"elements that {ctx.name} finds", 0, prod(shape))
    type_ = TensorType(DType.INT64, (len(shape), count))
    if not isinstance(count, Dim):
        return ctx.b.constant(np.empty(type_.shape, np.int64))
    return ctx.b.emit1(NonZero(shape, count), [x], type_)


@lowers("Compress")
def compress(ctx: LoweringContext) -> str:
    """ONNX Compress-11: the slices of an axis that a condition chooses."""
    x, shape = ctx.input(0), ctx.shape(0)
    axis = ctx.attribute("axis")
    if axis is None:
        x, shape, axis = ctx.b.reshape(x, [prod(shape)]), (prod(shape),), 0
    place = ctx.axis(int(axis), len(shape))
    condition = ctx.const(1)
    if condition is not None:
        chosen = np.flatnonzero(np.asarray(condition).astype(bool)).astype(np.int64)
        fits = bool((chosen < shape[place]).all())
        ctx.require(fits, f"the condition is longer than {shape[place]}")
        return take(ctx.b, x, place, chosen)
    ctx.require(len(ctx.shape(1)) == 1, f"the condition is {ctx.type(1)}")
    found = indices_of(ctx, ctx.input(1))
    count = ctx.b.shape(found)[1]
    return gather_axis(ctx.b, x, place, ctx.b.reshape(found, [count]), proven=False)


@lowers("Unique")
def unique(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Unique-11: the distinct elements, or slices of an axis, and where they are."""
    b, x = ctx.b, ctx.input(0)
    axis = ctx.attribute("axis")
    if axis is None:
        x = b.reshape(x, [prod(ctx.shape(0))])
    place = 0 if axis is None else ctx.axis(int(axis), len(ctx.shape(0)))
    shape = b.shape(x)
    order = [place, *(d for d in range(len(shape)) if d != place)]
    rows, inner = shape[place], prod(shape[:place]) * prod(shape[place + 1 :])
    count = b.symbol(f"distinct values of {ctx.name}", min(lower_bound(rows), 1), rows)
    if not isinstance(count, Dim):
        raise ctx.unsupported("no elements")
    op = Unique(rows, inner, bool(ctx.int("sorted", 1)), count)
    types = [TensorType(DType.INT64, (n,)) for n in (count, rows, count)]
    first, inverse, counts = b.emit(op, [b.transpose(x, order)], *types)
    return gather_axis(b, x, place, first, proven=False), first, inverse, counts


@lowers("NonMaxSuppression")
def non_max_suppression(ctx: LoweringContext) -> str:
    """ONNX NonMaxSuppression-11."""
    b, boxes, scores = ctx.b, ctx.shape(0), ctx.shape(1)
    fits = len(boxes) == len(scores) == 3 and boxes[::2] == (scores[0], 4) and boxes[1] == scores[2]
    ctx.require(fits, f"boxes {ctx.type(0)}, scores {ctx.type(1)}")
    limit = ctx.const(2)
    most = boxes[1] if limit is None else minimum(boxes[1], max(0, int(limit.item())))
    if not ctx.has(2):
        most = 0
    count = b.symbol(f"boxes that {ctx.name} keeps", 0, scores[0] * scores[1] * most)
    type_ = TensorType(DType.INT64, (count, 3))
    if not isinstance(count, Dim):
        return b.constant(np.empty((0, 3), np.int64))
    op = NonMaxSuppression(boxes[0], scores[1], boxes[1], bool(ctx.int("center_point_box")), count)
    inputs = [ctx.input(0), ctx.input(1), *(ctx.optional(i) for i in range(2, 5))]
    return b.emit1(op, inputs, type_)
