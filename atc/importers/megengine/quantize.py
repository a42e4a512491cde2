"""Quantised values: to real numbers, back with MegEngine's rounding, and integer products.

real = (stored - zero point) * scale. MegEngine rounds ties away from zero, where QuantizeLinear
takes them to even, hence the explicit rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.modes import round_half_away
from atc.importers.megengine.types import DType

_EXACT = 2.0**31 - 128  # the largest float32 below 2^31


def dequantize(b: Builder, x: Var) -> ir.Value:
    """Return the real numbers of a quantised variable as float32; others are cast."""
    if not x.dtype.quantized:
        return b.cast(x.value, ir.DataType.FLOAT)
    scale = b.constant(np.array(x.dtype.scale, np.float32))
    inputs = [x.value, scale]
    if x.dtype.zero_point:
        inputs.append(b.constant(np.array(x.dtype.zero_point, x.dtype.numpy)))
    return b.op("DequantizeLinear", inputs)


def quantize(b: Builder, real: ir.Value, dtype: DType) -> Var:
    """Round real numbers to a quantised type, ties away from zero, saturating."""
    inverse = np.float32(1) / np.float32(dtype.scale)
    scaled = b.op("Mul", [real, b.constant(np.array(inverse, np.float32))])
    return Var(_store(b, scaled, dtype), dtype)


def requantize(b: Builder, accumulated: ir.Value, scale: float, dtype: DType) -> Var:
    """Round integer sums of the given scale to a quantised type, in one multiplication."""
    factor = np.array(np.float32(scale) / np.float32(dtype.scale), np.float32)
    scaled = b.op("Mul", [b.cast(accumulated, ir.DataType.FLOAT), b.constant(factor)])
    return Var(_store(b, scaled, dtype), dtype)


def _store(b: Builder, scaled: ir.Value, dtype: DType) -> ir.Value:
    low, high = dtype.limits
    rounded = round_half_away(b, scaled)
    if dtype.zero_point:
        rounded = b.op("Add", [rounded, b.number(dtype.zero_point, rounded)])
    bounds = [b.number(max(low, -_EXACT), rounded), b.number(min(high, _EXACT), rounded)]
    return b.cast(b.op("Clip", [rounded, *bounds]), dtype.storage)


def convert(b: Builder, x: Var, to: DType) -> Var:
    """Convert between any two element types as TypeCvt does."""
    if x.dtype == to:
        return x
    if to.quantized:
        if x.dtype.quantized and not x.dtype.zero_point:
            return requantize(b, x.value, x.dtype.scale, to)
        return quantize(b, dequantize(b, x), to)
    value = dequantize(b, x) if x.dtype.quantized else x.value
    return Var(b.cast(value, to.storage), to)


def is_integer_product(x: Var, w: Var) -> bool:
    """Say whether a product of two operands is accumulated in 32-bit integers."""
    narrow = ("Int8", "Uint8", "QuantizedS8", "Quantized8Asymm")
    return x.dtype.name in narrow and w.dtype.name in narrow


def integer_product(
    b: Builder, op_type: str, x: Var, w: Var, attributes: Mapping[str, object]
) -> Var:
    """Multiply with ConvInteger or MatMulInteger; the scales multiply too."""
    zeros = [_zero_point(b, x), _zero_point(b, w)]
    while zeros and zeros[-1] is None:
        zeros.pop()
    value = b.op(op_type, [x.value, w.value, *zeros], attributes)
    if not x.dtype.quantized:
        return Var(value, DType("Int32"))
    return Var(value, DType("QuantizedS32", product_scale(x, w)))


def product_scale(x: Var, w: Var) -> float:
    """Return the scale of a product, in single precision."""
    return float(np.float32(x.dtype.scale) * np.float32(w.dtype.scale))


def _zero_point(b: Builder, x: Var) -> ir.Value | None:
    if not x.dtype.zero_point:
        return None
    return b.constant(np.array(x.dtype.zero_point, x.dtype.numpy))


def as_real(b: Builder, x: Var) -> ir.Value:
    """Return the operand of an averaging operator: stored integers as floats, less zero point.

    Without the scale, averages of integers stay exact, and so does their rounding by `restore`.
    """
    if x.dtype.floating:
        return x.value
    value = b.cast(x.value, ir.DataType.FLOAT)
    if x.dtype.zero_point:
        value = b.op("Sub", [value, b.number(x.dtype.zero_point, value)])
    return value


def restore(b: Builder, value: ir.Value, dtype: DType) -> Var:
    """Round what was computed from `as_real` back to the operand's type."""
    if dtype.floating:
        return Var(b.cast(value, dtype.storage), dtype)
    return Var(_store(b, value, dtype), dtype)
