"""Elementwise functions of one, two or a scalar operand, and conversions of the element type."""

from __future__ import annotations

from math import log, pi

import numpy as np

from atc.importers.mxnet.builder import Builder
from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor, onnx_type

UNARY = {
    "relu": "Relu", "_npx_relu": "Relu", "sigmoid": "Sigmoid", "_npx_sigmoid": "Sigmoid",
    "softsign": "Softsign", "abs": "Abs", "exp": "Exp", "log": "Log", "sqrt": "Sqrt",
    "reciprocal": "Reciprocal", "negative": "Neg", "sign": "Sign", "floor": "Floor",
    "ceil": "Ceil", "erf": "Erf", "sin": "Sin", "cos": "Cos", "tan": "Tan",
    "arcsin": "Asin", "arccos": "Acos", "arctan": "Atan", "sinh": "Sinh", "cosh": "Cosh",
    "tanh": "Tanh", "arcsinh": "Asinh", "arccosh": "Acosh", "arctanh": "Atanh",
    "_contrib_sign_ste": "Sign",
}  # fmt: skip
"""MXNet's functions that ONNX has as they are."""

BINARY = {
    "add": "Add", "plus": "Add", "sub": "Sub", "minus": "Sub", "mul": "Mul", "div": "Div",
    "power": "Pow", "maximum": "Max", "minimum": "Min",
}  # fmt: skip
"""Arithmetic that keeps the operands' type."""

COMPARISON = {
    "equal": "Equal", "greater": "Greater", "greater_equal": "GreaterOrEqual",
    "lesser": "Less", "lesser_equal": "LessOrEqual",
}  # fmt: skip
LOGICAL = {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor"}

REVERSED = {"rminus": "sub", "rdiv": "div", "rmod": "mod", "rpower": "power"}


@translates(*UNARY)
def unary(s: NodeContext) -> Tensor:
    """Translate to a function that ONNX has as it is."""
    return s.b.op(UNARY[s.node.op], s.x)


@translates("square")
def square(s: NodeContext) -> Tensor:
    """x²."""
    return s.b.op("Mul", s.x, s.x)


@translates("rsqrt")
def rsqrt(s: NodeContext) -> Tensor:
    """1 / √x."""
    return s.b.op("Reciprocal", s.b.op("Sqrt", s.x))


def _cbrt(b: Builder, x: Tensor) -> Tensor:
    return b.op("Mul", b.op("Sign", x), b.op("Pow", b.op("Abs", x), 1 / 3))


@translates("cbrt")
def cbrt(s: NodeContext) -> Tensor:
    """Return the third root, negative for negative x."""
    return _cbrt(s.b, s.x)


@translates("rcbrt")
def rcbrt(s: NodeContext) -> Tensor:
    """1 / ∛x."""
    return s.b.op("Reciprocal", _cbrt(s.b, s.x))


@translates("log2", "log10")
def log_base(s: NodeContext) -> Tensor:
    """Return the logarithm to base 2 or 10."""
    return s.b.op("Div", s.b.op("Log", s.x), log(2 if s.node.op == "log2" else 10))


@translates("log1p")
def log1p(s: NodeContext) -> Tensor:
    """log(1 + x)."""
    return s.b.op("Log", s.b.op("Add", s.x, 1.0))


@translates("expm1")
def expm1(s: NodeContext) -> Tensor:
    """exp(x) - 1."""
    return s.b.op("Sub", s.b.op("Exp", s.x), 1.0)


@translates("degrees", "radians")
def angle(s: NodeContext) -> Tensor:
    """Radians to degrees, or back."""
    return s.b.op("Mul", s.x, 180 / pi if s.node.op == "degrees" else pi / 180)


@translates("trunc", "fix")
def truncate(s: NodeContext) -> Tensor:
    """Round toward zero."""
    return s.b.op("Mul", s.b.op("Sign", s.x), s.b.op("Floor", s.b.op("Abs", s.x)))


@translates("round", "_contrib_round_ste")
def round_half_away(s: NodeContext) -> Tensor:
    """Round to nearest, halves away from zero (ONNX's Round takes the even one)."""
    whole = s.b.op("Floor", s.b.op("Add", s.b.op("Abs", s.x), 0.5))
    return s.b.op("Mul", s.b.op("Sign", s.x), whole)


@translates("rint")
def rint(s: NodeContext) -> Tensor:
    """Round to nearest, halves down."""
    return s.b.op("Ceil", s.b.op("Sub", s.x, 0.5))


@translates("logical_not")
def logical_not(s: NodeContext) -> Tensor:
    """1 where x is 0, else 0."""
    return s.b.cast(s.b.op("Equal", s.x, 0), s.x.dtype)


@translates("clip")
def clip(s: NodeContext) -> Tensor:
    """Limit to [a_min, a_max]; a ReLU where that is what the bounds say."""
    low, high = s.number("a_min"), s.number("a_max")
    if low == 0 and high == float("inf"):
        return s.b.op("Relu", s.x)
    return s.b.op("Clip", s.x, s.b.scalar(low, s.x.dtype), s.b.scalar(high, s.x.dtype))


@translates("smooth_l1")
def smooth_l1(s: NodeContext) -> Tensor:
    """(σx)²/2 for |x| < 1/σ², else |x| - 1/(2σ²)."""
    sigma2 = s.number("scalar", 1.0) ** 2
    s.require(sigma2 > 0, "scalar is 0")
    size = s.b.op("Abs", s.x)
    near = s.b.op("Mul", s.b.op("Mul", s.x, s.x), 0.5 * sigma2)
    far = s.b.op("Sub", size, 0.5 / sigma2)
    return s.b.op("Where", s.b.op("Less", size, 1 / sigma2), near, far)


@translates("_contrib_quadratic")
def quadratic(s: NodeContext) -> Tensor:
    """a·x² + b·x + c."""
    linear = s.b.op("Add", s.b.op("Mul", s.x, s.number("a", 0.0)), s.number("b", 0.0))
    return s.b.op("Add", s.b.op("Mul", linear, s.x), s.number("c", 0.0))


@translates("_contrib_div_sqrt_dim")
def div_sqrt_dim(s: NodeContext) -> Tensor:
    """x / √(length of the last axis)."""
    s.require(s.x.rank > 0 and s.x.shape[-1] > 0, "a scalar has no last axis")
    return s.b.op("Div", s.x, float(np.sqrt(s.x.shape[-1])))


# ---- types -------------------------------------------------------------------------------------


@translates("Cast", "cast", "amp_cast")
def cast(s: NodeContext) -> Tensor:
    """Convert the element type, toward zero for integers."""
    target = s.element_type("dtype", "")
    if s.node.op == "amp_cast" and s.x.dtype.kind in "iub":
        return s.b.op("Identity", s.x)  # it converts floats only
    return s.b.op("Cast", s.x, to=onnx_type(target))


@translates("amp_multicast")
def amp_multicast(s: NodeContext) -> list[Tensor]:
    """Convert all floats to the widest of their types, or to the narrowest."""
    floats = [t.dtype for t in s.inputs if t.dtype.kind not in "iub"]
    if not floats:
        return list(s.inputs)
    pick = min if s.truth("cast_narrow", False) else max
    target = pick(floats, key=lambda d: d.itemsize)
    return [t if t.dtype.kind in "iub" else s.b.cast(t, target) for t in s.inputs]


# ---- two operands ------------------------------------------------------------------------------


def binary(b: Builder, kind: str, x: Tensor, y: Tensor) -> Tensor:
    """Emit x <kind> y; comparisons give 0 or 1 in the type of `x`, integers divide toward zero."""
    x, y = _same_type(b, x, y)
    if kind in BINARY:
        return b.op(BINARY[kind], x, y)
    if kind in COMPARISON:
        return b.cast(b.op(COMPARISON[kind], x, y), x.dtype)
    if kind == "not_equal":
        return b.cast(b.op("Not", b.op("Equal", x, y)), x.dtype)
    if kind in LOGICAL:
        return b.cast(b.op(LOGICAL[kind], truth(b, x), truth(b, y)), x.dtype)
    if kind == "hypot":
        return b.op("Sqrt", b.op("Add", b.op("Mul", x, x), b.op("Mul", y, y)))
    return modulo(b, x, y)


def _same_type(b: Builder, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Old MXNet insists on equal types; a made-up constant takes the other's."""
    if x.dtype == y.dtype:
        return x, y
    wide = np.promote_types(x.dtype, y.dtype)
    if {x.dtype.kind, y.dtype.kind} & {"f"}:
        wide = max((t.dtype for t in (x, y) if t.dtype.kind == "f"), key=lambda d: d.itemsize)
    return b.cast(x, wide), b.cast(y, wide)


def truth(b: Builder, x: Tensor) -> Tensor:
    """Return where `x` isn't zero, as booleans."""
    return b.cast(x, np.bool_)


def modulo(b: Builder, x: Tensor, y: Tensor) -> Tensor:
    """x - y·⌊x/y⌋ with Python's sign; 0 where y is 0."""
    if x.dtype.kind in "iu":
        safe = b.op("Where", b.op("Equal", y, 0), b.scalar(1, y.dtype), y)
        rest = b.op("Mod", x, safe)
    else:
        rest = b.op("Mod", x, y, fmod=1)
        other = b.op("Less", b.op("Mul", rest, y), 0)
        rest = b.op("Where", other, b.op("Add", rest, y), rest)
    return b.op("Where", b.op("Equal", y, 0), b.scalar(0, x.dtype), rest)


def _names(kind: str) -> set[str]:
    """Return all spellings of an operator on two tensors, those of 0.x files too."""
    old = "_".join(word.capitalize() for word in kind.split("_"))
    return {f"broadcast_{kind}", f"elemwise_{kind}", f"_{kind}", f"_{old}"}


_KINDS = (*BINARY, *COMPARISON, *LOGICAL, "not_equal", "hypot", "mod")
_BINARY_NAMES = {name: kind for kind in _KINDS for name in _names(kind)}
_BINARY_NAMES["_scatter_elemwise_div"] = "div"


@translates(*_BINARY_NAMES)
def binary_op(s: NodeContext) -> Tensor:
    """Two tensors; MXNet's elemwise forms insist on equal shapes, which broadcasting includes."""
    return binary(s.b, _BINARY_NAMES[s.node.op], s.x, s.input(1))


def _scalar_names(kind: str) -> tuple[str, str]:
    """Return both spellings of an operator on a tensor and a number: new, and that of 0.x."""
    words = f"r_{kind[1:]}" if kind in REVERSED else kind
    old = "".join(word.capitalize() for word in words.split("_"))
    return f"_{kind}_scalar", f"_{old}Scalar"


_SCALAR_NAMES = {name: kind for kind in (*_KINDS, *REVERSED) for name in _scalar_names(kind)}
_SCALAR_NAMES |= {"_scatter_plus_scalar": "plus", "_scatter_minus_scalar": "minus"}


@translates(*_SCALAR_NAMES)
def scalar_op(s: NodeContext) -> Tensor:
    """Combine a tensor with the attribute `scalar`, in the tensor's type.

    Integers with a scalar that isn't one (`is_int`, since MXNet 1.7) are computed as float64.
    """
    kind, x = _SCALAR_NAMES[s.node.op], s.x
    if x.dtype.kind in "iub" and not s.truth("is_int", True):
        x = s.b.cast(x, np.float64)
    scalar = s.b.scalar(s.number("scalar", 1.0), x.dtype)
    if kind in REVERSED:
        return binary(s.b, REVERSED[kind], scalar, x)
    return binary(s.b, kind, x, scalar)


@translates("add_n", "ElementWiseSum", "_sum_n")
def add_n(s: NodeContext) -> Tensor:
    """Return the sum of all inputs."""
    s.require(bool(s.inputs), "it has no inputs")
    return s.b.op("Sum", *s.inputs) if len(s.inputs) > 1 else s.b.op("Identity", s.x)


@translates("where")
def where(s: NodeContext) -> Tensor:
    """x where the condition isn't 0, else y; a vector condition chooses rows."""
    condition, x, y = truth(s.b, s.x), s.input(1), s.input(2)
    x, y = _same_type(s.b, x, y)
    if condition.rank == 1 and x.rank > 1:
        condition = s.b.reshape(condition, [condition.size] + [1] * (x.rank - 1))
    return s.b.op("Where", condition, x, y)
