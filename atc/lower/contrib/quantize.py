"""Lowerings of onnxruntime's own quantized operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops import Epilogue, identity_epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.lower.concat_pad import join
from atc.lower.context import Site
from atc.lower.contrib.fused import MICROSOFT, standard
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


def quantity(site: Site, value: int | None, scale: int) -> Quantity:
    """Return the operands at `value`, `scale` and behind it; both are one number."""
    parts = [site.input(scale), site.optional(scale + 1)]
    for part in parts:
        if part:
            site.require(site.b.type(part).size == 1, f"{site.b.type(part)} is not one number")
    scalars = [site.b.reshape(p, ()) if p else "" for p in parts]
    return Quantity("" if value is None else site.input(value), scalars[0], scalars[1])


def elementwise(
    site: Site, f: Callable[..., Expr], operands: list[Quantity], result: Quantity, dtype: DType
) -> str:
    """Return quantize(f(dequantized operands)), element by element."""
    names = [n for q in (*operands, result) for n in q.names]

    def body(*args: Expr) -> Expr:
        rest = iter(args)
        values = [_next(q, rest) for q in operands]
        y = f(*(dequantized(v, s, z) for v, s, z in values))
        scale, zero = next(rest), next(rest, None)
        return quantized(y, scale, zero, dtype)

    return site.b.map(body, *names)


def _next(q: Quantity, rest: Iterator[Expr]) -> tuple[Expr, Expr, Expr | None]:
    return next(rest), next(rest), next(rest) if q.zero else None


def dequantize(site: Site, q: Quantity) -> str:
    """Return the real numbers of a quantity."""
    return site.b.map(lambda v, s, z=None: dequantized(v, s, z), *q.names)


def quantize(site: Site, x: str, q: Quantity, dtype: DType) -> str:
    """Return real numbers on the scale of a quantity."""
    return site.b.map(lambda v, s, z=None: quantized(v, s, z, dtype), x, *q.names)


# ---- elementwise --------------------------------------------------------------------------------


@lowers("QLinearSigmoid", "QLinearLeakyRelu", domain=MICROSOFT)
def qlinear_unary(site: Site) -> str:
    """com.microsoft QLinearSigmoid, QLinearLeakyRelu."""
    alpha = site.float("alpha", 0.01)
    f: Callable[[Expr], Expr] = lambda x: prelu(x, like(x, alpha))  # noqa: E731
    if site.node.op_type == "QLinearSigmoid":
        f = lambda x: call("Sigmoid", x)  # noqa: E731
    return elementwise(site, f, [quantity(site, 0, 1)], quantity(site, None, 3), site.type(0).dtype)


@lowers("QLinearAdd", "QLinearMul", domain=MICROSOFT)
def qlinear_binary(site: Site) -> str:
    """com.microsoft QLinearAdd, QLinearMul with numpy's broadcasting."""
    fn = site.node.op_type.removeprefix("QLinear")
    operands, dtype = [quantity(site, 0, 1), quantity(site, 3, 4)], site.type(0).dtype
    return elementwise(site, lambda a, b: call(fn, a, b), operands, quantity(site, None, 6), dtype)


@lowers("QLinearWhere", domain=MICROSOFT)
def qlinear_where(site: Site) -> str:
    """com.microsoft QLinearWhere: both choices are put on the result's scale."""
    result, dtype = quantity(site, None, 7), site.type(1).dtype
    choices = [quantity(site, i, i + 1) for i in (1, 4)]
    x, y = (elementwise(site, lambda v: v, [q], result, dtype) for q in choices)
    return site.b.map(lambda c, p, q: call("Where", c, p, q), site.input(0), x, y)


@lowers("QLinearConcat", domain=MICROSOFT)
def qlinear_concat(site: Site) -> str:
    """com.microsoft QLinearConcat: every part is put on the result's scale."""
    site.require(len(site.inputs) % 3 == 2, f"{len(site.inputs)} inputs")
    result, dtype = quantity(site, None, 0), site.type(1).dtype
    parts = [quantity(site, i, i + 1) for i in range(2, len(site.inputs), 3)]
    axis = site.axis(site.int("axis"), len(site.shape(2)))
    same = [p.value if _same_scale(site, p, result) else
            elementwise(site, lambda v: v, [p], result, dtype) for p in parts]  # fmt: skip
    return join(site.b, same, axis)


def _same_scale(site: Site, a: Quantity, b: Quantity) -> bool:
    """Return whether two quantities are known to have equal scales and zero points."""
    pairs = [(site.b.value(x), site.b.value(y)) for x, y in ((a.scale, b.scale), (a.zero, b.zero))]
    return all(x is not None and y is not None and x == y for x, y in pairs)


# ---- reductions ---------------------------------------------------------------------------------


@lowers("QLinearSoftmax", domain=MICROSOFT)
def qlinear_softmax(site: Site) -> str:
    """com.microsoft QLinearSoftmax, by the rules of the opset that an attribute names."""
    legacy = site.int("opset") < 13
    axis = site.axis(site.int("axis", -1), len(site.shape(0)))
    y = softmax(site, dequantize(site, quantity(site, 0, 1)), axis, flatten=legacy)
    return quantize(site, y, quantity(site, None, 3), site.type(0).dtype)


@lowers("QLinearAveragePool", domain=MICROSOFT)
def qlinear_average_pool(site: Site) -> str:
    """com.microsoft QLinearAveragePool, with channels first or last."""
    b, rank = site.b, len(site.shape(0))
    last = bool(site.int("channels_last"))
    x = dequantize(site, quantity(site, 0, 1))
    x = b.transpose(x, (0, rank - 1, *range(1, rank - 1))) if last else x
    y = standard(site, "AveragePool", x)
    y = b.transpose(y, (0, *range(2, rank), 1)) if last else y
    return quantize(site, y, quantity(site, None, 3), site.type(0).dtype)


@lowers("QLinearGlobalAveragePool", domain=MICROSOFT)
def qlinear_global_average_pool(site: Site) -> str:
    """com.microsoft QLinearGlobalAveragePool, with channels first or last."""
    rank = len(site.shape(0))
    first = 1 if site.int("channels_last") else 2
    return _mean(site, tuple(range(first, first + rank - 2)), True)


@lowers("QLinearReduceMean", domain=MICROSOFT)
def qlinear_reduce_mean(site: Site) -> str:
    """com.microsoft QLinearReduceMean."""
    rank = len(site.shape(0))
    axes = site.axes(site.ints("axes") or range(rank), rank)
    return _mean(site, axes, bool(site.int("keepdims", 1)))


def _mean(site: Site, axes: tuple[int, ...], keep: bool) -> str:
    """Sum integers, then put the sum minus its zero points on the result's scale."""
    b, x, y = site.b, quantity(site, 0, 1), quantity(site, None, 3)
    dtype, count = site.type(0).dtype, prod(site.shape(0)[a] for a in axes)
    element, total = cast(Input(dtype, 0), DType.INT32), Input(DType.INT32, 0)
    if x.zero:
        zero = b.cast(x.zero, DType.INT32)
    sums = reduction(site, x.value, axes, keep, "Sum", element, total)
    if x.zero:
        scaled = lambda s, z: call("Sub", s, call("Mul", z, const(count, DType.INT32)))  # noqa: E731
        sums = b.map(scaled, sums, zero)
    ratio = scale_ratio(site, x.scale, b.scalar(1.0, DType.FLOAT), _times(site, y.scale, count))
    return requantize(site, sums, ratio, y.zero, dtype)


def _times(site: Site, scale: str, count: int) -> str:
    array = site.b.value(scale)
    if array is not None:
        return site.b.constant(np.multiply(array, np.float32(count), dtype=np.float32))
    return site.b.map(lambda s: call("Mul", s, like(s, count)), scale)


# ---- products -----------------------------------------------------------------------------------


@lowers("QLinearConv", domain=MICROSOFT)
def qlinear_conv_nhwc(site: Site) -> str:
    """com.microsoft QLinearConv: ONNX's, with channels first or last."""
    b, rank = site.b, len(site.shape(0))
    if not site.int("channels_last"):
        return qlinear_conv(site)
    x = b.transpose(site.input(0), (0, rank - 1, *range(1, rank - 1)))
    y = qlinear_conv(replace(site, inputs=(x, *site.inputs[1:])))
    return b.transpose(y, (0, *range(2, rank), 1))


@lowers("QGemm", domain=MICROSOFT)
def qgemm(site: Site) -> str:
    """com.microsoft QGemm: alpha A' B' + C in integers, then real or requantized."""
    b = site.b
    x, w = site.input(0), site.input(3)
    x = b.transpose(x, (1, 0)) if site.int("transA") else x
    w = b.transpose(w, (1, 0)) if site.int("transB") else w
    total = integer_product(site, x, w, site.optional(2), site.optional(5))
    if site.has(6):
        total = b.map(lambda t, c: call("Add", t, c), total, site.input(6))
    alpha = b.scalar(site.float("alpha", 1.0), DType.FLOAT)
    scale = b.reshape(site.input(1), ())
    one = b.scalar(1.0, DType.FLOAT)
    ratio = scale_ratio(site, scale_ratio(site, scale, alpha, one), site.input(4),
                        site.input(7) if site.has(7) else one)  # fmt: skip
    if site.has(7):
        zero = site.optional(8)
        dtype = b.type(zero).dtype if zero else site.type(0).dtype
        return requantize(site, total, ratio, zero, dtype)
    return b.map(_real, total, ratio)


def _real(total: Expr, scale: Expr) -> Expr:
    """Return an INT32 sum on its real scale."""
    return call("Mul", cast(total, DType.FLOAT), cast(scale, DType.FLOAT))


@lowers("MatMulIntegerToFloat", domain=MICROSOFT)
def matmul_integer_to_float(site: Site) -> str:
    """com.microsoft MatMulIntegerToFloat: one scale for A, one or one per column for B."""
    a_scale, out = site.input(2), site.type(2).dtype
    site.require(site.b.type(a_scale).size == 1, f"the scale of A is {site.b.type(a_scale)}")
    total = integer_product(site, site.input(0), site.input(1), site.optional(4), site.optional(5))
    y = _scaled(site, total, site.b.reshape(a_scale, ()), site.input(3), site.optional(6))
    return site.b.cast(y, out)


@lowers("DynamicQuantizeMatMul", domain=MICROSOFT)
def dynamic_quantize_matmul(site: Site) -> str:
    """com.microsoft DynamicQuantizeMatMul: A is quantized to UINT8 by its own range."""
    a, scale, zero = dynamic_quantize(site, site.input(0))
    total = integer_product(site, a, site.input(1), zero, site.optional(3))
    return _scaled(site, total, scale, site.input(2), site.optional(4))


def _scaled(site: Site, total: str, a_scale: str, b_scale: str, bias: str) -> str:
    """Return an INT32 product on its real scale, plus bias."""
    one = site.b.scalar(1.0, DType.FLOAT)
    y = site.b.map(_real, total, scale_ratio(site, a_scale, b_scale, one))
    if not bias:
        return y
    return site.b.map(lambda v, w: call("Add", v, w), y, site.b.cast(bias, DType.FLOAT))


# ---- packed weights -----------------------------------------------------------------------------


_IN_BYTES = 4
"""The accuracy_level that lets x be rounded to INT8."""


@lowers("MatMulNBits", domain=MICROSOFT)
def matmul_nbits(site: Site) -> str:
    """com.microsoft MatMulNBits of weights of 2, 4 or 8 bits."""
    b, x = site.b, site.type(0)
    k, n = site.int("K"), site.int("N")
    bits, block = site.int("bits", 4), site.int("block_size")
    site.require(bits in (2, 4, 8) and block >= 16 and k > 0, f"{bits} bits, blocks of {block}")
    site.require(bool(x.shape) and x.shape[-1] == k, f"A is {x}, K is {k}")
    if site.int("weight_prepacked"):
        raise site.unsupported("weights prepacked for a GPU")
    m, blocks = prod(x.shape[:-1]), -(-k // block)
    a, scales = (b.cast(site.input(i), DType.FLOAT) for i in (0, 2))
    order, q = _order_of_groups(site, k, block), site.input(1)
    if order is not None:
        q = b.constant(_reordered(b.value(q), order, (n, blocks, block), bits))
        a = gather_axis(b, a, len(x.shape) - 1, b.constant(order), proven=True)
    operands = [a, q, scales]
    epilogue = identity_epilogue(DType.FLOAT)
    operands.append(_zero_points(site, n, blocks, bits))
    if site.has(5):
        operands.append(b.cast(site.input(5), DType.FLOAT))
        added = call("Add", Input(DType.FLOAT, 0), Input(DType.FLOAT, 1))
        epilogue = Epilogue(added, (View((0, 1)),))
    rounds = site.int("accuracy_level", 0) == _IN_BYTES and order is None
    op = MatMulPacked(m, n, k, block, bits, epilogue, rounds)
    y = b.emit1(op, operands, TensorType(DType.FLOAT, (*x.shape[:-1], n)))
    return b.cast(y, x.dtype)


def _order_of_groups(site: Site, k: int, block: int) -> Array | None:
    """Return columns by their group of scales, g_idx; None where they lie so already."""
    if not site.has(4):
        return None
    groups = site.b.value(site.input(4))
    if groups is None or site.b.value(site.input(1)) is None:
        raise site.unsupported("MatMulNBits with g_idx or weights known only at run time")
    site.require(groups.size >= k, f"g_idx has {groups.size} numbers, K is {k}")
    groups = groups.reshape(-1)[:k]
    order = np.argsort(groups, kind="stable").astype(np.int64)
    if not np.array_equal(groups[order], np.arange(k) // block):
        raise site.unsupported(f"MatMulNBits with g_idx of groups that aren't {block} columns each")
    return None if np.array_equal(order, np.arange(k)) else order


def _reordered(q: Array | None, order: Array, shape: tuple[int, int, int], bits: int) -> Array:
    """Return packed weights [n, blocks, block] with their columns in an order."""
    assert q is not None
    n, blocks, block = shape
    fields = np.zeros((n, blocks * block), np.uint8)
    fields[:, : order.size] = _unpacked(q.reshape(n, -1), bits)[:, order]
    parts = fields.reshape(n, -1, 8 // bits) << np.arange(0, 8, bits, dtype=np.uint8)
    return np.asarray(np.bitwise_or.reduce(parts, axis=-1).reshape(n, blocks, -1))


def _zero_points(site: Site, n: int, blocks: int, bits: int) -> str:
    """Return zero points [n, blocks] of UINT8 or FLOAT, '' where there are none."""
    if not site.has(3):
        return ""
    b, type_ = site.b, site.type(3)
    if type_.dtype is not DType.UINT8:
        return b.cast(site.input(3), DType.FLOAT)
    if bits == 8:
        return site.input(3)
    per_byte = 8 // bits
    width = -(-blocks // per_byte)
    site.require(type_.size == n * width, f"zero points {type_} for {n} rows of {blocks} blocks")
    known = b.value(site.input(3))
    if known is not None:
        return b.constant(_unpacked(known.reshape(n, width), bits)[:, :blocks])
    loops = (n, width, per_byte)

    def field(byte: Expr, shift: Expr) -> Expr:
        low = call("ShiftRight", byte, cast(shift, DType.UINT8))
        return call("BitwiseAnd", low, like(byte, (1 << bits) - 1))

    whole = b.map(field, site.input(3), shape=loops, views=[View((width, 1, 0))],
                  coordinates=[View((0, 0, bits))])  # fmt: skip
    return b.view(whole, (n, blocks), View((row_major(loops)[0], 1)))


def _unpacked(array: Array, bits: int) -> Array:
    """Return the fields of bytes [n, width] as [n, width * fields], low bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    fields = (array[..., None].astype(np.uint8) >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(fields.reshape(array.shape[0], -1))
