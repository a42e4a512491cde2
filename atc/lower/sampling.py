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
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, clamped, scatter
from atc.lower.registry import lowers


def zeros(b: Builder, dtype: DType, shape: Sequence[int]) -> str:
    """Return a tensor of zeros that is made at run time, so that it may be written over."""
    return b.map(lambda: const(0, dtype), shape=shape, views=[])


# ---- grids --------------------------------------------------------------------------------------

GRID_MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""What GridSample-16 called its modes."""


@lowers("GridSample")
def grid_sample(ctx: LoweringContext) -> str:
    """ONNX GridSample-22 for any number of spatial axes."""
    x, grid = ctx.type(0), ctx.type(1)
    rank = len(x.shape) - 2
    fits = rank > 0 and len(grid.shape) == rank + 2 and grid.shape[-1] == rank
    ctx.require(fits and grid.shape[0] == x.shape[0], f"the grid is {grid} for {x}")
    default = "bilinear" if ctx.opset < 20 else "linear"
    mode = ctx.str("mode", default)
    mode, padding = GRID_MODES.get(mode, mode), ctx.str("padding_mode", "zeros")
    ctx.require(mode in ("nearest", "linear", "cubic"), f"mode '{mode}'")
    ctx.require(padding in ("zeros", "border", "reflection"), f"padding_mode '{padding}'")
    ctx.require(mode == "nearest" or x.dtype.is_float, f"{mode} interpolation of {x}")
    shape = (*x.shape[:2], *grid.shape[1:-1])
    if not prod(shape):
        return ctx.b.constant(np.empty(shape, x.dtype.numpy))
    ctx.require(x.size > 0, f"{x} is empty")
    op = GridSample(
        x.shape[0], x.shape[1], x.shape[2:], prod(grid.shape[1:-1]), mode, padding,
        bool(ctx.int("align_corners")),
    )  # fmt: skip
    return ctx.b.emit1(op, [ctx.input(0), ctx.input(1)], TensorType(x.dtype, shape))


@lowers("AffineGrid")
def affine_grid(ctx: LoweringContext) -> str:
    """ONNX AffineGrid-20: a constant grid times each matrix."""
    b, theta = ctx.b, ctx.type(0)
    batch, _, *spatial = ctx.ints_const(1, "the size")
    rank = len(spatial)
    ctx.require(rank in (2, 3) and theta.shape == (batch, rank, rank + 1), f"theta is {theta}")
    ctx.require(min(spatial) >= 0, f"size {spatial}")
    base = grid_places(spatial, bool(ctx.int("align_corners")))
    shape = (batch, *spatial, rank)
    if not prod(shape):
        return b.constant(np.empty(shape, theta.dtype.numpy))
    work = DType.FLOAT if theta.dtype.is_half else theta.dtype
    op = MatMul(
        (batch,), len(base), rank, rank + 1, View((0, rank + 1, 1)),
        View((rank * (rank + 1), 1, rank + 1)), identity_epilogue(work), work,
    )  # fmt: skip
    names = [b.constant(base.astype(work.numpy)), b.cast(ctx.input(0), work)]
    return b.cast(b.emit1(op, names, TensorType(work, shape)), theta.dtype)


def grid_places(spatial: Sequence[int], aligned: bool) -> Array:
    """Return the places [points, rank + 1] of a regular grid, the last axis first, then 1."""
    grids = np.meshgrid(*(_positions(n, aligned) for n in spatial), indexing="ij")
    ones = np.ones(tuple(spatial))
    return np.stack([*reversed(grids), ones], axis=-1).reshape(-1, len(spatial) + 1)


def _positions(n: int, aligned: bool) -> Array:
    """Return n places in [-1, 1]: from end to end, or the middles of n equal parts."""
    return np.linspace(-1, 1, n) if aligned else (2 * np.arange(n) + 1) / max(n, 1) - 1


# ---- regions ------------------------------------------------------------------------------------


def _check_regions(ctx: LoweringContext, columns: int) -> tuple[int, ...]:
    x, rois = ctx.type(0), ctx.type(1)
    ctx.require(len(x.shape) == 4 and x.dtype.is_float and x.size > 0, f"the input is {x}")
    fits = len(rois.shape) == 2 and rois.shape[1] == columns and rois.dtype is x.dtype
    ctx.require(fits, f"the regions are {rois}")
    return x.shape


@lowers("RoiAlign")
def roi_align(ctx: LoweringContext) -> str:
    """ONNX RoiAlign-22; before opset 16 coordinates are those of output_half_pixel."""
    batch, channels, height, width = _check_regions(ctx, 4)
    regions, dtype = ctx.shape(1)[0], ctx.type(0).dtype
    ctx.require(ctx.shape(2) == (regions,), f"the batch indices are {ctx.type(2)}")
    mode = ctx.str("mode", "avg").lower()
    ctx.require(mode in ("avg", "max"), f"mode '{mode}'")
    default = "half_pixel" if ctx.opset >= 16 else "output_half_pixel"
    coordinates = ctx.str("coordinate_transformation_mode", default).lower()
    known = coordinates in ("half_pixel", "output_half_pixel")
    ctx.require(known, f"coordinate_transformation_mode '{coordinates}'")
    out = (ctx.int("output_height", 1), ctx.int("output_width", 1))
    ratio = ctx.int("sampling_ratio", 0)
    ctx.require(min(out) > 0 and ratio >= 0, f"output {out}, sampling_ratio {ratio}")
    shape = (regions, channels, *out)
    if not prod(shape):
        return ctx.b.constant(np.empty(shape, dtype.numpy))
    op = RoiAlign(
        batch, channels, (height, width), regions, out, ctx.float("spatial_scale", 1.0), ratio,
        "Average" if mode == "avg" else "Max", coordinates == "half_pixel",
    )  # fmt: skip
    names = [ctx.input(0), ctx.input(1), ctx.b.cast(ctx.input(2), DType.INT64)]
    return ctx.b.emit1(op, names, TensorType(dtype, shape))


@lowers("MaxRoiPool")
def max_roi_pool(ctx: LoweringContext) -> str:
    """ONNX MaxRoiPool-22."""
    batch, channels, height, width = _check_regions(ctx, 5)
    regions, dtype = ctx.shape(1)[0], ctx.type(0).dtype
    out = ctx.ints("pooled_shape") or []
    ctx.require(len(out) == 2 and min(out) > 0, f"pooled_shape {out}")
    shape = (regions, channels, out[0], out[1])
    if not prod(shape):
        return ctx.b.constant(np.empty(shape, dtype.numpy))
    scale = ctx.float("spatial_scale", 1.0)
    op = RoiPool(batch, channels, (height, width), regions, (out[0], out[1]), scale)
    return ctx.b.emit1(op, [ctx.input(0), ctx.input(1)], TensorType(dtype, shape))


# ---- unpooling, unfolding -----------------------------------------------------------------------


@lowers("MaxUnpool")
def max_unpool(ctx: LoweringContext) -> str:
    """ONNX MaxUnpool-22: values scattered into zeros at the flat indices that MaxPool gave."""
    b, x = ctx.b, ctx.type(0)
    rank = len(x.shape) - 2
    kernel = ctx.ints("kernel_shape") or []
    strides = ctx.ints("strides") or [1] * rank
    pads = ctx.ints("pads") or [0] * (2 * rank)
    fits = rank > 0 and len(kernel) == len(strides) == rank and len(pads) == 2 * rank
    ctx.require(fits and ctx.shape(1) == x.shape, f"kernel {kernel} and indices {ctx.type(1)}")
    spatial = [
        (n - 1) * s - pads[d] - pads[rank + d] + k
        for d, (n, s, k) in enumerate(zip(x.shape[2:], strides, kernel, strict=True))
    ]
    ctx.require(min(spatial) > 0 or not x.size, f"the output is {spatial}")
    shape = (*x.shape[:2], *spatial)
    size = prod(shape)
    place = IndexedAccess(
        x.shape, (ctx.input(1),), (dense(x.shape),), (), lambda i: clamped(i, size)
    )
    y = scatter(b, zeros(b, x.dtype, shape), ctx.input(0), place, 1) if size else ""
    y = y or b.constant(np.empty(shape, x.dtype.numpy))
    if not ctx.has(2):
        return y
    wanted = ctx.ints_const(2, "the output shape")
    ctx.require(len(wanted) == rank + 2 and min(wanted) >= 0, f"output shape {wanted}")
    return pad(b, y, [0] * len(shape), [w - n for w, n in zip(wanted, shape, strict=True)])


@lowers("Col2Im")
def col2im(ctx: LoweringContext) -> str:
    """ONNX Col2Im-18: blocks added up in a framed image, the frame then cut off."""
    b, x = ctx.b, ctx.type(0)
    image, block = ctx.ints_const(1, "the image's shape"), ctx.ints_const(2, "the block's shape")
    rank = len(image)
    dilations = ctx.ints("dilations") or [1] * rank
    strides = ctx.ints("strides") or [1] * rank
    pads = ctx.ints("pads") or [0] * (2 * rank)
    ranks = {len(block), len(dilations), len(strides), len(pads) // 2}
    ctx.require(ranks == {rank} and min(strides) > 0, f"block {block}, pads {pads}")
    framed = [n + pads[d] + pads[rank + d] for d, n in enumerate(image)]
    reach = [n - d * (k - 1) - 1 for n, d, k in zip(framed, dilations, block, strict=True)]
    ctx.require(min(reach) >= 0, f"block {block} is larger than the image {image}")
    counts = [r // s + 1 for r, s in zip(reach, strides, strict=True)]
    ctx.require(len(x.shape) == 3, f"the input is {x}")
    planes = x.shape[0] * x.shape[1] // max(prod(block), 1)
    ctx.require(
        x.shape[1] % prod(block) == 0 and x.shape[2] == prod(counts),
        f"{x} for {counts} blocks of {block}",
    )
    steps = row_major(framed)
    taps = [d * s for d, s in zip(dilations, steps, strict=True)]
    moves = [s * t for s, t in zip(strides, steps, strict=True)]
    loops = (planes, *block, *counts)
    place = IndexedAccess(
        loops, (), (), (View((prod(framed), *taps, *moves)),), _itself, proven=True
    )
    y = scatter(b, zeros(b, x.dtype, (planes, *framed)), ctx.input(0), place, 1, "add")
    y = crop(b, y, [0, *pads[:rank]], [0, *pads[rank:]])
    return b.reshape(y, (x.shape[0], x.shape[1] // prod(block), *image))


def _itself(place: Expr) -> Expr:
    return place


@lowers("CenterCropPad")
def center_crop_pad(ctx: LoweringContext) -> str:
    """ONNX CenterCropPad-18: negative pads crop; an odd element is cut, or added, at the end."""
    shape = ctx.shape(0)
    rank = len(shape)
    axes = [ctx.axis(a, rank) for a in ctx.ints("axes") or range(rank)]
    wanted = ctx.ints_const(1, "the shape")
    ctx.require(len(wanted) == len(axes) and min(wanted, default=0) >= 0, f"shape {wanted}")
    begins, ends = [0] * rank, [0] * rank
    for axis, n in zip(axes, wanted, strict=True):
        more = n - shape[axis]
        begins[axis] = more // 2 if more > 0 else -(-more // 2)
        ends[axis] = more - begins[axis]
    return pad(ctx.b, ctx.input(0), begins, ends)
