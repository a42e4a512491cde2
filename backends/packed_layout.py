"""Packed activations: images as flat planes, which kernels hand to each other.

A plane holds a block of channels: its pixels in rows with a border, so that what a convolution's
tap reads of the whole image lies a constant number of pixels further. Columns of the border are
shared: what is right of one row of pixels is left of the next.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from atc.ir.graph import TensorType

SLACK = 64
"""Pixels past a plane's last one that kernels may read: what they compute of them is dropped."""
LINE = 64
"""Bytes of a part of a pixel's block of channels."""


@dataclass(frozen=True)
class PackedLayout:
    """A packed layout [images][blocks][pixel][parts][LINE bytes] of a tensor of images.

    A block is `channels`, each made of `parts`: bytes, rounded floats, or the upper and the lower
    half of floats. `fill` is the byte of the border; None where no reader meets it.
    """

    images: int
    blocks: int
    rows: int
    columns: int
    channels: int
    parts: int
    fill: int | None = None
    border: int = 0
    """Rows above and below the image, columns between its rows."""

    @property
    def pitch(self) -> int:
        """Pixels from one row to the next."""
        return self.columns + self.border

    @property
    def first(self) -> int:
        """The place of the first pixel."""
        return self.border * (self.pitch + 1)

    @property
    def end(self) -> int:
        """The place behind the last row and the columns between it and the next."""
        return self.first + self.rows * self.pitch

    @property
    def size(self) -> int:
        """Pixels of a plane, with all that readers of `border` more rows meet."""
        return self.end + self.border * self.pitch + SLACK

    @property
    def pixel(self) -> int:
        """Bytes of a pixel."""
        return self.parts * LINE

    @property
    def plane(self) -> int:
        """Bytes of a plane."""
        return self.size * self.pixel

    def joined(self, other: PackedLayout) -> PackedLayout | None:
        """Return the layout that readers of either can read, None where there is none."""
        border = max(self.border, other.border)
        fill = other.fill if self.fill is None else self.fill
        same = replace(self, border=border, fill=fill) == replace(other, border=border, fill=fill)
        fits = same and (other.fill is None or other.fill == fill)
        return replace(self, border=border, fill=fill) if fits else None

    def type(self, stored: TensorType) -> TensorType:
        """Return the memory that they take, as numbers of a tensor's type."""
        each = self.pixel // stored.dtype.itemsize
        return replace(stored, shape=(self.images, self.blocks, self.size, each))
