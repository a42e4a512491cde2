"""Notes how constants were dequantized when compiling, for passes that compute with integers."""

from __future__ import annotations

import numpy as np

from atc.ir.graph import Array, Dequantization
from atc.lower.context import Site


def remember_grid(site: Site, result: str) -> None:
    """Note the integers and scales of a constant that was dequantized when compiling."""
    x, scale = site.b.value(site.input(0)), site.b.value(site.input(1))
    zero = site.b.value(site.input(2)) if site.has(2) else None
    if x is None or scale is None or scale.dtype != np.float32 or site.type(0).dtype.is_float:
        return
    block = site.int("block_size")
    if not block and scale.size > 1 and scale.ndim != 1:
        return
    axis = site.axis(site.int("axis", 1), x.ndim) if scale.size > 1 or block else 0

    def spread(values: Array) -> Array:
        """Return values so that they broadcast to x."""
        if block:
            return np.repeat(values, block, axis)[(slice(None),) * axis + (slice(x.shape[axis]),)]
        return values.reshape(-1, *[1] * (x.ndim - 1 - axis)) if values.size > 1 else values.ravel()

    integers = x.astype(np.int64)
    if zero is not None:
        integers = integers - spread(zero).astype(np.int64)
    shaped = spread(scale) if scale.size > 1 or block else scale.reshape(())
    whole = integers.reshape(x.shape).astype(np.int32)
    site.b.remember(result, Dequantization(whole, shaped))


def remember_transposed(site: Site, result: str) -> None:
    """Note what a transposed constant was dequantized from, where its source was."""
    grid = site.b.grid(site.input(0))
    if grid is None:
        return
    rank = len(site.shape(0))
    order = site.ints("perm") or list(range(rank))[::-1]
    scale = grid.scale
    if scale.size > 1:
        scale = scale.reshape((1,) * (rank - scale.ndim) + scale.shape).transpose(order)
    whole = np.ascontiguousarray(grid.integers.transpose(order))
    site.b.remember(result, Dequantization(whole, scale))
