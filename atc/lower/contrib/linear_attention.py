"""Lowerings of attention by a matrix of state: the standard's, and onnxruntime's own."""

from __future__ import annotations

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import DType, TensorType
from atc.ir.ops.linear_attention import LinearAttention
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.contrib.state_window import last_state, state_window
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers

RULES = ("linear", "gated", "delta", "gated_delta")


def _exp(x: Expr) -> Expr:
    return call("Exp", x)


@lowers("LinearAttention")
@lowers("LinearAttention", domain=MICROSOFT)
def linear_attention(ctx: LoweringContext) -> tuple[str, str]:
    """ONNX LinearAttention-27, com.microsoft LinearAttention: heads lie side by side."""
    b, (batch, steps, width) = ctx.b, ctx.shape(0)
    q_heads, heads = ctx.int("q_num_heads"), ctx.int("kv_num_heads")
    rule = ctx.str("update_rule", "gated_delta")
    _check_rule(ctx, rule)
    fits = heads > 0 < q_heads and width % q_heads == 0 == ctx.shape(2)[2] % heads
    ctx.require(fits, f"query {ctx.type(0)} of {q_heads} heads, value {ctx.type(2)} of {heads}")
    k_size, v_size = width // q_heads, ctx.shape(2)[2] // heads
    dtype = ctx.type(3).dtype if ctx.has(3) else ctx.type(0).dtype
    window = state_window(ctx)
    one = (batch, heads, k_size, v_size)
    if ctx.has(3):
        state = last_state(ctx, _real(b, ctx.input(3)), one, window)
    else:
        state = b.expand(b.scalar(0.0, DType.FLOAT), one)
    decay = rate = ""
    if "gated" in rule:
        ctx.require(ctx.has(4), f"the rule {rule} needs factors of decay")
        decay = b.map(_exp, _real(b, ctx.input(4)))
        each = ctx.shape(4)[2] // heads
        ctx.require(each in (1, k_size), f"decay is {ctx.type(4)}, of {heads} heads")
        decay = b.reshape(decay, (batch, steps, heads, each))
    if "delta" in rule:
        ctx.require(ctx.has(5), f"the rule {rule} needs an update rate")
        rate = _real(b, ctx.input(5))
    operands = [_real(b, ctx.input(i)) for i in range(3)]
    op = LinearAttention(
        batch, steps, q_heads, ctx.shape(1)[2] // k_size, heads, k_size, v_size,
        ctx.float("scale") or k_size**-0.5, "delta" in rule, max(window, 1),
    )  # fmt: skip
    shapes = ((window, *one) if window else one, (batch, steps, op.readers * v_size))
    last, y = _emitted(b, op, [*operands, state, decay, rate], *shapes)
    return b.cast(y, ctx.type(0).dtype), b.cast(last, dtype)


def _real(b: Builder, x: str) -> str:
    """Return a value in floats, or ''."""
    return x and b.cast(x, DType.FLOAT)


def _check_rule(ctx: LoweringContext, rule: str) -> None:
    ctx.require(rule in RULES, f"update_rule is '{rule}', not one of {', '.join(RULES)}")


def _emitted(
    b: Builder, op: LinearAttention, operands: list[str], state: tuple[int, ...],
    y: tuple[int, ...],
) -> tuple[str, str]:  # fmt: skip
    """Return the last states and what is read of them, of these shapes."""
    types = (TensorType(DType.FLOAT, shape) for shape in (state, y))
    last, result = b.emit(op, operands, *types)
    return last, result


@lowers("LinearAttentionGate", domain=MICROSOFT)
def linear_attention_gate(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft LinearAttentionGate: decay and update rate of the delta rule."""
    b, dtype = ctx.b, ctx.type(0).dtype
    decay = b.map(_decay, _real(b, ctx.input(0)), ctx.input(1), ctx.input(2))
    if not ctx.has(3):
        return (b.cast(decay, dtype),)
    rate = b.map(lambda v: call("Sigmoid", v), _real(b, ctx.input(3)))
    return b.cast(decay, dtype), b.cast(rate, dtype)


def _decay(a: Expr, bias: Expr, scale: Expr) -> Expr:
    return call("Mul", scale, call("Softplus", call("Add", a, bias)))


@lowers("GatedDeltaNet", domain=MICROSOFT)
def gated_delta_net(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft GatedDeltaNet of rows that are equally long; states are [..., value, key]."""
    b, rule = ctx.b, ctx.str("update_rule", "gated_delta")
    _check_rule(ctx, rule)
    if ctx.has(3) or ctx.int("state_update_capacity"):
        raise ctx.unsupported("GatedDeltaNet of ragged rows, or with compact updates of the state")
    if not ctx.has(6):
        raise ctx.unsupported("GatedDeltaNet without an initial state")
    batch, heads, v_size, k_size = ctx.shape(6)
    q, k, v = _separate(ctx, heads * v_size, k_size)
    rows = b.type(v).size // (heads * v_size)
    steps = rows // batch
    q_heads, k_heads = (b.type(x).size // (rows * k_size) for x in (q, k))
    if ctx.int("qk_l2_norm"):
        q, k = (_normalized(ctx, x, k_size) for x in (q, k))
    decay = rate = ""
    if "gated" in rule:
        each = ctx.type(4).size // (rows * heads)
        decay = b.reshape(_real(b, ctx.input(4)), (batch, steps, heads, each))
        if ctx.str("gate_activation", "none") == "qwen":
            bias, log = (b.reshape(ctx.input(i), (heads, 1)) for i in (8, 7))
            scale = b.map(lambda a: call("Neg", _exp(a)), log)
            decay = b.map(_decay, decay, bias, scale)
        decay = b.map(_exp, decay)
    if "delta" in rule:
        rate = b.reshape(_real(b, ctx.input(5)), (batch, steps, heads))
        if ctx.str("beta_activation", "none") == "sigmoid":
            rate = b.map(lambda x: call("Sigmoid", x), rate)
    op = LinearAttention(
        batch, steps, q_heads, k_heads, heads, k_size, v_size,
        ctx.float("scale") or k_size**-0.5, "delta" in rule,
    )  # fmt: skip
    state = b.transpose(ctx.input(6), (0, 1, 3, 2))
    lead = ctx.shape(0)[: 2 if len(ctx.shape(0)) == 4 else 1]
    shapes = (batch, heads, k_size, v_size), (*lead, op.readers, v_size)
    last, y = _emitted(b, op, [q, k, v, state, decay, rate], *shapes)
    return b.cast(y, ctx.type(0).dtype), b.transpose(last, (0, 1, 3, 2))


def _separate(ctx: LoweringContext, v_width: int, k_size: int) -> tuple[str, str, str]:
    """Return q, k and v, of which the first input may hold all."""
    b, x = ctx.b, _real(ctx.b, ctx.input(0))
    if ctx.has(1):
        return x, _real(b, ctx.input(1)), _real(b, ctx.input(2))
    rows, width = b.type(x).size // ctx.shape(0)[-1], ctx.shape(0)[-1]
    own = (width - v_width) // 2
    ctx.require(own > 0 and own % k_size == 0, f"packed {ctx.type(0)} for values of {v_width}")
    q, k = (b.view(x, (rows, own), View((width, 1), begin)) for begin in (0, own))
    return q, k, b.view(x, (rows, v_width), View((width, 1), 2 * own))


def _normalized(ctx: LoweringContext, x: str, size: int) -> str:
    """Return vectors of a head divided by their lengths."""
    b = ctx.b
    rows = b.reshape(x, (b.type(x).size // size, size))
    squares = b.map(lambda v: call("Mul", v, v), rows)
    total = reduce_axes(ctx, squares, (1,), True, "Sum")
    tiny = b.scalar(float(np.float32(1e-6)), DType.FLOAT)
    return b.map(lambda v, t, e: call("Div", v, call("Sqrt", call("Add", t, e))), rows, total, tiny)
