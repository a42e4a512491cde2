"""Lowerings of softmaxes and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ArgReduce, Epilogue, Normalize, Softmax, identity_epilogue
from atc.ir.view import View, broadcast, dense, simplify_loops
from atc.lower.context import LoweringContext
from atc.lower.conv import widen
from atc.lower.registry import lowers

# ---- softmax ------------------------------------------------------------------------------------


@lowers("Softmax", "LogSoftmax")
def lower_softmax(ctx: LoweringContext) -> str:
    """ONNX Softmax-13, LogSoftmax-13; before opset 13 all axes from `axis` on are one."""
    log = ctx.node.op_type == "LogSoftmax"
    legacy = ctx.opset < 13
    axis = ctx.axis(ctx.int("axis", 1 if legacy else -1), len(ctx.shape(0)))
    return softmax(ctx, ctx.input(0), axis, log=log, flatten=legacy)


def softmax(
    ctx: LoweringContext,
    x: str,
    axis: int,
    *,
    log: bool = False,
    flatten: bool = False,
    masked: bool = False,
) -> str:
    """Emit a softmax along one axis, or with `flatten` along all from it on."""
    source = ctx.b.type(x)
    end = len(source.shape) if flatten else axis + 1
    outer, size, inner = _around(source.shape, axis, end)
    wide = widen(ctx, x)
    dtype = ctx.b.type(wide).dtype
    op = Softmax(outer, size, inner, log, identity_epilogue(dtype), masked)
    return ctx.b.cast(ctx.b.emit1(op, [wide], TensorType(dtype, source.shape)), source.dtype)


def _around(shape: Sequence[int], first: int, end: int) -> tuple[int, int, int]:
    """Return the sizes before, inside and after the axes [first, end)."""
    return prod(shape[:first]), prod(shape[first:end]), prod(shape[end:])


@lowers("Hardmax")
def hardmax(ctx: LoweringContext) -> str:
    """ONNX Hardmax-13: 1 at the first maximum along the axis, else 0."""
    b, x = ctx.b, ctx.type(0)
    legacy = ctx.opset < 13
    axis = ctx.axis(ctx.int("axis", 1 if legacy else -1), len(x.shape))
    outer, size, inner = _around(x.shape, axis, len(x.shape) if legacy else axis + 1)
    where = b.emit1(
        ArgReduce("Max", outer, size, inner), [ctx.input(0)],
        TensorType(DType.INT64, (outer, 1, inner)),
    )  # fmt: skip

    def one_hot(at: Expr, k: Expr) -> Expr:
        return cast(call("Equal", at, k), x.dtype)

    view = broadcast((outer, 1, inner), (outer, size, inner))
    hot = b.map(
        one_hot, where, shape=(outer, size, inner), views=[view], coordinates=[View((0, 1, 0))]
    )
    return b.reshape(hot, x.shape)


# ---- normalization ------------------------------------------------------------------------------


def affine(dtype: DType, views: Sequence[View]) -> Epilogue:
    """Return the epilogue y * operand 1 + operand 2, as far as there are views for them."""
    expr: Expr = Input(dtype, 0)
    for k, fn in zip(range(len(views)), ("Mul", "Add"), strict=False):
        expr = call(fn, expr, Input(dtype, k + 1))
    return Epilogue(expr, tuple(views))


def trailing(
    ctx: LoweringContext, x: str, axis: int, how: str, epsilon: float,
    operands: Sequence[str], *, statistics: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """Normalize over all axes from `axis` on; scale and bias are broadcast to the shape of x.

    Returns the result and, with `statistics`, centre and scale, all in the type computed in.
    """
    b = ctx.b
    x = widen(ctx, x)
    dtype, shape = b.type(x).dtype, b.shape(x)
    operands = [b.cast(o, dtype) for o in operands]
    given = [broadcast(b.shape(o), shape) for o in operands]
    loops, (_, *views) = simplify_loops(shape, [dense(shape), *given], [axis])
    sizes = prod(shape[:axis]), prod(shape[axis:])
    split = next((i for i in range(len(loops) + 1)
                  if (prod(loops[:i]), prod(loops[i:])) == sizes), 0)  # fmt: skip
    op = Normalize(how, loops[:split], loops[split:], (), epsilon, affine(dtype, views))
    kept = TensorType(dtype, (*shape[:axis], *[1] * (len(shape) - axis)))
    types = [TensorType(dtype, shape), *[kept] * (2 if statistics else 0)]
    return b.emit(op, [x, *operands], *types)


@lowers("LayerNormalization")
def layer_normalization(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX LayerNormalization-17: with mean and inverse deviation of the type of `stash_type`."""
    x = ctx.type(0)
    axis = ctx.axis(ctx.int("axis", -1), len(x.shape))
    operands = [ctx.input(i) for i in (1, 2) if ctx.has(i)]
    y, *statistics = trailing(
        ctx, ctx.input(0), axis, "Variance", ctx.float("epsilon", 1e-5), operands,
        statistics=ctx.wants(1) or ctx.wants(2),
    )  # fmt: skip
    stash = ctx.dtype("stash_type", DType.FLOAT)
    return (ctx.b.cast(y, x.dtype), *(ctx.b.cast(s, stash) for s in statistics))


@lowers("RMSNormalization")
def rms_normalization(ctx: LoweringContext) -> str:
    """ONNX RMSNormalization-23; the result has the type of the scale."""
    axis = ctx.axis(ctx.int("axis", -1), len(ctx.shape(0)))
    epsilon = ctx.float("epsilon", 1e-5)
    (y,) = trailing(ctx, ctx.input(0), axis, "MeanSquare", epsilon, [ctx.input(1)])
    return ctx.b.cast(y, ctx.type(1).dtype)


@lowers("GroupNormalization")
def group_normalization(ctx: LoweringContext) -> str:
    """ONNX GroupNormalization-21: scale and bias per channel, before opset 21 per group."""
    shape = ctx.shape(0)
    ctx.require(len(shape) >= 2, f"the rank of {list(shape)} is below 2")
    groups = ctx.int("num_groups")
    ctx.require(groups > 0 and shape[1] % groups == 0, f"{groups} groups of {shape[1]} channels")
    size, plane = shape[1] // groups, prod(shape[2:])
    per_group = ctx.opset < 21
    ctx.require(
        all(ctx.shape(i) == (groups if per_group else shape[1],) for i in (1, 2)),
        f"scale {ctx.type(1)} and bias {ctx.type(2)} for {shape[1]} channels, {groups} groups",
    )
    view = View((0, 1, 0, 0) if per_group else (0, size, 1, 0))
    return _per_channel(ctx, (shape[0], groups), (size, plane), view)


@lowers("InstanceNormalization")
def instance_normalization(ctx: LoweringContext) -> str:
    """ONNX InstanceNormalization-22: every channel of every image by itself."""
    shape = ctx.shape(0)
    ctx.require(len(shape) >= 2, f"the rank of {list(shape)} is below 2")
    ctx.require(
        all(ctx.shape(i) == shape[1:2] for i in (1, 2)),
        f"scale {ctx.type(1)} and bias {ctx.type(2)} for {shape[1]} channels",
    )
    return _per_channel(ctx, shape[:2], (prod(shape[2:]),), View((0, 1, 0)))


def _per_channel(
    ctx: LoweringContext, outer: tuple[int, ...], axis: tuple[int, ...], view: View
) -> str:
    """Normalize over `axis`; scale and bias (inputs 1, 2) are read through the same view."""
    b, shape = ctx.b, ctx.shape(0)
    x = widen(ctx, ctx.input(0))
    dtype = b.type(x).dtype
    operands = [b.cast(ctx.input(i), dtype) for i in (1, 2)]
    epilogue = affine(dtype, [view, view])
    op = Normalize("Variance", outer, axis, (), ctx.float("epsilon", 1e-5), epilogue)
    y = b.emit1(op, [x, *operands], TensorType(dtype, shape))
    return b.cast(y, ctx.type(0).dtype)


@lowers("LpNormalization")
def lp_normalization(ctx: LoweringContext) -> str:
    """ONNX LpNormalization-22."""
    p = ctx.int("p", 2)
    ctx.require(p in (1, 2), f"p is {p}, not 1 or 2")
    axis = ctx.axis(ctx.int("axis", -1), len(ctx.shape(0)))
    return over_axes(ctx, ctx.input(0), (axis,), f"L{p}", 0.0)


@lowers("MeanVarianceNormalization")
def mean_variance_normalization(ctx: LoweringContext) -> str:
    """ONNX MeanVarianceNormalization-13: (x - mean) / (deviation + 1e-9) over given axes."""
    rank = len(ctx.shape(0))
    axes = ctx.axes(ctx.ints("axes", [0, 2, 3]) or [], rank)
    return over_axes(ctx, ctx.input(0), axes, "Variance", 1e-18)


def over_axes(ctx: LoweringContext, x: str, axes: tuple[int, ...], how: str, epsilon: float) -> str:
    """Normalize over any axes: neighbours in place, others moved to the end and back."""
    b, source = ctx.b, ctx.b.type(x)
    x = widen(ctx, x)
    dtype, rank = b.type(x).dtype, len(source.shape)
    together = not axes or axes[-1] - axes[0] + 1 == len(axes)
    order = [d for d in range(rank) if d not in axes] + list(axes)
    if not together:
        x = b.transpose(x, order)
    shape = b.shape(x)
    first = (axes[0] if axes else rank) if together else rank - len(axes)
    outer, size, inner = _around(shape, first, first + len(axes))
    op = Normalize(how, (outer,), (size,), (inner,), epsilon, identity_epilogue(dtype))
    y = b.emit1(op, [x], TensorType(dtype, shape))
    if not together:
        y = b.transpose(y, [order.index(d) for d in range(rank)])
    return b.cast(y, source.dtype)
