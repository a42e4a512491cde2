"""Winograd's inner product, whose half as many products need additions in their place.

x0 w0 + x1 w1 = (x0 + w1)(x1 + w0) - x0 x1 - w0 w1: what is subtracted is summed once for each row
and, when compiling, for each column. A core whose additions have units of their own (AMD's Zen)
keeps both kinds busy: of three products two are made so, the third by a multiply-add, in the time
of two (S. Winograd, "A new algorithm for inner product", 1968).

Numbers of both operands meet in one sum, so their magnitudes are made alike: rows and columns are
scaled by powers of two until their root mean squares lie between 1 and 2 (R. P. Brent, "Error
analysis of algorithms for matrix multiplication and triangular decomposition using Winograd's
identity", 1970). Every other pair is subtracted, (w1 - x0)(x1 - w0), so that x0 x1 of numbers of
one sign don't pile up. Errors are those of sums of products of the row's and the column's root mean
squares.

Tiles are of as many rows as a vector has lanes by one vector of columns: additions read a number of
a row into all lanes themselves, which AVX-512 can, as a broadcast of its own would take one of
their units.

Columns may be stored in 16 bits where those hold the weights: powers of two change no digit, but of
float16 below 2^-14 of the column's root mean square, whose error of 2^-25 is that of a float's
rounding.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.machine import CALL
from atc.backends.render.stored_weights import FLOATS, Weights
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array, DType

PARTS = 3
"""Numbers that a step takes: a pair, and that of a plain product."""
WAIT = 1.1
"""How much longer than the latency a sum waits for the one before."""
BALANCING = 0.9
"""Cycles to transpose, scale and sum a number of a row."""
BALANCING_COLUMNS = 1.0
"""Cycles to copy, scale and sum a number of a column."""
ENDING = 9.0
"""Cycles to make a vector of results of its sum."""
AT_ONCE = 1 << 17
"""Numbers that are balanced at a time when compiling, in double: that needs little memory."""


def pairs_pay(target: Target) -> bool:
    """Return whether a core has the units, and the instructions to keep them busy."""
    return target.simd == "avx512" and target.machine.separate_adds


@dataclass(frozen=True)
class InnerProduct:
    """Sums of `depth` products, in tiles of at most `lanes` rows: three a step, then the rest.

    Columns are stored as `weights`, but for their sums and scales, which are floats.
    """

    depth: int
    lanes: int
    weights: Weights = FLOATS

    @property
    def third(self) -> int:
        """Steps, an even number, of which each takes a pair and one more number."""
        return self.depth // (2 * PARTS) * 2

    @property
    def rest(self) -> int:
        """Plain products behind them."""
        return self.depth - PARTS * self.third

    @property
    def size(self) -> int:
        """Floats of a tile of rows, or of constant ones: sums of pairs and scales, too."""
        return self.lanes * (self.depth + 2)

    @property
    def panel(self) -> int:
        """Weights of a panel of columns, floats behind them counted as so many."""
        return self.lanes * (self.depth + 2 * DType.FLOAT.itemsize // self.weights.dtype.itemsize)

    def lines(self, tiles: int) -> int:
        """Return the lines that two steps ask for, if so many tiles share a panel of columns."""
        return -(-2 * PARTS * self.lanes // (self.weights.line * tiles))

    def share(self, tiles: int) -> int:
        """Return the weights that a tile then asks for."""
        return self.third // 2 * self.lines(tiles) * self.weights.line

    @property
    def widened(self) -> int:
        """Floats of a panel of columns in 16 bits, which become floats for all tiles; else 0."""
        return self.size if self.weights.dtype.is_half else 0

    def cycles(self, target: Target, tiles: Iterable[tuple[int, int]], panels: int) -> float:
        """Return the cycles of (rows, count) tiles for all panels, and of widening these."""
        machine, size = target.machine, 4 * self.lanes
        units, numbers = machine.fma_rate(size), machine.loads
        vector, waiting = 1 / machine.load_rate(size), machine.fma_latency * WAIT
        total = panels * self.depth * self.weights.widening(target)
        for rows, count in tiles:
            step = max(2 * rows / units, PARTS * (rows / numbers + vector), 2 * waiting)
            plain = max(rows / units, rows / numbers + vector, waiting)
            each = CALL + self.third * step + self.rest * plain + ENDING * rows
            total += count * panels * each
        return total


def is_paired(depth: int, target: Target) -> bool:
    """Return whether so many products, whole vectors of them, are worth it."""
    width = lanes(target)
    return depth >= PARTS * width and depth % width == 0


def balanced_columns(columns: Array, weights: Weights = FLOATS) -> Array:
    """Return columns [..., depth, lanes] scaled and in the order of use: [..., depth + 2, lanes].

    Each step has the second number of a pair, the first one and a plain one; numbers without a pair
    follow, then the columns' sums of pairs and what undoes their scales: 0 for zeros, whose results
    are exact. Of `weights` in 16 bits each of those two floats takes the place of two.
    """
    found = _balanced(columns, (1, 0, 2), (1, 1, 1, 1, -1, 1))
    if not weights.dtype.is_half:
        return found
    *batch, _, width = found.shape
    dtype = weights.dtype.numpy
    ends = np.ascontiguousarray(found[..., -2:, :]).view(dtype).reshape(*batch, -1, width)
    return np.concatenate([found[..., :-2, :].astype(dtype), ends], axis=-2)


def balanced_rows(rows: Array) -> Array:
    """Return rows [..., depth, lanes] likewise, the first number of a pair first."""
    return _balanced(rows, (0, 1, 2), (1, 1, 1, 1, 1, 1))


def _balanced(numbers: Array, order: Sequence[int], signs: Sequence[int]) -> Array:
    """Return numbers balanced: those of each step in an order, with the signs of two steps."""
    *batch, depth, width = numbers.shape
    every = np.ascontiguousarray(numbers, np.float32).reshape(-1, depth, width)
    result = np.empty((len(every), depth + 2, width), np.float32)
    step = max(1, AT_ONCE // (depth * width))
    for k in range(0, len(every), step):
        _balance(every[k : k + step], order, signs, result[k : k + step])
    return result.reshape(*batch, depth + 2, width)


def _balance(numbers: Array, order: Sequence[int], signs: Sequence[int], result: Array) -> None:
    """Write some numbers [n, depth, lanes] balanced; scales are powers of two, hence exact."""
    count, depth, width = numbers.shape
    third = InnerProduct(depth, width).third
    paired = PARTS * third
    wide = numbers.swapaxes(0, 1).astype(np.float64, "C")  # sums along the first axis are quick
    products = wide[0:paired:PARTS] * wide[1:paired:PARTS]
    np.negative(products[1::2], out=products[1::2])
    size = np.sqrt(np.square(wide, out=wide).mean(0))
    exponent = np.clip(np.frexp(size)[1] - 1, -126, 126)
    scale = np.ldexp(np.float32(1), -exponent)
    lane = np.dtype((np.void, numbers.itemsize * width))  # copies all lanes of a number
    given = numbers[:, :paired].reshape(count, third, PARTS, width).view(lane)
    steps = result[:, :paired].reshape(count, third, PARTS, width).view(lane)
    for place, part in enumerate(order):
        steps[:, :, place] = given[:, :, part]
    two_steps = result[:, :paired].reshape(count, -1, len(signs) * width)
    factors = np.asarray(signs, np.float32)[:, np.newaxis] * scale[:, np.newaxis]
    np.multiply(two_steps, factors.reshape(count, 1, -1), out=two_steps)
    np.multiply(numbers[:, paired:], scale[:, np.newaxis], out=result[:, paired:depth])
    result[:, depth] = np.ldexp(products.sum(0), -2 * exponent)
    result[:, depth + 1] = np.where(size > 0, np.ldexp(1.0, exponent), 0.0)
