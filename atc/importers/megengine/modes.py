"""The modes of Elemwise as ONNX nodes; floating-point modes unless said otherwise.

Each function takes the builder and the operands of one element type, and gives a value of that
type, comparisons included. ElemwiseMultiType uses the same functions on dequantised operands.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder
from atc.importers.megengine.gradients import GRADIENTS
from atc.importers.megengine.special import erfcinv, erfinv, expm1, log1p

Value = ir.Value
Mode = Callable[[Builder, Sequence[Value]], Value]

_INTEGERS = {
    ir.DataType.INT8,
    ir.DataType.UINT8,
    ir.DataType.INT16,
    ir.DataType.UINT16,
    ir.DataType.INT32,
}
_NARROW = _INTEGERS - {ir.DataType.INT32}


def apply_mode(b: Builder, mode: str, xs: Sequence[Value]) -> Value:
    """Apply one mode; integers narrower than 32 bits are computed in 32 bits and wrap."""
    arity, function = MODES[mode]
    if len(xs) != arity:
        raise b.error(f"mode {mode} takes {arity} inputs, found {len(xs)}")
    dtype = xs[0].dtype
    if any(x.dtype != dtype for x in xs) or dtype is None:
        found = ", ".join(x.dtype.name if x.dtype else "?" for x in xs)
        raise b.error(f"mode {mode} takes inputs of one element type, found {found}")
    if dtype == ir.DataType.BOOL and mode not in _BOOLEAN:
        raise b.error(f"mode {mode} takes no Bool")
    if dtype in _INTEGERS and mode not in _INTEGER:
        raise b.error(f"mode {mode} takes no {dtype.name}")
    if dtype not in _NARROW or mode == "RMULH":
        return function(b, xs)
    wide = [b.cast(x, ir.DataType.INT32) for x in xs]
    return b.cast(function(b, wide), dtype)


def round_half_away(b: Builder, x: Value) -> Value:
    """Round to the nearest integer, ties away from zero (ONNX Round takes ties to even).

    Adding the float just below 0.5 keeps 0.49999997 from becoming 1.
    """
    half = b.number(float(np.nextafter(np.float32(0.5), np.float32(0))), x)
    magnitude = b.op("Floor", [b.op("Add", [b.op("Abs", [x]), half])])
    return b.op("Mul", [b.op("Sign", [x]), magnitude])


def _node(op_type: str) -> Mode:
    return lambda b, xs: b.op(op_type, xs)


def _chain(*op_types: str) -> Mode:
    """Chain nodes: the first takes all operands, each further one the result."""

    def mode(b: Builder, xs: Sequence[Value]) -> Value:
        y = b.op(op_types[0], xs)
        for op_type in op_types[1:]:
            y = b.op(op_type, [y])
        return y

    return mode


def _compare(op_type: str) -> Mode:
    def mode(b: Builder, xs: Sequence[Value]) -> Value:
        operands = list(xs)
        if op_type.startswith("Less") and xs[0].dtype == ir.DataType.BOOL:
            operands = [b.cast(x, ir.DataType.INT32) for x in xs]
        return b.cast(b.op(op_type, operands), _dtype(xs[0]))

    return mode


def _dtype(x: Value) -> ir.DataType:
    assert x.dtype is not None
    return x.dtype


def _is_integer(x: Value) -> bool:
    return x.dtype in _INTEGERS


def _select(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return b.op("Where", [condition, x, y])


def _select_or_zero(op_type: str) -> Mode:
    """Binary x ? 0 (first operand against zero) or ternary: the last operand where it holds."""

    def mode(b: Builder, xs: Sequence[Value]) -> Value:
        zero = b.number(0, xs[0])
        first, second = (xs[0], zero) if len(xs) == 2 else (xs[0], xs[1])
        return _select(b, b.op(op_type, [first, second]), xs[-1], zero)

    return mode


def _relu(b: Builder, xs: Sequence[Value]) -> Value:
    if _is_integer(xs[0]):
        return b.op("Max", [xs[0], b.number(0, xs[0])])
    return b.op("Relu", xs)


def _relu6(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Clip", [xs[0], b.number(0, xs[0]), b.number(6, xs[0])])


def _floor_div(b: Builder, xs: Sequence[Value]) -> Value:
    """Floats: floor of the quotient. Integers: subtract Python's remainder, then divide exactly."""
    x, y = xs
    if _is_integer(x):
        return b.op("Div", [b.op("Sub", [x, b.op("Mod", [x, y])]), y])
    return b.op("Floor", [b.op("Div", [x, y])])


def _mod(b: Builder, xs: Sequence[Value]) -> Value:
    """Integers: the sign of the divisor, as Python. Floats: the sign of the dividend, as C."""
    return b.op("Mod", xs, {"fmod": 0 if _is_integer(xs[0]) else 1})


def _power_of_two(b: Builder, exponent: Value) -> Value:
    return b.op("Pow", [b.number(2, exponent), exponent])


def _shl(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Mul", [xs[0], _power_of_two(b, xs[1])])


def _shr(b: Builder, xs: Sequence[Value]) -> Value:
    """Arithmetic shift: floor division by a power of two."""
    return _floor_div(b, [xs[0], _power_of_two(b, xs[1])])


def rounding_multiply_high(b: Builder, xs: Sequence[Value]) -> Value:
    """Round the high half of the product, doubled and saturated where the type has a sign."""
    dtype = _dtype(xs[0])
    if dtype not in _INTEGERS:
        raise b.error(f"a rounded product of {dtype.name} is not defined")
    info = np.iinfo(dtype.numpy())
    shift = int(info.bits) - (info.min < 0)
    x, y = (b.cast(v, ir.DataType.INT64) for v in xs)
    product = b.op("Mul", [x, y])
    rounded = b.op("Add", [product, b.number(1 << (shift - 1), product)])
    high = _floor_div_64(b, rounded, 1 << shift)
    return b.cast(b.op("Min", [high, b.number(int(info.max), high)]), dtype)


def _floor_div_64(b: Builder, x: Value, divisor: int) -> Value:
    y = b.number(divisor, x)
    return b.op("Div", [b.op("Sub", [x, b.op("Mod", [x, y])]), y])


def _log_sum_exp(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    distance = b.op("Abs", [b.op("Sub", [x, y])])
    tail = log1p(b, b.op("Exp", [b.op("Neg", [distance])]))
    return b.op("Add", [b.op("Max", [x, y]), tail])


def _mul_add3(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Add", [b.op("Mul", xs[:2]), xs[2]])


def _mul_add4(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Add", [b.op("Mul", xs[:2]), b.op("Mul", xs[2:])])


def _add_relu(b: Builder, xs: Sequence[Value]) -> Value:
    return _relu(b, [b.op("Add", xs)])


def _fast_tanh(b: Builder, xs: Sequence[Value]) -> Value:
    """x (27 + x^2) / (27 + 9 x^2)."""
    x = xs[0]
    square = b.op("Mul", [x, x])
    above = b.op("Mul", [x, b.op("Add", [square, b.number(27, x)])])
    below = b.op("Add", [b.op("Mul", [square, b.number(9, x)]), b.number(27, x)])
    return b.op("Div", [above, below])


def _atan2(b: Builder, xs: Sequence[Value]) -> Value:
    """Return the angle of the point (x, y), inputs y first.

    Plain Atan where x is the constant 1.
    """
    y, x = xs
    known = b.array(x)
    if known is not None and (known == 1).all() and known.size == 1:
        return b.op("Atan", [y])
    zero, pi = b.number(0, x), b.number(math.pi, x)
    angle = b.op("Atan", [b.op("Div", [y, b.op("Abs", [x])])])
    angle = _select(b, b.op("Equal", [y, zero]), zero, angle)
    half_turn = _select(b, b.op("Less", [y, zero]), b.op("Neg", [pi]), pi)
    return _select(b, b.op("Less", [x, zero]), b.op("Sub", [half_turn, angle]), angle)


def _erfc(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Sub", [b.number(1, xs[0]), b.op("Erf", xs)])


def _h_sigmoid(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("HardSigmoid", xs, {"alpha": 1 / 6, "beta": 0.5})


def _silu(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Mul", [xs[0], b.op("Sigmoid", xs)])


def _prelu(b: Builder, xs: Sequence[Value]) -> Value:
    x, slope = xs
    return _select(b, b.op("Greater", [x, b.number(0, x)]), x, b.op("Mul", [x, slope]))


def _clip(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Min", [b.op("Max", xs[:2]), xs[2]])


def _log_sigmoid(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Neg", [b.op("Softplus", [b.op("Neg", xs)])])


def _safe_div(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    zero = b.number(0, x)
    return _select(b, b.op("Equal", [y, zero]), zero, b.op("Div", [x, y]))


def _sign(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Sign", xs)


def _not_equal(b: Builder, xs: Sequence[Value]) -> Value:
    return b.cast(b.op("Not", [b.op("Equal", xs)]), _dtype(xs[0]))


# Mode: (number of operands, translation).
MODES: Mapping[str, tuple[int, Mode]] = {
    **GRADIENTS,
    "RELU": (1, _relu),
    "ABS": (1, _node("Abs")),
    "ACOS": (1, _node("Acos")),
    "ASIN": (1, _node("Asin")),
    "CEIL": (1, _node("Ceil")),
    "COS": (1, _node("Cos")),
    "EXP": (1, _node("Exp")),
    "EXPM1": (1, lambda b, xs: expm1(b, xs[0])),
    "FLOOR": (1, _node("Floor")),
    "LOG": (1, _node("Log")),
    "LOG1P": (1, lambda b, xs: log1p(b, xs[0])),
    "NEGATE": (1, _node("Neg")),
    "SIGMOID": (1, _node("Sigmoid")),
    "SIN": (1, _node("Sin")),
    "TANH": (1, _node("Tanh")),
    "ADD": (2, _node("Add")),
    "FLOOR_DIV": (2, _floor_div),
    "MAX": (2, _node("Max")),
    "MIN": (2, _node("Min")),
    "MOD": (2, _mod),
    "MUL": (2, _node("Mul")),
    "POW": (2, _node("Pow")),
    "SUB": (2, _node("Sub")),
    "SWITCH_GT0": (2, _select_or_zero("Greater")),
    "TRUE_DIV": (2, _node("Div")),
    "LOG_SUM_EXP": (2, _log_sum_exp),
    "LT": (2, _compare("Less")),
    "LEQ": (2, _compare("LessOrEqual")),
    "EQ": (2, _compare("Equal")),
    "SHL": (2, _shl),
    "SHR": (2, _shr),
    "COND_LEQ_MOV": (3, _select_or_zero("LessOrEqual")),
    "FUSE_MUL_ADD3": (3, _mul_add3),
    "FUSE_MUL_ADD4": (4, _mul_add4),
    "FUSE_ADD_RELU": (2, _add_relu),
    "FUSE_ADD_SIGMOID": (2, _chain("Add", "Sigmoid")),
    "FUSE_ADD_TANH": (2, _chain("Add", "Tanh")),
    "FAST_TANH": (1, _fast_tanh),
    "ROUND": (1, lambda b, xs: round_half_away(b, xs[0])),
    "RMULH": (2, rounding_multiply_high),
    "ATAN2": (2, _atan2),
    "ERF": (1, _node("Erf")),
    "ERFINV": (1, lambda b, xs: erfinv(b, xs[0])),
    "ERFC": (1, _erfc),
    "ERFCINV": (1, lambda b, xs: erfcinv(b, xs[0])),
    "H_SWISH": (1, _node("HardSwish")),
    "FUSE_ADD_H_SWISH": (2, _chain("Add", "HardSwish")),
    "NOT": (1, _node("Not")),
    "AND": (2, _node("And")),
    "OR": (2, _node("Or")),
    "XOR": (2, _node("Xor")),
    "SILU": (1, _silu),
    "GELU": (1, _node("Gelu")),
    "COND_LT_MOV": (3, _select_or_zero("Less")),
    "NEQ": (2, _not_equal),
    "ISNAN": (1, _compare("IsNaN")),
    "ISINF": (1, _compare("IsInf")),
    "SINH": (1, _node("Sinh")),
    "COSH": (1, _node("Cosh")),
    "ASINH": (1, _node("Asinh")),
    "ACOSH": (1, _node("Acosh")),
    "ATANH": (1, _node("Atanh")),
    "TAN": (1, _node("Tan")),
    "PRELU": (2, _prelu),
    "CLIP": (3, _clip),
    "SOFTPLUS": (1, _node("Softplus")),
    "RELU6": (1, _relu6),
    "HSIGMOID": (1, _h_sigmoid),
    "LOGSIGMOID": (1, _log_sigmoid),
    "SQRT": (1, _node("Sqrt")),
    "SQUARE": (1, lambda b, xs: b.op("Mul", [xs[0], xs[0]])),
    "SIGN": (1, _sign),
    "SAFE_DIV": (2, _safe_div),
}

_BOOLEAN = {"NOT", "AND", "OR", "XOR", "LT", "LEQ", "EQ", "NEQ"}
_INTEGER = {
    *("RELU", "ABS", "NEGATE", "ABS_GRAD", "ADD", "FLOOR_DIV", "MAX", "MIN", "MOD", "MUL", "POW"),
    *("SIGMOID_GRAD", "SUB", "SWITCH_GT0", "TANH_GRAD", "LT", "LEQ", "EQ", "SHL", "SHR", "RMULH"),
    *("COND_LEQ_MOV", "COND_LT_MOV", "FUSE_MUL_ADD3", "FUSE_MUL_ADD4", "FUSE_ADD_RELU", "NEQ"),
    *("PRELU", "CLIP", "RELU6", "SQUARE", "SIGN"),
}
