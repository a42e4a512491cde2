"""Resizing and sampling: UpSampling, BilinearResize2D, BilinearSampler and its grids."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.params import Array
from atc.importers.mxnet.tensor import Tensor


@translates("UpSampling")
def upsampling(s: NodeContext) -> Tensor:
    """Repeat pixels, or a Deconvolution with the given bilinear weight."""
    s.rank(4)
    scale = s.integer("scale")
    s.require(0 < scale <= 1 << 16, f"scale is {scale}")
    if s.word("sample_type", None, ("nearest", "bilinear")) == "bilinear":
        return _upsample_bilinear(s, scale)
    size = [d * scale for d in s.x.shape[2:]]
    layers = [_upsample_nearest(s, x, size) for x in s.inputs]
    if len(layers) > 1 and s.word("multi_input_mode", "concat") == "sum":
        return s.b.op("Sum", *layers)
    return s.b.concat(layers, 1)


def _upsample_nearest(s: NodeContext, x: Tensor, size: Sequence[int]) -> Tensor:
    whole = x.rank == 4 and all(n % d == 0 for n, d in zip(size, x.shape[2:], strict=True))
    s.require(whole, f"{list(x.shape)} doesn't fit {list(size)}")
    return s.b.op(
        "Resize", x, None, None, [*x.shape[:2], *size], mode="nearest",
        coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def _upsample_bilinear(s: NodeContext, scale: int) -> Tensor:
    channels, kernel, pad = s.x.shape[1], 2 * scale - scale % 2, scale // 2
    weight = s.input(1)
    s.require(weight.shape == (channels, 1, kernel, kernel),
              f"the weight has the shape {list(weight.shape)}")  # fmt: skip
    return s.b.op(
        "ConvTranspose", s.x, weight, kernel_shape=[kernel] * 2, strides=[scale] * 2,
        pads=[pad] * 4, group=channels,
    )  # fmt: skip


@translates("_contrib_BilinearResize2D")
def bilinear_resize(s: NodeContext) -> Tensor:
    """Resize, linear, corners aligned unless `align_corners` is False."""
    s.rank(4)
    size = _resized(s)
    s.require(all(0 < n <= 1 << 24 for n in size), f"the size {size}")
    mode = "align_corners" if s.truth("align_corners", True) else "half_pixel"
    return s.b.op(
        "Resize", s.x, None, None, [*s.x.shape[:2], *size], mode="linear",
        coordinate_transformation_mode=mode,
    )  # fmt: skip


def _resized(s: NodeContext) -> list[int]:
    """Return the new height and width by the mode."""
    mode = s.word("mode", "size")
    extent = s.x.shape[2:]
    scales = [s.maybe_number("scale_height"), s.maybe_number("scale_width")]
    match mode:
        case "size" if scales[0] is None:
            return [s.integer("height", 1), s.integer("width", 1)]
        case "like":
            s.require(s.input(1).rank == 4, "the second input is not an image")
            return list(s.input(1).shape[2:])
        case "to_even_down":
            return [n - n % 2 for n in extent]
        case "to_even_up":
            return [n + n % 2 for n in extent]
        case "to_odd_down":
            return [n - 1 + n % 2 for n in extent]
        case "to_odd_up":
            return [n + 1 - n % 2 for n in extent]
        case "size" | "odd_scale":
            return [_scaled(s, n, k, mode) for n, k in zip(extent, scales, strict=True)]
        case _:
            raise s.unsupported(f"mode={mode[:80]!r}")


def _scaled(s: NodeContext, length: int, scale: float | None, mode: str) -> int:
    s.require(scale is not None and 0 < scale < 1 << 20, "scale_height or scale_width")
    factor = float(scale or 1)
    if mode == "odd_scale" and length % 2:
        return int((length - 1) * factor) + 1
    return int(length * factor)


# ---- sampling on a grid ------------------------------------------------------------------------


@translates("BilinearSampler")
def bilinear_sampler(s: NodeContext) -> Tensor:
    """GridSample with zeros outside; the grid is (N, 2, H, W)."""
    s.rank(4)
    return _sample(s, s.input(1))


def _sample(s: NodeContext, grid: Tensor) -> Tensor:
    s.require(grid.rank == 4 and grid.shape[1] == 2, f"the grid has the shape {list(grid.shape)}")
    points = s.b.transpose(grid, [0, 2, 3, 1])
    return s.b.op(
        "GridSample", s.x, points, mode="linear", padding_mode="zeros", align_corners=1
    )


@translates("GridGenerator")
def grid_generator(s: NodeContext) -> Tensor:
    """Return the sampling points (N, 2, H, W) of affine matrices or of a flow."""
    if s.word("transform_type", None, ("affine", "warp")) == "affine":
        return _affine_grid(s, s.x)
    s.rank(4)
    height, width = s.x.shape[2:]
    s.require(height * width <= 1 << 22, "the grid is too large")
    y, x = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    index = s.b.constant(np.stack([x, y])[None].astype(s.x.dtype))
    half = np.asarray([(width - 1) / 2, (height - 1) / 2]).reshape(1, 2, 1, 1).astype(s.x.dtype)
    place = s.b.op("Add", s.x, index)
    return s.b.op("Sub", s.b.op("Div", place, s.b.constant(half)), 1.0)


def _affine_grid(s: NodeContext, theta: Tensor) -> Tensor:
    height, width = s.spatial("target_shape", 2, 0)
    s.require(height > 0 and width > 0 and height * width <= 1 << 22, "target_shape")
    s.require(theta.rank >= 2 and prod(theta.shape[1:]) == 6, "the matrices are not 2 x 3")
    y, x = np.meshgrid(_ends(height), _ends(width), indexing="ij")
    points = np.stack([x, y, np.ones_like(x)]).reshape(3, -1).astype(theta.dtype)
    matrices = s.b.reshape(theta, [theta.shape[0], 2, 3])
    flat = s.b.op("MatMul", matrices, s.b.constant(points))
    return s.b.reshape(flat, [theta.shape[0], 2, height, width])


def _ends(count: int) -> Array:
    """Return coordinates from -1 to 1."""
    return -1 + np.arange(count) * (2 / max(count - 1, 1))


@translates("SpatialTransformer")
def spatial_transformer(s: NodeContext) -> Tensor:
    """Sample the data on the grid of affine matrices."""
    s.rank(4)
    return _sample(s, _affine_grid(s, s.input(1)))
