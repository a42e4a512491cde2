"""Register tiles of a matrix product and their costs on a core, in cycles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.kernel import KernelParams
from atc.backends.machine import CACHE_LINE, CALL, PAGE, Machine
from atc.dims import Dim, is_dynamic, not_equal

FMA_WAIT = 1.1
"""How much longer than the FMA's latency a sum waits for the one before."""
AWAITED = 2.0
"""Cycles beyond the L2 cache's latency until a row of A that isn't in the L1 cache arrives."""


BESIDE = 0.2
"""Cycles that a load, or one of a pair, takes from the products beside it, where rows of A are
read in vectors, on a core that begins two products a cycle; fewer on wider ones."""
NEAR_STEP, FAR_STEP = 2.0, 15.0
"""Cycles that a step of the depth waits for a line from the L2 cache, and from beyond it, where the
lines of the steps behind it are asked for meanwhile."""

TRANSLATIONS, TRANSLATED = 64, 0.8
"""Pages whose addresses are known at once, and the cycles that a step waits for one that isn't."""
WAITED = 0.04
"""Part of a product's arithmetic from which on waiting for B's panels is worth asking ahead: on a
Sapphire Rapids 197 rows take 0.87 of the time that way, of 0.15 to 0.6 MB of weights."""
WAITED_WIDENING = 0.01
"""The same where floats are made of a panel before its first tile, which waits for all of it."""
PRESSURE, AT_EASE = 0.15, 0.2
"""How much longer tiles take for each part of the L2 cache that they fill beyond the second."""
FROM_AFAR = 0.6
"""Part of the rate of a cache beyond the L2 cache at which a kernel's stream of weights comes: on a
Sapphire Rapids 8 to 9 bytes a cycle from the third one, by vectors and by tiles."""
AWAITING = 0.4
"""Part of the shorter one of arithmetic and of a stream of weights in which one waits for the
other: on a Sapphire Rapids in products of 8 to 64 rows, of floats and of bytes."""
STRADDLING = 2.2
"""Cycles that a step waits for vectors that lie in two lines, which aren't in the L1 cache."""


@dataclass(frozen=True)
class Ahead:
    """Requests for a line every `step` bytes, `distance` bytes before it is read."""

    distance: int
    step: int

    @property
    def each(self) -> bool:
        """Whether every line is asked for."""
        return self.step <= CACHE_LINE


STREAM_AHEAD = 1 << 14
"""Bytes that a single row tile, which streams B once, asks for in advance."""
AHEAD = Ahead(distance=8192, step=1024)
"""What one row, which waits for memory, asks for; its other requests would wait behind more."""
EVERY_LINE = Ahead(distance=STREAM_AHEAD, step=CACHE_LINE)
"""What it asks for where that isn't so, or where it computes nearly as long as it waits."""
NEAR_LINES = Ahead(distance=8192, step=CACHE_LINE)
"""The same, where requests are for the first cache."""


def asked_by_one_row(machine: Machine, computes: bool = False) -> Ahead:
    """Return what a tile of one row asks for; one may compute nearly as long as it waits."""
    if machine.near_lines:
        return NEAR_LINES
    return EVERY_LINE if computes or machine.every_line else AHEAD


@dataclass(frozen=True, kw_only=True)
class TileParams(KernelParams):
    """Those of tiles of mr rows x nv vectors."""

    mr: int
    nv: int


@dataclass(frozen=True, kw_only=True)
class PhasedParams(TileParams):
    """Those of tiles with `phases` partial sums of each result."""

    phases: int


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


def vector_kinds(panels: Sequence[Panel]) -> tuple[bool, bool]:
    """Return whether any panel has whole vectors, and whether any has a part of one."""
    return any(p.vectors > 1 or not p.part for p in panels), any(p.part for p in panels)


def tile_count(tiles: Sequence[Tile]) -> int:
    """Return how many tiles there are of all heights."""
    return sum(t.count for t in tiles)


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
            Panel(f"last{v}", full, 1 - not_equal(taken, v), rest, v, rest - (v - 1) * lanes)
            for v in range(1, nv + 1)
        ]
    panels = [Panel("full", 0, full, width, nv, 0)]
    panels.append(Panel("last", full, 1, rest, -(-rest // lanes), rest % lanes))
    return [p for p in panels if p.count and p.columns]


def row_blocks(m: int, row: int, room: int, unit: int) -> list[tuple[int, int, int]]:
    """Cut m rows of so many bytes into equal blocks that `room` holds, and one of what is left.

    Their rows are a multiple of `unit`. Returns (first row, blocks, rows) of both kinds.
    """
    return blocks_of(m, min(m, -(-m // -(-m * row // room) // unit) * unit))


def blocks_of(m: int, rows: int) -> list[tuple[int, int, int]]:
    """Cut m rows into blocks of `rows`, and one of what is left: (first row, blocks, rows)."""
    cut = [(0, m // rows, rows), (m // rows * rows, 1, m % rows)]
    return [block for block in cut if block[1] != 0 and block[2] != 0]


def streamed(machine: Machine) -> int:
    """Return the bytes of B above which what comes next is prefetched: it leaves the L2 cache."""
    return machine.l2.size // 2


def from_slow_l3(machine: Machine, nbytes: int) -> bool:
    """Return whether weights, of `nbytes` in all, come from a third cache that is slow."""
    return machine.slow_l3 and nbytes >= streamed(machine)


def asks_ahead(
    machine: Machine, nbytes: int, products: float, lanes: int, waited: float
) -> bool:
    """Return whether row tiles that share a panel of B ask for the next one, of `nbytes` in all.

    A network's other weights drive B out of the near caches from run to run, however small it is.
    The first tile of each panel then waits for the third cache, which is little beside `products`
    multiply-adds where those are many and that cache is quick.
    """
    if nbytes > streamed(machine) or not machine.l3.size:
        return nbytes > streamed(machine)
    arithmetic = products / lanes / machine.fma_rate(4 * lanes)
    return nbytes > machine.l1.size and nbytes / machine.l3.rate > waited * arithmetic


def fetching(machine: Machine, nbytes: float) -> float:
    """Return the cycles of a stream of packed B, of `nbytes`, from beyond the L2 cache."""
    return nbytes / (FROM_AFAR * machine.far_rate)


def while_fetching(machine: Machine, cycles: float, nbytes: float) -> float:
    """Return the cycles of products while packed B, of `nbytes`, comes from beyond the L2 cache.

    The longer of both, and of the shorter one the part in which one waits for the other; the
    products' alone where that cache may hold B. What reads as many bytes keeps its order.
    """
    if nbytes <= streamed(machine):
        return cycles
    stream = fetching(machine, nbytes)
    return max(cycles, stream) + AWAITING * min(cycles, stream)


def crowding(machine: Machine, rows: int, stride: int) -> float:
    """Return how many times slower a tile is whose rows, `stride` bytes apart, evict each other."""
    if not stride:
        return 1.0
    ways = machine.l1_ways * PAGE // min(stride & -stride, PAGE)
    return 4.0 if rows > ways + 4 else 1.08 if rows > ways else 1.0


def pressure(machine: Machine, nbytes: int) -> float:
    """Return how many times slower tiles are that read a block of A and panels of B again.

    They are `nbytes`, the panel included that is asked for meanwhile: beside many, some of it is
    evicted again before it is read. On a Sapphire Rapids 128 and 64 rows of 3072, 1500 of 384.
    """
    if not machine.slow_l3:
        return 1.0
    return 1 + PRESSURE * max(0.0, min(1.0, nbytes / machine.l2.size) - AT_EASE)


def loads_beside(machine: Machine, loads: float, size: int) -> float:
    """Return the cycles that loads, or pairs of them, take from the products of such vectors."""
    return loads * BESIDE * 2 / machine.fma_rate(size)


def step_wait(machine: Machine, depth: int, stride: int) -> float:
    """Return the cycles that each step of a tile waits for its line, `stride` bytes from the last.

    Lines a large power of two apart meet in few sets of a cache, whatever its size: where there are
    too many for a cache no tile finds those there that the one before has read.
    """
    if is_dynamic((depth, stride)):
        return 0.0
    apart = max(stride & -stride, CACHE_LINE)
    if depth > machine.l2.size // apart:
        return FAR_STEP
    return NEAR_STEP if depth > machine.l1.size // apart else 0.0


def scattered_wait(machine: Machine, depth: int, stride: int, row: int, vector: int) -> float:
    """Return the cycles that each step of a tile waits for `row` bytes read in place.

    The rows lie `stride` bytes apart; `vector` is the size of a vector.
    """
    if is_dynamic((depth, stride)):
        return 0.0
    wait = TRANSLATED if depth * min(stride, PAGE) > TRANSLATIONS * PAGE else 0.0
    if stride % vector and depth * (row + CACHE_LINE) > machine.l1.size:
        wait += STRADDLING
    return wait


def tile_cycles(
    machine: Machine, rows: int, vectors: int, lanes: int, depth: int, phases: int, far: int = 0,
    size: int = 4, widening: float = 0.0, at_once: int = 1, streams: bool = False,
    again: bool = False,
) -> float:
    """Return the cycles of one tile that sums `depth` products for each of its elements.

    `far` is how many matrices of that many rows it meets for the first time. Numbers of B have
    `size` bytes; making floats of a vector of them takes `widening` cycles. Of a row of A
    `at_once` numbers are read. A panel of B is met again in the L1 cache, if that holds it, unless
    the tile `streams` it. One larger than half of the L2 cache comes from beyond it for all
    tiles that read it `again`.
    """
    arithmetic = rows * vectors / machine.fma_rate(lanes * 4) + vectors * widening
    read = rows / at_once / machine.broadcast_rate(lanes * 4)
    loads = read + vectors / machine.load_rate(lanes * 4)
    row = vectors * lanes * size
    memory = row / machine.l2.rate if streams or row * depth > machine.l1_kept else 0
    if again and row * depth > streamed(machine):
        memory = row / machine.far_rate
    waiting = machine.fma_latency * FMA_WAIT / phases
    step = max(arithmetic, loads, memory, waiting) + memory * 0.07
    if at_once > 1:
        step += loads_beside(machine, rows / at_once + -(-vectors // 2), lanes * 4)
    enter = CALL + far * rows * (machine.l2.latency + AWAITED)
    return enter + depth * step + rows * vectors * (1.5 + (phases - 1) / 2)
