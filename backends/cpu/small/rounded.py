"""Rounding to a byte: the value before, the zero point added, and the bounds."""

from __future__ import annotations

from dataclasses import dataclass

from atc.ir.expr import Call, Const, Expr
from atc.ir.graph import DType
from atc.ir.ops.blocked import BYTES

ROUNDING = "q_rounded"
"""The function of small.h that rounds floats without a call of the library."""

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
    if not (isinstance(expr, Call) and expr.fn == "CastSaturate" and expr.dtype in BYTES):
        return None
    (shifted,) = expr.args
    match _before_zero(shifted):
        case Call(fn="Round", args=(value,)), zero if value.dtype is DType.FLOAT:
            return Quantized(value, zero, expr.dtype)
    return None


def rounded_byte(expr: Expr) -> Rounded | None:
    """Return what an expression rounds and saturates; None where it is of another form.

    A Relu or a clip before the rounding is part of the bounds: rounding keeps order.
    """
    if not (isinstance(expr, Call) and expr.fn == "CastSaturate" and expr.dtype in BYTES):
        return None
    (value,) = expr.args
    low = -128 if expr.dtype is DType.INT8 else 0
    return _bounded(value, expr.dtype, low, low + 255)


def kept_byte(expr: Expr) -> Rounded | None:
    """Return what an expression rounds, clamps and keeps as a float, as a byte was in between."""
    match expr:
        case Call(fn="Min", args=(Call(fn="Max", args=(value, Const() as least)),
                                  Const() as most)):  # fmt: skip
            pass
        case _:
            return None
    bounds = float(least.value), float(most.value)
    dtype = {(-128.0, 127.0): DType.INT8, (0.0, 255.0): DType.UINT8}.get(bounds)
    return None if dtype is None else _bounded(value, dtype, int(bounds[0]), int(bounds[1]))


def _before_zero(expr: Expr) -> tuple[Expr, int] | None:
    """Return what a byte's zero point is added to, and that point; None where it is none."""
    match expr:
        case Call(fn="Add", args=(before, Const() as point)):
            zero = float(point.value)
            return (before, int(zero)) if zero.is_integer() and abs(zero) <= 255 else None
    return expr, 0


def _bounded(expr: Expr, dtype: DType, low: int, high: int) -> Rounded | None:
    """Return what is rounded, moved by a zero point and kept within the bounds."""
    match _before_zero(expr):
        case Call(fn="Round", args=(value,)), zero:
            low, high = low - zero, high - zero
        case _:
            return None
    while isinstance(value, Call) and value.fn in ("Max", "Min"):
        fn, (value, bound) = value.fn, value.args
        if not isinstance(bound, Const) or not abs(float(bound.value)) < MOST:
            return None
        limit = round(float(bound.value))  # to even, as C does
        low, high = (max(low, limit), high) if fn == "Max" else (low, min(high, limit))
    return Rounded(value, zero, dtype, low, high) if low <= high else None
