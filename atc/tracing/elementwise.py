"""The array API: functions of one and two operands, element by element."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from atc.tracing.creation import bool as _bool
from atc.tracing.creation import fixed, ones, ones_like, zeros_like
from atc.tracing.tensor import Tensor, binary, bitwise, divided, floor_divided, node, promoted, rest
from atc.tracing.tensor import asarray as _asarray

# ---- element by element -------------------------------------------------------------------------

_UNARY = {
    "abs": "Abs", "acos": "Acos", "acosh": "Acosh", "asin": "Asin", "asinh": "Asinh",
    "atan": "Atan", "atanh": "Atanh", "cos": "Cos", "cosh": "Cosh", "exp": "Exp", "isnan": "IsNaN",
    "isinf": "IsInf", "log": "Log", "logical_not": "Not", "negative": "Neg", "sign": "Sign",
    "sin": "Sin", "sinh": "Sinh", "sqrt": "Sqrt", "tan": "Tan", "tanh": "Tanh",
    "reciprocal": "Reciprocal",
}  # fmt: skip
_ROUNDING = {"ceil": "Ceil", "floor": "Floor", "round": "Round"}
_BINARY = {
    "add": "Add", "subtract": "Sub", "multiply": "Mul", "pow": "Pow", "equal": "Equal",
    "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual", "logical_and": "And", "logical_or": "Or",
    "logical_xor": "Xor", "maximum": "Max", "minimum": "Min", "matmul": "MatMul",
}  # fmt: skip


def _define() -> None:
    own = sys.modules[__name__].__dict__

    def unary_of(op: str) -> Any:
        return lambda x, /: node(op, _asarray(x))

    def rounding_of(op: str) -> Any:
        return lambda x, /: node(op, x) if _asarray(x).dtype.kind == "f" else x

    def binary_of(op: str) -> Any:
        return lambda x1, x2, /: binary(op, x1, x2)

    for table, make in ((_UNARY, unary_of), (_ROUNDING, rounding_of), (_BINARY, binary_of)):
        for name, op in table.items():
            own[name] = make(op)
            own[name].__name__ = own[name].__qualname__ = name
            own[name].__doc__ = f"Compute ONNX {op}."


_define()

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


def positive(x: Tensor, /) -> Tensor:
    """Return x."""
    return x


def square(x: Tensor, /) -> Tensor:
    """Return x * x."""
    return x * x


def trunc(x: Tensor, /) -> Tensor:
    """Round towards 0."""
    return x if x.dtype.kind != "f" else where(x < 0, node("Ceil", x), node("Floor", x))


def isfinite(x: Tensor, /) -> Tensor:
    """Return where x is neither infinite nor NaN."""
    if x.dtype.kind != "f":
        return ones(fixed(x), dtype=_bool)
    return ~(node("IsNaN", x) | node("IsInf", x))


def signbit(x: Tensor, /) -> Tensor:
    """Return where the sign bit is set, that of -0 included."""
    return (x < 0) | ((x == 0) & (1.0 / x < 0))


def expm1(x: Tensor, /) -> Tensor:
    """Return exp(x) - 1; near 0 as 2 sinh(x / 2) exp(x / 2), which is exact there."""
    half = x * 0.5
    near = 2.0 * node("Sinh", half) * node("Exp", half)
    return where(node("Abs", x) < 1.0, near, node("Exp", x) - 1.0)


def log1p(x: Tensor, /) -> Tensor:
    """Return log(1 + x), by Kahan's formula, which is exact near 0."""
    u = 1.0 + x
    near = (u == 1.0) | node("IsInf", u)
    return where(near, x, node("Log", u) * (x / where(near, ones_like(u), u - 1.0)))


def log2(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 2."""
    return node("Log", x) * (1 / math.log(2))


def log10(x: Tensor, /) -> Tensor:
    """Return the logarithm to base 10."""
    return node("Log", x) * (1 / math.log(10))


def divide(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 / x2 of floats."""
    return divided(x1, x2)


def floor_divide(x1: Any, x2: Any, /) -> Tensor:
    """Return the quotients, rounded down."""
    return floor_divided(x1, x2)


def remainder(x1: Any, x2: Any, /) -> Tensor:
    """Return the remainders of a floor division."""
    return rest(x1, x2)


def not_equal(x1: Any, x2: Any, /) -> Tensor:
    """Return where x1 and x2 differ."""
    return node("Not", binary("Equal", x1, x2))


def bitwise_and(x1: Any, x2: Any, /) -> Tensor:
    """Return the bitwise and."""
    return bitwise("And", x1, x2)


def bitwise_or(x1: Any, x2: Any, /) -> Tensor:
    """Return the bitwise or."""
    return bitwise("Or", x1, x2)


def bitwise_xor(x1: Any, x2: Any, /) -> Tensor:
    """Return the bitwise exclusive or."""
    return bitwise("Xor", x1, x2)


def bitwise_invert(x: Tensor, /) -> Tensor:
    """Return the bitwise complement."""
    return ~x


def logaddexp(x1: Any, x2: Any, /) -> Tensor:
    """Return log(exp(x1) + exp(x2))."""
    a, b = promoted(x1, x2)
    return node("Max", a, b) + node("Softplus", node("Neg", node("Abs", a - b)))


def hypot(x1: Any, x2: Any, /) -> Tensor:
    """Return sqrt(x1 * x1 + x2 * x2), without overflow."""
    a, b = (node("Abs", v) for v in promoted(x1, x2))
    large, small = node("Max", a, b), node("Min", a, b)
    ratio = where((large == 0) | node("IsInf", large), zeros_like(large), small / large)
    return large * node("Sqrt", 1.0 + ratio * ratio)


def atan2(x1: Any, x2: Any, /) -> Tensor:
    """Return the angle of the point (x2, x1)."""
    y, x = promoted(x1, x2)
    base = node("Atan", y / x)
    straight = where((x == 0) & (y == 0), zeros_like(base), base)
    opposite = where(signbit(y), straight - math.pi, straight + math.pi)
    return where(signbit(x), opposite, straight)


def copysign(x1: Any, x2: Any, /) -> Tensor:
    """Return x1 with the sign of x2."""
    a, b = promoted(x1, x2)
    size = node("Abs", a)
    return where(signbit(b), -size, size)


def clip(x: Tensor, /, min: Any = None, max: Any = None) -> Tensor:  # noqa: A002
    """Return x clipped to limits."""
    found = x if min is None else binary("Max", x, min)
    return found if max is None else binary("Min", found, max)


def where(condition: Any, x1: Any, x2: Any, /) -> Tensor:
    """Return x1 where the condition holds, x2 elsewhere."""
    return node("Where", _asarray(condition), *promoted(x1, x2))


__all__ = [  # noqa: PLE0604
    *_UNARY, *_ROUNDING, *_BINARY,
    "atan2", "bitwise_and", "bitwise_invert", "bitwise_or", "bitwise_xor", "clip", "copysign",
    "divide", "expm1", "floor_divide", "hypot", "isfinite", "log10", "log1p", "log2", "logaddexp",
    "not_equal", "positive", "remainder", "signbit", "square", "trunc", "where",
]  # fmt: skip
