"""Lowerings of operators that only rename or move data: all become views, reshapes or copies."""

from __future__ import annotations

from math import prod

import numpy as np

from atc.dims import (
    Dim,
    equals,
    is_data_dependent,
    is_dynamic,
    lower_bound,
    maximum,
    minimum,
    plain,
    same_unrounded,
    upper_bound,
)
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.data_dependent import resolve_slice
from atc.lower.fitting import fitted, read_as, require_at_least, require_equal
from atc.lower.offsets import difference
from atc.lower.registry import lowers
from atc.lower.strings import cells


@lowers("Reshape")
def reshape(ctx: LoweringContext) -> str:
    """ONNX Reshape-21: 0 copies an extent (unless allowzero), -1 is inferred."""
    source = ctx.shape(0)
    least = 0 if ctx.int("allowzero") else 1
    given = ctx.ints("shape") if ctx.opset < 5 else ctx.ints_const(1, "the target shape", least)
    target = list(given or [])
    if not ctx.int("allowzero"):
        for d, n in enumerate(target):
            if n == 0:
                ctx.require(d < len(source), f"shape {target} copies axis {d} of {list(source)}")
                target[d] = source[d]
    if -1 in target:
        rest = prod(n for n in target if n != -1)
        message = plain(f"{list(source)} to {target}")
        ctx.require(is_data_dependent(rest) or rest > 0, message)
        if not is_data_dependent(rest):
            require_equal(ctx, prod(source) % rest, 0, message)
        target[target.index(-1)] = prod(source) // rest
    if prod(target) != prod(source) and is_data_dependent((*target, *source)):
        return _reshaped_when_run(ctx, target)
    if prod(target) == prod(source):
        return ctx.b.reshape(ctx.input(0), target)
    if same_unrounded(prod(target), prod(source)):
        return _reshaped_unrounded(ctx, target)
    message = plain(f"{list(source)} cannot become {target}")
    require_equal(ctx, prod(target), prod(source), message)
    return read_as(ctx.b, ctx.input(0), target)


def _reshaped_unrounded(ctx: LoweringContext, target: list[int]) -> str:
    """Reshape to what the operand has room for where a multiple is given; the run ends elsewhere.

    One extent follows from the others where they divide the operand.
    """
    b, size = ctx.b, prod(ctx.shape(0))
    for d, n in enumerate(target):
        rest = prod(m for k, m in enumerate(target) if k != d)
        if isinstance(n, Dim) and lower_bound(rest) > 0 and size % rest == 0:
            b.must_be_equal(n, size // rest)
            return b.reshape(ctx.input(0), [*target[:d], size // rest, *target[d + 1 :]])
    return _reshaped_when_run(ctx, target)


def _reshaped_when_run(ctx: LoweringContext, target: list[int]) -> str:
    """Reshape where only the run knows whether it can be done; it ends if not.

    One extent follows from the others, so that the result is never larger than the operand.
    """
    b, size = ctx.b, prod(ctx.shape(0))
    free = [d for d, n in enumerate(target) if is_data_dependent(n)]
    for d in free[-1:]:
        rest = prod(n for k, n in enumerate(target) if k != d)
        if lower_bound(rest) > 0:
            b.must_be_equal(target[d], size // rest)
            target[d] = size // rest
    b.must_be_equal(prod(target), size)
    return read_as(b, ctx.input(0), target)


@lowers("Flatten")
def flatten(ctx: LoweringContext) -> str:
    """ONNX Flatten-21."""
    shape = ctx.shape(0)
    axis = ctx.int("axis", 1)
    ctx.require(-len(shape) <= axis <= len(shape), f"axis {axis} is outside rank {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return ctx.b.reshape(ctx.input(0), [prod(shape[:axis]), prod(shape[axis:])])


def _axes_of(ctx: LoweringContext) -> list[int] | None:
    if ctx.opset < 13:
        return ctx.ints("axes")
    return ctx.ints_const(1, "the list of axes") if ctx.has(1) else None


@lowers("Squeeze")
def squeeze(ctx: LoweringContext) -> str:
    """ONNX Squeeze-21. Without axes, an extent that only the data say stays, should it be 1."""
    shape = ctx.shape(0)
    given = _axes_of(ctx)
    axes = (
        ctx.axes(given, len(shape))
        if given is not None
        else tuple(d for d, n in enumerate(shape) if not is_data_dependent(n) and equals(n, 1))
    )
    single = [1 if d in axes else n for d, n in enumerate(shape)]
    message = plain(f"axes {list(axes)} of {list(shape)} are not 1")
    x = fitted(ctx, ctx.input(0), single, message)
    return ctx.b.reshape(x, [n for d, n in enumerate(shape) if d not in axes])


@lowers("Unsqueeze")
def unsqueeze(ctx: LoweringContext) -> str:
    """ONNX Unsqueeze-21."""
    shape = list(ctx.shape(0))
    given = _axes_of(ctx) or []
    for axis in ctx.axes(given, len(shape) + len(given)):
        shape.insert(axis, 1)
    return ctx.b.reshape(ctx.input(0), shape)


@lowers("Transpose")
def transpose(ctx: LoweringContext) -> str:
    """ONNX Transpose-21."""
    rank = len(ctx.shape(0))
    perm = ctx.ints("perm") or list(range(rank))[::-1]
    ctx.require(sorted(perm) == list(range(rank)), f"perm {perm} for rank {rank}")
    return ctx.b.transpose(ctx.input(0), perm)


@lowers("Shape")
def shape_of(ctx: LoweringContext) -> str:
    """ONNX Shape-21: known when compiling."""
    shape = ctx.shape(0)
    rank = len(shape)
    start, end = ctx.int("start", 0), ctx.attribute("end")
    begin = max(0, min(rank, start + rank if start < 0 else start))
    stop = rank if end is None else max(0, min(rank, int(end) + rank if int(end) < 0 else int(end)))
    return ctx.b.extents(np.array(shape[begin:stop], object))


@lowers("Size")
def size_of(ctx: LoweringContext) -> str:
    """ONNX Size-21: known when compiling."""
    return ctx.b.extents(np.array(prod(ctx.shape(0)), object))


VALUES = ("value", "value_float", "value_int", "value_floats", "value_ints", "value_string",
          "value_strings")  # fmt: skip


@lowers("Constant")
def constant(ctx: LoweringContext) -> str:
    """ONNX Constant-21 in all spellings of its value."""
    for name in VALUES:
        value = ctx.attribute(name)
        if value is None:
            continue
        if name == "value":
            array = np.asarray(ctx.tensor(name))
            site_check = DType.from_numpy
            try:
                site_check(array.dtype)
            except KeyError:
                raise ctx.unsupported(f"a constant of type {array.dtype}") from None
            return ctx.b.constant(array, ctx.name)
        if "string" in name:
            return ctx.b.constant(cells(np.asarray(value, object)), ctx.name)
        kind = np.float32 if "float" in name else np.int64
        return ctx.b.constant(np.asarray(value, kind), ctx.name)
    raise ctx.unsupported("this kind of constant (sparse)")


@lowers("ConstantOfShape")
def constant_of_shape(ctx: LoweringContext) -> str:
    """ONNX ConstantOfShape-24."""
    shape = ctx.ints_const(0, "the shape", 0)
    ctx.require(all(lower_bound(n) >= 0 for n in shape), f"shape {shape} is negative")
    value = ctx.tensor("value")
    array = np.zeros(1, np.float32) if value is None else np.asarray(value).reshape(1)
    if not is_dynamic(tuple(shape)) and prod(shape) <= 1 << 16:
        return ctx.b.constant(np.full(shape, array[0], array.dtype))
    return ctx.b.map(
        lambda c: c,
        ctx.b.constant(array.reshape(())),
        shape=shape,
        views=[View((0,) * len(shape))],
    )


@lowers("Expand")
def expand(ctx: LoweringContext) -> str:
    """ONNX Expand-13: two-way broadcast."""
    least = int(any(n != 1 for n in ctx.shape(0)))  # a single number may be expanded to none
    target = ctx.ints_const(1, "the target shape", least)
    return ctx.b.expand(ctx.input(0), ctx.b.broadcast(ctx.shape(0), tuple(target)))


@lowers("Tile")
def tile(ctx: LoweringContext) -> str:
    """ONNX Tile-13: each axis becomes (repeats, n), the repeats reading the same data."""
    shape = ctx.shape(0)
    repeats = ctx.ints_const(1, "the repeats", 0)
    ctx.require(len(repeats) == len(shape), f"{len(repeats)} repeats for rank {len(shape)}")
    loops, strides = [], []
    for r, n, s in zip(repeats, shape, row_major(shape), strict=True):
        loops += [r, n]
        strides += [0, s]
    tiled = ctx.b.view(ctx.input(0), loops, View(tuple(strides)))
    return ctx.b.reshape(tiled, [r * n for r, n in zip(repeats, shape, strict=True)])


@lowers("Slice")
def slice_(ctx: LoweringContext) -> str:
    """ONNX Slice-13: begin, end and step per axis, numpy's clamping."""
    shape = ctx.shape(0)
    if ctx.opset < 10:
        starts, ends = ctx.ints("starts") or [], ctx.ints("ends") or []
        axes, steps = ctx.ints("axes"), None
    else:
        if ctx.extents(1) is None or ctx.extents(2) is None:
            return _computed_slice(ctx)
        starts, ends = ctx.ints_const(1, "the starts"), ctx.ints_const(2, "the ends")
        axes = ctx.ints_const(3, "the axes") if ctx.has(3) else None
        steps = ctx.ints_const(4, "the steps") if ctx.has(4) else None
    axes = list(range(len(starts))) if axes is None else [ctx.axis(a, len(shape)) for a in axes]
    steps = [1] * len(starts) if steps is None else steps
    strides, out, offset = list(row_major(shape)), list(shape), 0
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        ctx.require(step != 0, "a step is 0")
        first, out[axis] = steps_of(start, end, step, shape[axis])
        offset += first * strides[axis] if out[axis] else 0
        strides[axis] *= step
    return ctx.b.view(ctx.input(0), out, View(tuple(strides), offset))


def _computed_slice(ctx: LoweringContext) -> str:
    """Slice where starts or ends are computed: each axis gets an extent that is known then."""
    b, shape = ctx.b, ctx.shape(0)
    apart = difference(ctx, ctx.node.inputs[2], ctx.node.inputs[1])
    (own,), others = ctx.shape(1), ctx.shape(2)
    count = min(upper_bound(own), len(shape))  # a run of fewer ends: there are no axes for it
    message = f"{own} starts, {others} ends"
    starts, ends = (fitted(ctx, ctx.input(i), (count,), message) for i in (1, 2))
    axes = ctx.ints_const(3, "the axes") if ctx.has(3) else list(range(count))
    steps = ctx.ints_const(4, "the steps") if ctx.has(4) else [1] * count
    ctx.require(0 not in steps, f"steps {steps}")
    strides, out, offset = list(row_major(shape)), list(shape), 0
    for k, (axis, step) in enumerate(zip(axes, steps, strict=True)):
        axis = ctx.axis(axis, len(shape))
        start, end = (b.view(x, (1,), View((1,), k)) for x in (starts, ends))
        first, out[axis] = resolve_slice(ctx, start, end, step, shape[axis], apart)
        offset += first * strides[axis]
        strides[axis] *= step
    return b.view(ctx.input(0), out, View(tuple(strides), offset))


def steps_of(start: int, end: int, step: int, size: int) -> tuple[int, int]:
    """Return where a slice of an axis begins and how many elements it has (numpy's rules)."""
    if not is_dynamic((start, end, size)):
        stop = None if step < 0 and end < -size else end
        first, last, _ = slice(start, stop, step).indices(size)
        return first, len(range(first, last, step))
    least, most = (0, size) if step > 0 else (-1, size - 1)
    first, last = (
        minimum(maximum(n + size if n < 0 else n, least), most) for n in (start, end)
    )
    room = last - first if step > 0 else first - last
    return first, maximum(0, -(-room // abs(step)))


@lowers("Split")
def split(ctx: LoweringContext) -> tuple[str, ...]:
    """ONNX Split-18: parts of an axis, of given or of equal sizes (the last may be smaller)."""
    shape = ctx.shape(0)
    axis = ctx.axis(ctx.int("axis", 0), len(shape))
    count = ctx.int("num_outputs", ctx.output_count)
    given = ctx.ints("split") if ctx.opset < 13 else None
    if ctx.opset >= 13 and ctx.has(1):
        given = ctx.ints_const(1, "the split sizes")
    if given is None:
        step = -(-shape[axis] // count)
        given = [step] * (count - 1) + [shape[axis] - (count - 1) * step]
    message = plain(f"split {given} of {shape[axis]}")
    for size in given:
        require_at_least(ctx, size, 0, message)
    given = [maximum(size, 0) for size in given]
    shape = (*shape[:axis], sum(given), *shape[axis + 1 :])
    x = fitted(ctx, ctx.input(0), shape, message)
    strides = row_major(shape)
    parts, begin = [], 0
    for size in given:
        part = (*shape[:axis], size, *shape[axis + 1 :])
        parts.append(
            ctx.b.view(x, part, View(strides, begin * strides[axis] if size else 0))
        )
        begin += size
    return tuple(parts)


@lowers("DepthToSpace", "SpaceToDepth")
def depth_space(ctx: LoweringContext) -> str:
    """ONNX DepthToSpace-13 and SpaceToDepth-28 (DCR, CRD): reshape, transpose, reshape."""
    b, x = ctx.b, ctx.input(0)
    n, c, h, w = ctx.shape(0)
    s = ctx.int("blocksize", 1)
    ctx.require(s > 0, f"blocksize {s}")
    dcr = ctx.str("mode", "DCR") == "DCR"
    if ctx.node.op_type == "SpaceToDepth":
        parts = b.reshape(x, [n, c, h // s, s, w // s, s])
        order = [0, 3, 5, 1, 2, 4] if dcr else [0, 1, 3, 5, 2, 4]
        return b.reshape(b.transpose(parts, order), [n, c * s * s, h // s, w // s])
    if dcr:
        parts = b.transpose(b.reshape(x, [n, s, s, c // (s * s), h, w]), [0, 3, 4, 1, 5, 2])
    else:
        parts = b.transpose(b.reshape(x, [n, c // (s * s), s, s, h, w]), [0, 1, 4, 2, 5, 3])
    return b.reshape(parts, [n, c // (s * s), h * s, w * s])
