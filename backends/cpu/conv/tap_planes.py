"""Copies of an image in which every output's taps lie as far from each other as any other's.

What a tap reads of all outputs lies in a plane, padding in it, its rows as long as the outputs'. So
the outputs of an image of any size are one row, of which no tap meets padding. Rows of taps share
planes where they have no stride: the next one begins a line below.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atc.backends.machine import Machine
from atc.backends.render.axis import Axis
from atc.backends.render.tile_geometry import Geometry

LINE, PIXEL = 10, 2
"""Cycles to copy a line of a plane, beside those of its bytes; a pixel where there is a stride."""


@dataclass(frozen=True)
class TapPlanes:
    """The planes of an image of a convolution of geometry `g`."""

    g: Geometry

    @property
    def by_rows(self) -> bool:
        """Whether each row of taps has planes of its own."""
        return self.g.rows.stride != 1

    @property
    def lines(self) -> int:
        """The lines of a plane."""
        return self.g.rows.out + (0 if self.by_rows else self.g.rows.reach)

    @property
    def count(self) -> int:
        """The planes of an input block."""
        return self.g.taps if self.by_rows else self.g.cols.kernel

    @property
    def size(self) -> int:
        """The elements of all planes."""
        return self.g.icb * self.count * self.lines * self.g.cols.out * self.g.block

    @property
    def geometry(self) -> Geometry:
        """The convolution of the planes: all outputs are one row."""
        g, width = self.g, self.g.cols.out
        plane = self.lines * width
        size, apart = (plane, g.cols.kernel) if self.by_rows else (width, g.rows.dilation)
        rows = Axis(1, (g.rows.kernel - 1) * apart + 1, g.rows.kernel, dilation=apart, open=True)
        cols = Axis(g.rows.out * width, size, g.cols.kernel, dilation=plane, open=True)
        return replace(g, rows=rows, cols=cols, flat=True, plane=self.count * plane)

    def cycles(self, machine: Machine, itemsize: int) -> float:
        """Estimate the cycles to copy all images."""
        size = self.size * itemsize
        level = machine.l2 if size <= machine.l2.size else machine.l3
        lines = self.g.icb * self.count * self.lines
        line = LINE + (PIXEL * self.g.cols.out if self.g.cols.stride != 1 else 0)
        return self.g.batch * self.g.supers * (lines * line + 2 * size / level.rate)
