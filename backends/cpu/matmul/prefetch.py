"""Requests for what a product's tiles read next: packed weights, and rows that are far away."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from atc.backends.cpu.matmul.cost import (
    WAITED,
    WAITED_WIDENING,
    asked_by_one_row,
    asks_ahead,
    streamed,
)
from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.render.stored_weights import FLOATS, Weights, stored_weights
from atc.backends.render.tile_geometry import largest_divisor
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.ops import MatMul


@dataclass(frozen=True)
class Prefetch:
    """`lines` cache lines every `every` depth steps.

    They are those of the next panel, of which each tile asks for a share, where `next`; else the
    tile's own, `ahead` weights further on. A line holds `line` of them. `by_rows`: the run counts
    the rows, and of several tiles each asks for that part of the next panel that its rows are of
    all, so that no step of the depth asks for more than another; a tile alone for its own lines.
    """

    next: bool
    every: int
    lines: int
    ahead: int
    line: int
    by_rows: bool = False

    def parameters(self, c: str) -> list[str]:
        """Return a tile's parameters for this, given the C type of weights."""
        given = [f"const {c} *next"] * (self.next or self.by_rows)
        return [*given, *["ptrdiff_t part"] * self.by_rows]

    def share(self, depth: int) -> int:
        """Return the weights that a tile asks for."""
        return depth // self.every * self.lines * self.line


def prefetch(
    w: Workload[MatMul], target: Target, tiles: int, width: int, steps: int, weights: Weights
) -> Prefetch | None:  # fmt: skip
    """Return what each row tile asks for; None where nothing is, as B is near.

    The steps of the depth between requests divide `steps`.
    """
    if not asks_for_weights(w, target, count := max_value(tiles)):
        return None
    whole = partial(largest_divisor, steps)
    return requests(w.op.m, count, width, weights, target.machine, whole)


def requests(
    m: int, tiles: int, width: int, weights: Weights, machine: Machine,
    whole: Callable[[float], int] = int,
) -> Prefetch:  # fmt: skip
    """Return what each of so many row tiles asks for of packed B in panels of `width` columns.

    `whole` makes the number of steps between requests of the largest that it may be.
    """
    line = weights.line
    if is_dynamic(m) or tiles == 1:
        asked = asked_by_one_row(machine, computes=True)
        ahead = max(1, asked.distance // (weights.dtype.itemsize * width)) * width
        return Prefetch(False, 1, -(-width // line), ahead, line, is_dynamic(m))
    lines = max(1.0, width / line)  # of a step
    every = whole(max(1.0, min(16.0, tiles / lines)))
    return Prefetch(True, every, max(1, -(-int(lines * every) // tiles)), 0, line)


def asks_for_rows(w: Workload[MatMul], rows: int, depth: int, machine: Machine) -> bool:
    """Return whether each tile asks for the rows of A that the next one reads, of a block of them.

    The second cache doesn't hold the block, and rows are read a number at a time, each a stream of
    its own: 1500 rows of 384 and of 1536 in one block take 0.88 to 0.95 of the time that way on a
    Sapphire Rapids, longer than smaller blocks that need no requests.
    """
    am, ak = w.op.a_view.strides[-2:]
    if ak != 1 or is_dynamic((depth, am)) or depth % FLOATS.line:
        return False
    return max_value(rows) * depth * 4 > streamed(machine)


def asks_for_weights(w: Workload[MatMul], target: Target, tiles: int) -> bool:
    """Return whether packed B is asked for before it is read, by so many row tiles."""
    op, stored = w.op, stored_weights(w)
    nbytes = op.k * op.n * stored.dtype.itemsize
    if max_value(tiles) == 1:
        return nbytes > streamed(target.machine)
    products = max_value(op.m) * op.k * op.n
    waited = WAITED if stored is FLOATS else WAITED_WIDENING
    return asks_ahead(target.machine, nbytes, products, lanes(target), waited)
