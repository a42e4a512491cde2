"""Lowerings of what only training does: random masks, running statistics, optimizers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from zlib import crc32

import numpy as np

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType
from atc.lower.context import LoweringContext
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers

PREVIEW = "ai.onnx.preview.training"
OWN = "atc.training"
"""The domain of what training needs and no standard has."""


def sum_of(*terms: Expr) -> Expr:
    """Return the sum, added from left to right."""
    total, *others = terms
    for term in others:
        total = call("Add", total, term)
    return total


def scaled(factor: float, x: Expr) -> Expr:
    """Return x times a number of x's type."""
    return call("Mul", const(factor, x.dtype), x)


@lowers("StopGradient", domain=OWN)
def stop_gradient(ctx: LoweringContext) -> str:
    """Return the same value, a constant to gradients: PyTorch's `detach`."""
    return ctx.input(0)


# ---- layers -------------------------------------------------------------------------------------


@lowers("Dropout")
def dropout(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Dropout-22: the identity at inference.

    In training the mask is drawn when compiling, as the standard's reference draws it; without a
    seed the node's name is the seed. Every run uses the same mask.
    """
    x, shape, training = ctx.input(0), ctx.shape(0), ctx.const(2)
    if not ctx.has(2) or (training is not None and not training.reshape(())):
        kept = ctx.b.scalar(1, DType.BOOL if ctx.opset >= 10 else DType.FLOAT)
        return (x, *([ctx.b.expand(kept, shape)] if ctx.wants(1) else []))
    seed = ctx.int("seed", crc32(ctx.name.encode())) % 2**32
    drawn = ctx.b.constant(np.random.RandomState(seed).uniform(0, 1.0, shape))
    switches = [ctx.input(1) if ctx.has(1) else ctx.b.scalar(0.5, DType.FLOAT), ctx.input(2)]
    switches = [ctx.b.reshape(s, ()) for s in switches]
    mask_ = ctx.b.map(_kept, drawn, *switches)
    y = ctx.b.map(_amplified, x, mask_, *switches)
    return (y, mask_)[: max(ctx.output_count, 1)]


def _kept(drawn: Expr, ratio: Expr, training: Expr) -> Expr:
    keeps = call("GreaterOrEqual", drawn, cast(ratio, DType.DOUBLE))
    return call("Or", keeps, call("Not", training))


def _amplified(x: Expr, mask: Expr, ratio: Expr, training: Expr) -> Expr:
    work = DType.FLOAT if x.dtype.is_half else x.dtype
    one = const(1, work)
    rest = call("Sub", one, cast(ratio, work))
    scale = call("Div", one, call("Where", training, rest, one))
    return cast(call("Mul", call("Mul", cast(mask, work), cast(x, work)), scale), x.dtype)


def trains(ctx: LoweringContext) -> bool:
    """Return whether a BatchNormalization trains: before opset 14 its list of outputs says so."""
    if ctx.opset >= 14:
        return bool(ctx.int("training_mode", 0))
    return any(ctx.wants(i) for i in range(1, 5))


def batch_statistics(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX BatchNormalization-15 in training: the batch's statistics, and the running ones."""
    b, x = ctx.b, ctx.type(0)
    ctx.require(len(x.shape) >= 2 and x.size > 0, f"the input is {x}")
    work = DType.FLOAT if x.dtype.is_half else x.dtype
    axes = tuple(d for d in range(len(x.shape)) if d != 1)
    wide = b.cast(ctx.input(0), work)
    mean = reduce_axes(ctx, wide, axes, True, "Mean")
    away = b.map(lambda v, m: call("Sub", v, m), wide, mean)
    variance = reduce_axes(ctx, b.map(lambda d: call("Mul", d, d), away), axes, True, "Mean")
    epsilon, momentum = ctx.float("epsilon", 1e-5), ctx.float("momentum", 0.9)
    per_channel = [x.shape[1], *[1] * (len(x.shape) - 2)]
    scale, bias = (b.reshape(b.cast(ctx.input(i), work), per_channel) for i in (1, 2))

    def deviation(v: Expr) -> Expr:
        return call("Sqrt", call("Add", v, const(epsilon, work)))

    def normal(d: Expr, f: Expr, t: Expr) -> Expr:
        return cast(sum_of(call("Mul", d, f), t), x.dtype)

    def running(old: Expr, new: Expr) -> Expr:
        kept = scaled(momentum, cast(old, work))
        return cast(sum_of(kept, scaled(1 - momentum, new)), old.dtype)

    # What is the same for a channel is computed once.
    factor = b.map(lambda s, r: call("Div", s, r), scale, b.map(deviation, variance))
    y = b.map(normal, away, factor, bias)
    channels = (b.reshape(v, (x.shape[1],)) for v in (mean, variance))
    means = (b.map(running, ctx.input(i), v) for i, v in zip((3, 4), channels, strict=True))
    return (y, *means)


# ---- optimizers ---------------------------------------------------------------------------------


def _tensors(ctx: LoweringContext, kinds: int) -> list[tuple[str, ...]]:
    """Return for each optimized tensor its value, gradient and state, which are listed by kind."""
    names = ctx.inputs[2:]
    ctx.require(len(names) > 0 and len(names) % kinds == 0 and all(names), f"{len(names)} tensors")
    count = len(names) // kinds
    groups = [tuple(names[k::count]) for k in range(count)]
    for group in groups:
        types = {ctx.b.type(n) for n in group}
        ctx.require(len(types) == 1, "a tensor and its gradient and state differ in type")
        ctx.require(ctx.b.type(group[0]).dtype.is_float, f"the tensor is {types.pop()}")
    return groups


def _optimized(
    ctx: LoweringContext, kinds: int, rate: str, update: Callable[..., Sequence[Expr]], results: int
) -> tuple[str, ...]:
    """Return the new values of all tensors, then each kind of their new state.

    `update` makes expressions of the learning rate, the update count and a tensor's operands.
    """
    b, new = ctx.b, []
    count = b.reshape(ctx.input(1), ())
    for group in _tensors(ctx, kinds):
        dtype = b.type(group[0]).dtype
        operands = [b.cast(v, dtype) for v in (rate, count)]
        parts = [
            b.map(lambda *e, k=k: update(*e)[k], *operands, *group) for k in range(results)
        ]  # fmt: skip
        new.append(parts)
    return tuple(parts[k] for k in range(results) for parts in new)


def _rate(ctx: LoweringContext) -> str:
    return ctx.b.reshape(ctx.input(0), ())


@lowers("Adagrad", domain=PREVIEW)
def adagrad(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX ai.onnx.preview.training Adagrad-1."""
    norm, decay = ctx.float("norm_coefficient", 0.0), ctx.float("decay_factor", 0.0)
    epsilon = ctx.float("epsilon", 1e-6)

    def update(r: Expr, t: Expr, x: Expr, g: Expr, h: Expr) -> tuple[Expr, Expr]:
        one = const(1, x.dtype)
        rate = call("Div", r, sum_of(one, scaled(decay, t)))
        slope = sum_of(scaled(norm, x), g)
        h_new = sum_of(h, call("Mul", slope, slope))
        adaptive = sum_of(call("Sqrt", h_new), const(epsilon, x.dtype))
        return call("Sub", x, call("Div", call("Mul", rate, slope), adaptive)), h_new

    return _optimized(ctx, 3, _rate(ctx), update, 2)


@lowers("Adam", domain=PREVIEW)
def adam(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX ai.onnx.preview.training Adam-1."""
    norm, post = ctx.float("norm_coefficient", 0.0), ctx.float("norm_coefficient_post", 0.0)
    alpha, beta = ctx.float("alpha", 0.9), ctx.float("beta", 0.999)
    epsilon = ctx.float("epsilon", 1e-6)

    def adjusted(r: Expr, t: Expr) -> Expr:
        """Compute in double the rate without the bias of the first averages."""
        r, t, one = cast(r, DType.DOUBLE), cast(t, DType.DOUBLE), const(1, DType.DOUBLE)
        slow, fast = (
            call("Sub", one, call("Pow", const(c, DType.DOUBLE), t)) for c in (beta, alpha)
        )
        rate = call("Div", call("Mul", r, call("Sqrt", slow)), fast)
        return call("Where", call("Greater", t, const(0, DType.DOUBLE)), rate, r)

    def update(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr, h: Expr) -> tuple[Expr, Expr, Expr]:
        slope = sum_of(scaled(norm, x), g)
        v_new = sum_of(scaled(alpha, v), scaled(1 - alpha, slope))
        h_new = sum_of(scaled(beta, h), scaled(1 - beta, call("Mul", slope, slope)))
        root = sum_of(call("Sqrt", h_new), const(epsilon, x.dtype))
        x_new = call("Sub", x, call("Mul", cast(r, x.dtype), call("Div", v_new, root)))
        return scaled(1 - post, x_new), v_new, h_new

    rate = ctx.b.map(adjusted, _rate(ctx), ctx.b.reshape(ctx.input(1), ()))
    return _optimized(ctx, 4, rate, update, 3)


@lowers("Momentum", domain=PREVIEW)
def momentum(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX ai.onnx.preview.training Momentum-1: standard, or Nesterov's."""
    mode = ctx.str("mode", "standard")
    ctx.require(mode in ("standard", "nesterov"), f"mode '{mode}'")
    norm, alpha = ctx.float("norm_coefficient", 0.0), ctx.float("alpha", 0.0)
    beta = ctx.float("beta", 1.0)

    def update(r: Expr, t: Expr, x: Expr, g: Expr, v: Expr) -> tuple[Expr, Expr]:
        started = call("Greater", t, const(0, t.dtype))
        gain = call("Where", started, const(beta, x.dtype), const(1, x.dtype))
        slope = sum_of(scaled(norm, x), g)
        v_new = sum_of(scaled(alpha, v), call("Mul", gain, slope))
        step = v_new if mode == "standard" else sum_of(slope, scaled(alpha, v_new))
        return call("Sub", x, call("Mul", r, step)), v_new

    return _optimized(ctx, 3, _rate(ctx), update, 2)
