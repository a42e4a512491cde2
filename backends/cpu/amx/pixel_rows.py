"""Windows of a few plain channels cut for AMX's tiles: pixels, lines, planes, packed weights.

Pixels are columns of `deep` rows of x times all channels, as a line of the window meets them one
after the other. Results are rows of a flat plane: 16 of them are a tile, across the ends of rows.
Rows of x that are a stride apart lie in separate planes, so that a line of the window is always
as far behind the place of a result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from atc.backends.cpu.amx.cost import PRODUCT, l2_share, splitting
from atc.backends.cpu.amx.products import LINE
from atc.backends.cpu.amx.tiled_conv import Panels
from atc.backends.machine import Machine
from atc.dims import is_dynamic, max_value, maximum, minimum
from atc.ir.graph import Array

ROW_BLOCK = 3 << 16
"""Bytes of pixels in scratch that stay in the second-level cache until all products met them."""
WORD = 4
"""Bytes of a word: two bfloat16, or four bytes."""
VECTOR = 16
"""Pixels that are made at a time."""
INTERLEAVED = 1.8
"""Cycles to put a vector of words in its place."""
SPILLED = 16.0
"""Bytes of pixels per cycle where results that pass by drive them out of the second-level cache."""


@dataclass(frozen=True)
class Window(Panels):
    """The cut of a window's taps: pixels are `deep` rows x the channels, in whole words.

    Numbers take `size` bytes.
    """

    deep: int
    size: int
    whole: bool
    """Whether all rows are made at once, not block by block."""

    @property
    def numbers(self) -> int:
        """Numbers of a pixel, padded to whole words."""
        each = WORD // self.size
        return -(-self.deep * self.g.ic // each) * each

    @property
    def words(self) -> int:
        """Words of a pixel."""
        return self.numbers * self.size // WORD

    @property
    def pixel(self) -> int:
        """Bytes of a pixel."""
        return self.numbers * self.size

    @property
    def stride(self) -> int:
        """Bytes from one row of a tile to the next."""
        return self.g.cols.stride * self.pixel

    @property
    def lines(self) -> int:
        """Rows of pixels that a window meets."""
        return -(-self.g.rows.kernel // self.deep)

    @property
    def depth(self) -> int:
        """Numbers that a step sums."""
        return LINE // self.size

    @property
    def line_steps(self) -> int:
        """Steps of a line of the window."""
        return -(-self.g.cols.kernel * self.pixel // LINE)

    @property
    def panel_steps(self) -> int:
        """Steps of all lines of the window."""
        return self.lines * self.line_steps

    @property
    def kept(self) -> int:
        """Columns of x that windows meet."""
        cols = self.g.cols
        return maximum(0, minimum(cols.size, self._met - cols.pad))

    @property
    def _met(self) -> int:
        """Columns that windows meet, padding included."""
        return (self.g.cols.out - 1) * self.g.cols.stride + self.g.cols.kernel

    @cached_property
    def pitch(self) -> int:
        """Results from one row of them to the next: padding to the right is the next row's left."""
        cols = self.g.cols
        need = maximum(self._met - cols.pad, self.left + self.kept)
        return maximum(cols.out, -(-need // cols.stride))

    @property
    def left(self) -> int:
        """Columns of padding before x."""
        return minimum(self.g.cols.pad, self._met)

    @cached_property
    def places(self) -> list[tuple[int, int]]:
        """(phase, line) of each line of the window: rows of x modulo the stride, and further."""
        rows = self.g.rows
        met = [divmod(k * self.deep * rows.dilation, rows.stride) for k in range(self.lines)]
        return [(phase, further) for further, phase in met]

    @cached_property
    def phases(self) -> list[tuple[int, int]]:
        """(first row of the window, lines beyond the results' rows) of each plane."""
        found: dict[int, int] = {}
        for phase, further in self.places:
            found[phase] = max(found.get(phase, 0), further)
        return sorted(found.items())

    @cached_property
    def row_block(self) -> int:
        """Rows of results whose pixels are made at a time.

        If only the run knows how long rows are, they are taken for half as long as they may be.
        """
        rows, pitch = self.g.rows.out, self.pitch
        if self.whole:
            return rows
        if is_dynamic(pitch):
            pitch = max(1, max_value(pitch) // 2)
        line = len(self.phases) * self.parts * pitch * self.stride
        most = max(1, ROW_BLOCK // line, -(-2 * self.block // pitch))
        return most if is_dynamic(rows) else -(-rows // -(-rows // most))

    def results(self, rows: int) -> int:
        """Return how many results of the flat plane so many rows take."""
        return (rows - 1) * self.pitch + self.g.cols.out

    @cached_property
    def plane(self) -> int:
        """Bytes of a plane with all that is read beyond its last line."""
        further = max(further for _, further in self.phases)
        lines = (self.row_block + further) * self.pitch * self.stride
        return -(-(lines + self.block * self.stride + self.ahead) // LINE) * LINE

    @property
    def ahead(self) -> int:
        """Bytes that a result reads of a line."""
        return self.line_steps * LINE

    @property
    def _filled(self) -> list[int]:
        """Bytes of each plane's lines."""
        return [(self.row_block + n) * self.pitch * self.stride for _, n in self.phases]

    @property
    def margins(self) -> list[tuple[int, int]]:
        """Places behind the lines of a part's planes, and bytes of padding there, which is read."""
        ends = [(k * self.plane + end, self.plane - end) for k, end in enumerate(self._filled)]
        return [(place, size) for place, size in ends if size]

    @property
    def lower_offset(self) -> int:
        """Bytes from the upper parts to the lower ones."""
        return len(self.phases) * self.plane

    def offsets(self) -> list[int]:
        """Return the bytes from a result's place to its pixels, for each line of the window."""
        index = {phase: k for k, (phase, _) in enumerate(self.phases)}
        line = self.pitch * self.stride
        return [index[phase] * self.plane + further * line for phase, further in self.places]

    def blocks(self) -> int:
        """Return how many blocks an image has."""
        full, rest = divmod(self.g.rows.out, self.row_block)
        sizes = [self.row_block] * full + [rest] * (rest > 0)
        return sum(-(-self.results(rows) // self.block) for rows in sizes)

    def made(self) -> int:
        """Return how many vectors of pixels an image has, those made twice counted twice."""
        blocks = -(-self.g.rows.out // self.row_block)
        lines = sum(self.g.rows.out + blocks * further for _, further in self.phases)
        return lines * -(-self.kept // VECTOR)

    def interleaving(self) -> list[list[list[int]]]:
        """Lanes of the words of 16 pixels in order, from vectors of words of 16 pixels each.

        For each vector in order, permutations of what is gathered of vectors 0 to k - 1 (lanes 0 to
        15) and of vector k (16 to 31), for k from 1 on.
        """
        n, found = self.words, []
        for vector in range(n):
            flat = [divmod(VECTOR * vector + lane, n) for lane in range(VECTOR)]
            first = [p + VECTOR * (w == 1) if w < 2 else 0 for p, w in flat]
            rest = [
                [VECTOR + p if w == k else lane for lane, (p, w) in enumerate(flat)]
                for k in range(2, n)
            ]
            found.append([first, *rest])
        return found

    def pack(self, parts: Sequence[Array]) -> Array:
        """Return filters of each part as [panel][line][step][part][column][16][filter][word]."""
        return np.ascontiguousarray(np.stack([self._tiles(p) for p in parts], 3)).reshape(-1)

    def _tiles(self, dense: Array) -> Array:
        """Return filters of a part as [panel][line][step][column][16][filter][number of a word]."""
        g, filters = self.g, self.panels * self.tile_columns * VECTOR
        taps = dense.reshape(len(dense), g.ic, g.rows.kernel, g.cols.kernel)
        rows = np.zeros((filters, self.lines * self.deep, g.cols.kernel, g.ic), dense.dtype)
        rows[: len(dense), : g.rows.kernel] = taps.transpose(0, 2, 3, 1)
        pixels = np.zeros((filters, self.lines, g.cols.kernel, self.numbers), dense.dtype)
        cut = rows.reshape(filters, self.lines, self.deep, g.cols.kernel, g.ic)
        whole = cut.transpose(0, 1, 3, 2, 4).reshape(*pixels.shape[:3], self.deep * g.ic)
        pixels[..., : self.deep * g.ic] = whole
        steps = np.zeros((filters, self.lines, self.line_steps * self.depth), dense.dtype)
        steps[..., : g.cols.kernel * self.numbers] = pixels.reshape(filters, self.lines, -1)
        word = WORD // self.size
        tiles = steps.reshape(self.panels, self.tile_columns, VECTOR, self.lines, -1, 16, word)
        return tiles.transpose(0, 3, 4, 1, 5, 2, 6)

    def cycles(self, machine: Machine, end: float) -> float:
        """Estimate the cycles of an image, `end` of them for each vector of results."""
        each = self.panel_steps * self.products * PRODUCT + self.block * self.tile_columns * end
        return self.passing(each, self.blocks(), self.whole) + self.making(machine)

    def making(self, machine: Machine) -> float:
        """Estimate the cycles to make the pixels, and to bring them near anew for each panel."""
        vector = self.words * splitting(self.parts) + self.parts * self.words**2 * INTERLEAVED
        pixels = self.parts * self.lower_offset
        filters = self.tile_columns * VECTOR
        passing = self.results(self.g.rows.out) * filters * (4 if self.size > 1 else 1)
        spilled = self.whole and pixels + passing > l2_share(machine)
        return self.made() * vector + (pixels * self.panels / SPILLED if spilled else 0)
