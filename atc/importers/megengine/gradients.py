"""The gradient modes of Elemwise as ONNX nodes; the last operand but PRELU's is the gradient."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import onnx_ir as ir

from atc.importers.megengine.builder import Builder

Value = ir.Value
Mode = Callable[[Builder, Sequence[Value]], Value]


def _select(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    return b.op("Where", [condition, x, y])


def _abs_grad(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    return _select(b, b.op("Greater", [x, b.number(0, x)]), y, b.op("Neg", [y]))


def _sigmoid_grad(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    slope = b.op("Mul", [x, b.op("Sub", [b.number(1, x), x])])
    return b.op("Mul", [slope, y])


def _tanh_grad(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    return b.op("Mul", [b.op("Sub", [b.number(1, x), b.op("Mul", [x, x])]), y])


def _fast_tanh_grad(b: Builder, xs: Sequence[Value]) -> Value:
    """(-48 x^2 / (3 + x^2) + 27 + x^2) / (9 (3 + x^2)) y."""
    x, y = xs
    square = b.op("Mul", [x, x])
    below = b.op("Add", [square, b.number(3, x)])
    above = b.op("Div", [b.op("Mul", [square, b.number(-48, x)]), below])
    above = b.op("Add", [b.op("Add", [above, b.number(27, x)]), square])
    slope = b.op("Div", [above, b.op("Mul", [below, b.number(9, x)])])
    return b.op("Mul", [slope, y])


def _h_swish_grad(b: Builder, xs: Sequence[Value]) -> Value:
    """x < -3: 0; x > 3: y; between: (2 x + 3) / 6 y."""
    x, y = xs
    slope = b.op("Add", [b.op("Mul", [x, b.number(1 / 3, x)]), b.number(0.5, x)])
    middle = b.op("Mul", [slope, y])
    upper = _select(b, b.op("Greater", [x, b.number(3, x)]), y, middle)
    return _select(b, b.op("Less", [x, b.number(-3, x)]), b.number(0, x), upper)


def _between_grad(low: float, high: float, slope: float) -> Mode:
    """Give the slope times y strictly between two bounds, 0 outside."""

    def mode(b: Builder, xs: Sequence[Value]) -> Value:
        x, y = xs
        above = b.op("Greater", [x, b.number(low, x)])
        inside = b.op("And", [above, b.op("Less", [x, b.number(high, x)])])
        scaled = y if slope == 1 else b.op("Mul", [y, b.number(slope, y)])
        return _select(b, inside, scaled, b.number(0, x))

    return mode


def _silu_grad(b: Builder, xs: Sequence[Value]) -> Value:
    """y s (1 + x (1 - s)) with s = sigmoid(x)."""
    x, y = xs
    one, s = b.number(1, x), b.op("Sigmoid", [x])
    slope = b.op("Add", [one, b.op("Mul", [x, b.op("Sub", [one, s])])])
    return b.op("Mul", [b.op("Mul", [y, s]), slope])


def _gelu_grad(b: Builder, xs: Sequence[Value]) -> Value:
    """y (Phi(x) + x phi(x)), the normal distribution's cumulative and density functions."""
    x, y = xs
    erf = b.op("Erf", [b.op("Mul", [x, b.number(math.sqrt(0.5), x)])])
    below = b.op("Mul", [b.op("Add", [erf, b.number(1, x)]), b.number(0.5, x)])
    exponent = b.op("Mul", [b.op("Mul", [x, x]), b.number(-0.5, x)])
    density = b.op("Mul", [b.op("Exp", [exponent]), b.number(1 / math.sqrt(2 * math.pi), x)])
    return b.op("Mul", [y, b.op("Add", [below, b.op("Mul", [x, density])])])


def _over_root(offset: float) -> Mode:
    """y / sqrt(x^2 + offset)."""

    def mode(b: Builder, xs: Sequence[Value]) -> Value:
        x, y = xs
        square = b.op("Add", [b.op("Mul", [x, x]), b.number(offset, x)])
        return b.op("Div", [y, b.op("Sqrt", [square])])

    return mode


def _atanh_grad(b: Builder, xs: Sequence[Value]) -> Value:
    x, y = xs
    return b.op("Div", [y, b.op("Sub", [b.number(1, x), b.op("Mul", [x, x])])])


def _prelu_grad(b: Builder, xs: Sequence[Value]) -> Value:
    x, y, slope = xs
    negative = b.op("Mul", [y, slope])
    return _select(b, b.op("GreaterOrEqual", [x, b.number(0, x)]), y, negative)


def _soft_plus_grad(b: Builder, xs: Sequence[Value]) -> Value:
    return b.op("Mul", [xs[1], b.op("Sigmoid", xs[:1])])


# Mode: (number of operands, translation).
GRADIENTS: Mapping[str, tuple[int, Mode]] = {
    "ABS_GRAD": (2, _abs_grad),
    "SIGMOID_GRAD": (2, _sigmoid_grad),
    "TANH_GRAD": (2, _tanh_grad),
    "FAST_TANH_GRAD": (2, _fast_tanh_grad),
    "H_SWISH_GRAD": (2, _h_swish_grad),
    "SILU_GRAD": (2, _silu_grad),
    "GELU_GRAD": (2, _gelu_grad),
    "ASINH_GRAD": (2, _over_root(1)),
    "ACOSH_GRAD": (2, _over_root(-1)),
    "ATANH_GRAD": (2, _atanh_grad),
    "PRELU_GRAD": (3, _prelu_grad),
    "SOFTPLUS_GRAD": (2, _soft_plus_grad),
    "RELU6_GRAD": (2, _between_grad(0, 6, 1)),
    "HSIGMOID_GRAD": (2, _between_grad(-3, 3, 1 / 6)),
}
