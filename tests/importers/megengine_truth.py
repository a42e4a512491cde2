"""What the modes of Elemwise compute, in numpy and double precision, and operands for them."""

from __future__ import annotations

import math

import numpy as np

ERF = np.vectorize(math.erf, otypes=[np.float64])
SIGMOID = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
SOFTPLUS = lambda x: np.logaddexp(x, 0)  # noqa: E731
HSIGMOID = lambda x: np.clip(x / 6 + 0.5, 0, 1)  # noqa: E731
NORMAL = lambda x: 0.5 * (1 + ERF(x / math.sqrt(2)))  # noqa: E731
DENSITY = lambda x: np.exp(-x * x / 2) / math.sqrt(2 * math.pi)  # noqa: E731
FAST_TANH = lambda x: x * (27 + x * x) / (27 + 9 * x * x)  # noqa: E731


def inverse_erf(y: np.ndarray) -> np.ndarray:
    """Invert erf by bisection."""
    low, high = np.full(y.shape, -6.0), np.full(y.shape, 6.0)
    for _ in range(80):
        middle = (low + high) / 2
        below = ERF(middle) < y
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    return (low + high) / 2


def half_away(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, np.float64)
    return np.sign(x) * np.floor(np.abs(x) + 0.5)


def fast_tanh_grad(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    step = 1e-5
    return (FAST_TANH(x + step) - FAST_TANH(x - step)) / (2 * step) * y


TRUTH = {
    "RELU": lambda x: np.maximum(x, 0),
    "ABS": np.abs,
    "ACOS": np.arccos,
    "ASIN": np.arcsin,
    "CEIL": np.ceil,
    "COS": np.cos,
    "EXP": np.exp,
    "EXPM1": np.expm1,
    "FLOOR": np.floor,
    "LOG": np.log,
    "LOG1P": np.log1p,
    "NEGATE": np.negative,
    "SIGMOID": SIGMOID,
    "SIN": np.sin,
    "TANH": np.tanh,
    "ABS_GRAD": lambda x, y: np.where(x > 0, y, -y),
    "ADD": np.add,
    "FLOOR_DIV": lambda x, y: np.floor(x / y),
    "MAX": np.maximum,
    "MIN": np.minimum,
    "MOD": np.fmod,
    "MUL": np.multiply,
    "POW": np.power,
    "SIGMOID_GRAD": lambda x, y: x * (1 - x) * y,
    "SUB": np.subtract,
    "SWITCH_GT0": lambda x, y: np.where(x > 0, y, 0),
    "TANH_GRAD": lambda x, y: (1 - x * x) * y,
    "TRUE_DIV": np.divide,
    "LOG_SUM_EXP": np.logaddexp,
    "LT": np.less,
    "LEQ": np.less_equal,
    "EQ": np.equal,
    "COND_LEQ_MOV": lambda x, y, z: np.where(x <= y, z, 0),
    "FUSE_MUL_ADD3": lambda x, y, z: x * y + z,
    "FUSE_MUL_ADD4": lambda x, y, z, w: x * y + z * w,
    "FUSE_ADD_RELU": lambda x, y: np.maximum(x + y, 0),
    "FUSE_ADD_SIGMOID": lambda x, y: SIGMOID(x + y),
    "FUSE_ADD_TANH": lambda x, y: np.tanh(x + y),
    "FAST_TANH": FAST_TANH,
    "FAST_TANH_GRAD": fast_tanh_grad,
    "ROUND": half_away,
    "ATAN2": np.arctan2,
    "ERF": ERF,
    "ERFINV": inverse_erf,
    "ERFC": lambda x: 1 - ERF(x),
    "ERFCINV": lambda x: inverse_erf(1 - x),
    "H_SWISH": lambda x: x * HSIGMOID(x),
    "H_SWISH_GRAD": lambda x, y: np.where(x < -3, 0, np.where(x > 3, y, (2 * x + 3) / 6 * y)),
    "FUSE_ADD_H_SWISH": lambda x, y: (x + y) * HSIGMOID(x + y),
    "SILU": lambda x: x * SIGMOID(x),
    "SILU_GRAD": lambda x, y: y * SIGMOID(x) * (1 + x * (1 - SIGMOID(x))),
    "GELU": lambda x: x * NORMAL(x),
    "GELU_GRAD": lambda x, y: y * (NORMAL(x) + x * DENSITY(x)),
    "COND_LT_MOV": lambda x, y, z: np.where(x < y, z, 0),
    "NEQ": np.not_equal,
    "ISNAN": np.isnan,
    "ISINF": np.isinf,
    "SINH": np.sinh,
    "COSH": np.cosh,
    "ASINH": np.arcsinh,
    "ACOSH": np.arccosh,
    "ATANH": np.arctanh,
    "TAN": np.tan,
    "ASINH_GRAD": lambda x, y: y / np.sqrt(x * x + 1),
    "ACOSH_GRAD": lambda x, y: y / np.sqrt(x * x - 1),
    "ATANH_GRAD": lambda x, y: y / (1 - x * x),
    "PRELU": lambda x, y: np.where(x > 0, x, x * y),
    "CLIP": lambda x, y, z: np.minimum(np.maximum(x, y), z),
    "PRELU_GRAD": lambda x, y, z: np.where(x >= 0, y, y * z),
    "SOFTPLUS": SOFTPLUS,
    "SOFTPLUS_GRAD": lambda x, y: y * SIGMOID(x),
    "RELU6": lambda x: np.clip(x, 0, 6),
    "RELU6_GRAD": lambda x, y: np.where((x > 0) & (x < 6), y, 0),
    "HSIGMOID": HSIGMOID,
    "HSIGMOID_GRAD": lambda x, y: np.where((x > -3) & (x < 3), y / 6, 0),
    "LOGSIGMOID": lambda x: -SOFTPLUS(-x),
    "SQRT": np.sqrt,
    "SQUARE": np.square,
    "SIGN": np.sign,
    "SAFE_DIV": lambda x, y: np.where(y == 0, 0, x / np.where(y == 0, 1, y)),
}
RANGES = {
    **dict.fromkeys(["ACOS", "ASIN", "ATANH", "ERFINV", "ATANH_GRAD"], (-0.95, 0.95)),
    **dict.fromkeys(["LOG", "SQRT", "POW"], (0.05, 4)),
    **dict.fromkeys(["ACOSH", "ACOSH_GRAD"], (1.05, 4)),
    **dict.fromkeys(["LOG1P"], (-0.9, 4)),
    **dict.fromkeys(["ERFCINV"], (0.05, 1.95)),
    **dict.fromkeys(["TAN"], (-1.4, 1.4)),
}
INTEGER = {
    "SHL": np.left_shift,
    "SHR": np.right_shift,
    "MOD": np.mod,
    "FLOOR_DIV": np.floor_divide,
    "RMULH": None,
}
BOOLEAN = {
    "NOT": np.logical_not,
    "AND": np.logical_and,
    "OR": np.logical_or,
    "XOR": np.logical_xor,
    "EQ": np.equal,
    "LT": lambda x, y: ~x & y,
    "LEQ": lambda x, y: ~x | y,
    "NEQ": np.not_equal,
}


def operands(mode: str, count: int, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    low, high = RANGES.get(mode, (-4, 4))
    xs = [rng.uniform(low, high, (3, 14)).astype(np.float32) for _ in range(count)]
    if mode in ("EQ", "NEQ", "LT", "LEQ", "SAFE_DIV"):
        xs = [np.round(x) for x in xs]
    if mode == "CLIP":
        xs[1:] = [-np.abs(xs[1]), np.abs(xs[2])]
    if mode in ("ISNAN", "ISINF"):
        xs[0][0, :3] = [np.nan, np.inf, -np.inf]
    return xs
