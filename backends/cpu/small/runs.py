"""Convolutions and products as sums along runs: channels that lie together, tap after tap.

With the channels last, a row of a window is one run of bytes, `kernel width x channels` long, and
so are the weights, packed in the order of use. A tile computes some pixels of a row for some
filters. Where a window reaches over the border, its part of the input is copied to scratch with the
zero point around it, and summed there as if it were inside; `patch` copies for all pixels,
whole windows in one run, where that is less work (few channels, dilated windows).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import numpy as np

from atc.backends.render.axis import Axis
from atc.backends.target import Target
from atc.ir.graph import Array

WORDS = {"mve": 16, "dsp": 4, "c": 1}
"""Bytes of a run that one step takes, by the instructions."""
TILES = {"mve": ((1, 4),), "dsp": ((2, 2), (1, 4)), "c": ((2, 2), (1, 2))}
"""Pixels and filters of a tile: one of several pixels, and one for rows of a single pixel."""
PIXEL = 14.0
"""Instructions that a result takes beside its sum."""


def instructions(target: Target) -> str:
    """Return which instructions sum bytes on a target: `mve`, `dsp`, or plain `c`."""
    return next((kind for kind in ("mve", "dsp") if kind in target.features), "c")


@dataclass(frozen=True)
class Runs:
    """The geometry of a sum of runs: images, their rows and pixels, and filters."""

    batch: int
    rows: Axis
    cols: Axis
    channels: int
    filters: int
    kind: str
    pixels: int
    """Pixels of a tile."""
    width: int
    """Filters of a tile."""
    patch: bool
    """Whether every window is copied, to one run."""

    @property
    def unit(self) -> int:
        """Bytes of a step."""
        return WORDS[self.kind]

    @property
    def count(self) -> int:
        """Runs of a window."""
        return 1 if self.patch else self.rows.kernel

    @property
    def length(self) -> int:
        """Bytes of a run."""
        own = self.cols.kernel * self.channels
        return self.rows.kernel * own if self.patch else own

    @property
    def steps(self) -> int:
        """Steps of a run, the last one perhaps not full."""
        return -(-self.length // self.unit)

    @property
    def tail(self) -> int:
        """Bytes of the last step, where it isn't full; copies are whole steps long."""
        return 0 if self.patch else self.length % self.unit

    @property
    def pixel_step(self) -> int:
        """Bytes from a pixel's window to the next one's."""
        return self.steps * self.unit if self.patch else self.cols.stride * self.channels

    @property
    def copied_row(self) -> int:
        """Bytes of a row of a copy of the part that a tile reads."""
        if self.patch:
            return self.pixels * self.pixel_step
        return (self.pixels - 1) * self.pixel_step + self.cols.kernel * self.channels

    @property
    def always_inside(self) -> bool:
        """Whether no window reaches over the border."""
        return all(a.interior == (0, a.out) for a in (self.rows, self.cols))

    @property
    def scratch(self) -> int:
        """Bytes of a copy; a vector may read behind its end."""
        return 0 if self.always_inside and not self.patch else self.count * self.copied_row + 16

    @property
    def groups(self) -> int:
        """Tiles of filters."""
        return -(-self.filters // self.width)

    @property
    def cost(self) -> float:
        """Estimated instructions."""
        loads, dots = self.pixels + self.width, self.pixels * self.width
        if self.kind == "dsp":
            step = 3 * loads + 2 * dots + 0.5
        else:
            step = loads + dots + (1.5 if self.kind == "c" else 2.0)
        row = self.count * (self.steps * step + 6 + 6 * (self.tail > 0)) + 12
        tiles = self.batch * self.rows.out * -(-self.cols.out // self.pixels)
        results = self.batch * self.rows.out * self.cols.out * self.filters
        each = PIXEL / 4 if self.kind == "mve" else PIXEL
        inside = prod(a.interior[1] - a.interior[0] for a in (self.rows, self.cols))
        copies = self.batch * (self.rows.out * self.cols.out - (0 if self.patch else inside))
        window = self.rows.kernel * (self.cols.kernel * self.channels + 16)
        return tiles * self.groups * row + results * each + copies * window

    def pack(self, weights: Array, zero: int) -> Array:
        """Return weights [filters, rows, cols, channels] in the order of use, as bytes.

        They are [group][run][step][filter][byte], behind the sums' starts, INT32: minus the zero
        point times each filter's sum.
        """
        m, wide = self.groups * self.width, self.steps * self.unit
        runs = weights.reshape(self.filters, self.count, self.length)
        full = np.zeros((m, self.count, wide), np.int8)
        full[: self.filters, :, : self.length] = runs
        starts = np.zeros(m, np.int64)
        starts[: self.filters] = -zero * weights.astype(np.int64).reshape(self.filters, -1).sum(1)
        order = full.reshape(self.groups, self.width, self.count, self.steps, self.unit)
        packed = order.transpose(0, 2, 3, 1, 4)
        head = starts.astype(np.int32).view(np.int8)
        return np.concatenate([head, np.ascontiguousarray(packed).reshape(-1)])
