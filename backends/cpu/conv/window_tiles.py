"""Tiles of windows over separate channels: their taps, the cuts of an image, their cost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from atc.backends.kernel import StripedParams
from atc.backends.machine import CALL, Machine
from atc.backends.render.axis import plane_axes
from atc.backends.render.tile_geometry import Columns, Geometry, cut_columns
from atc.backends.target import Target
from atc.ir.graph import TensorType
from atc.ir.ops import Window

UNROLLED = 320
"""Taps times outputs that a tile may have."""
LINES = 4000
"""Taps times outputs that all the tile functions of a kernel may have."""
TALL_UNROLLED, TALL_LINES = 700, 3600
"""The same of tiles whose rows are stored one by one."""


@dataclass(frozen=True)
class Tap:
    """An input vector, by its row, column and place from the tile's first, and whom it concerns."""

    row: int
    column: int
    place: int
    users: tuple[tuple[str, int], ...]
    """(accumulator, index of the tap in the window)."""


@dataclass(frozen=True)
class Tile:
    """A tile function: rows x columns of outputs, and which of their taps lie inside the input."""

    name: str
    down: Columns
    across: Columns
    g: Geometry

    def taps(self) -> list[Tap]:
        """Return the input vectors in order of their places."""
        g = self.g
        found: dict[tuple[int, int], list[tuple[str, int]]] = {}
        for kh, rows in enumerate(self.down.taps):
            for kw, cols in enumerate(self.across.taps):
                for r in rows:
                    for c in cols:
                        at = (r * g.rows.stride + kh * g.rows.dilation,
                              c * g.cols.stride + kw * g.cols.dilation)  # fmt: skip
                        user = (f"c{r * self.across.width + c}", kh * g.cols.kernel + kw)
                        found.setdefault(at, []).append(user)
        return [
            Tap(r, c, (r * g.cols.size + c) * g.block, tuple(users))
            for (r, c), users in sorted(found.items())
        ]

    def address(self, tap: Tap) -> str:
        """Return the C expression of where an input lies."""
        return input_place(tap.place)

    def used(self) -> list[int]:
        """Return the taps of the window that meet the input anywhere in the tile."""
        return sorted({k for tap in self.taps() for _, k in tap.users})

    def inside(self, row: int, column: int) -> int:
        """Return how many taps of an output lie inside the input."""
        return sum(row in t for t in self.down.taps) * sum(column in t for t in self.across.taps)

    def outputs(self) -> list[tuple[str, int, int, int, int]]:
        """Return (accumulator, row, column, vector, place in y) of each result."""
        return [
            (f"c{r * self.across.width + c}", r, c, 0, (r * self.g.cols.out + c) * self.g.block)
            for r in range(self.down.width)
            for c in range(self.across.width)
        ]


@dataclass(frozen=True, kw_only=True)
class WindowParams(StripedParams):
    """Those of tiles of r x c outputs."""

    r: int
    c: int


def groups_of_blocks(
    window: Window, y: TensorType, x: TensorType, held: tuple[int, ...] = ()
) -> Geometry:
    """Return the geometry of a window that makes y of x, both of them in blocks."""
    block = y.shape[-1]
    rows, cols = plane_axes(window, y.shape[2:-1], x.shape[2:-1])
    return Geometry(y.shape[0], block, y.shape[1], block, 1, rows, cols, False, False, *held)


def tiles_of(g: Geometry, rows: int, cols: int) -> tuple[list[Columns], list[Columns], list[Tile]]:
    """Return the cuts of both axes and the tiles they make, in order of rows."""
    down, across = cut_columns(g.rows, rows), cut_columns(g.cols, cols)
    tiles = [
        Tile(f"tile_{d.width}x{a.width}_at{d.first}_{a.first}", d, a, g)
        for d in down
        for a in across
    ]
    return down, across, tiles


def tile_values(
    g: Geometry, params: WindowParams, channels_last: bool = False
) -> dict[str, object]:
    """Return the tiles, and how far elements lie apart; `g` has vectors of channels as blocks."""
    cut = replace(g, block=g.block * g.supers) if channels_last else g
    down, across, tiles = tiles_of(cut, params.r, params.c)
    return {
        "g": cut, "down": down, "across": across, "tiles": tiles, **distances(g, channels_last)
    }  # fmt: skip


def distances(g: Geometry, channels_last: bool) -> dict[str, object]:
    """Return the elements from pixel to pixel, from block to block and from image to image.

    Each block is a plane, or with channels last all of them lie side by side in every pixel.
    """
    x_block, y_block = (g.block, g.block) if channels_last else (g.in_plane, g.out_plane)
    return {
        "pixel": g.block * g.supers if channels_last else g.block,
        "x_block": x_block, "y_block": y_block,
        "x_image": g.supers * g.in_plane, "y_image": g.supers * g.out_plane,
    }  # fmt: skip


def shapes(g: Geometry, target: Target, tall: bool = False) -> list[WindowParams]:
    """Return the tiles worth trying of an image, also `tall` ones where reading takes the time."""
    found = [shape for shape in tile_shapes(target) if is_short(g, *shape)]
    high = tall_shapes(target) if tall else ()
    found += [shape for shape in high if is_short(g, *shape, TALL_UNROLLED, TALL_LINES)]
    return [WindowParams(r=r, c=c) for r, c in dict.fromkeys(found)]


def tile_shapes(target: Target) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of tiles worth trying."""
    wide = ((2, 7), (1, 7), (1, 14), (2, 4), (4, 4), (2, 2), (1, 1))
    narrow: tuple[tuple[int, int], ...] = ((1, 4), (2, 3), (1, 6), (2, 2), (1, 1))
    if target.simd in ("sse2", "avx2"):  # these multiply by weights in memory
        narrow = (*narrow, (2, 4), (3, 4))
    return wide if target.vector_registers >= 32 else narrow


def tall_shapes(target: Target) -> tuple[tuple[int, int], ...]:
    """Return the rows and columns of tall tiles: registers hold the rows that a row of x meets."""
    if target.vector_registers >= 32:
        return ((4, 4), (2, 7), (7, 3), (7, 4), (8, 4), (7, 7))
    return ((7, 1), (7, 2), (14, 2), (7, 3), (7, 4))


def is_short(
    g: Geometry, rows: int, cols: int, unrolled: int = UNROLLED, most: int = LINES
) -> bool:
    """Return whether tiles, and the functions of all of them, aren't too long."""
    down, across = cut_columns(g.rows, rows), cut_columns(g.cols, cols)
    lines = sum(d.width for d in down) * sum(a.width for a in across) * g.taps
    return rows * cols * g.taps <= unrolled and lines <= most


def window_cycles(
    g: Geometry, params: WindowParams, target: Target, converted: float = 0
) -> float:
    """Estimate the cycles of a windowed kernel: arithmetic, loads, and what spills.

    An input takes `converted` cycles of arithmetic to become a vector of floats.
    """
    return _window_cycles(
        target.machine, g, params.r, params.c, target.vector_registers, converted
    )


@cache  # costs are asked for several times
def _window_cycles(
    machine: Machine, g: Geometry, rows: int, cols: int, registers: int, converted: float
) -> float:
    _, _, tiles = tiles_of(g, rows, cols)
    size, total, reach = g.block * 4, 0.0, (g.rows.kernel - 1) * g.rows.dilation
    for tile in tiles:
        taps = tile.taps()
        uses = sum(len(t.users) for t in taps)
        outputs = tile.down.width * tile.across.width
        live = min(tile.down.width, reach // g.rows.stride + 1) * tile.across.width
        spilled = max(0, live + min(g.taps, 9) + 2 - registers) * g.taps / 2
        loads = (len(taps) + (uses if g.taps > 9 else g.taps)) / machine.load_rate(size)
        products = uses / machine.fma_rate(size)
        if converted:  # loads of what spilled are hidden behind the arithmetic
            time = max(products + converted * len(taps), loads + spilled)
        else:
            time = max(products, loads) + spilled
        total += (CALL + time + 1.5 * outputs) * tile.down.count * tile.across.count
    return g.batch * g.supers * total


def input_place(place: int) -> str:
    """Return the C expression of where an input of a tile lies, so far from the first one."""
    return f"x + (at + {place})" if place else "x + at"
