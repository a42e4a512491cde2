"""Images as flat planes, on which a convolution is a sum of matrix products of shifted rows.

Output pixel (y, x) is row y * pitch + x of every product, and tap (kh, kw) reads the plane of its
phase (the pixels that are kh and kw apart modulo the strides) a constant number of pixels further.
So 16 consecutive rows are a tile, across the ends of image rows: the few rows that are no pixel of
the output are computed and dropped. Columns of padding are shared: what is right of one row of
pixels is left of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from atc.backends.render.axis import Axis
from atc.backends.render.tile_geometry import Geometry
from atc.dims import maximum, minimum


@dataclass(frozen=True)
class Phase:
    """The pixels (row, column) + (i, j) * strides of the padded input; `index` counts planes.

    Columns [low, high) of the plane's rows are pixels of x, the first one column `left` of x; row i
    of the plane is row `top` + i * stride of x, where that is one.
    """

    index: int
    row: int
    column: int
    low: int
    high: int
    left: int
    top: int


@dataclass(frozen=True)
class Flat:
    """The planes of a convolution, their rows computed `block` at a time."""

    g: Geometry
    block: int

    @cached_property
    def taps(self) -> list[tuple[int, int, int, int]]:
        """(row, column) of each tap's phase, then how many rows and columns further it reads."""
        found = []
        for kh in range(self.g.rows.kernel):
            for kw in range(self.g.cols.kernel):
                a, row = divmod(kh * self.g.rows.dilation, self.g.rows.stride)
                b, column = divmod(kw * self.g.cols.dilation, self.g.cols.stride)
                found.append((row, column, a, b))
        return found

    @cached_property
    def reach(self) -> tuple[int, int]:
        """The number of rows and columns further that the last taps read."""
        return max(t[2] for t in self.taps), max(t[3] for t in self.taps)

    @cached_property
    def phases(self) -> list[Phase]:
        """The planes that taps read."""
        rows, cols = self.g.rows, self.g.cols
        found = []
        for index, (row, column) in enumerate(sorted({t[:2] for t in self.taps})):
            low, high = _inside(cols, column, cols.out + self.reach[1])
            left = low * cols.stride + column - cols.pad
            found.append(Phase(index, row, column, low, high, left, row - rows.pad))
        return found

    @cached_property
    def pitch(self) -> int:
        """Pixels from one row of a plane to the next: no tap meets pixels of another row."""
        cols = self.g.cols
        shared = minimum(*(p.low for p in self.phases))
        need = cols.out + self.reach[1] - shared
        return maximum(need, cols.out, *(p.high for p in self.phases))

    @cached_property
    def lines(self) -> int:
        """Rows of pixels in a plane."""
        return self.g.rows.out + self.reach[0]

    @cached_property
    def rows(self) -> int:
        """Rows of the products, up to the last pixel of the output."""
        return (self.g.rows.out - 1) * self.pitch + self.g.cols.out

    @cached_property
    def blocks(self) -> int:
        """Blocks of rows."""
        return -(-self.rows // self.block)

    @cached_property
    def size(self) -> int:
        """Pixels of a plane, with what the last block's taps read at most."""
        return self.lines * self.pitch + self.block + self.reach[1]

    def shifts(self) -> list[int]:
        """For each tap, the pixel that the first row of the products meets, over all planes."""
        index = {(p.row, p.column): p.index for p in self.phases}
        return [
            index[row, column] * self.size + a * self.pitch + b for row, column, a, b in self.taps
        ]


def _inside(axis: Axis, phase: int, most: int) -> tuple[int, int]:
    """Return the range of a phase's places, up to `most`, that lie inside the input."""
    low = minimum(max(0, -(-(axis.pad - phase) // axis.stride)), most)
    high = minimum(most, -(-(axis.size + axis.pad - phase) // axis.stride))
    return low, maximum(low, high)
