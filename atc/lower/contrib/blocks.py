"""Lowerings of onnxruntime's own operators on tables and weights that are quantized in blocks."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import onnx_ir

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import Array, DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT, embed_layer_normalization
from atc.lower.contrib.tensor import standing_for
from atc.lower.elementwise import like
from atc.lower.indexed_access import gather_axis, take
from atc.lower.matmul import product
from atc.lower.quantize import dequantized
from atc.lower.registry import lowers
from atc.lower.rnn import IntegerWeights, Scales, recurrent_layer

Integers = npt.NDArray[np.int32]

# ---- tables -------------------------------------------------------------------------------------


@lowers("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(ctx: LoweringContext) -> str:
    """com.microsoft GatherBlockQuantized: slices of a table, dequantized after they are read."""
    b, bits, packed = ctx.b, ctx.int("bits", 4), ctx.type(0).dtype is DType.UINT8
    rank = len(ctx.shape(0))
    axis = ctx.axis(ctx.int("gather_axis", 0), rank)
    along = ctx.axis(ctx.int("quantize_axis", 1), rank)
    ctx.require(axis != along, "gather_axis is quantize_axis")
    ctx.require(bits in (2, 4, 8), f"{bits} bits")
    fields = 8 // bits if packed else 1
    places = len(ctx.shape(1))

    def gathered(i: int) -> str:
        x = ctx.input(i)
        if b.shape(x)[axis] == 1 and ctx.shape(0)[axis] != 1:  # one for the whole axis
            return b.reshape(x, (*ctx.shape(i)[:axis], *[1] * places, *ctx.shape(i)[axis + 1 :]))
        return gather_axis(b, x, axis, ctx.input(1), proven=False)

    along += places - 1 if along > axis else 0
    rows = gathered(0)
    rows = unpacked(ctx, rows, bits, b.shape(rows)[-1] * fields) if fields > 1 else rows
    size = ctx.int("block_size", 128) or b.shape(rows)[along]
    blocks = np.arange(b.shape(rows)[along]) // size
    scales = take(b, gathered(2), along, blocks)
    zeros = _table_zeros(ctx, gathered, packed, bits, b.shape(gathered(2))[-1])
    operands = [rows, b.cast(scales, DType.FLOAT)]
    if isinstance(zeros, str):
        operands.append(take(b, zeros, along, blocks))

    def real(x: Expr, scale: Expr, *zero: Expr) -> Expr:
        known = like(x, zeros) if isinstance(zeros, int) and zeros else None
        return dequantized(x, scale, zero[0] if zero else known)

    return b.cast(b.map(real, *operands), ctx.type(2).dtype)


def _table_zeros(
    ctx: LoweringContext, gathered: object, packed: bool, bits: int, blocks: int
) -> str | int:
    """Return the zero points as they lie beside the scales, or the number that all are."""
    assert callable(gathered)
    if not ctx.has(3):
        return 1 << (bits - 1) if packed else 0
    zeros = str(gathered(3))
    return unpacked(ctx, zeros, bits, blocks) if packed and bits < 8 else zeros


def unpacked(ctx: LoweringContext, x: str, bits: int, count: int) -> str:
    """Return the first `count` fields of the last axis's bytes, low bits first, as bytes."""
    b, shape = ctx.b, ctx.b.shape(x)
    fields = 8 // bits
    loops = (*shape, fields)

    def field(byte: Expr, shift: Expr) -> Expr:
        low = call("ShiftRight", byte, cast(shift, DType.UINT8))
        return call("BitwiseAnd", low, like(byte, (1 << bits) - 1))

    step = View((*[0] * len(shape), bits))
    view = View((*row_major(shape), 0))
    whole = b.map(field, x, shape=loops, views=[view], coordinates=[step])
    width = shape[-1] * fields
    lines = row_major((*shape[:-1], width))
    return b.view(whole, (*shape[:-1], count), View(lines))


@lowers("QEmbedLayerNormalization", domain=MICROSOFT)
def qembed_layer_normalization(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft QEmbedLayerNormalization: EmbedLayerNormalization of quantized tables."""
    b = ctx.b
    real = {}
    for k, i in enumerate((2, 3, 4, 5, 6)):
        if ctx.has(i):
            operands = [ctx.input(i), ctx.input(8 + k), ctx.input(13 + k)]
            operands[1:] = [b.reshape(x, ()) for x in operands[1:]]
            real[i] = b.map(dequantized, *operands)
    inputs = [real.get(i, ctx.optional(i)) for i in range(8)]
    y, mask, _ = embed_layer_normalization(replace(ctx, inputs=tuple(inputs)))
    return y, mask


# ---- weights ------------------------------------------------------------------------------------

FP4 = (0.0, 5.208333333e-03, 0.66666667, 1.0, 0.33333333, 0.5, 0.16666667, 0.25)
"""Half of the values of bitsandbytes' FP4; the others are their negatives."""

NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
    0.7229568362236023, 1.0,
)  # fmt: skip
"""The quantiles of the normal distribution that NF4 has."""


@lowers("MatMulBnb4", domain=MICROSOFT)
def matmul_bnb4(ctx: LoweringContext) -> str:
    """com.microsoft MatMulBnb4: weights in FP4 or NF4 are unpacked when compiling."""
    k, n = ctx.int("K"), ctx.int("N")
    kind, block = ctx.int("quant_type"), ctx.int("block_size")
    ctx.require(kind in (0, 1) and block > 0 and k > 0 < n, f"quant_type {kind}, blocks {block}")
    codes = np.asarray(ctx.required_const(1, "the weight"), np.uint8).reshape(-1)
    scales = np.asarray(ctx.required_const(2, "the scale"), np.float32).reshape(-1)
    fits = codes.size == -(-n * k // 2) and scales.size == -(-n * k // block)
    ctx.require(fits, f"{codes.size} bytes and {scales.size} scales for {n} x {k}")
    values = np.asarray((*FP4, *(-v for v in FP4)) if kind == 0 else NF4, np.float32)
    nibbles = np.stack([codes >> 4, codes & 15], -1).reshape(-1)[: n * k]  # the first one is high
    weights = values[nibbles] * np.repeat(scales, block)[: n * k]
    table: Array = weights.reshape(n, k)
    if ctx.int("transB", 1):
        table = np.ascontiguousarray(table.T)
    b, dtype = ctx.b, ctx.type(0).dtype
    x = b.cast(ctx.input(0), DType.FLOAT)
    return b.cast(product(ctx, x, b.constant(table.astype(np.float32))), dtype)


@lowers("DynamicQuantizeLSTM", domain=MICROSOFT)
def dynamic_quantize_lstm(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft DynamicQuantizeLSTM: inputs and states are rounded to bytes at every step.

    Where weights aren't known, or differ from their zero points by more than INT8 holds, they are
    dequantized instead, and all else stays real: the exact products lie within that rounding.
    """
    b = ctx.b
    weights: list[str] = []
    exact: list[tuple[Integers, Scales]] = []
    for i, scale in ((1, 8), (2, 10)):  # [directions, inputs, 4 * hidden]
        directions, _, width = ctx.shape(i)
        spread = []
        for j in (scale, scale + 1):
            per_column = ctx.type(j).size == directions * width and width > 1
            spread.append(b.reshape(ctx.input(j), (directions, 1, width if per_column else 1)))
        known = [b.value(name) for name in (ctx.input(i), *spread)]
        if any(v is None for v in known):
            computed = b.map(dequantized, ctx.input(i), *spread)
            weights.append(b.transpose(computed, (0, 2, 1)))
            continue
        q, s, z = (np.asarray(v) for v in known)
        centred = q.astype(np.int32) - z.astype(np.int32)
        exact.append((centred, np.asarray(s, np.float32)))
        real = (centred.astype(np.float32) * s).swapaxes(1, 2)
        weights.append(b.constant(np.ascontiguousarray(real), ctx.input(i)))
    inputs = [ctx.input(0), *weights, *(ctx.optional(i) for i in range(3, 8))]
    attributes = list(ctx.node.attributes.values())
    if ctx.attribute("hidden_size") is None:
        attributes.append(onnx_ir.AttrInt64("hidden_size", ctx.shape(2)[1]))
    inner = standing_for(ctx, "LSTM", inputs, attributes, opset=14, outputs=3)
    return recurrent_layer(inner, _integer_weights(ctx, exact))


def _integer_weights(
    ctx: LoweringContext, exact: list[tuple[Integers, Scales]]
) -> IntegerWeights | None:
    """Return known weights [D, inputs, 4 * H] with their scales in bytes, None where such don't do.

    Sums of a byte times 32768 weights fit 32 bits.
    """
    fits = all(c.min() >= -128 and c.max() <= 127 and c.shape[1] <= 1 << 15 for c, _ in exact)
    if len(exact) != 2 or not fits or 0 in ctx.shape(0):
        return None
    (w, w_scale), (r, r_scale) = exact
    directions, inputs, width = w.shape
    columns = np.ascontiguousarray(w.transpose(1, 0, 2).reshape(inputs, directions * width))
    scale = np.broadcast_to(w_scale, (directions, 1, width)).reshape(-1)
    b = ctx.b
    return IntegerWeights(
        b.constant(columns.astype(np.int8), ctx.input(1)),
        b.constant(np.ascontiguousarray(scale), ctx.input(1)),
        b.constant(r.astype(np.int8), ctx.input(2)), r_scale.reshape(directions, -1),
    )  # fmt: skip
