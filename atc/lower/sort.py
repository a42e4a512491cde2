"""Lowerings of operators that depend on order along an axis: TopK and running sums."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.ir.expr import Expr, call, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops.data import Cumulate, TopK
from atc.lower.context import LoweringContext
from atc.lower.data_dependent import read_extent
from atc.lower.registry import lowers


@lowers("CumSum", "CumProd")
def cumulate(ctx: LoweringContext) -> str:
    """ONNX CumSum-14, CumProd-26; 16-bit floats are summed in float.

    For an axis known only at run time, the sums along each one are computed and one is chosen.
    """
    b, x = ctx.b, ctx.type(0)
    rank = len(x.shape)
    if not x.size:
        return ctx.input(0)
    given = ctx.extents(1)
    if given is not None:
        return _cumulated(ctx, ctx.axis(given[0], rank))
    axis = b.reshape(b.cast(ctx.input(1), DType.INT64), ())
    sums = [_cumulated(ctx, k) for k in range(rank)]
    ctx.require(rank > 0, f"x is {x}")
    y = sums[0]
    for k, other in enumerate(sums[1:], 1):
        y = b.map(lambda v, w, a, k=k: call("Where", _is_axis(a, k, rank), w, v), y, other, axis)
    return y


def _is_axis(given: Expr, k: int, rank: int) -> Expr:
    """Return whether an axis is number k, counted from either end."""
    places = (call("Equal", given, const(n, DType.INT64)) for n in (k, k - rank))
    return call("Or", *places)


def _cumulated(ctx: LoweringContext, axis: int) -> str:
    x = ctx.type(0)
    work = DType.FLOAT if x.dtype.is_half else x.dtype
    op = Cumulate(
        ctx.node.op_type.removeprefix("Cum"),
        prod(x.shape[:axis]),
        x.shape[axis],
        prod(x.shape[axis + 1 :]),
        bool(ctx.int("exclusive")),
        bool(ctx.int("reverse")),
    )
    wide = ctx.b.cast(ctx.input(0), work)
    return ctx.b.cast(ctx.b.emit1(op, [wide], TensorType(work, x.shape)), x.dtype)


@lowers("TopK")
def top_k(ctx: LoweringContext) -> tuple[str, str]:
    """ONNX TopK-24; before opset 10 k is an attribute. Always sorted."""
    x = ctx.type(0)
    axis = ctx.axis(ctx.int("axis", -1), len(x.shape))
    if ctx.opset < 10:
        k = ctx.int("k")
    elif ctx.extents(1) is None:
        k = read_extent(ctx, 1, 0, x.shape[axis], "k")
    else:
        k = ctx.ints_const(1, "k")[0]
    ctx.require(len(x.shape) > 0 and 0 <= k <= x.shape[axis], f"k {k} of axis {axis} of {x}")
    shape = (*x.shape[:axis], k, *x.shape[axis + 1 :])
    types = (TensorType(x.dtype, shape), TensorType(DType.INT64, shape))
    if not prod(shape):
        empty = (ctx.b.constant(np.empty(shape, t.dtype.numpy)) for t in types)
        return (next(empty), next(empty))
    outer, inner = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    op = TopK(outer, x.shape[axis], inner, k, bool(ctx.int("largest", 1)))
    values, indices = ctx.b.emit(op, [ctx.input(0)], *types)
    return values, indices
