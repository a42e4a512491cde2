"""Lowerings of elementwise operators: each is a scalar expression over broadcast operands."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt

import numpy as np

from atc.ir.expr import UNARY, Expr, call, cast, const
from atc.ir.graph import DType
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers
from atc.lower.training import batch_statistics, trains


def compute(ctx: LoweringContext, build: Callable[..., Expr], *inputs: str) -> str:
    """Map `build` over operands; 16-bit floats are computed in float and rounded at the end."""
    half = next((ctx.b.type(i).dtype for i in inputs if ctx.b.type(i).dtype.is_half), None)
    if half is None:
        return ctx.b.map(build, *inputs)

    def widened(*args: Expr) -> Expr:
        result = build(*(cast(a, DType.FLOAT) if a.dtype.is_half else a for a in args))
        return cast(result, half) if result.dtype is DType.FLOAT else result

    return ctx.b.map(widened, *inputs)


def like(x: Expr, value: float) -> Expr:
    """Return a literal of the operand's type."""
    return const(value, x.dtype)


# ---- one operand, no attributes -----------------------------------------------------------------

SAME_NAME = sorted(
    UNARY - {"Bitcast", "Cast", "CastSaturate", "Expm1", "IsInf", "Log1p", "Trunc"}
)
"""Operators that are scalar functions of the same name."""


@lowers(*SAME_NAME)
def same_name(ctx: LoweringContext) -> str:
    """ONNX operators that are one scalar function, e.g. Exp-13."""
    return compute(ctx, lambda x: call(ctx.node.op_type, x), ctx.input(0))


@lowers("Identity")
def identity(ctx: LoweringContext) -> str:
    """ONNX Identity-16: the same value."""
    return ctx.input(0)


def relu(x: Expr) -> Expr:
    """max(x, 0)."""
    return call("Max", x, like(x, 0))


@lowers("Relu")
def lower_relu(ctx: LoweringContext) -> str:
    """ONNX Relu-14."""
    return compute(ctx, relu, ctx.input(0))


@lowers("Softsign")
def softsign(ctx: LoweringContext) -> str:
    """ONNX Softsign-1: x / (1 + |x|)."""

    def body(x: Expr) -> Expr:
        return call("Div", x, call("Add", like(x, 1), call("Abs", x)))

    return compute(ctx, body, ctx.input(0))


@lowers("HardSwish")
def hard_swish(ctx: LoweringContext) -> str:
    """ONNX HardSwish-14: x * max(0, min(1, x/6 + 0.5))."""
    return compute(ctx, lambda x: call("Mul", x, hard_sigmoid(x, 1 / 6, 0.5)), ctx.input(0))


def hard_sigmoid(x: Expr, alpha: float, beta: float) -> Expr:
    """max(0, min(1, alpha * x + beta))."""
    line = call("Add", call("Mul", x, like(x, alpha)), like(x, beta))
    return call("Max", call("Min", line, like(x, 1)), like(x, 0))


@lowers("HardSigmoid")
def lower_hard_sigmoid(ctx: LoweringContext) -> str:
    """ONNX HardSigmoid-6."""
    alpha, beta = ctx.float("alpha", 0.2), ctx.float("beta", 0.5)
    return compute(ctx, lambda x: hard_sigmoid(x, alpha, beta), ctx.input(0))


@lowers("Mish")
def mish(ctx: LoweringContext) -> str:
    """ONNX Mish-18: x * tanh(softplus(x))."""

    def body(x: Expr) -> Expr:
        return call("Mul", x, call("Tanh", call("Softplus", x)))

    return compute(ctx, body, ctx.input(0))


# ---- one operand with attributes ----------------------------------------------------------------


@lowers("LeakyRelu")
def leaky_relu(ctx: LoweringContext) -> str:
    """ONNX LeakyRelu-16: x < 0 ? alpha x : x."""
    alpha = ctx.float("alpha", 0.01)
    return compute(ctx, lambda x: prelu(x, like(x, alpha)), ctx.input(0))


def prelu(x: Expr, slope: Expr) -> Expr:
    """x < 0 ? slope * x : x."""
    return call("Where", call("Less", x, like(x, 0)), call("Mul", slope, x), x)


@lowers("PRelu")
def lower_prelu(ctx: LoweringContext) -> str:
    """ONNX PRelu-16: the slope broadcasts to x; before opset 7 it was per channel."""
    slope = ctx.input(1)
    x_shape, s_shape = ctx.shape(0), ctx.b.shape(slope)
    if len(s_shape) == 1 and len(x_shape) > 2 and s_shape[0] == x_shape[1] != x_shape[-1]:
        slope = ctx.b.reshape(slope, [s_shape[0]] + [1] * (len(x_shape) - 2))
    return compute(ctx, prelu, ctx.input(0), slope)


@lowers("Elu")
def elu(ctx: LoweringContext) -> str:
    """ONNX Elu-6: x < 0 ? alpha (exp(x) - 1) : x."""
    alpha = ctx.float("alpha", 1.0)
    return compute(ctx, lambda x: negative(x, call("Mul", like(x, alpha), exp_m1(x))), ctx.input(0))


def exp_m1(x: Expr) -> Expr:
    """exp(x) - 1 without cancellation."""
    return call("Expm1", x)


def negative(x: Expr, below: Expr) -> Expr:
    """x < 0 ? below : x."""
    return call("Where", call("Less", x, like(x, 0)), below, x)


@lowers("Selu")
def selu(ctx: LoweringContext) -> str:
    """ONNX Selu-6: gamma * (x > 0 ? x : alpha (exp(x) - 1))."""
    alpha = ctx.float("alpha", 1.67326319217681884765625)
    gamma = ctx.float("gamma", 1.05070102214813232421875)

    def body(x: Expr) -> Expr:
        return call("Mul", like(x, gamma), negative(x, call("Mul", like(x, alpha), exp_m1(x))))

    return compute(ctx, body, ctx.input(0))


@lowers("Celu")
def celu(ctx: LoweringContext) -> str:
    """ONNX Celu-12: max(0, x) + min(0, alpha (exp(x / alpha) - 1))."""
    alpha = ctx.float("alpha", 1.0)

    def body(x: Expr) -> Expr:
        return negative(x, call("Mul", like(x, alpha), exp_m1(call("Div", x, like(x, alpha)))))

    return compute(ctx, body, ctx.input(0))


@lowers("ThresholdedRelu")
def thresholded_relu(ctx: LoweringContext) -> str:
    """ONNX ThresholdedRelu-10: x > alpha ? x : 0."""
    alpha = ctx.float("alpha", 1.0)

    def body(x: Expr) -> Expr:
        return call("Where", call("Greater", x, like(x, alpha)), x, like(x, 0))

    return compute(ctx, body, ctx.input(0))


@lowers("Shrink")
def shrink(ctx: LoweringContext) -> str:
    """ONNX Shrink-9: x < -lambd ? x + bias : x > lambd ? x - bias : 0."""
    bias, lambd = ctx.float("bias"), ctx.float("lambd", 0.5)

    def body(x: Expr) -> Expr:
        wide = x if x.dtype.is_float else cast(x, DType.DOUBLE)
        high = call(
            "Where", call("Greater", wide, like(wide, lambd)),
            call("Sub", wide, like(wide, bias)), like(wide, 0),
        )  # fmt: skip
        low = call("Add", wide, like(wide, bias))
        return cast(call("Where", call("Less", wide, like(wide, -lambd)), low, high), x.dtype)

    return compute(ctx, body, ctx.input(0))


@lowers("Gelu")
def lower_gelu(ctx: LoweringContext) -> str:
    """ONNX Gelu-20, exact or with the tanh approximation."""
    approximate = ctx.str("approximate", "none")
    ctx.require(approximate in ("none", "tanh"), f"approximate is '{approximate}'")
    return compute(ctx, gelu_tanh if approximate == "tanh" else gelu, ctx.input(0))


def gelu(x: Expr) -> Expr:
    """0.5 x (1 + erf(x / sqrt 2))."""
    erf = call("Erf", call("Mul", x, like(x, 1 / sqrt(2))))
    return call("Mul", call("Mul", like(x, 0.5), x), call("Add", like(x, 1), erf))


def gelu_tanh(x: Expr) -> Expr:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    cube = call("Mul", call("Mul", x, x), x)
    inner = call("Add", x, call("Mul", like(x, 0.044715), cube))
    tanh = call("Tanh", call("Mul", like(x, sqrt(2 / pi)), inner))
    return call("Mul", call("Mul", like(x, 0.5), x), call("Add", like(x, 1), tanh))


@lowers("Swish")
def swish(ctx: LoweringContext) -> str:
    """ONNX Swish-24: x * sigmoid(alpha x)."""
    alpha = ctx.float("alpha", 1.0)

    def body(x: Expr) -> Expr:
        return call("Mul", x, call("Sigmoid", call("Mul", like(x, alpha), x)))

    return compute(ctx, body, ctx.input(0))


@lowers("IsInf")
def is_inf(ctx: LoweringContext) -> str:
    """ONNX IsInf-20, with either sign switched off by an attribute."""
    positive, below = ctx.int("detect_positive", 1), ctx.int("detect_negative", 1)

    def body(x: Expr) -> Expr:
        sides = {(1, 1): None, (1, 0): "Greater", (0, 1): "Less"}
        if not positive and not below:
            return const(False, DType.BOOL)
        side = sides[bool(positive), bool(below)]
        return (
            call("And", call("IsInf", x), call(side, x, like(x, 0))) if side else call("IsInf", x)
        )

    if not positive and not below:
        shape = ctx.shape(0)
        return ctx.b.expand(ctx.b.scalar(False, DType.BOOL), shape)
    return compute(ctx, body, ctx.input(0))


@lowers("Clip")
def clip(ctx: LoweringContext) -> str:
    """ONNX Clip-13; before opset 11 the bounds are attributes. min > max gives max."""
    bounds = []
    for i, name in ((1, "min"), (2, "max")):
        value = ctx.attribute(name)
        given = ctx.optional(i)
        if value is not None and ctx.opset < 11:
            given = ctx.b.scalar(float(value), ctx.type(0).dtype)
        bounds.append(given)
    names = [b for b in bounds if b]

    def body(x: Expr, *limits: Expr) -> Expr:
        rest = list(limits)
        for fn, bound in zip(("Max", "Min"), bounds, strict=True):
            if bound:
                x = call(fn, x, rest.pop(0))
        return x

    return compute(ctx, body, ctx.input(0), *names)


# ---- several operands ---------------------------------------------------------------------------

BINARY_SAME_NAME = [
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Equal",
    "Less",
    "LessOrEqual",
    "Greater",
    "GreaterOrEqual",
    "And",
    "Or",
    "Xor",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
]


def legacy_operand(ctx: LoweringContext) -> str:
    """Return operand 1; before opset 7 `axis` says where its shape is aligned."""
    y = ctx.input(1)
    axis = ctx.attribute("axis")
    if ctx.opset < 7 and axis is not None:
        tail = len(ctx.shape(0)) - ctx.axis(int(axis), len(ctx.shape(0))) - len(ctx.shape(1))
        return ctx.b.reshape(y, [*ctx.shape(1), *[1] * tail])
    return y


@lowers(*BINARY_SAME_NAME)
def binary(ctx: LoweringContext) -> str:
    """ONNX operators that are one function of two broadcast operands, e.g. Add-14."""
    return compute(
        ctx, lambda x, y: call(ctx.node.op_type, x, y), ctx.input(0), legacy_operand(ctx)
    )


SIMPLE_POWERS: dict[float, Callable[[Expr], Expr]] = {
    1.0: lambda x: x,
    2.0: lambda x: call("Mul", x, x),
    3.0: lambda x: call("Mul", call("Mul", x, x), x),
    0.5: lambda x: call("Sqrt", x),
    -1.0: lambda x: call("Reciprocal", x),
}
"""Constant exponents that need no pow()."""


@lowers("Pow")
def power(ctx: LoweringContext) -> str:
    """ONNX Pow-15: the result has the base's type; small integer powers become products."""
    exponent = ctx.const(1)
    if exponent is not None and exponent.size == 1 and ctx.type(0).dtype.is_float:
        build = SIMPLE_POWERS.get(float(exponent.reshape(())))
        if build is not None and len(ctx.shape(1)) <= len(ctx.shape(0)):
            return compute(ctx, build, ctx.input(0))

    def body(x: Expr, y: Expr) -> Expr:
        if x.dtype is y.dtype:
            return call("Pow", x, y)
        wide = DType.DOUBLE if not (x.dtype.is_float and y.dtype.is_float) else x.dtype
        return cast(call("Pow", cast(x, wide), cast(y, wide)), x.dtype)

    return compute(ctx, body, ctx.input(0), ctx.input(1))


@lowers("Mod")
def mod(ctx: LoweringContext) -> str:
    """ONNX Mod-13: sign of the divisor, or of the dividend with fmod = 1."""
    fn = "FMod" if ctx.int("fmod") else "Mod"
    return compute(ctx, lambda x, y: call(fn, x, y), ctx.input(0), ctx.input(1))


@lowers("BitShift")
def bit_shift(ctx: LoweringContext) -> str:
    """ONNX BitShift-11."""
    direction = ctx.str("direction")
    ctx.require(direction in ("LEFT", "RIGHT"), f"direction is '{direction}'")
    fn = "ShiftLeft" if direction == "LEFT" else "ShiftRight"
    return compute(ctx, lambda x, y: call(fn, x, y), ctx.input(0), ctx.input(1))


LONGEST_CHAIN = 64
"""Operands that one expression adds up."""


def _chain(ctx: LoweringContext, fn: str, finish: Callable[[Expr], Expr] = lambda e: e) -> str:
    def body(*xs: Expr, last: bool = True) -> Expr:
        total = xs[0]
        for x in xs[1:]:
            total = call(fn, total, x)
        return finish(total) if last else total

    first, *rest = (ctx.input(i) for i in range(len(ctx.inputs)))
    while len(rest) > LONGEST_CHAIN:  # expressions are trees, whose depth is bounded
        first = compute(ctx, lambda *xs: body(*xs, last=False), first, *rest[:LONGEST_CHAIN])
        rest = rest[LONGEST_CHAIN:]
    return compute(ctx, body, first, *rest)


@lowers("Sum", "Max", "Min")
def variadic(ctx: LoweringContext) -> str:
    """ONNX Sum-13, Max-13, Min-13 over any number of broadcast operands."""
    return _chain(ctx, {"Sum": "Add"}.get(ctx.node.op_type, ctx.node.op_type))


@lowers("Mean")
def mean(ctx: LoweringContext) -> str:
    """ONNX Mean-13: the arithmetic mean of the operands."""
    count = len(ctx.inputs)
    return _chain(ctx, "Add", lambda e: call("Div", e, like(e, count)))


@lowers("Where")
def where(ctx: LoweringContext) -> str:
    """ONNX Where-16."""
    return compute(ctx, lambda c, x, y: call("Where", c, x, y), *map(ctx.input, range(3)))


@lowers("BatchNormalization")
def batch_normalization(ctx: LoweringContext) -> str | tuple[str, ...]:
    """ONNX BatchNormalization-15: at inference x * s + t with s, t per channel."""
    if trains(ctx):
        if ctx.is_read(3) or ctx.is_read(4):
            raise ctx.unsupported("BatchNormalization's saved mean and variance are read")
        return batch_statistics(ctx)
    if any(ctx.wants(i) for i in range(1, 5)):
        raise ctx.unsupported("BatchNormalization's training outputs are asked for")
    epsilon = ctx.float("epsilon", 1e-5)
    channels = [ctx.const(i) for i in range(1, 5)]
    tail = [1] * (len(ctx.shape(0)) - 2)
    if any(c is None for c in channels):
        operands = [ctx.b.reshape(ctx.input(i), [ctx.shape(i)[0], *tail]) for i in range(1, 5)]

        def body(x: Expr, s: Expr, t: Expr, m: Expr, v: Expr) -> Expr:
            root = call("Sqrt", call("Add", v, like(v, epsilon)))
            return call("Add", call("Mul", call("Div", call("Sub", x, m), root), s), t)

        return compute(ctx, body, ctx.input(0), *operands)
    s, t, m, v = (np.asarray(c, np.float64) for c in channels)
    scale = s / np.sqrt(v + epsilon)
    shift = t - m * scale
    numpy_type = ctx.type(0).dtype.numpy
    factors = [ctx.b.constant(a.astype(numpy_type).reshape(-1, *tail)) for a in (scale, shift)]
    return compute(ctx, lambda x, a, b: call("Add", call("Mul", x, a), b), ctx.input(0), *factors)
