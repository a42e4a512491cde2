"""Blocks of rows of A that the L2 cache keeps while all panels of a small B pass over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.matmul.cost import Tile, row_tiles
from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.render.stored_weights import stored_weights
from atc.dims import is_dynamic
from atc.ir.ops import MatMul

ROWS, WEIGHTS = 1 / 4, 1 / 2
"""Parts of the L2 cache for a block of A, and for the panels that stay beside it."""


@dataclass(frozen=True)
class RowBlocks:
    """`count` blocks of as many rows of A from row `first`; their tiles count from a block's."""

    first: int
    count: int
    rows: int
    tiles: list[Tile]


def cut_rows(m: int, mb: int | None, mr: int) -> list[RowBlocks]:
    """Cut m rows into blocks of mb, and one of what is left, and these into tiles of mr rows."""
    if mb is None:
        return [RowBlocks(0, 1, m, row_tiles(m, mr))]
    cut = (RowBlocks(0, m // mb, mb, row_tiles(mb, mr)),
           RowBlocks(m // mb * mb, 1, m % mb, row_tiles(m % mb, mr) if m % mb else []))  # fmt: skip
    return [block for block in cut if block.count and block.rows]


def all_tiles(blocks: Sequence[RowBlocks]) -> list[Tile]:
    """Return the tiles of all blocks, as if one kind's were together."""
    return [replace(t, count=block.count * t.count) for block in blocks for t in block.tiles]


def rows_at_a_time(w: Workload[MatMul], mr: int, machine: Machine) -> Sequence[int]:
    """Return the rows worth multiplying at a time, whole tiles: where A exceeds the L2 cache.

    Every panel of B would read A from beyond it.
    """
    op = w.op
    if not w.constant[1] or is_dynamic(op.m):
        return ()
    weights = op.k * op.n * stored_weights(w).dtype.itemsize
    row, l2 = 4 * op.k, machine.l2.size
    if op.m * row <= l2 // 2 or weights > WEIGHTS * l2:
        return ()
    rows = int(ROWS * l2) // row // mr * mr
    return (rows,) if rows >= 2 * mr else ()
