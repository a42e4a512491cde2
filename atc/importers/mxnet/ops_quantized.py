"""Quantised operators as QuantizeLinear and DequantizeLinear around float operators.

A quantised value is three outputs: numbers, least and greatest real value. Zero is zero, and the
scale is max(|least|, |greatest|) over the largest number. MXNet 1.9 on x86 has two opinions of
that number: its own kernels say 127 and 255, its oneDNN kernels 127.5 and 255.5; each operator here
takes the side that it takes there. An int32 value carries the float tensor that it stands for, so
that no rounding is added before it is made int8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from atc.importers.mxnet.builder import Builder
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.ops_conv import conv, linear
from atc.importers.mxnet.ops_index import index_of
from atc.importers.mxnet.ops_norm import batch_norm
from atc.importers.mxnet.ops_pool import pool
from atc.importers.mxnet.tensor import Tensor

Quantized = tuple[Tensor, Tensor, Tensor]
"""The numbers, the least and the greatest real value."""

INT8, UINT8, INT32 = np.dtype(np.int8), np.dtype(np.uint8), np.dtype(np.int32)
Largest = Mapping[np.dtype[Any], float]
"""The number of each type that stands for the end of the range."""

PLAIN: Largest = {INT8: 127.0, UINT8: 255.0, INT32: 2147483647.0}
ONEDNN: Largest = {INT8: 127.5, UINT8: 255.5, INT32: 2147483647.0}
FLOAT = np.dtype(np.float32)


# ---- values ------------------------------------------------------------------------------------


def bound(b: Builder, least: Tensor, greatest: Tensor) -> Tensor:
    """Return max(|least|, |greatest|), a scalar."""
    widest = b.op("Max", b.op("Abs", least), b.op("Abs", greatest))
    if widest.size != 1:
        raise b.error(f"the range of a quantised value has {widest.size} elements")
    return b.reshape(b.cast(widest, FLOAT), [])


def scale_of(b: Builder, limit: Tensor, dtype: np.dtype[Any], largest: Largest) -> Tensor:
    """Return the scale of numbers of a type whose real values reach `limit`."""
    if dtype not in largest:
        raise b.error(f"{dtype} is not a quantised type")
    scale = b.op("Div", limit, largest[dtype])
    if scale.array is not None and not scale.array > 0:
        return b.scalar(1.0, FLOAT)  # all values are zero
    return scale


def real_value(b: Builder, numbers: Tensor, limit: Tensor, largest: Largest) -> Tensor:
    """Return the float tensor that quantised numbers, whose values reach `limit`, stand for."""
    if numbers.real is not None:
        return numbers.real
    if numbers.dtype not in largest:
        return numbers
    scale = scale_of(b, limit, numbers.dtype, largest)
    if numbers.dtype == INT32:
        return b.op("Mul", b.cast(numbers, FLOAT), scale)
    return b.op("DequantizeLinear", numbers, scale)


def quantize(
    b: Builder, x: Tensor, limit: Tensor, dtype: np.dtype[Any], largest: Largest
) -> Quantized:
    """Quantise a float tensor whose values reach `limit`."""
    scale = scale_of(b, limit, dtype, largest)
    if dtype == INT32:
        whole = b.cast(b.op("Round", b.op("Div", x, scale)), INT32)
        numbers = replace(whole, real=x)
    else:
        numbers = b.op("QuantizeLinear", x, scale, b.constant(np.zeros((), dtype)))
    greatest = b.reshape(limit, [1])
    least = b.constant(np.zeros(1, np.float32)) if dtype == UINT8 else b.op("Neg", greatest)
    return numbers, least, greatest


def accumulated(b: Builder, real: Tensor, *factors: Tensor) -> Quantized:
    """Return a float result as int32 in units of the product of its operands' scales."""
    scale = factors[0]
    for factor in factors[1:]:
        scale = b.op("Mul", scale, factor)
    return quantize(b, real, b.op("Mul", scale, PLAIN[INT32]), INT32, PLAIN)


def calibrated(s: NodeContext) -> Tensor | None:
    """Return the bound of the node's calibrated range, None where it has none."""
    least, greatest = s.maybe_number("min_calib_range"), s.maybe_number("max_calib_range")
    if least is None or greatest is None:
        return None
    return s.b.scalar(max(abs(least), abs(greatest)), FLOAT)


def observed(b: Builder, x: Tensor) -> Tensor:
    """Return the largest magnitude that occurs, computed at run time."""
    return b.op("ReduceMax", b.op("Abs", x), keepdims=0)


def target_type(s: NodeContext, default: str) -> np.dtype[Any]:
    """Return the type of `out_type`; auto is uint8 where the calibrated range is not negative."""
    word = s.word("out_type", default, ("int8", "uint8", "auto"))
    if word == "auto":
        least = s.maybe_number("min_calib_range")
        return UINT8 if least is not None and least >= 0 else INT8
    return np.dtype(word)


def result(
    s: NodeContext, real: Tensor, dtype: np.dtype[Any], *factors: Tensor
) -> Sequence[Tensor]:
    """Return a float result as the node gives it out: float, calibrated or int32."""
    if s.truth("enable_float_output", False):
        return (real,)
    limit = calibrated(s)
    if limit is None:
        return accumulated(s.b, real, *factors)
    return quantize(s.b, real, limit, dtype, ONEDNN)


# ---- conversions -------------------------------------------------------------------------------


@translates("_contrib_quantize")
def quantize_v1(s: NodeContext) -> Quantized:
    """Quantise by a range that is given as two tensors."""
    dtype = target_type(s, "uint8")
    return quantize(s.b, s.x, bound(s.b, s.input(1), s.input(2)), dtype, PLAIN)


@translates("_contrib_quantize_v2")
def quantize_v2(s: NodeContext) -> Quantized:
    """Quantise by the calibrated range, or by the range that occurs."""
    if s.x.dtype in (INT8, UINT8):
        limit = calibrated(s) or s.b.scalar(ONEDNN[s.x.dtype], FLOAT)
        greatest = s.b.reshape(limit, [1])
        return s.b.op("Identity", s.x), s.b.op("Neg", greatest), greatest
    limit = calibrated(s) or observed(s.b, s.x)
    return quantize(s.b, s.x, limit, target_type(s, "int8"), ONEDNN)


@translates("_contrib_requantize")
def requantize(s: NodeContext) -> Quantized:
    """Make int32 numbers int8 or uint8."""
    real = real_value(s.b, s.x, bound(s.b, s.input(1), s.input(2)), PLAIN)
    limit = calibrated(s) or observed(s.b, real)
    return quantize(s.b, real, limit, target_type(s, "int8"), PLAIN)


@translates("_contrib_dequantize")
def dequantize(s: NodeContext) -> Tensor:
    """Return the real values."""
    real = real_value(s.b, s.x, bound(s.b, s.input(1), s.input(2)), ONEDNN)
    return real if real is not s.x.real else s.b.op("Identity", real)


# ---- layers ------------------------------------------------------------------------------------


def _operands(s: NodeContext) -> tuple[Tensor, Tensor, Tensor | None, list[Tensor]]:
    """Return real data, weight and bias, and the scales of data and weight."""
    b, biased = s.b, not s.truth("no_bias", False)
    ranges = s.inputs[2 + biased :]
    s.require(len(ranges) >= 4 + 2 * biased, "ranges of its inputs are missing")
    limits = [bound(b, ranges[2 * i], ranges[2 * i + 1]) for i in range(2 + biased)]
    x = real_value(b, s.x, limits[0], PLAIN)
    weight = real_value(b, s.input(1), limits[1], PLAIN)
    offset = real_value(b, s.input(2), limits[2], PLAIN) if biased else None
    scales = [unit(b, s.x, limits[0]), unit(b, s.input(1), limits[1])]
    return x, weight, offset, scales


def unit(b: Builder, numbers: Tensor, limit: Tensor) -> Tensor:
    """Return what one step of an operand's numbers is worth; 1 for a float."""
    if numbers.dtype not in PLAIN:
        return b.scalar(1.0, FLOAT)
    return scale_of(b, limit, numbers.dtype, PLAIN)


@translates("_contrib_quantized_conv")
def quantized_conv(s: NodeContext) -> Sequence[Tensor]:
    """Conv of quantised data and weight, as int32."""
    s.rank(3, 4, 5)
    x, weight, offset, scales = _operands(s)
    return result(s, conv(s, x, weight, offset), INT8, *scales)


@translates("_contrib_quantized_fully_connected")
def quantized_fully_connected(s: NodeContext) -> Sequence[Tensor]:
    """Gemm of quantised data and weight, as int32."""
    x, weight, offset, scales = _operands(s)
    s.require(weight.rank == 2, "the weight is not a matrix")
    return result(s, linear(s, x, weight, offset, s.truth("flatten", True)), INT8, *scales)


@translates("_contrib_quantized_batch_norm")
def quantized_batch_norm(s: NodeContext) -> Quantized:
    """BatchNormalization of real values, to int8 by the calibrated range."""
    limit = calibrated(s)
    if limit is None:
        raise s.error("min_calib_range and max_calib_range are missing")
    x = real_value(s.b, s.x, bound(s.b, s.input(5), s.input(6)), ONEDNN)
    y, *_ = batch_norm(replace(s, inputs=(x, *s.inputs[1:5])))
    return quantize(s.b, y, limit, INT8, ONEDNN)


@translates("_contrib_quantized_pooling")
def quantized_pooling(s: NodeContext) -> Quantized:
    """Pooling that keeps type and scale: of the numbers for max, of real values for avg."""
    s.rank(3, 4, 5)
    least, greatest = s.input(1), s.input(2)
    if s.word("pool_type", "max") == "max":
        return pool(s, s.x), least, greatest
    limit = bound(s.b, least, greatest)
    y = pool(s, real_value(s.b, s.x, limit, ONEDNN))
    numbers, *_ = quantize(s.b, y, limit, s.x.dtype, ONEDNN)
    return numbers, least, greatest


@translates("_contrib_quantized_act")
def quantized_act(s: NodeContext) -> Quantized:
    """Relu of the numbers; other functions have no quantised form in MXNet."""
    s.word("act_type", None, ("relu",))
    y = s.b.op("Identity", s.x) if s.x.dtype == UINT8 else s.b.op("Relu", s.x)
    return y, s.input(1), s.input(2)


@translates("_contrib_quantized_flatten")
def quantized_flatten(s: NodeContext) -> Quantized:
    """Flatten of the numbers."""
    return s.b.op("Flatten", s.x, axis=1), s.input(1), s.input(2)


@translates("_contrib_quantized_concat")
def quantized_concat(s: NodeContext) -> Quantized:
    """Join real values and quantise by the widest range; int8 as soon as one input is."""
    b, count = s.b, s.integer("num_args")
    s.require(count > 0 and len(s.inputs) == 3 * count, f"{len(s.inputs)} inputs of {count} values")
    values, ranges = s.inputs[:count], s.inputs[count:]
    limits = [bound(b, ranges[2 * i], ranges[2 * i + 1]) for i in range(count)]
    dtype = UINT8 if all(v.dtype == UINT8 for v in values) else INT8
    real = [real_value(b, v, t, ONEDNN) for v, t in zip(values, limits, strict=True)]
    joined = b.op("Concat", *real, axis=s.axis(s.integer("dim", 1), s.x.rank))
    widest = b.op("Max", *limits) if count > 1 else limits[0]
    return quantize(b, joined, widest, dtype, ONEDNN)


@translates("_contrib_quantized_elemwise_add", "_contrib_quantized_elemwise_mul")
def quantized_elementwise(s: NodeContext) -> Sequence[Tensor]:
    """Add or multiply real values."""
    b, ranges = s.b, s.inputs[2:]
    s.require(len(ranges) == 4, "ranges of its inputs are missing")
    limits = [bound(b, ranges[0], ranges[1]), bound(b, ranges[2], ranges[3])]
    product = s.node.op.endswith("mul")
    largest = PLAIN if product else ONEDNN
    x = real_value(b, s.x, limits[0], largest)
    y = real_value(b, s.input(1), limits[1], largest)
    if product:
        scales = [unit(b, v, t) for v, t in zip(s.inputs, limits, strict=False)]
        return result(s, b.op("Mul", x, y), INT8, *scales)
    step = b.op("Div", b.op("Add", *limits), PLAIN[INT32])
    return result(s, b.op("Add", x, y), INT8, step)


@translates("_contrib_quantized_embedding")
def quantized_embedding(s: NodeContext) -> Quantized:
    """Rows of a quantised weight."""
    weight = s.input(1)
    s.require(weight.rank == 2 and weight.shape[0] > 0, "the weight is not a matrix")
    rows = s.b.op("Gather", weight, index_of(s, s.x, weight.shape[0], "clip"), axis=0)
    return rows, s.input(2), s.input(3)
