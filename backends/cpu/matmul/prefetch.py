"""Requests for packed weights of a product before its tiles read them."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.cpu.matmul.cost import STREAM_AHEAD, asks_ahead, streamed
from atc.backends.kernel import Workload
from atc.backends.render.stored_weights import Weights, stored_weights
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import max_value
from atc.ir.ops import MatMul


@dataclass(frozen=True)
class Prefetch:
    """`lines` cache lines every `every` depth steps.

    They are those of the next panel, of which each tile asks for a share, where `next`; else the
    tile's own, `ahead` weights further on. A line holds `line` of them.
    """

    next: bool
    every: int
    lines: int
    ahead: int
    line: int

    def share(self, depth: int) -> int:
        """Return the weights that a tile asks for."""
        return depth // self.every * self.lines * self.line


def prefetch(
    w: Workload[MatMul], target: Target, tiles: int, width: int, depth: int, weights: Weights
) -> Prefetch | None:
    """Return what each of so many row tiles asks for of packed B in panels of `width` columns."""
    line, size = weights.line, weights.dtype.itemsize
    if not asks_for_weights(w, target, count := max_value(tiles)):
        return None
    if count == 1:
        ahead = max(1, STREAM_AHEAD // (size * width)) * width
        return Prefetch(False, 1, -(-width // line), ahead, line)
    lines = max(1.0, width / line)  # of a step
    every = largest_divisor(depth, max(1.0, min(16.0, count / lines)))
    return Prefetch(True, every, max(1, -(-int(lines * every) // count)), 0, line)


def asks_for_weights(w: Workload[MatMul], target: Target, tiles: int) -> bool:
    """Return whether packed B is asked for before it is read, by so many row tiles."""
    op, nbytes = w.op, w.op.k * w.op.n * stored_weights(w).dtype.itemsize
    if max_value(tiles) == 1:
        return nbytes > streamed(target.machine)
    products = max_value(op.m) * op.k * op.n
    return asks_ahead(target.machine, nbytes, products, lanes(target))
