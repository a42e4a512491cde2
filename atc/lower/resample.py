"""Interpolation tables: which elements of an axis a resized one is made of, and how much of each.

All of it happens when compiling. Coordinates are computed in float32, as common runtimes do, so
that ties of `nearest` fall to the same side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from atc.ir.graph import Array

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Axis:
    """One axis to be resized: extents, scale, and the part of it (0..1) that is looked at."""

    size: int
    out: int
    scale: float
    start: float = 0.0
    end: float = 1.0

    @property
    def width(self) -> np.float32:
        """The resized extent before it was rounded to an integer."""
        return np.float32(self.scale) * np.float32(self.size)

    @property
    def is_identity(self) -> bool:
        """Whether nothing is resized or cut."""
        return self.size == self.out and self.scale == 1 and (self.start, self.end) == (0, 1)


@dataclass(frozen=True)
class Sampling:
    """The interpolation of values: the attributes of ONNX Resize-19."""

    mode: str
    coordinates: str
    nearest: str = "round_prefer_floor"
    cubic_a: float = -0.75
    antialias: bool = False
    exclude_outside: bool = False


def _half_pixel(q: Floats, axis: Axis) -> Floats:
    return (q + np.float32(0.5)) / np.float32(axis.scale) - np.float32(0.5)


def _pytorch_half_pixel(q: Floats, axis: Axis) -> Floats:
    return np.zeros_like(q) if axis.out == 1 else _half_pixel(q, axis)


def _half_pixel_symmetric(q: Floats, axis: Axis) -> Floats:
    shift = np.float32(axis.size) / 2 * (1 - np.float32(axis.out) / axis.width)
    return shift + _half_pixel(q, axis)


def _align_corners(q: Floats, axis: Axis) -> Floats:
    if axis.width == 1:
        return np.zeros_like(q)
    return q * np.float32(axis.size - 1) / (axis.width - np.float32(1))


def _crop(q: Floats, axis: Axis) -> Floats:
    last = np.float32(axis.size - 1)
    start, end = np.float32(axis.start), np.float32(axis.end)
    if axis.width == 1:
        return np.full_like(q, (start + end) * last / 2)
    return start * last + q * (end - start) * last / (axis.width - np.float32(1))


COORDINATES: Mapping[str, Callable[[Floats, Axis], Floats]] = {
    "half_pixel": _half_pixel,
    "pytorch_half_pixel": _pytorch_half_pixel,
    "half_pixel_symmetric": _half_pixel_symmetric,
    "align_corners": _align_corners,
    "asymmetric": lambda q, axis: q / np.float32(axis.scale),
    "tf_half_pixel_for_nn": lambda q, axis: (q + np.float32(0.5)) / np.float32(axis.scale),
    "tf_crop_and_resize": _crop,
}
"""Where an element of the resized axis lies on the original one, by ONNX's name."""


def source_coordinates(axis: Axis, coordinates: str) -> Floats:
    """Return the place on the original axis of each element of the resized one."""
    q = np.arange(axis.out, dtype=np.float32)
    return COORDINATES[coordinates](q, axis).astype(np.float32)


TIE = 1e-6
"""How near to a half still counts as a half, float32 rounding being what it is."""

ROUNDINGS: Mapping[str, Callable[[npt.NDArray[np.float64], float], Array]] = {
    "round_prefer_floor": lambda x, scale: np.ceil(x - (0.5 + TIE)),
    "round_prefer_ceil": lambda x, scale: np.floor(x + (0.5 + TIE)),
    "floor": lambda x, scale: np.floor(x),
    "ceil": lambda x, scale: np.ceil(x),
    "simple": lambda x, scale: np.ceil(x) if scale < 1 else np.floor(x),
}
"""The nearest element to a place, by ONNX's name; `simple` is what Resize-10 did."""


def nearest_table(axis: Axis, sampling: Sampling) -> Array:
    """Return the index of the element that each resized one repeats."""
    if axis.is_identity:
        return np.arange(axis.out)
    x = source_coordinates(axis, sampling.coordinates).astype(np.float64)
    index = ROUNDINGS[sampling.nearest](x, axis.scale).astype(np.int64)
    return np.clip(index, 0, axis.size - 1)


def weight_tables(axis: Axis, sampling: Sampling) -> tuple[Array, Array]:
    """Return the indices and weights [out, taps] of the elements that each resized one sums.

    With `antialias` the kernel widens as the axis shrinks. Elements outside the axis repeat its
    edge, or with `exclude_outside` have no weight. An element that all taps repeat is shared
    evenly, so that it is the result to the last bit, infinities included.
    """
    if axis.is_identity:
        return np.arange(axis.out)[:, None], np.ones((axis.out, 1))
    x = source_coordinates(axis, sampling.coordinates).astype(np.float64)
    left = np.ceil(x) - 1
    shrink = min(axis.scale, 1.0) if sampling.antialias else 1.0
    radius = 2 if sampling.mode == "cubic" else 1
    first = int(np.floor(-radius / shrink)) + 1
    offsets = np.arange(first, 2 - first)
    distance = np.abs(offsets - (x - left)[:, None]) * shrink
    weight = _cubic(distance, sampling.cubic_a) if radius == 2 else np.clip(1 - distance, 0, 1)
    index = (left[:, None] + offsets).astype(np.int64)
    if sampling.exclude_outside:
        weight = np.where((index < 0) | (index >= axis.size), 0.0, weight)
    sums = weight.sum(axis=1, keepdims=True)
    if sampling.antialias or sampling.exclude_outside:
        weight = weight / np.where(sums == 0, 1.0, sums)
    used = np.any(weight != 0, axis=0)
    used[0] |= not used.any()
    index, weight = np.clip(index, 0, axis.size - 1)[:, used], weight[:, used]
    repeated = np.all(index == index[:, :1], axis=1, keepdims=True)
    return index, np.where(repeated, weight.mean(axis=1, keepdims=True), weight)


def _cubic(distance: Array, a: float) -> Array:
    """Return Keys' cubic convolution kernel at these distances."""
    d = np.asarray(distance, np.float64)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def outside(axis: Axis, sampling: Sampling) -> Array:
    """Return which elements a crop takes from outside the axis."""
    if sampling.coordinates != "tf_crop_and_resize" or axis.is_identity:
        return np.zeros(axis.out, np.bool_)
    x = source_coordinates(axis, sampling.coordinates)
    return np.asarray((x < 0) | (x > axis.size - 1))
