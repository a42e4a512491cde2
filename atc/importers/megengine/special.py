"""Functions that ONNX has no operator for, composed so that they keep their precision."""

from __future__ import annotations

import math
from collections.abc import Sequence

import onnx_ir as ir

from atc.importers.megengine.builder import Builder

# Single-precision polynomials of Giles, "Approximating the erfinv function", GPU Computing Gems
# Jade Edition, 2011, chapter 10: for w < 5 in w - 2.5, else in sqrt(w) - 3; highest power first.
_CENTRAL = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip


def expm1(b: Builder, x: ir.Value) -> ir.Value:
    """Compute exp(x) - 1 as tanh(x/2) (exp(x) + 1), exact near 0 where the difference isn't."""
    half = b.op("Tanh", [b.op("Mul", [x, b.number(0.5, x)])])
    return b.op("Mul", [half, b.op("Add", [b.op("Exp", [x]), b.number(1, x)])])


def log1p(b: Builder, x: ir.Value) -> ir.Value:
    """Compute log(1 + x) so that the rounding of 1 + x cancels.

    Goldberg, "What every computer scientist should know about floating-point arithmetic", 1991,
    theorem 4; the plain logarithm stays where 1 + x is exact, which also covers infinity.
    """
    one = b.number(1, x)
    u = b.op("Add", [x, one])
    log = b.op("Log", [u])
    d = b.op("Sub", [u, one])
    mended = b.op("Mul", [log, b.op("Div", [x, d])])
    mended = b.op("Where", [b.op("Equal", [d, b.number(0, x)]), x, mended])
    return b.op("Where", [b.op("Equal", [d, x]), log, mended])


def erfinv(b: Builder, x: ir.Value) -> ir.Value:
    """Compute the inverse of the error function, to about 4e-7 relative."""
    one = b.number(1, x)
    return _inverse(b, x, b.op("Sub", [one, x]), b.op("Add", [one, x]))


def erfcinv(b: Builder, x: ir.Value) -> ir.Value:
    """Compute the inverse of 1 - erf, precise for small x too."""
    upper = b.op("Sub", [b.number(2, x), x])
    return _inverse(b, b.op("Sub", [b.number(1, x), x]), x, upper)


def _inverse(b: Builder, x: ir.Value, below: ir.Value, above: ir.Value) -> ir.Value:
    """Evaluate Giles' approximation at x, given 1 - x and 1 + x."""
    w = b.op("Neg", [b.op("Log", [b.op("Mul", [below, above])])])
    central = _polynomial(b, b.op("Sub", [w, b.number(2.5, x)]), _CENTRAL)
    root = b.op("Sqrt", [b.op("Max", [w, b.number(5, x)])])
    tail = _polynomial(b, b.op("Sub", [root, b.number(3, x)]), _TAIL)
    factor = b.op("Where", [b.op("Less", [w, b.number(5, x)]), central, tail])
    ends = b.op("Equal", [b.op("Abs", [x]), b.number(1, x)])
    infinite = b.op("Mul", [x, b.number(math.inf, x)])
    return b.op("Where", [ends, infinite, b.op("Mul", [x, factor])])


def _polynomial(b: Builder, x: ir.Value, coefficients: Sequence[float]) -> ir.Value:
    """Horner's scheme."""
    value = b.number(coefficients[0], x)
    for coefficient in coefficients[1:]:
        value = b.op("Add", [b.op("Mul", [value, x]), b.number(coefficient, x)])
    return value
