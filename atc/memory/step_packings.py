"""Packings of buffers that look at steps instead of at pairs of buffers: for many thousands.

A buffer is a live range, its first and last step, and a size in bytes, rounded up to the largest
alignment, so that all offsets are aligned. `order` is the order of placing.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np

Lives = Sequence[tuple[int, int]]


def stacked(lives: Lives, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Place each buffer, in this order, on top of all that were placed in its live range.

    Where any two live ranges are nested or disjoint, longest first is optimal.
    """
    firsts, lasts = np.array(lives, np.int64).T
    steps = np.unique(firsts)  # ranges that overlap do so at one of these
    begin = np.searchsorted(steps, firsts).tolist()
    end = np.searchsorted(steps, lasts, side="right").tolist()
    height = np.zeros(len(steps), np.int64)
    offsets = [0] * len(lives)
    for i in order:
        life = height[begin[i] : end[i]]
        offsets[i] = int(life.max())
        life[:] = offsets[i] + sizes[i]
    return offsets


def swept(lives: Lives, sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    """Place each buffer in the smallest gap with room, in ascending order of first steps."""
    gaps = _Gaps()
    offsets = [0] * len(lives)
    live: list[tuple[int, int]] = []
    for i in order:
        while live and live[0][0] < lives[i][0]:
            _, dead = heappop(live)
            gaps.free(offsets[dead], sizes[dead])
        offsets[i] = gaps.take(sizes[i])
        heappush(live, (lives[i][1], i))
    return offsets


@dataclass
class _Gaps:
    """Free bytes below the top of an arena that grows, in gaps that don't touch."""

    by_size: list[tuple[int, int]] = field(default_factory=list)
    """Size and offset of each gap, ascending."""
    size_at: dict[int, int] = field(default_factory=dict)
    begin_of: dict[int, int] = field(default_factory=dict)
    """The begin of the gap with each end."""
    top: int = 0

    def take(self, size: int) -> int:
        """Take bytes from the smallest gap that is large enough, else from above the top."""
        at = bisect_left(self.by_size, (size, 0))
        if at < len(self.by_size):
            room, offset = self.by_size[at]
            self._remove(offset)
            if room > size:
                self._add(offset + size, room - size)
            return offset
        offset = self.begin_of.get(self.top, self.top)
        if offset < self.top:
            self._remove(offset)
        self.top = offset + size
        return offset

    def free(self, offset: int, size: int) -> None:
        """Give bytes back; they are merged with gaps on both sides."""
        end = offset + size
        if end in self.size_at:
            end += self._remove(end)
        if offset in self.begin_of:
            offset = self.begin_of[offset]
            self._remove(offset)
        self._add(offset, end - offset)

    def _add(self, offset: int, size: int) -> None:
        insort(self.by_size, (size, offset))
        self.size_at[offset] = size
        self.begin_of[offset + size] = offset

    def _remove(self, offset: int) -> int:
        size = self.size_at.pop(offset)
        del self.begin_of[offset + size]
        del self.by_size[bisect_left(self.by_size, (size, offset))]
        return size
