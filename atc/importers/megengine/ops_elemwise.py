"""Elementwise operators, type conversion and training-time quantisation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator
from atc.importers.megengine.modes import MODES, apply_mode, round_half_away, rounding_multiply_high
from atc.importers.megengine.quantize import convert, dequantize
from atc.importers.megengine.suspicions import suspicion
from atc.importers.megengine.translation import Rule
from atc.importers.megengine.types import BOOL, FLOAT32, DType


def elemwise(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Elemwise: operands of one type, numpy broadcasting.

    Quantised operands are those of 32 bits that a quantised linear layer adds.
    """
    mode = op.params("Elemwise").word("mode")
    if any(x.dtype.quantized for x in xs) and mode not in _SCALE_FREE:
        raise b.error(f"mode {mode} takes no quantised inputs")
    if any(not _alike(x.dtype, xs[0].dtype) for x in xs):
        found = ", ".join(f"{x.dtype.name} of scale {x.dtype.scale}" for x in xs)
        raise b.error(f"mode {mode} takes inputs of one element type, found {found}")
    value = apply_mode(b, mode, [x.value for x in xs])
    if warning := suspicion(value, op.name):
        b.warnings.append(warning)
    return [Var(value, xs[0].dtype)]


_SCALE_FREE = ("ADD", "SUB", "MAX", "MIN", "RELU", "NEGATE", "ABS", "FUSE_ADD_RELU")


def _alike(one: DType, other: DType) -> bool:
    """Say whether two types are one; scales that were computed may differ in the last digits."""
    same = one.name == other.name and one.zero_point == other.zero_point
    return same and abs(one.scale - other.scale) <= 1e-5 * one.scale


def elemwise_multi_type(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate ElemwiseMultiType: quantised, comparing and mixed-type modes."""
    mode = op.params("ElemwiseMultiType").word("mode")
    if mode in _MIXED:
        arity, function = _MIXED[mode]
        if len(xs) != arity:
            raise b.error(f"mode {mode} takes {arity} inputs, found {len(xs)}")
        return [function(b, xs)]
    if mode in _COMPARING:
        value = apply_mode(b, mode, [x.value for x in xs])
        return [Var(b.cast(value, ir.DataType.BOOL), BOOL)]
    base = mode.removeprefix("Q")
    if base not in MODES:
        raise b.unsupported(f"mode {mode} of ElemwiseMultiType is not covered")
    result = apply_mode(b, base, [dequantize(b, x) for x in xs])
    to = op.output_dtype or (xs[0].dtype if xs else FLOAT32)
    return [convert(b, Var(result, FLOAT32), to)]


_COMPARING = ("EQ", "NEQ", "LT", "LEQ", "ISNAN", "ISINF")


def _saturate(b: Builder, value: ir.Value, dtype: DType) -> Var:
    low, high = dtype.limits
    clipped = b.op("Clip", [value, b.number(low, value), b.number(high, value)])
    return Var(b.cast(clipped, dtype.storage), dtype)


def _multiply_add(b: Builder, xs: Sequence[Var], to: ir.DataType) -> ir.Value:
    values = [b.cast(x.value, to) for x in xs]
    return b.op("Add", [b.op("Mul", values[:2]), values[2]])


def _multiply_add_int32(b: Builder, xs: Sequence[Var]) -> Var:
    return Var(_multiply_add(b, xs, ir.DataType.INT32), DType("Int32"))


def _multiply_add_float(b: Builder, xs: Sequence[Var]) -> Var:
    return Var(_multiply_add(b, xs, ir.DataType.FLOAT), FLOAT32)


def _multiply_float(b: Builder, xs: Sequence[Var]) -> Var:
    values = [b.cast(x.value, ir.DataType.FLOAT) for x in xs]
    return Var(b.op("Mul", values), FLOAT32)


def _multiply_add_int8(b: Builder, xs: Sequence[Var]) -> Var:
    """Compute a b + c in floating point, rounded to the nearest integer and saturated."""
    rounded = b.op("Round", [_multiply_add(b, xs, ir.DataType.FLOAT)])
    return _saturate(b, rounded, DType("Int8"))


def _rounding_shift(b: Builder, value: ir.Value, shift: ir.Value, to: DType) -> Var:
    """Shift right, rounding to nearest with ties away from zero, and saturate.

    The 64-bit float division is exact, so the rounding is.
    """
    exponent = b.cast(shift, ir.DataType.DOUBLE)
    divisor = b.op("Pow", [b.number(2, exponent), exponent])
    quotient = b.op("Div", [b.cast(value, ir.DataType.DOUBLE), divisor])
    magnitude = b.op("Floor", [b.op("Add", [b.op("Abs", [quotient]), b.number(0.5, quotient)])])
    return _saturate(b, b.op("Mul", [b.op("Sign", [quotient]), magnitude]), to)


def _shift_int8(b: Builder, xs: Sequence[Var]) -> Var:
    return _rounding_shift(b, xs[0].value, xs[1].value, DType("Int8"))


def _shift_int16(b: Builder, xs: Sequence[Var]) -> Var:
    return _rounding_shift(b, xs[0].value, xs[1].value, DType("Int16"))


def _add_multiply_shift(b: Builder, xs: Sequence[Var]) -> Var:
    """Shift the high product of x + bias with rounding, and clamp it.

    Inputs x, bias, multiplier, shift, smallest and largest result.
    """
    dtype = xs[0].dtype
    total = b.op("Add", [b.cast(x.value, ir.DataType.INT32) for x in xs[:2]])
    product = rounding_multiply_high(b, [b.cast(total, dtype.storage), xs[2].value])
    result = _rounding_shift(b, product, xs[3].value, DType("Int8")).value
    low, high = xs[4].value, xs[5].value
    return Var(b.op("Max", [b.op("Min", [result, high]), low]), DType("Int8"))


# Mode: (number of operands, translation).
_MIXED = {
    "FUSE_MUL_ADD3_INT16x32x32x32": (3, _multiply_add_int32),
    "FUSE_MUL_ADD3_IXxF32xF32xI8": (3, _multiply_add_int8),
    "ROUND_SHR_SATURATE_IXxI8xI8": (2, _shift_int8),
    "ROUND_SHR_SATURATE_IXxI8xI16": (2, _shift_int16),
    "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT16x16x16x8": (6, _add_multiply_shift),
    "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT32x32x32x8": (6, _add_multiply_shift),
    "FUSE_MUL_ADD3_INT16xF32xF32xF32": (3, _multiply_add_float),
    "MUL_INT16xF32xF32": (2, _multiply_float),
    "FUSE_MUL_ADD3_UINT8xF32xF32xF32": (3, _multiply_add_float),
}


def power(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate PowC: a constant exponent."""
    exponent = op.params("PowC").real("exp")
    value = b.op("Pow", [xs[0].value, b.number(exponent, xs[0].value)])
    return [Var(value, xs[0].dtype)]


def type_convert(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate TypeCvt."""
    return [convert(b, xs[0], op.params("DType").dtype())]


def fake_quant(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate FakeQuant: (clamp(round(x / s) + zp) - zp) s; inputs x, scale, zero point."""
    params = op.params("FakeQuant")
    x, scale, zero = (v.value for v in xs)
    rounded = b.op("Add", [round_half_away(b, b.op("Div", [x, scale])), zero])
    clamped = _clamp(b, rounded, params.integer("qmin"), params.integer("qmax"))
    return [Var(b.op("Mul", [b.op("Sub", [clamped, zero]), scale]), xs[0].dtype)]


def tqt(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate TQT: quantisation by a power of two; inputs x, log2 of the scale."""
    params = op.params("TQT")
    x, exponent = (v.value for v in xs)
    scale = b.op("Pow", [b.number(2, exponent), exponent])
    rounded = round_half_away(b, b.op("Div", [x, scale]))
    clamped = _clamp(b, rounded, params.integer("qmin"), params.integer("qmax"))
    return [Var(b.op("Mul", [clamped, scale]), xs[0].dtype)]


def lsq(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate LSQ: (round(clamp(x / s + zp)) - zp) s; inputs x, s, zp, gradient scale."""
    params = op.params("LSQ")
    x, scale, zero = (v.value for v in xs[:3])
    shifted = b.op("Add", [b.op("Div", [x, scale]), zero])
    clamped = _clamp(b, shifted, params.integer("qmin"), params.integer("qmax"))
    rounded = round_half_away(b, clamped)
    return [Var(b.op("Mul", [b.op("Sub", [rounded, zero]), scale]), xs[0].dtype)]


def _clamp(b: Builder, x: ir.Value, low: int, high: int) -> ir.Value:
    bounds = np.array([low, high], np.float32)
    return b.op("Clip", [x, b.number(float(bounds[0]), x), b.number(float(bounds[1]), x)])


RULES: Mapping[str, Rule] = {
    "Elemwise": Rule(elemwise, 1, 4),
    "ElemwiseMultiType": Rule(elemwise_multi_type, 1, 6),
    "FakeQuant": Rule(fake_quant, 3),
    "LSQ": Rule(lsq, 3, 4),
    "PowC": Rule(power, 1),
    "TQT": Rule(tqt, 2),
    "TypeCvt": Rule(type_convert, 1),
}
