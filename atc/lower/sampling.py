"""Lowerings of vision operators that sample, pool by region, unpool or unfold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.ir.expr import Expr, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops import MatMul, identity_epilogue
from atc.ir.ops.sampling import GridSample, RoiAlign, RoiPool
from atc.ir.view import View, dense
from atc.lower.builder import Builder
from atc.lower.concat_pad import crop, pad
from atc.lower.context import Site
from atc.lower.indexed_access import Place, clamped, scatter
from atc.lower.registry import lowers


def zeros(b: Builder, dtype: DType, shape: Sequence[int]) -> str:
    """Return a tensor of zeros that is made at run time, so that it may be written over."""
    return b.map(lambda: const(0, dtype), shape=shape, views=[])


# ---- grids --------------------------------------------------------------------------------------

GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What GridSample-16 called its modes."""


@lowers("GridSample")
def grid_sample(site: Site) -> str:
    """ONNX GridSample-22 for any number of spatial axes."""
    x, grid = site.type(0), site.type(1)
    rank = len(x.shape) - 2
    fits = rank > 0 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank
    site.require(fits and grid.shape[0] == x.shape[0], f"the grid is {grid} for {x}")
    default = "bilinear" if site.opset < 20 else "linear"
    mode = site.str("mode", default)
    mode, padding = GRID_MODES.get(mode, mode), site.str("padding_mode", "zeros")
    site.require(mode in ("nearest", "linear", "cubic"), f"mode '{mode}'")
    site.require(padding in ("zeros", "border", "reflection"), f"padding_mode '{padding}'")
    site.require(mode == "nearest" or x.dtype.is_float, f"{mode} interpolation of {x}")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if not prod(shape):
        return site.b.constant(np.empty(shape, x.dtype.numpy))
    site.require(x.size > 0, f"{x} is empty")
    op = GridSample(
        x.shape[0], x.shape[1], x.shape[2:], prod(grid.shape[1:-1]), mode, padding,
        bool(site.int("align_corners")),
    )  # fmt: skip
    return site.b.emit1(op, [site.input(0), site.input(1)], TensorType(x.dtype, shape))


@lowers("AffineGrid")
def affine_grid(site: Site) -> str:
    """ONNX AffineGrid-20: a constant grid times each matrix."""
    b, theta = site.b, site.type(0)
    batch, _, *spatial = site.ints_const(1, "the size")
    rank = len(spatial)
    site.require(rank in (2, 3) and theta.shape == (batch, rank, rank + 1), f"theta is {theta}")
    site.require(min(spatial) >= 0, f"size {spatial}")
    aligned = bool(site.int("align_corners"))
    axes = [_positions(n, aligned) for n in spatial]
    grids = np.meshgrid(*axes, indexing="ij")
    ones = np.ones(tuple(spatial))
    base = np.stack([*reversed(grids), ones], axis=-1).reshape(-1, rank + 1)
    shape = (batch, *spatial, rank)
    if not prod(shape):
        return b.constant(np.empty(shape, theta.dtype.numpy))
    work = DType.FLOAT if theta.dtype.is_half else theta.dtype
    op = MatMul(
        (batch,), len(base), rank, rank + 1, View((0, rank + 1, 1)),
        View((rank * (rank + 1), 1, rank + 1)), identity_epilogue(work), work,
    )  # fmt: skip
    names = [b.constant(base.astype(work.numpy)), b.cast(site.input(0), work)]
    return b.cast(b.emit1(op, names, TensorType(work, shape)), theta.dtype)


def _positions(n: int, aligned: bool) -> Array:
    """Return n places in [-1, 1]: from end to end, or the middles of n equal parts."""
    return np.linspace(-1, 1, n) if aligned else (2 * np.arange(n) + 1) / max(n, 1) - 1


# ---- regions ------------------------------------------------------------------------------------


def _check_regions(site: Site, columns: int) -> tuple[int, ...]:
    x, rois = site.type(0), site.type(1)
    site.require(len(x.shape) == 4 and x.dtype.is_float and x.size > 0, f"the input is {x}")
    fits = len(rois.shape) == 2 and rois.shape[1] == columns and rois.dtype is x.dtype
    site.require(fits, f"the regions are {rois}")
    return x.shape


@lowers("RoiAlign")
def roi_align(site: Site) -> str:
    """ONNX RoiAlign-22; before opset 16 coordinates are those of output_half_pixel."""
    batch, channels, height, width = _check_regions(site, 4)
    regions, dtype = site.shape(1)[0], site.type(0).dtype
    site.require(site.shape(2) == (regions,), f"the batch indices are {site.type(2)}")
    mode = site.str("mode", "avg").lower()
    site.require(mode in ("avg", "max"), f"mode '{mode}'")
    default = "half_pixel" if site.opset >= 16 else "output_half_pixel"
    coordinates = site.str("coordinate_transformation_mode", default).lower()
    known = coordinates in ("half_pixel", "output_half_pixel")
    site.require(known, f"coordinate_transformation_mode '{coordinates}'")
    out = (site.int("output_height", 1), site.int("output_width", 1))
    ratio = site.int("sampling_ratio", 0)
    site.require(min(out) > 0 and ratio >= 0, f"output {out}, sampling_ratio {ratio}")
    shape = (regions, channels, *out)
    if not prod(shape):
        return site.b.constant(np.empty(shape, dtype.numpy))
    op = RoiAlign(
        batch, channels, (height, width), regions, out, site.float("spatial_scale", 1.0), ratio,
        "Average" if mode == "avg" else "Max", coordinates == "half_pixel",
    )  # fmt: skip
    names = [site.input(0), site.input(1), site.b.cast(site.input(2), DType.INT64)]
    return site.b.emit1(op, names, TensorType(dtype, shape))


@lowers("MaxRoiPool")
def max_roi_pool(site: Site) -> str:
    """ONNX MaxRoiPool-22."""
    batch, channels, height, width = _check_regions(site, 5)
    regions, dtype = site.shape(1)[0], site.type(0).dtype
    out = site.ints("pooled_shape") or []
    site.require(len(out) == 2 and min(out) > 0, f"pooled_shape {out}")
    shape = (regions, channels, out[0], out[1])
    if not prod(shape):
        return site.b.constant(np.empty(shape, dtype.numpy))
    scale = site.float("spatial_scale", 1.0)
    op = RoiPool(batch, channels, (height, width), regions, (out[0], out[1]), scale)
    return site.b.emit1(op, [site.input(0), site.input(1)], TensorType(dtype, shape))


# ---- unpooling, unfolding -----------------------------------------------------------------------


@lowers("MaxUnpool")
def max_unpool(site: Site) -> str:
    """ONNX MaxUnpool-22: values scattered into zeros at the flat indices that MaxPool gave."""
    b, x = site.b, site.type(0)
    rank = len(x.shape) - 2
    kernel = site.ints("kernel_shape") or []
    strides = site.ints("strides") or [1] * rank
    pads = site.ints("pads") or [0] * (2 * rank)
    fits = rank > 0 and len(kernel) == len(strides) == rank and len(pads) == 2 * rank
    site.require(fits and site.shape(1) == x.shape, f"kernel {kernel} and indices {site.type(1)}")
    spatial = [
        (n - 1) * s - pads[d] - pads[rank + d] + k
        for d, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    site.require(min(spatial) > 0 or not x.size, f"the output is {spatial}")
    shape = (*x.shape[:2], *spatial)
    size = prod(shape)
    place = Place(x.shape, (site.input(1),), (dense(x.shape),), (), lambda i: clamped(i, size))
    y = scatter(b, zeros(b, x.dtype, shape), site.input(0), place, 1) if size else ""
    y = y or b.constant(np.empty(shape, x.dtype.numpy))
    if not site.has(2):
        return y
    wanted = site.ints_const(2, "the output shape")
    site.require(len(wanted) == rank + 2 and min(wanted) >= 0, f"output shape {wanted}")
    return pad(b, y, [0] * len(shape), [w - n for w, n in zip(wanted, shape, strict=True)])


@lowers("Col2Im")
def col2im(site: Site) -> str:
    """ONNX Col2Im-18: blocks added up in a framed image, the frame then cut off."""
    b, x = site.b, site.type(0)
    image, block = site.ints_const(1, "the image's shape"), site.ints_const(2, "the block's shape")
    rank = len(image)
    dilations = site.ints("dilations") or [1] * rank
    strides = site.ints("strides") or [1] * rank
    pads = site.ints("pads") or [0] * (2 * rank)
    ranks = {len(block), len(dilations), len(strides), len(pads) // 2}
    site.require(ranks == {rank} and min(strides) > 0, f"block {block}, pads {pads}")
    framed = [n + pads[d] + pads[rank + d] for d, n in enumerate(image)]
    reach = [n - d * (k - 1) - 1 for n, d, k in zip(framed, dilations, block, strict=True)]
    site.require(min(reach) >= 0, f"block {block} is larger than the image {image}")
    counts = [r // s + 1 for r, s in zip(reach, strides, strict=True)]
    site.require(len(x.shape) == 3, f"the input is {x}")
    planes = x.shape[0] * x.shape[1] // max(prod(block), 1)
    site.require(
        x.shape[1] % prod(block) == 0 and x.shape[2] == prod(counts),
        f"{x} for {counts} blocks of {block}",
    )
    steps = row_major(framed)
    taps = [d * s for d, s in zip(dilations, steps, strict=True)]
    moves = [s * t for s, t in zip(strides, steps, strict=True)]
    loops = (planes, *block, *counts)
    place = Place(loops, (), (), (View((prod(framed), *taps, *moves)),), _itself, proven=True)
    y = scatter(b, zeros(b, x.dtype, (planes, *framed)), site.input(0), place, 1, "add")
    y = crop(b, y, [0, *pads[:rank]], [0, *pads[rank:]])
    return b.reshape(y, (x.shape[0], x.shape[1] // prod(block), *image))


def _itself(place: Expr) -> Expr:
    return place


@lowers("CenterCropPad")
def center_crop_pad(site: Site) -> str:
    """ONNX CenterCropPad-18: negative pads crop; an odd element is cut, or added, at the end."""
    shape = site.shape(0)
    rank = len(shape)
    axes = [site.axis(a, rank) for a in site.ints("axes") or range(rank)]
    wanted = site.ints_const(1, "the shape")
    site.require(len(wanted) == len(axes) and min(wanted, default=0) >= 0, f"shape {wanted}")
    begins, ends = [0] * rank, [0] * rank
    for axis, n in zip(axes, wanted, strict=True):
        more = n - shape[axis]
        begins[axis] = more // 2 if more > 0 else -(-more // 2)
        ends[axis] = more - begins[axis]
    return pad(site.b, site.input(0), begins, ends)
