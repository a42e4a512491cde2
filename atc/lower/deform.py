"""Lowering of deformable convolution: sampling at displaced places, then a matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import TensorType, row_major
from atc.ir.ops import Window
from atc.ir.ops.sampling import GridSample
from atc.ir.view import View
from atc.lower.concat_pad import join
from atc.lower.context import LoweringContext
from atc.lower.conv import convolved_extents, widen, window_of
from atc.lower.matmul import product
from atc.lower.registry import lowers


@lowers("DeformConv")
def deform_conv(ctx: LoweringContext) -> str:
    """ONNX DeformConv-22 for any number of spatial axes.

    x [N, C, *in], w [M, C/group, *kernel], offset [N, offset_group * taps * rank, *out], optional
    bias [M] and mask [N, offset_group * taps, *out]. Between elements x is interpolated linearly;
    outside it is 0.
    """
    b, x, w = ctx.b, ctx.type(0), ctx.type(1)
    rank, group, sets = len(x.shape) - 2, ctx.int("group", 1), ctx.int("offset_group", 1)
    ctx.require(rank > 0 and len(w.shape) == rank + 2, f"x is {x}, w is {w}")
    kernel = ctx.ints("kernel_shape", w.shape[2:]) or []
    ctx.require(tuple(kernel) == w.shape[2:], f"kernel_shape {kernel} but w is {w}")
    fits = group > 0 and x.shape[1] == w.shape[1] * group and w.shape[0] % group == 0
    ctx.require(fits, f"group {group}: x is {x}, w is {w}")
    ctx.require(sets > 0 and x.shape[1] % sets == 0, f"offset_group {sets} for {x}")
    window, end = window_of(ctx, x.shape[2:], kernel)
    out = convolved_extents(ctx, x, window, end)
    taps, points = prod(kernel), prod(out)
    ctx.require(min(out) > 0 and x.size > 0 and w.size > 0, f"x is {x}, w is {w}")
    _check(ctx, 2, "offset", (x.shape[0], sets * taps * rank, *out))
    wide = widen(ctx, ctx.input(0))
    dtype = b.type(wide).dtype
    batch, channels = x.shape[0] * sets, x.shape[1] // sets
    op = GridSample(batch, channels, x.shape[2:], taps * points, "linear", "zeros", False, True)
    sampled = TensorType(dtype, (batch, channels, taps, points))
    columns = b.emit1(op, [wide, _grid(ctx, window, out, sets)], sampled)
    if ctx.has(4):
        _check(ctx, 4, "mask", (x.shape[0], sets * taps, *out))
        mask = b.reshape(widen(ctx, ctx.input(4)), (batch, 1, taps, points))
        columns = b.map(lambda v, m: call("Mul", v, m), columns, mask)
    depth = w.shape[1] * taps
    filters = b.reshape(widen(ctx, ctx.input(1)), (group, w.shape[0] // group, depth))
    y = product(ctx, filters, b.reshape(columns, (x.shape[0], group, depth, points)))
    y = b.reshape(y, (x.shape[0], w.shape[0], *out))
    if ctx.has(3):
        bias = b.reshape(widen(ctx, ctx.input(3)), (w.shape[0], *[1] * rank))
        y = b.map(lambda v, t: call("Add", v, t), y, bias)
    return b.cast(y, x.dtype)


def _check(ctx: LoweringContext, i: int, name: str, wanted: tuple[int, ...]) -> None:
    ctx.require(ctx.shape(i) == wanted, f"the {name} is {ctx.type(i)}, not {list(wanted)}")


def _grid(ctx: LoweringContext, window: Window, out: Sequence[int], sets: int) -> str:
    """Return the places to sample, [batch, taps * points, rank], the last axis first."""
    b, rank = ctx.b, window.rank
    offset = widen(ctx, ctx.input(2))
    dtype = b.type(offset).dtype
    loops = (ctx.shape(0)[0] * sets, *window.kernel, *out)
    taps, points = prod(window.kernel), prod(out)
    steps = row_major((loops[0], *window.kernel, rank, *out))
    parts = []
    for d in reversed(range(rank)):
        strides = [0] * len(loops)
        strides[1 + d], strides[1 + rank + d] = window.dilations[d], window.strides[d]
        regular = View(tuple(strides), -window.pads[d])
        moved = View((*steps[: 1 + rank], *steps[2 + rank :]), d * steps[1 + rank])

        def place(shift: Expr, start: Expr) -> Expr:
            return call("Add", cast(start, dtype), shift)

        part = b.map(place, offset, shape=loops, views=[moved], coordinates=[regular])
        parts.append(b.reshape(part, (loops[0], taps * points, 1)))
    return join(b, parts, 2)
