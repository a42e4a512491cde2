"""Lowering of onnxruntime's own causal convolution, which takes and gives a state."""

from __future__ import annotations

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import TensorType, row_major
from atc.ir.ops import Conv, Window, identity_epilogue
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.contrib.state_window import last_state, state_window
from atc.lower.conv import widen, with_bias
from atc.lower.elementwise import like
from atc.lower.indexed_access import index
from atc.lower.registry import lowers


@lowers("CausalConvWithState")
@lowers("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(ctx: LoweringContext) -> tuple[str, str]:
    """ONNX CausalConvWithState-27, com.microsoft CausalConvWithState along one axis.

    x is [batch, channels, steps] or, with channels last, [batch, steps, channels]. The kernel sees
    the state, which is what came before, and x behind it.
    """
    b, channels_last = ctx.b, bool(ctx.int("channels_last"))
    if ctx.int("ndim", 1) != 1 or len(ctx.shape(0)) != 3:
        raise ctx.unsupported("CausalConvWithState along more than one axis")
    if ctx.int("state_update_capacity"):
        raise ctx.unsupported("CausalConvWithState with compact updates of the state")
    window = state_window(ctx)
    own_layout = ctx.int("state_channels_last", -1) not in (-1, int(channels_last))
    for name in ("state_length", "input_channel_offset", "input_channels", "state_channels_last"):
        if own_layout if name == "state_channels_last" else ctx.int(name):
            raise ctx.unsupported(f"CausalConvWithState with {name}")

    def laid(x: str) -> str:
        rank = len(b.shape(x))
        perm = (*range(rank - 2), rank - 1, rank - 2)
        return b.transpose(x, perm) if channels_last else x

    x, dtype = laid(ctx.input(0)), ctx.type(0).dtype
    batch, channels, steps = b.shape(x)
    width, dilation = ctx.shape(1)[-1], ctx.int("dilation", 1)
    ctx.require(
        ctx.shape(1) == (channels, 1, width) and dilation > 0 < width,
        f"weights {ctx.type(1)} for {channels} channels",
    )
    held = (width - 1) * dilation
    one = (batch, channels, held)
    if ctx.has(3):
        state = last_state(ctx, laid(ctx.input(3)), one, window)
    else:
        state = b.expand(b.constant(np.zeros((), dtype.numpy)), one)
    whole = join(b, [state, x], 2)
    if window:
        present = _states(b, whole, window, steps, held)
    else:
        rows = row_major(b.shape(whole))
        present = b.view(whole, one, View(rows, steps))
    y = _activated(ctx, _convolved(ctx, whole, (batch, channels, steps), width, dilation))
    return laid(b.cast(y, dtype)), laid(present)


def _states(b: Builder, whole: str, window: int, steps: int, held: int) -> str:
    """Return what lies before the end of each of the last steps, zeros where there are fewer."""
    batch, channels, _ = b.shape(whole)
    zero = b.constant(np.zeros((), b.type(whole).dtype.numpy))
    padded = join(b, [b.expand(zero, (batch, channels, window)), whole], 2)

    def kept(x: Expr, end: Expr) -> Expr:
        return call("Where", call("Less", end, index(0)), like(x, 0), x)

    begin = View((1, *row_major(b.shape(padded))), steps + 1)
    ends = View((1, 0, 0, 0), steps - window)
    shape = (window, batch, channels, held)
    return b.map(kept, padded, shape=shape, views=[begin], coordinates=[ends])


def _convolved(
    ctx: LoweringContext, x: str, shape: tuple[int, int, int], width: int, dilation: int
) -> str:  # fmt: skip
    operands = [widen(ctx, x), widen(ctx, ctx.input(1))]
    dtype = ctx.b.type(operands[0]).dtype
    epilogue = identity_epilogue(dtype)
    if ctx.has(2):
        operands.append(widen(ctx, ctx.input(2)))
        epilogue = with_bias(dtype, shape)
    window = Window((width,), (1,), (dilation,), (0,))
    return ctx.b.emit1(Conv(window, shape[1], epilogue, dtype), operands, TensorType(dtype, shape))


def _activated(ctx: LoweringContext, y: str) -> str:
    kind = ctx.str("activation", "none")
    ctx.require(kind in ("none", "", "silu", "swish"), f"activation is '{kind}'")
    if kind in ("none", ""):
        return y
    return ctx.b.map(lambda v: call("Mul", v, call("Sigmoid", v)), y)
