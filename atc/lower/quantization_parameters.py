"""Notes how constants were dequantized when compiling, for passes that compute with integers."""

from __future__ import annotations

import numpy as np

from atc.ir.graph import Array, Dequantization
from atc.lower.context import LoweringContext


def remember_quantization(ctx: LoweringContext, result: str) -> None:
    """Note the integers and scales of a constant that was dequantized when compiling."""
    x, scale = ctx.b.value(ctx.input(0)), ctx.b.value(ctx.input(1))
    zero = ctx.b.value(ctx.input(2)) if ctx.has(2) else None
    if x is None or scale is None or scale.dtype != np.float32 or ctx.type(0).dtype.is_float:
        return
    block = ctx.int("block_size")
    if not block and scale.size > 1 and scale.ndim != 1:
        return
    axis = ctx.axis(ctx.int("axis", 1), x.ndim) if scale.size > 1 or block else 0

    def spread(values: Array) -> Array:
        """Return values so that they broadcast to x."""
        if block:
            return np.repeat(values, block, axis)[(slice(None),) * axis + (slice(x.shape[axis]),)]
        return values.reshape(-1, *[1] * (x.ndim - 1 - axis)) if values.size > 1 else values.ravel()

    wide = np.int64 if x.itemsize > 2 else np.int32  # holds differences, too
    integers = x.astype(wide)
    if zero is not None:
        integers = integers - spread(zero).astype(wide)
    shaped = spread(scale) if scale.size > 1 or block else scale.reshape(())
    whole = integers.reshape(x.shape).astype(np.int32, copy=False)
    ctx.b.remember(result, Dequantization(whole, shaped))


def remember_transposed(ctx: LoweringContext, result: str) -> None:
    """Note what a transposed constant was dequantized from, where its source was."""
    grid = ctx.b.grid(ctx.input(0))
    if grid is None:
        return
    rank = len(ctx.shape(0))
    order = ctx.ints("perm") or list(range(rank))[::-1]
    scale = grid.scale
    if scale.size > 1:
        scale = scale.reshape((1,) * (rank - scale.ndim) + scale.shape).transpose(order)
    whole = np.ascontiguousarray(grid.integers.transpose(order))
    ctx.b.remember(result, Dequantization(whole, scale))
