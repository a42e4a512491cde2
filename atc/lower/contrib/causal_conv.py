"""Lowering of onnxruntime's own causal convolution, which takes and gives a state."""

from __future__ import annotations

import numpy as np

from atc.ir.expr import call
from atc.ir.graph import TensorType, row_major
from atc.ir.ops import Conv, Window, identity_epilogue
from atc.ir.view import View
from atc.lower.concat_pad import join
from atc.lower.context import Site
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.conv import widen, with_bias
from atc.lower.registry import lowers


@lowers("CausalConvWithState", domain=MICROSOFT)
def causal_conv_with_state(site: Site) -> tuple[str, str]:
    """com.microsoft CausalConvWithState along one axis: x [batch, channels, steps], or turned.

    The kernel sees the state, which is what came before, and x behind it.
    """
    b, turned = site.b, bool(site.int("channels_last"))
    if site.int("ndim", 1) != 1 or len(site.shape(0)) != 3:
        raise site.unsupported("CausalConvWithState along more than one axis")
    if site.int("state_window"):
        raise site.unsupported("CausalConvWithState with states of several steps")

    def laid(x: str) -> str:
        return b.transpose(x, (0, 2, 1)) if turned else x

    x, dtype = laid(site.input(0)), site.type(0).dtype
    batch, channels, steps = b.shape(x)
    width, dilation = site.shape(1)[-1], site.int("dilation", 1)
    site.require(
        site.shape(1) == (channels, 1, width) and dilation > 0 < width,
        f"weights {site.type(1)} for {channels} channels",
    )
    held = (width - 1) * dilation
    state = laid(site.input(3)) if site.has(3) else ""
    if not state:
        state = b.constant(np.zeros((), dtype.numpy))
        state = b.expand(state, (batch, channels, held))
    fits = b.shape(state) == (batch, channels, held)
    site.require(fits, f"a state {list(b.shape(state))} for {held} steps")
    whole = join(b, [state, x], 2)
    rows = row_major(b.shape(whole))
    present = b.view(whole, (batch, channels, held), View(rows, steps))
    y = _activated(site, _convolved(site, whole, (batch, channels, steps), width, dilation))
    return laid(b.cast(y, dtype)), laid(present)


def _convolved(
    site: Site, x: str, shape: tuple[int, int, int], width: int, dilation: int
) -> str:  # fmt: skip
    operands = [widen(site, x), widen(site, site.input(1))]
    dtype = site.b.type(operands[0]).dtype
    epilogue = identity_epilogue(dtype)
    if site.has(2):
        operands.append(widen(site, site.input(2)))
        epilogue = with_bias(dtype, shape)
    window = Window((width,), (1,), (dilation,), (0,))
    return site.b.emit1(Conv(window, shape[1], epilogue, dtype), operands, TensorType(dtype, shape))


def _activated(site: Site, y: str) -> str:
    kind = site.str("activation", "none")
    site.require(kind in ("none", "", "silu", "swish"), f"activation is '{kind}'")
    if kind in ("none", ""):
        return y
    return site.b.map(lambda v: call("Mul", v, call("Sigmoid", v)), y)
