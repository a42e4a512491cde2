"""A spatial axis of a sliding window: its extents, and the outputs that each tap contributes to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from atc.dims import is_dynamic, lower_bound, maximum, minimum
from atc.ir.ops import Window


@dataclass(frozen=True)
class Axis:
    """Outputs and inputs along an axis, and the window there; run-time extents are Dims."""

    out: int
    size: int
    kernel: int = 1
    stride: int = 1
    dilation: int = 1
    pad: int = 0
    open: bool = False
    """Whether taps beyond the end of a row read the next one instead of padding."""

    @property
    def reach(self) -> int:
        """The distance of the last tap from the first one."""
        return (self.kernel - 1) * self.dilation

    def span(self, outputs: int) -> int:
        """Return the number of inputs that `outputs` neighbouring outputs read."""
        return (outputs - 1) * self.stride + self.reach + 1

    def valid(self, at: int, tap: int) -> bool:
        """Return whether a tap of output `at` lies inside the input."""
        return self.open or 0 <= at * self.stride + tap * self.dilation - self.pad < self.size

    @property
    def inside(self) -> bool:
        """Whether it is known that no tap reads padding, at any output."""
        known = not is_dynamic((self.out, self.size, self.pad))
        return known and self.pad <= 0 and self.span(self.out) - self.pad <= self.size

    @property
    def interior(self) -> tuple[int, int]:
        """The outputs [first, last) whose taps all lie inside the input."""
        if self.open:
            return 0, self.out
        first = maximum(0, minimum(self.out, -(-self.pad // self.stride)))
        last = self.size - 1 - self.reach + self.pad
        return first, maximum(first, minimum(self.out, last // self.stride + 1))

    @property
    def covered(self) -> bool:
        """Whether it is known that every window has a tap inside the input."""
        last = (self.out - 1) * self.stride - self.pad
        overlaps = self.pad <= self.reach and lower_bound(self.size - last) > 0
        return overlaps and self.dilation <= lower_bound(self.size)  # taps don't jump over it

    def tap_range(self, tap: int) -> tuple[int, int]:
        """Return the outputs [first, last) for which a tap lies inside the input."""
        at = tap * self.dilation - self.pad
        first = minimum(maximum(0, -(at // self.stride)), self.out)
        last = (self.size - 1 - at) // self.stride + 1
        return first, maximum(first, minimum(last, self.out))

    @property
    def part_inside(self) -> float:
        """The part of all outputs' taps that lies inside the input, of known extents."""
        if self.open or not self.out:
            return 1.0
        ranges = map(self.tap_range, range(self.kernel))
        return sum(last - first for first, last in ranges) / (self.kernel * self.out)

    @property
    def tap_ranges(self) -> dict[str, list[int]]:
        """Return for each tap the range [low, high) of its outputs, and its shift.

        At output q tap k reads input q * stride + shift[k].
        """
        ranges = [self.tap_range(k) for k in range(self.kernel)]
        return {
            "low": [first for first, _ in ranges], "high": [last for _, last in ranges],
            "shift": [k * self.dilation - self.pad for k in range(self.kernel)],
        }  # fmt: skip


SINGLE = Axis(1, 1)
"""The rows of a window that has only columns."""


@dataclass(frozen=True, kw_only=True)
class LoopAxis(Axis):
    """An axis that C loops iterate over, the `number`th of its window."""

    number: int

    @property
    def output(self) -> str:
        """The C variable of the output."""
        return f"o{self.number}"

    @property
    def input(self) -> str:
        """The C variable of the input that a tap reads."""
        return f"i{self.number}"

    @property
    def tap(self) -> str:
        """The C variable of the tap."""
        return f"k{self.number}"

    @property
    def loop(self) -> tuple[str, int]:
        """The variable and the extent of the loop over outputs, for a nest of loops."""
        return self.output, self.out


def window_axes(window: Window, out: Sequence[int], size: Sequence[int]) -> list[Axis]:
    """Return the axes of a window that slides over extents `size` and gives extents `out`."""
    return [Axis(out[d], size[d], *_along(window, d)) for d in range(len(out))]


def loop_axes(window: Window, out: Sequence[int], size: Sequence[int]) -> list[LoopAxis]:
    """Return the axes of a window with C variables o0, i0, k0, ..."""
    return [LoopAxis(out[d], size[d], *_along(window, d), number=d) for d in range(len(out))]


def rows_and_columns(axes: Sequence[Axis]) -> tuple[Axis, Axis]:
    """Return two axes; a single one becomes the columns of one row."""
    rows, cols = axes if len(axes) == 2 else (SINGLE, *axes)
    return rows, cols


@cache  # costs are asked for thousands of times, of some dozen windows
def plane_axes(
    window: Window, out: tuple[int, ...], size: tuple[int, ...]
) -> tuple[Axis, Axis]:
    """Return the rows and the columns that a window of one axis or two is moved along."""
    return rows_and_columns(window_axes(window, out, size))


def _along(window: Window, d: int) -> tuple[int, int, int, int]:
    return window.kernel[d], window.strides[d], window.dilations[d], window.pads[d]
