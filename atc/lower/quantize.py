"""Lowerings of quantization: scaling is elementwise, integer products are Conv and MatMul."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.ir.expr import Const, Expr, Input, call, cast, const
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import Conv, identity_epilogue
from atc.ir.view import View
from atc.lower.concat_pad import pad
from atc.lower.context import LoweringContext
from atc.lower.conv import convolved_extents, window_of, with_bias
from atc.lower.indexed_access import take
from atc.lower.matmul import product
from atc.lower.reduce import reduce_axes, reduction
from atc.lower.registry import lowers

# ---- scalar rules -------------------------------------------------------------------------------


def converted(x: Expr, dtype: DType) -> Expr:
    """Return a conversion without loss; of a literal, another literal."""
    return const(x.value, dtype) if isinstance(x, Const) else cast(x, dtype)


def rounded(x: Expr, dtype: DType) -> Expr:
    """Return a value as a real type has it, in float."""
    if isinstance(x, Const):
        return const(float(np.asarray(x.value).astype(dtype.numpy)), DType.FLOAT)
    return cast(cast(x, dtype), DType.FLOAT)


def _is_zero(x: Expr) -> bool:
    return isinstance(x, Const) and x.value == 0


def quantized(x: Expr, scale: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """saturate(round(x / scale) + zero), rounding half to even (ONNX QuantizeLinear-21)."""
    y = call("Round", call("Div", converted(x, DType.FLOAT), converted(scale, DType.FLOAT)))
    return saturated(y, zero, dtype)


def saturated(y: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """Return the nearest number of an integer type to y + zero."""
    if zero is not None and not _is_zero(zero):
        y = call("Add", y, converted(zero, DType.FLOAT))
    return cast(y, dtype, saturate=True)


def dequantized(x: Expr, scale: Expr, zero: Expr | None) -> Expr:
    """(x - zero) * scale in float; the difference is exact."""
    if zero is not None and not _is_zero(zero):
        x = call("Sub", converted(x, DType.INT32), converted(zero, DType.INT32))
    return call("Mul", converted(x, DType.FLOAT), converted(scale, DType.FLOAT))


def requantized(total: Expr, scale: Expr, zero: Expr | None, dtype: DType) -> Expr:
    """saturate(round(total * scale) + zero): what QLinear operators do to an INT32 sum."""
    y = call("Round", call("Mul", cast(total, DType.FLOAT), converted(scale, DType.FLOAT)))
    return saturated(y, zero, dtype)


# ---- scales and zero points of a tensor ---------------------------------------------------------


@dataclass(frozen=True)
class QuantizationAxes:
    """Loops over a tensor and the view of its scale and zero point over them.

    Where blocks don't fit into loops, these are repeated first, `block` times along `axis`.
    """

    loops: tuple[int, ...]
    view: View
    block: int = 1
    axis: int = 0


def quantization_axes(
    ctx: LoweringContext, shape: Sequence[int], given: Sequence[int], axis: int, block: int
) -> QuantizationAxes:
    """Return how a scale of the shape `given` spreads over a tensor (ONNX QuantizeLinear-21)."""
    if prod(given) == 1 and not block:
        return QuantizationAxes(tuple(shape), View((0,) * len(shape)))
    axis = ctx.axis(axis, len(shape))
    wanted = [shape[axis]]
    if block:
        wanted = [*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :]]
    ctx.require(
        list(given) == wanted,
        f"the scale is {list(given)}, not {wanted}, for {list(shape)} along axis {axis}",
    )
    if not block:
        return QuantizationAxes(
            tuple(shape), View(tuple(int(d == axis) for d in range(len(shape))))
        )
    strides = row_major(given)
    if shape[axis] % block:
        return QuantizationAxes(tuple(shape), View(row_major(shape)), block, axis)
    loops = (*shape[:axis], shape[axis] // block, block, *shape[axis + 1 :])
    return QuantizationAxes(loops, View((*strides[: axis + 1], 0, *strides[axis + 1 :])))


def spread(ctx: LoweringContext, i: int, where: QuantizationAxes) -> str:
    """Return scale or zero point `i` as the grid's view reads it; ragged blocks are repeated."""
    if where.block == 1:
        return ctx.input(i)
    places = np.arange(where.loops[where.axis]) // where.block
    return take(ctx.b, ctx.input(i), where.axis, places)


QUANTIZED = frozenset(
    {d for d in DType if d.is_small and d is not DType.FLOAT8E8M0}
    | {DType.UINT8, DType.INT8, DType.UINT16, DType.INT16}
)
"""Types that QuantizeLinear makes."""


@lowers("QuantizeLinear")
def quantize_linear(ctx: LoweringContext) -> str:
    """ONNX QuantizeLinear-25: per tensor, per axis, blocked; `precision` is the quotient's."""
    x = ctx.type(0)
    code = ctx.int("output_dtype") or (ctx.type(2).dtype.code if ctx.has(2) else 2)
    dtype = next((d for d in QUANTIZED if d.code == code), None)
    if dtype is None:
        raise ctx.unsupported(f"quantization to ONNX type {code}")
    saturate = bool(ctx.int("saturate", 1))
    where = quantization_axes(ctx, x.shape, ctx.shape(1), ctx.int("axis", 1), ctx.int("block_size"))
    operands = _scale_and_zero(ctx, where, dtype)

    code = ctx.int("precision") or (ctx.type(1).dtype.code if x.dtype.is_half else 0)
    half = next((d for d in DType if d.code == code and d.is_half), DType.FLOAT)

    def value(v: Expr, s: Expr, z: Expr | None = None) -> Expr:
        y = rounded(call("Div", rounded(v, half), rounded(s, half)), half)
        if dtype.is_float:
            return cast(y, dtype, saturate=saturate)
        return saturated(call("Round", y), z, dtype)

    y = ctx.b.map(
        value, ctx.input(0), *operands,
        shape=where.loops, views=[View(row_major(where.loops)), *[where.view] * len(operands)],
    )  # fmt: skip
    return ctx.b.reshape(y, x.shape)


def _scale_and_zero(ctx: LoweringContext, where: QuantizationAxes, dtype: DType) -> list[str]:
    """Return the scale and, where there is one, the zero point; a real type's is 0."""
    return [spread(ctx, i, where) for i in (1, 2)[: 1 if dtype.is_float else 2] if ctx.has(i)]


@lowers("DequantizeLinear")
def dequantize_linear(ctx: LoweringContext) -> str:
    """ONNX DequantizeLinear-25: per tensor, per axis, blocked."""
    x = ctx.type(0)
    out = ctx.dtype("output_dtype") if ctx.int("output_dtype") else ctx.type(1).dtype
    where = quantization_axes(ctx, x.shape, ctx.shape(1), ctx.int("axis", 1), ctx.int("block_size"))
    operands = _scale_and_zero(ctx, where, x.dtype)
    y = ctx.b.map(
        lambda v, s, z=None: cast(dequantized(v, s, z), out), ctx.input(0), *operands,
        shape=where.loops, views=[View(row_major(where.loops)), *[where.view] * len(operands)],
    )  # fmt: skip
    return ctx.b.reshape(y, x.shape)


@lowers("DynamicQuantizeLinear")
def dynamic_quantize_linear(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX DynamicQuantizeLinear-11."""
    return dynamic_quantize(ctx, ctx.input(0))


def dynamic_quantize(ctx: LoweringContext, x: str) -> tuple[str, str, str]:
    """Return x in UINT8, by the range that it and 0 span, with its scale and zero point.

    Where all of x is 0 the scale is 1.
    """
    b, axes = ctx.b, tuple(range(len(ctx.b.shape(x))))
    low, high = (reduce_axes(ctx, x, axes, False, how) for how in ("Min", "Max"))

    def step(lo: Expr, hi: Expr) -> Expr:
        zero = const(0, DType.FLOAT)
        span = call("Sub", call("Max", hi, zero), call("Min", lo, zero))
        width = call("Div", span, const(255, DType.FLOAT))
        return call("Where", call("Equal", span, zero), const(1, DType.FLOAT), width)

    def origin(lo: Expr, s: Expr) -> Expr:
        below = call("Neg", call("Min", lo, const(0, DType.FLOAT)))
        return quantized(below, s, None, DType.UINT8)

    scale = b.map(step, low, high)
    zero = b.map(origin, low, scale)
    y = b.map(lambda v, s, z: quantized(v, s, z, DType.UINT8), x, scale, zero)
    return y, scale, zero


# ---- integer products ---------------------------------------------------------------------------


def centred(ctx: LoweringContext, w: str, zero: str) -> tuple[str, str]:
    """Return constant weights minus their constant zero point (last axis), and what is left of it.

    The narrowest type that holds the difference is used.
    """
    array, point = ctx.b.value(w), ctx.b.value(zero) if zero else None
    if array is None or point is None:
        return w, zero
    difference = array.astype(np.int32) - point.astype(np.int32)
    if not point.any():
        return w, ""
    narrow = all(-128 <= v <= 127 for v in (difference.min(), difference.max()))
    return ctx.b.constant(difference.astype(np.int8 if narrow else np.int16), w), ""


def _known_zero(ctx: LoweringContext, zero: str) -> str:
    """Return the zero point's name, '' where it is known to be zero."""
    value = ctx.b.value(zero) if zero else None
    return "" if value is not None and not value.any() else zero


def _whole_zero(ctx: LoweringContext, zero: str) -> tuple[int, str]:
    """Return a zero point that is one known number, or the name of any other."""
    value = ctx.b.value(zero) if zero else None
    if value is None or (value != value.reshape(-1)[:1]).any():
        return 0, zero
    return int(value.reshape(-1)[0]), ""


def integer_product(ctx: LoweringContext, a: str, b: str, a_zero: str, b_zero: str) -> str:
    """Return the INT32 product of (a - a_zero) and (b - b_zero), numpy's rules for the shapes.

    Zero points that aren't one known number, p and q, are taken off afterwards, with sums over rows
    and columns: (a - p)(b - q) = ab - p colsum(b) - q rowsum(a) + k p q.
    """
    build = ctx.b
    a_shape, b_shape = build.shape(a), build.shape(b)
    ctx.require(bool(a_shape) and bool(b_shape), "an operand is a scalar")
    a = build.reshape(a, (1, *a_shape)) if len(a_shape) == 1 else a
    b = build.reshape(b, (*b_shape, 1)) if len(b_shape) == 1 else b
    if a_zero and build.type(a_zero).size > 1 and len(build.shape(a_zero)) == 1:
        a_zero = build.reshape(a_zero, (*build.shape(a_zero), 1))
    q, b_zero = _whole_zero(ctx, b_zero)
    p, a_zero = _whole_zero(ctx, a_zero)
    b, b_zero = centred(ctx, b, b_zero)
    a, a_zero = centred(ctx, a, a_zero)
    y = product(ctx, a, b, DType.INT32, (p, q))
    depth = build.shape(a)[-1]
    if a_zero:
        y = build.map(_minus_product, y, _wide(ctx, a_zero), _sums(ctx, b, -2, q))
    if b_zero:
        y = build.map(_minus_product, y, _wide(ctx, b_zero), _sums(ctx, a, -1, p))
    if a_zero and b_zero:
        count = build.scalar(-depth, DType.INT32)
        both = build.map(lambda p, q: call("Mul", p, q), _wide(ctx, a_zero), _wide(ctx, b_zero))
        y = build.map(_minus_product, y, both, count)
    dropped = [-2] * (len(a_shape) == 1) + [-1] * (len(b_shape) == 1)
    full = build.shape(y)
    return build.reshape(y, [n for d, n in enumerate(full) if d - len(full) not in dropped])


def _minus_product(y: Expr, zero: Expr, sums: Expr) -> Expr:
    return call("Sub", y, call("Mul", zero, sums))


def _wide(ctx: LoweringContext, x: str) -> str:
    return ctx.b.cast(x, DType.INT32)


def _sums(ctx: LoweringContext, x: str, axis: int, zero: int) -> str:
    """Return INT32 sums of x - zero along an axis, which is kept; of a constant, a constant."""
    source, array = ctx.b.type(x), ctx.b.value(x)
    if array is not None:
        total = (array.astype(np.int32) - zero).sum(axis, keepdims=True, dtype=np.int32)
        return ctx.b.constant(total, x)
    element = cast(Input(source.dtype, 0), DType.INT32)
    if zero:
        element = call("Sub", element, const(zero, DType.INT32))
    axes = (axis % len(source.shape),)
    return reduction(ctx, x, axes, True, "Sum", element, Input(DType.INT32, 0))


@dataclass(frozen=True)
class Filter:
    """The operands of an integer convolution, by value name; '' where absent."""

    x: str
    w: str
    x_zero: str = ""
    w_zero: str = ""
    bias: str = ""


def integer_conv(ctx: LoweringContext, given: Filter) -> str:
    """Return the INT32 convolution of (x - x_zero) and (w - w_zero), plus bias.

    Attributes are those of ONNX Conv-11; padding counts as x_zero.
    """
    b = ctx.b
    x, w = b.type(given.x), b.type(given.w)
    ctx.require(len(x.shape) == len(w.shape) >= 3, f"x is {x}, w is {w}")
    kernel = ctx.ints("kernel_shape", w.shape[2:]) or []
    ctx.require(tuple(kernel) == w.shape[2:], f"kernel_shape {kernel} but w is {w}")
    group = ctx.int("group", 1)
    fits = group > 0 and x.shape[1] == w.shape[1] * group and w.shape[0] % group == 0
    ctx.require(fits, f"group {group}: x is {x}, w is {w}")
    window, end = window_of(ctx, x.shape[2:], kernel)
    spatial = convolved_extents(ctx, x, window, end)
    out = TensorType(DType.INT32, (x.shape[0], w.shape[0], *spatial))
    w_name, w_zero = _centred_filters(ctx, given.w, given.w_zero)
    zeros = [_known_zero(ctx, given.x_zero), _known_zero(ctx, w_zero)]
    x_name, taken = given.x, ""
    if _may_come_off_later(ctx, zeros, w_name):
        taken = zeros[0]
        point = b.reshape(taken, ())
        x_name = pad(b, given.x, (0, 0, *window.pads), (0, 0, *end), value=point)
        zeros, window = ["", ""], replace(window, pads=(0,) * window.rank)
    inputs = [x_name, w_name, *(zeros if any(zeros) else [])]
    epilogue = identity_epilogue(DType.INT32)
    if given.bias:
        ctx.require(b.type(given.bias).size == w.shape[0], f"bias {b.type(given.bias)} for w {w}")
        inputs.append(given.bias)
        epilogue = with_bias(DType.INT32, out.shape)
    total = b.emit1(Conv(window, group, epilogue, DType.INT32, any(zeros)), inputs, out)
    return _less_zeros(ctx, total, w_name, taken) if taken else total


def _may_come_off_later(ctx: LoweringContext, zeros: Sequence[str], w: str) -> bool:
    """Return whether one zero point of x known only at run time can be taken off the sums.

    Then they are sums of x itself, as kernels want them; neither they nor what comes off is more
    than 32 bits hold.
    """
    weights = ctx.b.value(w)
    if not zeros[0] or zeros[1] or weights is None or ctx.b.value(zeros[0]) is not None:
        return False
    return ctx.b.type(zeros[0]).size == 1 and 255 * 255 * weights[0].size < 1 << 30


def _less_zeros(ctx: LoweringContext, total: str, w: str, zero: str) -> str:
    """Take the zero point's product with each filter's sum off sums [N, M, *out]."""
    b, weights = ctx.b, ctx.b.value(w)
    assert weights is not None
    axes, tail = tuple(range(1, weights.ndim)), (1,) * (weights.ndim - 2)
    sums = weights.astype(np.int32).sum(axes, dtype=np.int32).reshape(-1, *tail)
    return b.map(
        lambda t, z, s: call("Sub", t, call("Mul", cast(z, DType.INT32), s)),
        total, b.reshape(zero, ()), b.constant(sums, w),
    )  # fmt: skip


def _centred_filters(ctx: LoweringContext, w: str, zero: str) -> tuple[str, str]:
    """Take a known zero point, one or one per filter, off the weights."""
    point = ctx.b.value(zero) if zero else None
    if point is None:
        return w, zero
    tail = [1] * (len(ctx.b.shape(w)) - 1) if point.size > 1 else []
    shaped = ctx.b.constant(point.reshape(-1, *tail) if tail else point.reshape(()), zero)
    return centred(ctx, w, shaped) if ctx.b.value(w) is not None else (w, zero)


@lowers("MatMulInteger")
def matmul_integer(ctx: LoweringContext) -> str:
    """ONNX MatMulInteger-10."""
    return integer_product(ctx, ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3))


@lowers("ConvInteger")
def conv_integer(ctx: LoweringContext) -> str:
    """ONNX ConvInteger-10."""
    given = Filter(ctx.input(0), ctx.input(1), ctx.optional(2), ctx.optional(3))
    return integer_conv(ctx, given)


# ---- QLinear operators --------------------------------------------------------------------------


def scale_ratio(ctx: LoweringContext, a: str, b: str, y: str) -> str:
    """Return the multiplier a * b / y of an INT32 sum, in float; known ones when compiling."""
    arrays = [ctx.b.value(s) for s in (a, b, y)]
    if all(s is not None for s in arrays):
        p, q, r = (np.asarray(s, np.float32) for s in arrays)
        return ctx.b.constant(np.asarray(p * q / r, np.float32), ctx.name)
    p_, q_, r_ = (ctx.b.cast(s, DType.FLOAT) for s in (a, b, y))
    return ctx.b.map(lambda p, q, r: call("Div", call("Mul", p, q), r), p_, q_, r_)


def requantize(ctx: LoweringContext, total: str, ratio: str, zero: str, dtype: DType) -> str:
    """Return the INT32 sums on the result's scale; `ratio` and `zero` are broadcast to them."""
    operands = [ratio, *([zero] if zero else [])]
    return ctx.b.map(lambda t, s, z=None: requantized(t, s, z, dtype), total, *operands)


@lowers("QLinearMatMul")
def qlinear_matmul(ctx: LoweringContext) -> str:
    """ONNX QLinearMatMul-21: scales and zero points whole, per row of a or per column of b."""
    a, b = ctx.input(0), ctx.input(3)
    total = integer_product(ctx, a, b, ctx.input(2), ctx.input(5))
    a_scale = ctx.input(1)
    if ctx.type(1).size > 1 and len(ctx.shape(1)) == 1:
        a_scale = ctx.b.reshape(a_scale, (*ctx.shape(1), 1))
    ratio = scale_ratio(ctx, a_scale, ctx.input(4), ctx.input(6))
    return requantize(ctx, total, ratio, ctx.input(7), ctx.type(7).dtype)


@lowers("QLinearConv")
def qlinear_conv(ctx: LoweringContext) -> str:
    """ONNX QLinearConv-10: weights' scale and zero point whole or per filter."""
    b = ctx.b
    given = Filter(ctx.input(0), ctx.input(3), ctx.input(2), ctx.input(5), ctx.optional(8))
    total = integer_conv(ctx, given)
    x_scale, y_scale = (b.reshape(ctx.input(i), ()) for i in (1, 6))
    ratio = scale_ratio(ctx, x_scale, ctx.input(4), y_scale)
    if b.type(ratio).size > 1:
        ratio = b.reshape(ratio, (b.type(ratio).size, *[1] * (len(b.shape(total)) - 2)))
    return requantize(ctx, total, ratio, b.reshape(ctx.input(7), ()), ctx.type(7).dtype)
