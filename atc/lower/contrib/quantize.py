"""Lowerings of onnxruntime's own quantized operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops import Epilogue, identity_epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT, standard
from atc.lower.conv import output_extents, window_of
from atc.lower.elementwise import like, prelu
from atc.lower.indexed_access import gather_axis
from atc.lower.normalize import softmax
from atc.lower.quantize import (
    dequantize_linear,
    dequantized,
    dynamic_quantize,
    integer_product,
    qlinear_conv,
    quantize_linear,
    quantized,
    requantize,
    scale_ratio,
)
from atc.lower.reduce import reduction
from atc.lower.registry import lowers

lowers("QuantizeLinear", domain=MICROSOFT)(quantize_linear)
lowers("DequantizeLinear", domain=MICROSOFT)(dequantize_linear)

# ---- a tensor with its scale and zero point -----------------------------------------------------


@dataclass(frozen=True)
class Quantity:
    """Names of a value (none, of a result), its scale and its zero point, '' where it is 0."""

    value: str
    scale: str
    zero: str

    @property
    def names(self) -> list[str]:
        """The names that are there."""
        return [n for n in (self.value, self.scale, self.zero) if n]


def quantity(ctx: LoweringContext, value: int | None, scale: int) -> Quantity:
    """Return the operands at `value`, `scale` and behind it; both are one number."""
    parts = [ctx.input(scale), ctx.optional(scale + 1)]
    for part in parts:
        if part:
            ctx.require(ctx.b.type(part).size == 1, f"{ctx.b.type(part)} is not one number")
    scalars = [ctx.b.reshape(p, ()) if p else "" for p in parts]
    return Quantity("" if value is None else ctx.input(value), scalars[0], scalars[1])


def elementwise(
    ctx: LoweringContext,
    f: Callable[..., Expr],
    operands: list[Quantity],
    result: Quantity,
    dtype: DType,
) -> str:
    """Return quantize(f(dequantized operands)), element by element."""
    names = [n for q in (*operands, result) for n in q.names]

    def body(*args: Expr) -> Expr:
        rest = iter(args)
        values = [_next(q, rest) for q in operands]
        y = f(*(dequantized(v, s, z) for v, s, z in values))
        scale, zero = next(rest), next(rest, None)
        return quantized(y, scale, zero, dtype)

    return ctx.b.map(body, *names)


def _next(q: Quantity, rest: Iterator[Expr]) -> tuple[Expr, Expr, Expr | None]:
    return next(rest), next(rest), next(rest) if q.zero else None


def dequantize(ctx: LoweringContext, q: Quantity) -> str:
    """Return the real numbers of a quantity."""
    return ctx.b.map(lambda v, s, z=None: dequantized(v, s, z), *q.names)


def quantize(ctx: LoweringContext, x: str, q: Quantity, dtype: DType) -> str:
    """Return real numbers on the scale of a quantity."""
    return ctx.b.map(lambda v, s, z=None: quantized(v, s, z, dtype), x, *q.names)


# ---- elementwise --------------------------------------------------------------------------------


@lowers("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(ctx: LoweringContext) -> str:
    """com.microsoft QLinearSigmoid, QLinearLeakyRelu."""
    alpha = ctx.float("alpha", 0.01)
    f: Callable[[Expr], Expr] = lambda x: prelu(x, like(x, alpha))  # noqa: E731
    if ctx.node.op_type == "QLinearSigmoid":
        f = lambda x: call("Sigmoid", x)  # noqa: E731
    return elementwise(ctx, f, [quantity(ctx, 0, 1)], quantity(ctx, None, 3), ctx.type(0).dtype)


@lowers("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(ctx: LoweringContext) -> str:
    """com.microsoft QLinearAdd, QLinearMul with numpy's broadcasting."""
    fn = ctx.node.op_type.removeprefix("QLinear")
    operands, dtype = [quantity(ctx, 0, 1), quantity(ctx, 3, 4)], ctx.type(0).dtype
    return elementwise(ctx, lambda a, b: call(fn, a, b), operands, quantity(ctx, None, 6), dtype)


@lowers("QLinearWhere", domain=MICROSOFT)
def qlinear_where(ctx: LoweringContext) -> str:
    """com.microsoft QLinearWhere: both choices are put on the result's scale."""
    result, dtype = quantity(ctx, None, 7), ctx.type(1).dtype
    choices = [quantity(ctx, i, i + 1) for i in (1, 4)]
    x, y = (elementwise(ctx, lambda v: v, [q], result, dtype) for q in choices)
    return ctx.b.map(lambda c, p, q: call("Where", c, p, q), ctx.input(0), x, y)


@lowers("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(ctx: LoweringContext) -> str:
    """com.microsoft QLinearConcat: every part is put on the result's scale."""
    ctx.require(len(ctx.inputs) % 3 == 2, f"{len(ctx.inputs)} inputs")
    result, dtype = quantity(ctx, None, 0), ctx.type(1).dtype
    parts = [quantity(ctx, i, i + 1) for i in range(2, len(ctx.inputs), 3)]
    axis = ctx.axis(ctx.int("axis"), len(ctx.shape(2)))
    same = [p.value if _same_scale(ctx, p, result) else
            elementwise(ctx, lambda v: v, [p], result, dtype) for p in parts]  # fmt: skip
    return join(ctx.b, same, axis)


def _same_scale(ctx: LoweringContext, a: Quantity, b: Quantity) -> bool:
    """Return whether two quantities are known to have equal scales and zero points."""
    pairs = [(ctx.b.value(x), ctx.b.value(y)) for x, y in ((a.scale, b.scale), (a.zero, b.zero))]
    return all(x is not None and y is not None and x == y for x, y in pairs)


# ---- reductions ---------------------------------------------------------------------------------


@lowers("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(ctx: LoweringContext) -> str:
    """com.microsoft QLinearSoftmax, by the rules of the opset that an attribute names."""
    legacy = ctx.int("opset") < 13
    axis = ctx.axis(ctx.int("axis", -1), len(ctx.shape(0)))
    y = softmax(ctx, dequantize(ctx, quantity(ctx, 0, 1)), axis, flatten=legacy)
    return quantize(ctx, y, quantity(ctx, None, 3), ctx.type(0).dtype)


@lowers("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(ctx: LoweringContext) -> str:
    """com.microsoft QLinearAveragePool, with channels first or last.

    Where padding counts, so does what is beyond it: onnxruntime divides by whole windows.
    """
    b, rank = ctx.b, len(ctx.shape(0))
    last = bool(ctx.int("channels_last"))
    x = dequantize(ctx, quantity(ctx, 0, 1))
    x = b.transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x
    beyond = ctx.int("ceil_mode") and ctx.int("count_include_pad")
    y = standard(ctx, "AveragePool", x, **_padded_to_the_end(ctx, b.shape(x)) if beyond else {})
    y = b.transpose(y, (0, *range(2, rank), 1)) if last else y
    return quantize(ctx, y, quantity(ctx, None, 3), ctx.type(0).dtype)


def _padded_to_the_end(ctx: LoweringContext, shape: Sequence[int]) -> dict[str, Any]:
    """Return attributes of the same windows with pads as far as the last one reaches."""
    spatial, kernel = shape[2:], ctx.ints("kernel_shape") or []
    ctx.require(len(kernel) == len(spatial), f"kernel {kernel} for {ctx.type(0)}")
    window, end = window_of(ctx, spatial, kernel)
    out = output_extents(spatial, window, end, ceil=True)
    last = [(n - 1) * s + (k - 1) * d + 1 for n, k, s, d in
            zip(out, kernel, window.strides, window.dilations, strict=True)]  # fmt: skip
    ends = [max(0, e - p - n) for e, p, n in zip(last, window.pads, spatial, strict=True)]
    return {"pads": [*window.pads, *ends], "auto_pad": "NOTSET", "ceil_mode": 0}


@lowers("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(ctx: LoweringContext) -> str:
    """com.microsoft QLinearGlobalAveragePool, with channels first or last."""
    rank = len(ctx.shape(0))
    first = 1 if ctx.int("channels_last") else 2
    return _mean(ctx, tuple(range(first, first + rank - 2)), True)


@lowers("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(ctx: LoweringContext) -> str:
    """com.microsoft QLinearReduceMean."""
    rank = len(ctx.shape(0))
    axes = ctx.axes(ctx.ints("axes") or range(rank), rank)
    return _mean(ctx, axes, bool(ctx.int("keepdims", 1)))


def _mean(ctx: LoweringContext, axes: tuple[int, ...], keep: bool) -> str:
    """Sum integers, then put the sum minus its zero points on the result's scale."""
    b, x, y = ctx.b, quantity(ctx, 0, 1), quantity(ctx, None, 3)
    dtype, count = ctx.type(0).dtype, prod(ctx.shape(0)[a] for a in axes)
    element, total = cast(Input(dtype, 0), DType.INT32), Input(DType.INT32, 0)
    if x.zero:
        zero = b.cast(x.zero, DType.INT32)
    sums = reduction(ctx, x.value, axes, keep, "Sum", element, total)
    if x.zero:
        scaled = lambda s, z: call("Sub", s, call("Mul", z, const(count, DType.INT32)))  # noqa: E731
        sums = b.map(scaled, sums, zero)
    ratio = scale_ratio(ctx, x.scale, b.scalar(1.0, DType.FLOAT), _times(ctx, y.scale, count))
    return requantize(ctx, sums, ratio, y.zero, dtype)


def _times(ctx: LoweringContext, scale: str, count: int) -> str:
    array = ctx.b.value(scale)
    if array is not None:
        return ctx.b.constant(np.multiply(array, np.float32(count), dtype=np.float32))
    return ctx.b.map(lambda s: call("Mul", s, like(s, count)), scale)


# ---- products -----------------------------------------------------------------------------------


@lowers("QLinearConv", domain=MICROSOFT)
def qlinear_conv_nhwc(ctx: LoweringContext) -> str:
    """com.microsoft QLinearConv: ONNX's, with channels first or last."""
    b, rank = ctx.b, len(ctx.shape(0))
    if not ctx.int("channels_last"):
        return qlinear_conv(ctx)
    x = b.transpose(ctx.input(0), (0, rank - 1, *range(1, rank - 1)))
    y = qlinear_conv(replace(ctx, inputs=(x, *ctx.inputs[1:])))
    return b.transpose(y, (0, *range(2, rank), 1))


@lowers("QGemm", domain=MICROSOFT)
def qgemm(ctx: LoweringContext) -> str:
    """com.microsoft QGemm: alpha A' B' + C in integers, then real or requantized."""
    b = ctx.b
    x, w = ctx.input(0), ctx.input(3)
    x = b.transpose(x, (1, 0)) if ctx.int("transA") else x
    w = b.transpose(w, (1, 0)) if ctx.int("transB") else w
    total = integer_product(ctx, x, w, ctx.optional(2), ctx.optional(5))
    if ctx.has(6):
        total = b.map(lambda t, c: call("Add", t, c), total, ctx.input(6))
    alpha = b.scalar(ctx.float("alpha", 1.0), DType.FLOAT)
    scale = b.reshape(ctx.input(1), ())
    one = b.scalar(1.0, DType.FLOAT)
    ratio = scale_ratio(ctx, scale_ratio(ctx, scale, alpha, one), ctx.input(4),
                        ctx.input(7) if ctx.has(7) else one)  # fmt: skip
    if ctx.has(7):
        zero = ctx.optional(8)
        dtype = b.type(zero).dtype if zero else ctx.type(0).dtype
        return requantize(ctx, total, ratio, zero, dtype)
    return b.map(_real, total, ratio)


def _real(total: Expr, scale: Expr) -> Expr:
    """Return an INT32 sum on its real scale."""
    return call("Mul", cast(total, DType.FLOAT), cast(scale, DType.FLOAT))


@lowers("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(ctx: LoweringContext) -> str:
    """com.microsoft MatMulIntegerToFloat: one scale for A, one or one per column for B."""
    a_scale, out = ctx.input(2), ctx.type(2).dtype
    ctx.require(ctx.b.type(a_scale).size == 1, f"the scale of A is {ctx.b.type(a_scale)}")
    total = integer_product(ctx, ctx.input(0), ctx.input(1), ctx.optional(4), ctx.optional(5))
    y = _scaled(ctx, total, ctx.b.reshape(a_scale, ()), ctx.input(3), ctx.optional(6))
    return ctx.b.cast(y, out)


@lowers("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(ctx: LoweringContext) -> str:
    """com.microsoft DynamicQuantizeMatMul: A is quantized to UINT8 by its own range."""
    a, scale, zero = dynamic_quantize(ctx, ctx.input(0))
    total = integer_product(ctx, a, ctx.input(1), zero, ctx.optional(3))
    return _scaled(ctx, total, scale, ctx.input(2), ctx.optional(4))


def _scaled(ctx: LoweringContext, total: str, a_scale: str, b_scale: str, bias: str) -> str:
    """Return an INT32 product on its real scale, plus bias."""
    one = ctx.b.scalar(1.0, DType.FLOAT)
    y = ctx.b.map(_real, total, scale_ratio(ctx, a_scale, b_scale, one))
    if not bias:
        return y
    return ctx.b.map(lambda v, w: call("Add", v, w), y, ctx.b.cast(bias, DType.FLOAT))


# ---- packed weights -----------------------------------------------------------------------------


_IN_BYTES = 4
"""The accuracy_level that lets x be rounded to INT8."""


@lowers("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(ctx: LoweringContext) -> str:
    """com.microsoft MatMulNBits of weights of 2, 4 or 8 bits."""
    b, x = ctx.b, ctx.type(0)
    k, n = ctx.int("K"), ctx.int("N")
    bits, block = ctx.int("bits", 4), ctx.int("block_size")
    ctx.require(bits in (2, 4, 8) and block >= 16 and k > 0, f"{bits} bits, blocks of {block}")
    ctx.require(bool(x.shape) and x.shape[-1] == k, f"A is {x}, K is {k}")
    if ctx.int("weight_prepacked"):
        raise ctx.unsupported("weights prepacked for a GPU")
    m, blocks = prod(x.shape[:-1]), -(-k // block)
    a, scales = (b.cast(ctx.input(i), DType.FLOAT) for i in (0, 2))
    order, q = _order_of_groups(ctx, k, block), ctx.input(1)
    if order is not None:
        q = b.constant(_reordered(b.value(q), order, (n, blocks, block), bits))
        a = gather_axis(b, a, len(x.shape) - 1, b.constant(order), proven=True)
    operands = [a, q, scales]
    epilogue = identity_epilogue(DType.FLOAT)
    operands.append(_zero_points(ctx, n, blocks, bits))
    if ctx.has(5):
        operands.append(b.cast(ctx.input(5), DType.FLOAT))
        added = call("Add", Input(DType.FLOAT, 0), Input(DType.FLOAT, 1))
        epilogue = Epilogue(added, (View((0, 1)),))
    rounds = ctx.int("accuracy_level", 0) == _IN_BYTES and order is None
    op = MatMulPacked(m, n, k, block, bits, epilogue, rounds)
    y = b.emit1(op, operands, TensorType(DType.FLOAT, (*x.shape[:-1], n)))
    return b.cast(y, x.dtype)


def _order_of_groups(ctx: LoweringContext, k: int, block: int) -> Array | None:
    """Return columns by their group of scales, g_idx; None where they lie so already."""
    if not ctx.has(4):
        return None
    groups = ctx.b.value(ctx.input(4))
    if groups is None or ctx.b.value(ctx.input(1)) is None:
        raise ctx.unsupported("MatMulNBits with g_idx or weights known only at run time")
    ctx.require(groups.size >= k, f"g_idx has {groups.size} numbers, K is {k}")
    groups = groups.reshape(-1)[:k]
    order = np.argsort(groups, kind="stable").astype(np.int64)
    if not np.array_equal(groups[order], np.arange(k) // block):
        raise ctx.unsupported(f"MatMulNBits with g_idx of groups that aren't {block} columns each")
    return None if np.array_equal(order, np.arange(k)) else order


def _reordered(q: Array | None, order: Array, shape: tuple[int, int, int], bits: int) -> Array:
    """Return packed weights [n, blocks, block] with their columns in an order."""
    assert q is not None
    n, blocks, block = shape
    fields = np.zeros((n, blocks * block), np.uint8)
    fields[:, : order.size] = _unpacked(q.reshape(n, -1), bits)[:, order]
    parts = fields.reshape(n, -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts, axis=-1).reshape(n, blocks, -1))


def _zero_points(ctx: LoweringContext, n: int, blocks: int, bits: int) -> str:
    """Return zero points [n, blocks] of UINT8 or FLOAT, '' where there are none."""
    if not ctx.has(3):
        return ""
    b, type_ = ctx.b, ctx.type(3)
    if type_.dtype is not DType.UINT8:
        return b.cast(ctx.input(3), DType.FLOAT)
    if bits == 8:
        return ctx.input(3)
    per_byte = 8 // bits
    width = -(-blocks // per_byte)
    ctx.require(type_.size == n * width, f"zero points {type_} for {n} rows of {blocks} blocks")
    known = b.value(ctx.input(3))
    if known is not None:
        return b.constant(_unpacked(known.reshape(n, width), bits)[:, :blocks])
    loops = (n, width, per_byte)

    def field(byte: Expr, shift: Expr) -> Expr:
        low = call("ShiftRight", byte, cast(shift, DType.UINT8))
        return call("BitwiseAnd", low, like(byte, (1 << bits) - 1))

    whole = b.map(field, ctx.input(3), shape=loops, views=[View((width, 1, 0))],
                  coordinates=[View((0, 0, bits))])  # fmt: skip
    return b.view(whole, (n, blocks), View((row_major(loops)[0], 1)))


def _unpacked(array: Array, bits: int) -> Array:
    """Return the fields of bytes [n, width] as [n, width * fields], low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (array[..., None].astype(np.uint8) >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(array.shape[0], -1))
