"""What transposed convolutions under test have, of floats and of integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Transposed:
    """A transposed convolution that is the same along all axes of an image."""

    kernel: int
    stride: int
    pad: int = 0
    more: int = 0
    """Output padding."""
    channels: int = 16
    filters: int = 16
    size: tuple[int, ...] = (6, 7)
    group: int = 1
    dilation: int = 1
