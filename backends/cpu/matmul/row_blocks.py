"""Blocks of rows of A that the L2 cache keeps while all panels of B pass over them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.matmul.cost import Tile, blocks_of, row_tiles
from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.render.stored_weights import stored_weights
from atc.dims import max_value
from atc.ir.ops import MatMul

ROWS, WEIGHTS = 1 / 4, 1 / 2
"""Parts of the L2 cache for a block of A, and for the panels that stay beside it."""
MORE_ROWS = 1 / 2
"""The part for a block of A where they don't stay, and larger blocks read them less often."""
FEWER_ROWS = 1 / 8
"""The part on processors whose third cache is slow, so that nothing be read from there twice."""


@dataclass(frozen=True)
class RowBlocks:
    """`count` blocks of as many rows of A from row `first`; their tiles count from a block's."""

    first: int
    count: int
    rows: int
    tiles: tuple[Tile, ...]

    @property
    def looped(self) -> bool:
        """Whether there may be several."""
        return max_value(self.count) > 1


def in_tiles(blocks: Iterable[tuple[int, int, int]], mr: int) -> tuple[RowBlocks, ...]:
    """Cut blocks, (first row, blocks, rows), into tiles of at most mr rows."""
    return tuple(RowBlocks(*block, tuple(row_tiles(block[2], mr))) for block in blocks)


def cut_rows(m: int, mb: int | None, mr: int) -> tuple[RowBlocks, ...]:
    """Cut m rows into blocks of mb, and one of what is left, and these into tiles of mr rows."""
    return in_tiles([(0, 1, m)] if mb is None else blocks_of(m, mb), mr)


def all_tiles(blocks: Sequence[RowBlocks]) -> list[Tile]:
    """Return the tiles of all blocks, as if one kind's were together."""
    return [replace(t, count=block.count * t.count) for block in blocks for t in block.tiles]


def rows_at_a_time(w: Workload[MatMul], mr: int, depth: int, machine: Machine) -> Sequence[int]:
    """Return the rows worth multiplying at a time, whole tiles: where A crowds the L2 cache.

    Every panel of B would read A from beyond it, or A drives out what is asked for of the next one.
    A large B is read again for each block of rows, which must spare A's way through the cache.
    """
    op, rows = w.op, max_value(w.op.m)
    if not w.constant[1]:
        return ()
    weights = op.k * op.n * stored_weights(w).dtype.itemsize
    row, l2 = 4 * depth, machine.l2.size
    stays = weights <= WEIGHTS * l2
    parts = [FEWER_ROWS] * machine.slow_l3 + [ROWS] + [MORE_ROWS] * (not stays)
    enough = l2 // 4 if machine.slow_l3 else l2 // 2 if stays else l2
    if rows * row <= enough:
        return ()
    found = (int(part * l2) // row // mr * mr for part in parts)
    return [block for block in found if 2 * mr <= block < rows]
