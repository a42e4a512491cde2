"""Lowerings of Resize and Upsample: views where they repeat evenly, else constant tables."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.dims import Dim, is_dynamic, upper_bound
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops.sampling import Resample
from atc.ir.view import View, affine_table
from atc.lower.builder import MAX_ELEMENTS, Builder
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, gather, take, total
from atc.lower.registry import lowers
from atc.lower.resample import (
    COORDINATES,
    ROUNDINGS,
    Axis,
    Sampling,
    nearest_table,
    outside,
    weight_tables,
)
from atc.lower.resize_ranges import OpenAxis, resize_axis, scaled

POLICIES = ("stretch", "not_larger", "not_smaller")


@lowers("Upsample")
def upsample(ctx: LoweringContext) -> str:
    """ONNX Upsample-9, deprecated: asymmetric coordinates, nearest below."""
    return resize(ctx, *upsampling(ctx))


@lowers("Resize")
def lower_resize(ctx: LoweringContext) -> str:
    """ONNX Resize-19 in all modes; scales and roi are constants, sizes may be bounded."""
    return resize(ctx, *resizing(ctx))


def upsampling(ctx: LoweringContext) -> tuple[list[Axis], Sampling]:
    """Return how an Upsample changes each axis."""
    if ctx.opset >= 9:
        scales = _floats(ctx, 1, "the scales") or []
    elif ctx.opset >= 7:
        scales = ctx.floats("scales") or []
    else:
        scales = [1.0, 1.0, ctx.float("height_scale"), ctx.float("width_scale")]
    axes = _scaled_axes(ctx, scales, range(len(ctx.shape(0))))
    mode = ctx.str("mode", "nearest").replace("bilinear", "linear")
    return axes, _checked(ctx, Sampling(mode, "asymmetric", "floor"))


def resizing(ctx: LoweringContext) -> tuple[list[Axis], Sampling]:
    """Return how a Resize changes each axis."""
    if ctx.opset < 11:
        old = Sampling(ctx.str("mode", "nearest"), "asymmetric", "simple")
        factors = _floats(ctx, 1, "the scales") or []
        return _scaled_axes(ctx, factors, range(len(ctx.shape(0)))), _checked(ctx, old)
    rank = len(ctx.shape(0))
    given = ctx.ints("axes") if ctx.opset >= 18 else None
    chosen = range(rank) if given is None else [ctx.axis(a, rank) for a in given]
    sampling = Sampling(
        ctx.str("mode", "nearest"),
        ctx.str("coordinate_transformation_mode", "half_pixel"),
        ctx.str("nearest_mode", "round_prefer_floor"),
        ctx.float("cubic_coeff_a", -0.75),
        bool(ctx.int("antialias")),
        bool(ctx.int("exclude_outside")),
    )
    scales = _floats(ctx, 2, "the scales")
    sizes = ctx.ints_const(3, "the sizes", least=0) if ctx.has(3) and ctx.type(3).size else None
    ctx.require((scales is None) != (sizes is None), "give either scales or sizes")
    if scales is not None:
        axes = _scaled_axes(ctx, scales, chosen)
    else:
        axes = _sized_axes(ctx, sizes or [], chosen)
    return _with_roi(ctx, axes, sampling, chosen), _checked(ctx, sampling)


def _checked(ctx: LoweringContext, sampling: Sampling) -> Sampling:
    ctx.require(sampling.mode in ("nearest", "linear", "cubic"), f"mode '{sampling.mode}'")
    known = sampling.coordinates in COORDINATES
    ctx.require(known, f"coordinate_transformation_mode '{sampling.coordinates}'")
    ctx.require(sampling.nearest in ROUNDINGS, f"nearest_mode '{sampling.nearest}'")
    return sampling


def _floats(ctx: LoweringContext, i: int, what: str) -> list[float] | None:
    """Return a constant input; None where it is absent or, as Resize-11 has it, empty."""
    if not ctx.has(i) or ctx.type(i).size == 0:
        return None
    return [float(v) for v in np.asarray(ctx.required_const(i, what)).reshape(-1)]


# ---- extents ------------------------------------------------------------------------------------


def _unchanged(ctx: LoweringContext) -> list[Axis]:
    return [Axis(n, n, 1.0) for n in ctx.shape(0)]


def _scaled_axes(
    ctx: LoweringContext, scales: Sequence[float], chosen: Sequence[int]
) -> list[Axis]:
    ctx.require(len(scales) == len(chosen), f"{len(scales)} scales for {len(chosen)} axes")
    axes = _unchanged(ctx)
    for d, scale in zip(chosen, scales, strict=True):
        ctx.require(np.isfinite(scale) and scale > 0, f"scale {scale}")
        if scale == 1:
            continue
        if isinstance(axes[d].size, Dim):
            axes[d] = Axis(axes[d].size, scaled(ctx, axes[d].size, scale), scale)
            continue
        out = int(np.floor(np.float32(scale) * np.float32(axes[d].size)))
        axes[d] = Axis(axes[d].size, out, scale)
    return axes


def _sized_axes(ctx: LoweringContext, sizes: Sequence[int], chosen: Sequence[int]) -> list[Axis]:
    ctx.require(len(sizes) == len(chosen), f"{len(sizes)} sizes for {len(chosen)} axes")
    axes = _unchanged(ctx)
    policy = ctx.str("keep_aspect_ratio_policy", "stretch") if ctx.opset >= 18 else "stretch"
    ctx.require(policy in POLICIES, f"keep_aspect_ratio_policy '{policy}'")
    ctx.require(all(n >= 0 for n in sizes), f"sizes {list(sizes)} are negative")
    if is_dynamic((*sizes, *ctx.shape(0))):
        ctx.require(policy == "stretch", f"keep_aspect_ratio_policy '{policy}' of a range")
        for d, size in zip(chosen, sizes, strict=True):
            ratio = 0.0 if is_dynamic((size, axes[d].size)) else size / max(axes[d].size, 1)
            axes[d] = axes[d] if size == axes[d].size else Axis(axes[d].size, size, ratio)
        return axes
    empty = any(axes[d].size == 0 and n for d, n in zip(chosen, sizes, strict=True))
    ctx.require(not empty, f"sizes {list(sizes)} of an empty tensor")
    ratios = [n / max(axes[d].size, 1) for d, n in zip(chosen, sizes, strict=True)]
    for d, size, ratio in zip(chosen, sizes, ratios, strict=True):
        if policy != "stretch":
            ratio = min(ratios) if policy == "not_larger" else max(ratios)
            size = int(np.floor(ratio * axes[d].size + 0.5))
        axes[d] = Axis(axes[d].size, size, ratio)
    return axes


def _with_roi(
    ctx: LoweringContext, axes: list[Axis], sampling: Sampling, chosen: Sequence[int]
) -> list[Axis]:
    if sampling.coordinates != "tf_crop_and_resize":
        return axes
    roi = _floats(ctx, 1, "the region of interest")
    ctx.require(roi is not None, "tf_crop_and_resize needs a roi")
    roi = roi or []
    count = len(chosen)
    ctx.require(len(roi) == 2 * count, f"{len(roi)} numbers in the roi of {count} axes")
    result = list(axes)
    for k, d in enumerate(chosen):
        result[d] = Axis(axes[d].size, axes[d].out, axes[d].scale, roi[k], roi[count + k])
    return result


# ---- emitting -----------------------------------------------------------------------------------


def resize(ctx: LoweringContext, axes: Sequence[Axis], sampling: Sampling) -> str:
    """Return the node's first operand, resized."""
    shape = tuple(a.out for a in axes)
    b, x = ctx.b, ctx.input(0)
    dtype = b.type(x).dtype
    if not prod(shape):
        return b.constant(np.empty(shape, dtype.numpy))
    if upper_bound(prod(shape)) > MAX_ELEMENTS:
        raise ctx.unsupported(f"a tensor of {prod(shape)} elements is too large")
    ctx.require(all(a.size for a in axes), f"{ctx.type(0)} is empty")
    if is_dynamic(tuple(axes)):
        return _resize_open(ctx, axes, sampling)
    if sampling.mode == "nearest":
        result = _repeat(b, x, axes, [nearest_table(a, sampling) for a in axes])
    else:
        ctx.require(dtype is not DType.BOOL, f"{sampling.mode} interpolation of BOOL")
        result = _interpolate(b, x, axes, sampling)
    value = ctx.float("extrapolation_value", 0.0)
    return _extrapolate(b, result, [outside(a, sampling) for a in axes], value)


def _resize_open(ctx: LoweringContext, axes: Sequence[Axis], sampling: Sampling) -> str:
    """Resize axis by axis where extents are ranges: those that are fixed by tables as ever."""
    b, x = ctx.b, ctx.input(0)
    source = b.type(x).dtype
    work = DType.DOUBLE if source is DType.DOUBLE else DType.FLOAT
    wide = sampling.mode != "nearest"
    x = b.cast(x, work) if wide else x
    for d, axis in enumerate(axes):
        if axis.is_identity:
            continue
        if is_dynamic(axis):
            open_axis = OpenAxis(axis.size, axis.out, axis.scale or None)
            x = resize_axis(ctx, x, d, open_axis, sampling)
        elif wide:
            x = _resample(b, x, d, *weight_tables(axis, sampling), work)
        else:
            x = _repeat_axis(b, x, d, nearest_table(axis, sampling))
    return _rounded(b, x, source) if wide else x


def _repeat_axis(b: Builder, x: str, d: int, table: Array) -> str:
    """Read one axis by its table, beside axes that only the run knows: an even one is a view."""
    repeats, shape = _repeats(table), b.shape(x)
    even = affine_table(table.reshape(-1, repeats))
    if even is None:
        return take(b, x, d, table)
    outer, inner = prod(shape[:d]), prod(shape[d + 1 :])
    view = View((shape[d] * inner, *(s * inner for s in even.strides), 1), even.offset * inner)
    loops = (outer, len(table) // repeats, repeats, inner)
    return b.reshape(b.view(x, loops, view), (*shape[:d], len(table), *shape[d + 1 :]))


def _repeat(b: Builder, x: str, axes: Sequence[Axis], tables: Sequence[Array]) -> str:
    """Read each axis by its table. Even tables become views, of loops split where they repeat."""
    strides = row_major([a.size for a in axes])
    loops: list[int] = []
    steps: list[int] = []
    offset = 0
    uneven: list[tuple[int, Array]] = []
    for axis, table, stride in zip(axes, tables, strides, strict=True):
        repeats = _repeats(table)
        view = affine_table(table.reshape(-1, repeats))
        if view is None:
            uneven.append((len(loops), table * stride))
            loops.append(axis.out)
            steps.append(0)
        else:
            loops += [axis.out // repeats, repeats]
            steps += [s * stride for s in view.strides]
            offset += view.offset * stride
    shape = [a.out for a in axes]
    even = View(tuple(steps), offset)
    if not uneven:
        return b.reshape(b.view(x, loops, even), shape)
    return _gather_tables(b, x, loops, even, uneven, shape)


def _repeats(table: Array) -> int:
    """Return how often the first index repeats, if the table divides evenly by that."""
    changes = np.flatnonzero(np.diff(table))
    count = int(changes[0]) + 1 if changes.size else len(table)
    return count if len(table) % count == 0 else 1


def _gather_tables(
    b: Builder,
    x: str,
    loops: Sequence[int],
    even: View,
    uneven: Sequence[tuple[int, Array]],
    shape: Sequence[int],
) -> str:
    names = tuple(b.constant(table) for _, table in uneven)
    views = tuple(View(tuple(int(d == k) for d in range(len(loops)))) for k, _ in uneven)
    run, depth = _trailing_run(loops, even.strides)
    place = IndexedAccess(
        tuple(loops[:depth]),
        names,
        tuple(View(v.strides[:depth]) for v in views),
        (View(even.strides[:depth], even.offset),),
        lambda *terms: total(*terms),
        proven=True,
    )
    return gather(b, x, place, run, shape)


def _trailing_run(loops: Sequence[int], strides: Sequence[int]) -> tuple[int, int]:
    """Return the neighbours that the last loops read in order, and how many loops remain."""
    run, depth = 1, len(loops)
    while depth and (loops[depth - 1] == 1 or strides[depth - 1] == run):
        depth -= 1
        run *= loops[depth]
    return run, depth


def _interpolate(b: Builder, x: str, axes: Sequence[Axis], sampling: Sampling) -> str:
    """Resample axis by axis, the most shrinking first."""
    source = b.type(x)
    wide = source.dtype.itemsize > 2 and source.dtype is not DType.FLOAT
    work = DType.DOUBLE if wide else DType.FLOAT
    changing = [d for d, axis in enumerate(axes) if not axis.is_identity]
    for d in sorted(changing, key=lambda d: (axes[d].out / axes[d].size, d)):
        x = _resample(b, x, d, *weight_tables(axes[d], sampling), work)
    return _rounded(b, x, source.dtype)


def _rounded(b: Builder, x: str, dtype: DType) -> str:
    """Convert the sums back, integers towards zero and saturating."""
    if dtype.is_float or b.type(x).dtype is dtype:
        return b.cast(x, dtype)
    if dtype.itemsize <= 4:
        return b.map(lambda v: cast(v, dtype, saturate=True), x)
    if dtype.is_signed:
        return b.cast(x, dtype)
    return b.map(lambda v: cast(call("Max", v, const(0, v.dtype)), dtype), x)


def _resample(b: Builder, x: str, d: int, index: Array, weight: Array, work: DType) -> str:
    source = b.type(x)
    out, taps = index.shape
    if taps == 1 and (weight == 1).all():
        return take(b, x, d, index[:, 0])
    shape = (*source.shape[:d], out, *source.shape[d + 1 :])
    op = Resample(prod(shape[:d]), source.shape[d], prod(shape[d + 1 :]), out, taps)
    tables = [b.constant(index.astype(np.int64)), b.constant(weight.astype(work.numpy))]
    return b.emit1(op, [x, *tables], TensorType(work, shape))


def _extrapolate(b: Builder, y: str, masks: Sequence[Array], value: float) -> str:
    """Put a value where any axis is read outside."""
    used = [d for d, mask in enumerate(masks) if mask.any()]
    if not used:
        return y
    type_ = b.type(y)
    rank = len(type_.shape)
    names = [b.constant(masks[d].reshape([-1 if k == d else 1 for k in range(rank)])) for d in used]

    def chosen(x: Expr, first: Expr, *rest: Expr) -> Expr:
        for mask in rest:
            first = call("Or", first, mask)
        return call("Where", first, const(value, type_.dtype), x)

    return b.map(chosen, y, *names)
