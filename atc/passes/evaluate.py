"""Scalar expressions, computed by numpy at compile time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from atc.ir.expr import Call, Const, Expr, Input, walk
from atc.ir.graph import Array, DType

_ERF = np.frompyfunc(math.erf, 1, 1)

_EXACT: Mapping[str, Callable[..., Array]] = {
    "Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide, "Abs": np.abs,
    "Neg": np.negative, "Floor": np.floor, "Ceil": np.ceil, "Round": np.rint, "Trunc": np.trunc,
    "Sqrt": np.sqrt, "Max": np.maximum, "Min": np.minimum, "Reciprocal": np.reciprocal,
    "Equal": np.equal, "Less": np.less, "LessOrEqual": np.less_equal, "Greater": np.greater,
    "GreaterOrEqual": np.greater_equal, "And": np.logical_and, "Or": np.logical_or,
    "Not": np.logical_not, "Where": np.where, "IsNaN": np.isnan, "IsInf": np.isinf,
    "Sign": np.sign,
}  # fmt: skip
"""Functions that are rounded once, in float32 as in any precision."""

_WIDE: Mapping[str, Callable[..., Array]] = {
    "Exp": np.exp, "Expm1": np.expm1, "Log": np.log, "Log1p": np.log1p, "Sin": np.sin,
    "Cos": np.cos, "Tan": np.tan, "Asin": np.arcsin, "Acos": np.arccos, "Atan": np.arctan,
    "Sinh": np.sinh, "Cosh": np.cosh, "Tanh": np.tanh, "Asinh": np.arcsinh, "Acosh": np.arccosh,
    "Atanh": np.arctanh, "Pow": np.power, "Erf": lambda x: np.asarray(_ERF(x), np.float64),
    "Sigmoid": lambda x: np.where(x < 0, np.exp(-np.abs(x)), 1) / (1 + np.exp(-np.abs(x))),
    "Softplus": lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))),
}  # fmt: skip
"""Float functions that are computed in float64 and rounded once to float."""

_TYPES = frozenset({DType.FLOAT, DType.BOOL, DType.INT32, DType.UINT8, DType.INT8})


def can_evaluate(expr: Expr) -> bool:
    """Return whether an expression consists of float functions and conversions known here."""
    return all(_known(e) for e in walk(expr))


def _known(e: Expr) -> bool:
    match e:
        case Call(fn="Lookup", args=(a, b)):
            return isinstance(a, Input) and b.dtype in (DType.UINT8, DType.INT8)
        case Call(fn="Cast", args=(a,)):
            widens = a.dtype is not DType.FLOAT
            return e.dtype in (DType.FLOAT, DType.INT32) and a.dtype in _TYPES and widens
        case Call(fn="CastSaturate", args=(a,)):
            return e.dtype in (DType.UINT8, DType.INT8) and a.dtype is DType.FLOAT
        case Call(fn=fn, dtype=DType.INT32):
            return fn in ("Add", "Sub")
        case Call(fn=fn):
            floats = all(a.dtype in (DType.FLOAT, DType.BOOL) for a in e.args)
            return floats and (fn in _EXACT or fn in _WIDE)
        case Input() | Const():
            return e.dtype in _TYPES
        case _:
            return False


def evaluate(expr: Expr, operands: Sequence[Array]) -> Array:
    """Return an expression's values over arrays of one shape, each step in its own type.

    The operand that Lookup reads is a table with the results of all bytes, lowest byte first.
    """
    done: dict[Expr, Array] = {}
    shape = operands[0].shape
    with np.errstate(all="ignore"):
        for e in walk(expr):
            match e:
                case Input():
                    done[e] = operands[e.index]
                case Const():
                    done[e] = np.full(shape, e.value, e.dtype.numpy)
                case Call():
                    done[e] = _called(e, [done[a] for a in e.args])
    return done[expr]


def _called(e: Call, args: list[Array]) -> Array:
    match e.fn:
        case "Cast" if e.dtype.is_float:
            return args[0].astype(e.dtype.numpy)
        case "Cast":  # of fewer than 8 bits the lowest, as in C
            return args[0].astype(e.dtype.computed.numpy).astype(e.dtype.numpy)
        case "Lookup":
            first = 128 if e.args[1].dtype is DType.INT8 else 0
            return np.asarray(args[0][args[1].astype(np.int64) + first])
        case "CastSaturate":
            return _saturated(args[0], e.dtype)
        case fn if fn in _WIDE:
            wide = _WIDE[fn](*(a.astype(np.float64) for a in args))
            return wide.astype(e.dtype.numpy)
        case fn:
            return np.asarray(_EXACT[fn](*args), e.dtype.numpy)


def _saturated(x: Array, dtype: DType) -> Array:
    """Return numbers clamped to a type's range and truncated to integers; NaN becomes 0."""
    low = 0 if dtype is DType.UINT8 else -128
    held = np.trunc(np.clip(x.astype(np.float64), low, low + 255))
    return np.where(np.isnan(held), 0, held).astype(dtype.numpy)
