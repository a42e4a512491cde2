"""Operators that sample, and that choose boxes, in numpy: onnx's own are loops in Python.

Its GridSample takes coordinates in float32, knows only the modes' newer names and moves places
where torch and onnxruntime move a cubic's neighbours; its RoiAlign knows no opset below 16, its
NonMaxSuppression needs all of its inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops import op_roi_align

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
Booleans = np.ndarray[Any, np.dtype[np.bool_]]

CUBIC = -0.75
"""The coefficient of the cubic convolution."""
ROI_MODE_SINCE = 16
"""The opset in which RoiAlign got its coordinate_transformation_mode."""
FAR = 2.0**31
"""Coordinates beyond that are taken for it: they are outside of any image."""


class GridSample(OpRun):
    """ONNX's GridSample of any rank."""

    op_domain = ""

    def _run(
        self, x: Floats, grid: Floats, *, mode: str = "linear", padding_mode: str = "zeros",
        align_corners: int = 0,
    ) -> tuple[Floats]:  # fmt: skip
        extents = x.shape[2:]
        places = np.moveaxis(grid.astype(np.float64), -1, 0)[::-1]
        at = [
            (g + 1) / 2 * (n - 1) if align_corners else ((g + 1) * n - 1) / 2
            for g, n in zip(places, extents, strict=True)
        ]
        at = at if mode != "nearest" else [np.rint(a) for a in at]
        if not (padding_mode == "border" and mode in ("cubic", "bicubic")):  # as torch has it
            pairs = zip(at, extents, strict=True)
            at = [_inside(a, n, padding_mode, align_corners) for a, n in pairs]

        def pixel(index: Integers, n: int) -> tuple[Integers, Booleans]:
            within = (index >= 0) & (index < n)
            if padding_mode == "reflection":
                index = _inside(index, n, padding_mode, align_corners).astype(np.int64)
            return index.clip(0, n - 1), within | (padding_mode != "zeros")

        return (_interpolated(x, at, _TAPS[mode], pixel),)


class DeformConv(OpRun):
    """ONNX's DeformConv of two spatial axes."""

    op_domain = ""

    def _run(
        self, x: Floats, w: Floats, offset: Floats, bias: Floats | None = None,
        mask: Floats | None = None, *, dilations: Sequence[int] | None = None, group: int = 1,
        kernel_shape: Sequence[int] | None = None, offset_group: int = 1,
        pads: Sequence[int] | None = None, strides: Sequence[int] | None = None,
    ) -> tuple[Floats]:  # fmt: skip
        batch, channels, height, width = x.shape
        rows, columns = offset.shape[2:]
        taps = [*np.ndindex(*w.shape[2:])]
        moved = offset.reshape(batch, offset_group, len(taps), 2, rows, columns)
        parts = x.reshape(batch * offset_group, channels // offset_group, height, width)
        steps, gaps, before = strides or (1, 1), dilations or (1, 1), pads or (0, 0, 0, 0)
        weights = w.reshape(group, w.shape[0] // group, w.shape[1], len(taps))
        y = np.zeros((batch, group, w.shape[0] // group, rows, columns))

        def pixel(index: Integers, n: int) -> tuple[Integers, Booleans]:
            return index.clip(0, n - 1), (index >= 0) & (index < n)

        for k, tap in enumerate(taps):
            places = np.meshgrid(
                *(np.arange(n) * steps[d] + tap[d] * gaps[d] - before[d]
                  for d, n in enumerate((rows, columns))), indexing="ij",
            )  # fmt: skip
            at = [(moved[:, :, k, d] + places[d]).reshape(-1, rows, columns) for d in (0, 1)]
            sampled = _interpolated(parts, at, _linear, pixel)
            if mask is not None:
                weight = mask.reshape(batch * offset_group, len(taps), rows, columns)[:, k]
                sampled = sampled * weight[:, None]
            seen = sampled.reshape(batch, group, -1, rows, columns)
            y += np.einsum("gmc,bgchw->bgmhw", weights[..., k], seen)
        y = y.reshape(batch, -1, rows, columns)
        return (y if bias is None else y + bias.reshape(-1, 1, 1),)


class RoiAlign(op_roi_align.RoiAlign):
    """ONNX's RoiAlign; onnx's own for maxima."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self, x: Floats, rois: Floats, batch: Integers, *,
        coordinate_transformation_mode: str = "half_pixel", mode: str = "avg",
        output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
        spatial_scale: float = 1.0,
    ) -> tuple[Floats]:  # fmt: skip
        old = self.run_params["opsets"][""] < ROI_MODE_SINCE
        coordinates = "output_half_pixel" if old else coordinate_transformation_mode.lower()
        if mode.lower() != "avg":
            found: tuple[Floats] = super()._run(  # type: ignore[no-untyped-call]
                x, rois, batch, coordinates, mode, output_height, output_width, sampling_ratio,
                spatial_scale,
            )
            return found
        half = coordinates == "half_pixel"
        y = np.empty((len(rois), x.shape[1], output_height, output_width))
        for k, (x1, y1, x2, y2) in enumerate(rois * spatial_scale - 0.5 * half):
            rows = _averages(y1, y2, output_height, x.shape[2], sampling_ratio, half)
            columns = _averages(x1, x2, output_width, x.shape[3], sampling_ratio, half)
            down, across = _used(rows), _used(columns)
            part = x[int(batch[k]), :, down, across]
            y[k] = rows[:, down] @ part @ columns[:, across].T
        return (y,)


class NonMaxSuppression(OpRun):
    """ONNX's NonMaxSuppression."""

    op_domain = ""

    def _run(
        self, boxes: Floats, scores: Floats, most: Integers | None = None,
        overlap: Floats | None = None, least: Floats | None = None, *, center_point_box: int = 0,
    ) -> tuple[Integers]:  # fmt: skip
        limit, allowed = (0 if a is None or not a.size else a.item() for a in (most, overlap))
        kept = [
            (n, c, k)
            for n, c in np.ndindex(*scores.shape[:2])
            for k in _chosen(
                _corners(boxes[n], bool(center_point_box)), scores[n, c], int(limit), allowed,
                -np.inf if least is None or not least.size else least.item(),
            )
        ]  # fmt: skip
        return (np.array(kept, np.int64).reshape(-1, 3),)


SAMPLING = (DeformConv, GridSample, NonMaxSuppression, RoiAlign)
"""What is evaluated here in all opsets."""

# ---- samples -------------------------------------------------------------------------------------

Taps = Callable[[Floats], Iterator[tuple[int, Floats]]]
"""Yields the distance of each pixel from the one at or before a coordinate, and its weight."""
Pixel = Callable[[Integers, int], tuple[Integers, Booleans]]
"""Returns where the pixels of indices are in an axis, and which count."""


def _interpolated(x: Floats, at: Sequence[Floats], taps: Taps, pixel: Pixel) -> Floats:
    """Return samples [N, C, *places] of x at coordinates [N, *places], one per spatial axis."""
    axes = []
    for a, n in zip(at, x.shape[2:], strict=True):
        known = np.nan_to_num(a, nan=-FAR).clip(-FAR, FAR)
        first = np.floor(known).astype(np.int64)
        axes.append([(*pixel(first + step, n), w) for step, w in taps(known - first)])
    count, channels = x.shape[:2]
    images = np.arange(count).reshape(-1, *[1] * (at[0].ndim - 1))
    pixels = np.moveaxis(x, 1, -1)
    y = np.zeros((*at[0].shape, channels))
    for chosen in product(*axes):
        weight = np.ones(at[0].shape)
        for _, counts, w in chosen:
            weight = weight * np.where(counts, w, 0.0)
        y += pixels[(images, *(index for index, _, _ in chosen))] * weight[..., None]
    return np.moveaxis(y, -1, 1)


def _nearest(_: Floats) -> Iterator[tuple[int, Floats]]:
    yield 0, np.ones(())


def _linear(part: Floats) -> Iterator[tuple[int, Floats]]:
    yield 0, 1 - part
    yield 1, part


def _cubic(part: Floats) -> Iterator[tuple[int, Floats]]:
    for step in (-1, 0, 1, 2):
        t = np.abs(part - step)
        near = ((CUBIC + 2) * t - (CUBIC + 3)) * t * t + 1
        far = ((CUBIC * t - 5 * CUBIC) * t + 8 * CUBIC) * t - 4 * CUBIC
        yield step, near if step in (0, 1) else far


_TAPS: dict[str, Taps] = {
    "nearest": _nearest, "linear": _linear, "bilinear": _linear, "cubic": _cubic,
    "bicubic": _cubic,
}  # fmt: skip


def _inside(at: Any, n: int, padding: str, aligned: int) -> Floats:
    """Return coordinates outside of an axis moved to where the padding has them."""
    low, high = (0.0, n - 1.0) if aligned else (-0.5, n - 0.5)
    if padding == "zeros":
        return np.asarray(at)
    outside = (at < low) | (at > high)
    moved = np.clip(at, 0, n - 1)
    if padding == "reflection":
        span = high - low
        turn = np.mod(at - low, 2 * span) if span else np.zeros(np.shape(at))
        moved = low + np.minimum(turn, 2 * span - turn)
    return np.asarray(np.where(outside, moved, at))


# ---- regions -------------------------------------------------------------------------------------


def _averages(
    start: float, end: float, bins: int, extent: int, ratio: int, half: bool
) -> Floats:
    """Return the weights [bins, extent] of an axis' pixels in the averages of a region."""
    size = end - start if half else max(end - start, 1.0)
    grid = ratio if ratio > 0 else int(np.ceil(size / bins))
    weights = np.zeros((bins, extent))
    if grid < 1:
        return weights
    steps = np.arange(bins)[:, None] + (np.arange(grid) + 0.5) / grid
    at = start + steps * (size / bins)
    inside = (at >= -1) & (at <= extent)
    at = np.where(inside, at, 0.0).clip(0, extent - 1)
    first = at.astype(np.int64)
    part, every = at - first, np.broadcast_to(np.arange(bins)[:, None], at.shape)
    np.add.at(weights, (every, first), np.where(inside, 1 - part, 0.0) / grid)
    np.add.at(weights, (every, (first + 1).clip(0, extent - 1)), np.where(inside, part, 0.0) / grid)
    return weights


def _used(weights: Floats) -> slice:
    """Return the pixels of an axis that have weights."""
    used = np.flatnonzero(weights.any(0))
    return slice(int(used[0]), int(used[-1]) + 1) if used.size else slice(0, 0)


# ---- boxes ---------------------------------------------------------------------------------------


def _corners(boxes: Floats, centers: bool) -> tuple[Floats, Floats]:
    """Return the lower and the upper corners of boxes."""
    first, second = boxes[:, :2], boxes[:, 2:]
    if centers:
        return first - second / 2, first + second / 2
    return np.minimum(first, second), np.maximum(first, second)


def _chosen(
    corners: tuple[Floats, Floats], scores: Floats, limit: int, allowed: float, least: float
) -> list[int]:
    """Return the best boxes, none of which overlaps a better one by more than is allowed."""
    low, high = corners
    areas = (high - low).prod(1)
    left = np.argsort(-scores, kind="stable")
    left = left[scores[left] > least]
    kept: list[int] = []
    while left.size and len(kept) < limit:
        best, left = int(left[0]), left[1:]
        kept.append(best)
        shared = np.minimum(high[best], high[left]) - np.maximum(low[best], low[left])
        common = np.where((shared > 0).all(1), shared.prod(1), 0.0)
        union = areas[best] + areas[left] - common
        possible = (common > 0) & (areas[left] > 0) & (areas[best] > 0) & (union > 0)
        left = left[~(possible & (common / np.where(possible, union, 1.0) > allowed))]
    return kept
