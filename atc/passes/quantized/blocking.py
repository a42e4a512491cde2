"""Blocking of int8 convolutions: those that tuned kernels compute in vectors."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.ir.expr import Call, Const, Expr, Input, walk
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import Conv
from atc.ir.ops.blocked import BYTES

MAX_TAPS = 121
"""The most taps of a window of a depthwise convolution of bytes."""
VECTOR_STEPS = frozenset(
    ["Add", "Sub", "Mul", "Div", "Max", "Min", "Round", "Floor", "Ceil", "Trunc", "Abs", "Neg"]
    + ["Sqrt", "Exp", "Expm1", "Log", "Log1p", "Tanh", "Erf", "Sigmoid", "Softplus", "Sign"]
    + ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"]
)
"""Functions of floats that an epilogue of integer sums may have; its conditions, too."""


def integer_zero(
    op: Conv, x: TensorType, w: Array, y: TensorType, point: Array | None, width: int
) -> int | None:
    """Return the zero point of x if a convolution of bytes can be blocked, else None.

    `w` are its weights; `point` is the zero point, if it is known.
    """
    zero = known_zero(op, x, w, point)
    if zero is None:
        return None
    depthwise = w.shape[:2] == (op.group, 1)
    if width % 4 or not _is_vector_form(op.epilogue.expr):
        return None
    window = op.window
    if depthwise and (prod(window.kernel) > MAX_TAPS or set(window.dilations) != {1}):
        return None
    least = 0 if x.dtype is DType.UINT8 else -128
    whole = window.stays_inside(x.shape[2:], y.shape[2:])
    return zero if depthwise or zero == least or whole else None


def known_zero(op: Conv, x: TensorType, w: Array, point: Array | None) -> int | None:
    """Return x's zero point if bytes are summed in INT32 and it is a known scalar, else None."""
    small = w.dtype == np.int8 or w.shape[:2] == (op.group, 1) and _has_9_bits(w)
    if x.dtype not in BYTES or not small or op.accumulator is not DType.INT32:
        return None
    if point is None or point.size != 1:
        return None
    return int(point.reshape(()).astype(np.int64))


def _has_9_bits(w: Array) -> bool:
    """Return whether weights are UINT8 ones less their zero point."""
    return w.dtype == np.int16 and w.size > 0 and w.min() >= -255 and w.max() <= 255


def _is_vector_form(expr: Expr) -> bool:
    """Return whether an epilogue of INT32 sums consists of functions that float vectors have."""
    match expr:
        case Call(fn="CastSaturate", args=(x,)) if expr.dtype in BYTES:
            if not _is_rounded(x):
                return False
        case _:
            x = expr
    return x.dtype is DType.FLOAT and all(_is_vector_step(e) for e in walk(x))


def _is_rounded(x: Expr) -> bool:
    """Return whether a value is a rounded one, the sum of that and an integer, or such a bound."""
    match x:
        case Call(fn="Add", args=(y, Const() as point)) if float(point.value).is_integer():
            return isinstance(y, Call) and y.fn == "Round"
        case Call(fn="Max" | "Min", args=(y, Const() as bound)) if float(bound.value).is_integer():
            return _is_rounded(y)
        case _:
            return isinstance(x, Call) and x.fn == "Round"


def _is_vector_step(e: Expr) -> bool:
    match e:
        case Call(fn="Cast", args=(a,)):
            byte = a.dtype in BYTES and isinstance(a, Input)
            whole = e.dtype is DType.INT32 and byte
            return whole or (e.dtype is DType.FLOAT and (byte or a.dtype is DType.INT32))
        case Call(fn="Add" | "Sub" | "Mul", dtype=DType.INT32):
            return True
        case Call(fn="Where"):
            return e.dtype is DType.FLOAT
        case Call(fn="And" | "Or" | "Not"):
            return all(a.dtype is DType.BOOL for a in e.args)
        case Call(fn=fn):
            return fn in VECTOR_STEPS and all(a.dtype is DType.FLOAT for a in e.args)
        case Input():
            return e.dtype in (*BYTES, DType.FLOAT, DType.INT32)
        case _:
            return e.dtype is DType.FLOAT
