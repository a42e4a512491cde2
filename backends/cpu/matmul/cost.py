"""How a matrix product is cut into register tiles, and what that costs: a model of one core."""

from __future__ import annotations

from dataclasses import dataclass

from atc.dims import Dim, unlike

UNITS = 10.0
"""Multiply-adds that the portable kernel makes per cycle: cycles in its unit of cost."""
CALL = 12.0
"""Cycles to enter and leave a tile."""
LATENCY = 4.4
"""Cycles from one FMA to the next on the same accumulator, and a little; two start per cycle."""
ROW = 16.0
"""Cycles until a row of A that isn't in the L1 cache arrives."""
FAR = 2.2
"""Cycles per vector that a dot product reads from the L2 cache."""
WAYS, PAGE = 12, 4096
"""Lines of the L1 cache a page apart that fit into it; rows a multiple of it apart crowd there."""
L1, L2 = 1 << 15, 1 << 20
"""Bytes of cache that are counted on."""
L2_RATE, L3_RATE, MEMORY_RATE = 32.0, 24.0, 10.0
"""Bytes per cycle from the caches and from memory."""
STREAM_RATE, PORTABLE_RATE = 24.0, 9.0
"""Bytes of B per cycle of dot products, a few columns at a time, and of the portable kernel."""


@dataclass(frozen=True)
class Tile:
    """Equal row tiles: `count` of them of `rows` rows, beginning at `first`."""

    rows: int
    count: int
    first: int


@dataclass(frozen=True)
class Panel:
    """`count` panels of B of `columns` columns from panel `first`: `vectors`, the last of which
    holds only `part` columns where that isn't 0 (and all lanes where `part` is as many)."""

    name: str
    first: int
    count: int
    columns: int
    vectors: int
    part: int


def row_tiles(m: int, mr: int) -> list[Tile]:
    """Split m rows into tiles of at most mr rows whose heights differ by one at most.

    Rows that only the run counts: tiles of mr rows, then one at most of each power of two below.
    """
    if isinstance(m, Dim):
        return _open_row_tiles(m, mr)
    count = -(-m // mr)
    low, more = divmod(m, count)
    found = [Tile(low + 1, more, 0), Tile(low, count - more, more * (low + 1))]
    return [t for t in found if t.count]


def _open_row_tiles(m: int, mr: int) -> list[Tile]:
    tiles = [Tile(mr, m // mr, 0)]
    first, rest = m // mr * mr, m % mr
    for rows in (1 << k for k in reversed(range((mr - 1).bit_length()))):
        tiles.append(Tile(rows, rest // rows, first))
        first, rest = first + rest // rows * rows, rest % rows
    return [t for t in tiles if t.count != 0]


def column_panels(n: int, nv: int, lanes: int) -> list[Panel]:
    """Split n columns into panels of nv vectors and one of what is left.

    Columns that only the run counts: what is left may take any number of vectors.
    """
    width = nv * lanes
    full, rest = n // width, n % width
    if isinstance(rest, Dim):
        taken = -(-rest // lanes)
        return [Panel("full", 0, full, width, nv, 0)] + [
            Panel(f"last{v}", full, 1 - unlike(taken, v), rest, v, rest - (v - 1) * lanes)
            for v in range(1, nv + 1)
        ]
    panels = [Panel("full", 0, full, width, nv, 0)]
    panels.append(Panel("last", full, 1, rest, -(-rest // lanes), rest % lanes))
    return [p for p in panels if p.count and p.columns]


def largest_divisor(n: int, most: float) -> int:
    """Return the largest divisor of n up to `most`, at least 1."""
    return next((d for d in range(int(min(n, most)), 0, -1) if n % d == 0), 1)


def crowding(rows: int, stride: int) -> float:
    """Return how many times slower a tile is whose rows, `stride` bytes apart, evict each other."""
    crowded = stride and stride % PAGE == 0
    return 4.0 if crowded and rows > WAYS + 4 else 1.08 if crowded and rows > WAYS else 1.0


def tile_cycles(
    rows: int, vectors: int, lanes: int, depth: int, phases: int, far: int = 0, size: int = 4,
    widening: float = 0.0,
) -> float:
    """Return the cycles of one tile that sums `depth` products for each of its elements.

    `far` is how many matrices of that many rows it meets for the first time. Numbers of B have
    `size` bytes; making floats of a vector of them takes `widening` cycles.
    """
    arithmetic = rows * vectors / 2 + vectors * widening
    loads = (rows + vectors) / 2
    row = vectors * lanes * size
    memory = row / L2_RATE if row * depth > L1 else 0
    step = max(arithmetic, loads, memory, LATENCY / phases) + memory * 0.07
    enter = CALL + far * rows * ROW
    return enter + depth * step + rows * vectors * (1.5 + (phases - 1) / 2)
