"""Lowerings of softmaxes and normalizations."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ArgReduce, Epilogue, Normalize, Softmax, identity_epilogue
from atc.ir.view import View, broadcast, dense, simplify_loops
from atc.lower.context import Site
from atc.lower.conv import widen
from atc.lower.registry import lowers

# ---- softmax ------------------------------------------------------------------------------------


@lowers("Softmax", "LogSoftmax")
def lower_softmax(site: Site) -> str:
    """ONNX Softmax-13, LogSoftmax-13; before opset 13 all axes from `axis` on are one."""
    log = site.node.op_type == "LogSoftmax"
    legacy = site.opset < 13
    axis = site.axis(site.int("axis", 1 if legacy else -1), len(site.shape(0)))
    return softmax(site, site.input(0), axis, log=log, flatten=legacy)


def softmax(
    site: Site, x: str, axis: int, *, log: bool = False, flatten: bool = False, masked: bool = False
) -> str:
    """Emit a softmax along one axis, or with `flatten` along all from it on."""
    source = site.b.type(x)
    end = len(source.shape) if flatten else axis + 1
    outer, size, inner = _around(source.shape, axis, end)
    wide = widen(site, x)
    dtype = site.b.type(wide).dtype
    op = Softmax(outer, size, inner, log, identity_epilogue(dtype), masked)
    return site.b.cast(site.b.emit1(op, [wide], TensorType(dtype, source.shape)), source.dtype)


def _around(shape: Sequence[int], first: int, end: int) -> tuple[int, int, int]:
    """Return the sizes before, inside and after the axes [first, end)."""
    return prod(shape[:first]), prod(shape[first:end]), prod(shape[end:])


@lowers("Hardmax")
def hardmax(site: Site) -> str:
    """ONNX Hardmax-13: 1 at the first maximum along the axis, else 0."""
    b, x = site.b, site.type(0)
    legacy = site.opset < 13
    axis = site.axis(site.int("axis", 1 if legacy else -1), len(x.shape))
    outer, size, inner = _around(x.shape, axis, len(x.shape) if legacy else axis + 1)
    where = b.emit1(
        ArgReduce("Max", outer, size, inner), [site.input(0)],
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
    site: Site, x: str, axis: int, how: str, epsilon: float,
    operands: Sequence[str], *, statistics: bool = False,
) -> tuple[str, ...]:  # fmt: skip
    """Normalize over all axes from `axis` on; scale and bias are broadcast to the shape of x.

    Returns the result and, with `statistics`, centre and scale, all in the type computed in.
    """
    b = site.b
    x = widen(site, x)
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
def layer_normalization(site: Site) -> tuple[str, ...]:
    """ONNX LayerNormalization-17: with mean and inverse deviation of the type of `stash_type`."""
    x = site.type(0)
    axis = site.axis(site.int("axis", -1), len(x.shape))
    operands = [site.input(i) for i in (1, 2) if site.has(i)]
    y, *statistics = trailing(
        site, site.input(0), axis, "Variance", site.float("epsilon", 1e-5), operands,
        statistics=site.wants(1) or site.wants(2),
    )  # fmt: skip
    stash = DType.from_onnx(site.int("stash_type", 1))
    return (site.b.cast(y, x.dtype), *(site.b.cast(s, stash) for s in statistics))


@lowers("RMSNormalization")
def rms_normalization(site: Site) -> str:
    """ONNX RMSNormalization-23; the result has the type of the scale."""
    axis = site.axis(site.int("axis", -1), len(site.shape(0)))
    epsilon = site.float("epsilon", 1e-5)
    (y,) = trailing(site, site.input(0), axis, "MeanSquare", epsilon, [site.input(1)])
    return site.b.cast(y, site.type(1).dtype)


@lowers("GroupNormalization")
def group_normalization(site: Site) -> str:
    """ONNX GroupNormalization-21: scale and bias per channel, before opset 21 per group."""
    shape = site.shape(0)
    site.require(len(shape) >= 2, f"the rank of {list(shape)} is below 2")
    groups = site.int("num_groups")
    site.require(groups > 0 and shape[1] % groups == 0, f"{groups} groups of {shape[1]} channels")
    size, plane = shape[1] // groups, prod(shape[2:])
    per_group = site.opset < 21
    site.require(
        all(site.shape(i) == (groups if per_group else shape[1],) for i in (1, 2)),
        f"scale {site.type(1)} and bias {site.type(2)} for {shape[1]} channels, {groups} groups",
    )
    view = View((0, 1, 0, 0) if per_group else (0, size, 1, 0))
    return _per_channel(site, (shape[0], groups), (size, plane), view)


@lowers("InstanceNormalization")
def instance_normalization(site: Site) -> str:
    """ONNX InstanceNormalization-22: every channel of every image by itself."""
    shape = site.shape(0)
    site.require(len(shape) >= 2, f"the rank of {list(shape)} is below 2")
    site.require(
        all(site.shape(i) == shape[1:2] for i in (1, 2)),
        f"scale {site.type(1)} and bias {site.type(2)} for {shape[1]} channels",
    )
    return _per_channel(site, shape[:2], (prod(shape[2:]),), View((0, 1, 0)))


def _per_channel(site: Site, outer: tuple[int, ...], axis: tuple[int, ...], view: View) -> str:
    """Normalize over `axis`; scale and bias (inputs 1, 2) are read through the same view."""
    b, shape = site.b, site.shape(0)
    x = widen(site, site.input(0))
    dtype = b.type(x).dtype
    operands = [b.cast(site.input(i), dtype) for i in (1, 2)]
    epilogue = affine(dtype, [view, view])
    op = Normalize("Variance", outer, axis, (), site.float("epsilon", 1e-5), epilogue)
    y = b.emit1(op, [x, *operands], TensorType(dtype, shape))
    return b.cast(y, site.type(0).dtype)


@lowers("LpNormalization")
def lp_normalization(site: Site) -> str:
    """ONNX LpNormalization-22."""
    p = site.int("p", 2)
    site.require(p in (1, 2), f"p is {p}, not 1 or 2")
    axis = site.axis(site.int("axis", -1), len(site.shape(0)))
    return over_axes(site, site.input(0), (axis,), f"L{p}", 0.0)


@lowers("MeanVarianceNormalization")
def mean_variance_normalization(site: Site) -> str:
    """ONNX MeanVarianceNormalization-13: (x - mean) / (deviation + 1e-9) over given axes."""
    rank = len(site.shape(0))
    axes = site.axes(site.ints("axes", [0, 2, 3]) or [], rank)
    return over_axes(site, site.input(0), axes, "Variance", 1e-18)


def over_axes(site: Site, x: str, axes: tuple[int, ...], how: str, epsilon: float) -> str:
    """Normalize over any axes: neighbours in place, others moved to the end and back."""
    b, source = site.b, site.b.type(x)
    x = widen(site, x)
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
