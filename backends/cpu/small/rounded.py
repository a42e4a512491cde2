"""Rounding to a byte: the value before, the zero point added, and the bounds."""

from __future__ import annotations

from dataclasses import dataclass

from atc.ir.expr import Call, Const, Expr
from atc.ir.graph import DType
from atc.ir.ops.blocked import BYTES

MOST = 512
"""A result may have a zero point and bounds up to it."""


@dataclass(frozen=True)
class Rounded:
    """A byte `clamp(round(value), low, high) + zero`."""

    value: Expr
    zero: int
    dtype: DType
    low: int
    high: int


@dataclass(frozen=True)
class Quantized:
    """A byte `saturate(round(value) + zero)` of a float, as QuantizeLinear makes it."""

    value: Expr
    zero: int
    dtype: DType

    def byte(self, text: str) -> str:
        """Return the C of the byte, that of the value given."""
        sign = "u" if self.dtype is DType.UINT8 else "s"
        return f"({self.dtype.c})(q_quantize_{sign}({text}, {self.zero}))"


def quantized_value(expr: Expr) -> Quantized | None:
    """Return what an expression quantizes last; None where it is of another form."""
    match expr:
        case Call(fn="CastSaturate", args=(
            Call(fn="Add", args=(Call(fn="Round", args=(value,)), Const() as point)),
        )):  # fmt: skip
            zero = float(point.value)
        case Call(fn="CastSaturate", args=(Call(fn="Round", args=(value,)),)):
            zero = 0.0
        case _:
            return None
    floats = expr.dtype in BYTES and value.dtype is DType.FLOAT
    whole = zero.is_integer() and abs(zero) <= 255
    return Quantized(value, int(zero), expr.dtype) if floats and whole else None


def rounded_byte(expr: Expr) -> Rounded | None:
    """Return what an expression rounds and saturates; None where it is of another form.

    A Relu or a clip before the rounding is part of the bounds: rounding keeps order.
    """
    match expr:
        case Call(fn="CastSaturate", args=(Call(fn="Add", args=(rounded, Const() as point)),)):
            zero = float(point.value)
        case Call(fn="CastSaturate", args=(rounded,)):
            zero = 0.0
        case _:
            return None
    if expr.dtype not in BYTES or not zero.is_integer() or abs(zero) > 255:
        return None
    low = (-128 if expr.dtype is DType.INT8 else 0) - int(zero)
    return _bounded(rounded, int(zero), expr.dtype, low, low + 255)


def kept_byte(expr: Expr) -> Rounded | None:
    """Return what an expression rounds, clamps and keeps as a float, as a byte was in between."""
    match expr:
        case Call(fn="Min", args=(
            Call(fn="Max", args=(Call(fn="Add", args=(rounded, Const() as point)),
                                 Const() as least)), Const() as most,
        )):  # fmt: skip
            zero = float(point.value)
        case Call(fn="Min", args=(Call(fn="Max", args=(rounded, Const() as least)),
                                  Const() as most)):  # fmt: skip
            zero = 0.0
        case _:
            return None
    bounds = float(least.value), float(most.value)
    dtype = {(-128.0, 127.0): DType.INT8, (0.0, 255.0): DType.UINT8}.get(bounds)
    if dtype is None or not zero.is_integer() or abs(zero) > 255:
        return None
    low, high = (int(b) - int(zero) for b in bounds)
    return _bounded(rounded, int(zero), dtype, low, high)


def _bounded(rounded: Expr, zero: int, dtype: DType, low: int, high: int) -> Rounded | None:
    if not isinstance(rounded, Call) or rounded.fn != "Round":
        return None
    (value,) = rounded.args
    while isinstance(value, Call) and value.fn in ("Max", "Min"):
        fn, (value, bound) = value.fn, value.args
        if not isinstance(bound, Const) or not abs(float(bound.value)) < MOST:
            return None
        limit = round(float(bound.value))  # to even, as C does
        low, high = (max(low, limit), high) if fn == "Max" else (low, min(high, limit))
    return Rounded(value, zero, dtype, low, high) if low <= high else None
