"""Blocks of rows of a product in AMX's tiles, each of which is multiplied by all of B at a time."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.cpu.matmul.cost import row_blocks
from atc.dims import is_dynamic, max_value

SIDE = 32
"""Rows and columns of a block of results."""


@dataclass(frozen=True)
class RowBlock:
    """`count` blocks of `rows` rows of A from row `first`: `whole` tiles of 32, one of `rest`."""

    first: int
    count: int
    rows: int

    @property
    def padded(self) -> int:
        """Rows with those that fill the last tile."""
        unit = SIDE if self.open else 16
        return -(-self.rows // unit) * unit

    @property
    def most(self) -> int:
        """The most rows with those that fill the last tile."""
        return max_value(self.padded)

    @property
    def whole(self) -> int:
        """Blocks of 32 rows, two tiles each."""
        return -(-self.rows // SIDE) - self.single

    @property
    def single(self) -> int:
        """Whether the last block is known to be one tile."""
        return 0 if self.open else int(0 < self.rows % SIDE <= 16)

    @property
    def open(self) -> bool:
        """Whether only the run counts its rows."""
        return is_dynamic(self.rows)

    @property
    def kinds(self) -> tuple[int, ...]:
        """Tiles of its blocks of 32 rows: 1 of the last one where that is single, 2 of others."""
        if self.open:
            return (1, 2)
        return (*[2] * (self.whole > 0), *[1] * self.single)


def cut_rows(m: int, row: int, room: int) -> tuple[RowBlock, ...]:
    """Cut m rows of A, of so many bytes, into blocks that `room` holds.

    Of rows that only the run counts all blocks but the last are as large as that.
    """
    if not is_dynamic(m):
        return tuple(RowBlock(*each) for each in row_blocks(m, row, room, SIDE))
    rows = max(SIDE, min(room // row, max_value(m) + SIDE) // SIDE * SIDE)
    cut = (RowBlock(0, m // rows, rows), RowBlock(m // rows * rows, 1, m % rows))
    return tuple(b for b in cut if is_dynamic((b.count, b.rows)) or b.count * b.rows)
