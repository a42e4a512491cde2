"""Derivatives of ONNX operators that move, reduce, multiply and pool tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from atc.ir.expr import Expr, call, const
from atc.ir.graph import TensorType
from atc.ir.ops import ConvFilterGradient, Window
from atc.lower.concat_pad import pad
from atc.lower.conv import widen, window_of
from atc.lower.elementwise import compute, like
from atc.lower.gradient.derivatives import (
    Step,
    derives,
    emit_node,
    is_equal,
    minus,
    over,
    share,
    summed_to,
    times,
    where_is,
    zeros,
)
from atc.lower.indexed_access import take
from atc.lower.reduce import reduce_axes, reduction_axes
from atc.lower.training import trains

# ---- movement -----------------------------------------------------------------------------------


@derives("Reshape", "Flatten", "Squeeze", "Unsqueeze")
def reshaped(step: Step) -> list[str]:
    """Return the gradient in the operand's shape."""
    return [step.ctx.b.reshape(step.g, step.shape(0))]


@derives("Transpose")
def transposed(step: Step) -> list[str]:
    """Return the gradient, its axes where they were."""
    rank = len(step.shape(0))
    perm = step.at.ints("perm", list(reversed(range(rank)))) or []
    return [step.ctx.b.transpose(step.g, [int(k) for k in np.argsort(perm)])]


@derives("Expand")
def expanded(step: Step) -> list[str]:
    """Sum the gradient over what was repeated."""
    return [summed_to(step.ctx, step.g, step.shape(0))]


def _pick(step: Step, g: str, axis: int, places: np.ndarray[Any, Any], size: int) -> str:
    """Return zeros of `size` along an axis with g at distinct constant places."""
    b, shape = step.ctx.b, step.ctx.b.shape(g)
    if places.size and (np.diff(places) == 1).all():
        ends = [0] * len(shape), [0] * len(shape)
        ends[0][axis], ends[1][axis] = int(places[0]), size - 1 - int(places[-1])
        return pad(b, g, *ends)
    zero = np.zeros((*shape[:axis], 1, *shape[axis + 1 :]), b.type(g).dtype.numpy)
    sources = np.full(size, shape[axis])
    sources[places] = np.arange(shape[axis])
    return take(b, step.op("Concat", g, b.constant(zero), attributes={"axis": axis}), axis, sources)


@derives("Slice")
def sliced(step: Step) -> list[str]:
    """Return the gradient where the elements were taken, 0 elsewhere."""
    at, shape, g = step.at, step.shape(0), step.g
    legacy = step.opset < 10
    starts = at.ints("starts") if legacy else at.ints_const(1, "the starts")
    ends = at.ints("ends") if legacy else at.ints_const(2, "the ends")
    axes = at.ints("axes") if legacy else at.ints_const(3, "the axes") if at.has(3) else None
    steps = at.ints_const(4, "the steps") if not legacy and at.has(4) else [1] * len(starts or [])
    axes = axes if axes is not None else list(range(len(starts or [])))
    for axis, start, end, by in zip(axes, starts or [], ends or [], steps, strict=True):
        axis %= len(shape)
        stop = None if by < 0 and end < -shape[axis] else end
        g = _pick(step, g, axis, np.arange(shape[axis])[start:stop:by], shape[axis])
    return [g]


@derives("Concat", "Split")
def joined(step: Step) -> list[str]:
    """Concat's gradient is split, those of Split's parts are joined."""
    b = step.ctx.b
    axis = step.at.axis(step.at.int("axis", 0), len(step.shape(0)))
    if step.node.op_type == "Split":
        parts = [step.gradient(k) for k in range(len(step.outputs))]
        return [step.op("Concat", *parts, attributes={"axis": axis})]
    results, begin = [], 0
    for i in range(len(step.inputs)):
        places = np.arange(begin, begin + step.shape(i)[axis])
        results.append(take(b, step.g, axis, places))
        begin += step.shape(i)[axis]
    return results


def scattered(step: Step, axis: int, indices: str, g: str, shape: Sequence[int]) -> str:
    """Return zeros of a shape to which g is added at the indices along an axis."""
    data = zeros(step.ctx.b, shape, step.ctx.b.type(g).dtype)
    attributes = {"axis": axis, "reduction": "add"}
    return step.op("ScatterElements", data, indices, g, attributes=attributes)


@derives("Gather")
def gathered(step: Step) -> list[str]:
    """Add up the gradient where the elements were taken."""
    b, shape = step.ctx.b, step.shape(0)
    axis = step.at.axis(step.at.int("axis", 0), len(shape))
    count = prod(step.shape(1))
    flat = (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    known = step.at.const(1)
    places = None if known is None else known.reshape(-1) % shape[axis]
    if places is not None and len({*places.tolist()}) == count:
        g = b.reshape(step.g, (*shape[:axis], count, *shape[axis + 1 :]))
        return [_pick(step, g, axis, places, shape[axis])]
    indices = b.expand(b.reshape(step.inputs[1], (1, count, 1)), (flat[0], count, flat[2]))
    g = b.reshape(step.g, (flat[0], count, flat[2]))
    return [b.reshape(scattered(step, 1, indices, g, flat), shape)]


@derives("GatherElements")
def elements_gathered(step: Step) -> list[str]:
    """Add up the gradient where the elements were taken."""
    axis = step.at.int("axis", 0)
    return [scattered(step, axis, step.inputs[1], step.g, step.shape(0))]


# ---- reductions ---------------------------------------------------------------------------------


@derives("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceMax", "ReduceMin",
         "ReduceLogSumExp")  # fmt: skip
def reduced(step: Step) -> list[str]:
    """Spread the gradient over the reduced axes, times what each element adds to the result."""
    at, b, shape, how = step.at, step.ctx.b, step.shape(0), step.node.op_type[6:]
    axes = reduction_axes(at, 13 if how == "Sum" else 18)
    kept = [1 if d in axes else n for d, n in enumerate(shape)]
    g, y = (b.reshape(v, kept) for v in (step.g, step.y))
    count = prod(shape[a] for a in axes)
    x = step.inputs[0]
    if how in ("Max", "Min"):
        hits = compute(step.ctx, is_equal, x, y)
        total = reduce_axes(step.ctx, hits, axes, True, "Sum")
        return [compute(step.ctx, share, g, hits, total)]
    slopes: dict[str, Callable[[Expr, Expr, Expr], Expr]] = {
        "Sum": lambda p, v, m: p,
        "Mean": lambda p, v, m: over(p, like(p, count)),
        "SumSquare": lambda p, v, m: times(like(p, 2), p, v),
        "LogSumExp": lambda p, v, m: times(p, call("Exp", minus(v, m))),
        "L2": lambda p, v, m: where_is("Equal", m, 0, like(m, 0), over(times(p, v), m)),
    }
    return [b.expand(compute(step.ctx, slopes[how], g, x, y), shape)]


@derives("Softmax", "LogSoftmax")
def softmax(step: Step) -> list[str]:
    """y (g - sum(g y)), of the logarithm g - exp(y) sum(g)."""
    rank, legacy = len(step.shape(0)), step.opset < 13
    axis = step.at.axis(step.at.int("axis", 1 if legacy else -1), rank)
    axes = list(range(axis, rank)) if legacy else [axis]
    ctx, g, y = step.ctx, step.g, step.y
    if step.node.op_type == "LogSoftmax":
        total = reduce_axes(ctx, g, axes, True, "Sum")
        rest = lambda p, v, s: minus(p, times(call("Exp", v), s))  # noqa: E731
    else:
        total = reduce_axes(ctx, compute(ctx, times, g, y), axes, True, "Sum")
        rest = lambda p, v, s: times(v, minus(p, s))  # noqa: E731
    return [compute(ctx, rest, g, y, total)]


# ---- products -----------------------------------------------------------------------------------


def _swapped(step: Step, x: str) -> str:
    rank = len(step.ctx.b.shape(x))
    return step.ctx.b.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@derives("MatMul")
def product(step: Step) -> list[str]:
    """g b^T and a^T g, summed over broadcast batches; vectors are rows or columns.

    Where all of a meets one matrix b, its batches are rows: their sum is a part of the product.
    """
    b, a_shape, b_shape = step.ctx.b, step.shape(0), step.shape(1)
    left = b.reshape(step.inputs[0], a_shape if len(a_shape) > 1 else (1, *a_shape))
    right = b.reshape(step.inputs[1], b_shape if len(b_shape) > 1 else (*b_shape, 1))
    batch = np.broadcast_shapes(b.shape(left)[:-2], b.shape(right)[:-2])
    g = b.reshape(step.g, (*batch, b.shape(left)[-2], b.shape(right)[-1]))
    rows, out = left, g
    if prod(b.shape(right)[:-2]) == 1:
        rows, out = (b.reshape(v, (prod(b.shape(v)[:-1]), b.shape(v)[-1])) for v in (left, g))
    parts = [step.op("MatMul", g, _swapped(step, right)),
             step.op("MatMul", _swapped(step, rows), out)]  # fmt: skip
    shaped = zip(parts, (left, right), (a_shape, b_shape), strict=True)
    return [b.reshape(summed_to(step.ctx, p, b.shape(v)), s) for p, v, s in shaped]


@derives("Gemm")
def gemm(step: Step) -> list[str]:
    """Return the gradients of alpha a b + beta c, of transposed operands too."""
    at, ctx = step.at, step.ctx
    alpha, beta = at.float("alpha", 1.0), at.float("beta", 1.0)
    scaled = compute(ctx, lambda v: times(like(v, alpha), v), step.g)
    left, right = (
        _swapped(step, x) if at.int(flag) else x
        for x, flag in zip(step.inputs, ("transA", "transB"), strict=False)
    )
    parts = [step.op("MatMul", scaled, _swapped(step, right)),
             step.op("MatMul", _swapped(step, left), scaled)]  # fmt: skip
    for k, flag in enumerate(("transA", "transB")):
        parts[k] = _swapped(step, parts[k]) if at.int(flag) else parts[k]
    if step.is_real(2):
        weighted = compute(ctx, lambda v: times(like(v, beta), v), step.g)
        parts.append(summed_to(ctx, weighted, step.shape(2)))
    return parts


def _slid(step: Step, kernel: Sequence[int]) -> tuple[dict[str, list[int]], list[int]]:
    """Return a window's attributes, and what is left of the input behind the last window."""
    window, end = window_of(step.at, step.shape(0)[2:], kernel)
    out = step.ctx.b.shape(step.y)[2:]
    attributes = {"strides": [*window.strides], "dilations": [*window.dilations],
                  "pads": [*window.pads, *end]}  # fmt: skip
    rest = [
        n + p + q - ((o - 1) * s + (k - 1) * d + 1)
        for n, p, q, o, s, k, d in zip(step.shape(0)[2:], window.pads, end, out, window.strides,
                                       kernel, window.dilations, strict=True)
    ]  # fmt: skip
    return attributes, rest


@derives("Conv")
def conv(step: Step) -> list[str]:
    """Make a ConvTranspose for the input's gradient, an op of its own for the filters'."""
    b, kernel, group = step.ctx.b, step.shape(1)[2:], step.at.int("group", 1)
    slid, rest = _slid(step, kernel)
    more = {**slid, "group": group, "output_padding": rest}
    dx = step.op("ConvTranspose", step.g, step.inputs[1], attributes=more)
    dw = filter_gradient(step, slid, group, step.inputs[0], step.g)
    results = [dx, dw]
    if step.is_real(2):
        axes = [d for d in range(len(b.shape(step.g))) if d != 1]
        results.append(reduce_axes(step.ctx, step.g, axes, False, "Sum"))
    return results


def filter_gradient(
    step: Step, slid: Mapping[str, list[int]], group: int, large: str, small: str
) -> str:
    """Return the gradient of filters that slide over `large`, given that of the other side."""
    ctx, shape = step.ctx, step.shape(1)
    kernel = shape[2:]
    begins = slid["pads"][: len(kernel)]
    window = Window(kernel, tuple(slid["strides"]), tuple(slid["dilations"]), tuple(begins))
    x, g = (widen(ctx, v) for v in (large, small))
    result = TensorType(ctx.b.type(x).dtype, shape)
    y = ctx.b.emit1(ConvFilterGradient(window, group), [x, g], result)
    return ctx.b.cast(y, ctx.b.type(step.inputs[1]).dtype)


# ---- pooling and normalization ------------------------------------------------------------------


@derives("GlobalAveragePool")
def average(step: Step) -> list[str]:
    """Give every place an equal share."""
    shape = step.shape(0)
    share = compute(step.ctx, lambda v: over(v, like(v, prod(shape[2:]))), step.g)
    return [step.ctx.b.expand(share, shape)]


@derives("AveragePool")
def average_pool(step: Step) -> list[str]:
    """Add up the windows' shares by a ConvTranspose, channel by channel."""
    b, shape, at = step.ctx.b, step.shape(0), step.at
    kernel = at.ints("kernel_shape") or []
    slid, rest = _slid(step, kernel)
    count = np.ones(())
    rank, out = len(kernel), b.shape(step.y)[2:]
    ends = slid["pads"][rank:]
    slid["pads"][rank:] = [q + max(-r, 0) for q, r in zip(ends, rest, strict=True)]
    for d in range(rank):
        taps = (np.arange(out[d])[:, None] * slid["strides"][d] - slid["pads"][d]
                + np.arange(kernel[d]) * slid["dilations"][d])  # fmt: skip
        before, behind = (slid["pads"][d], ends[d]) if at.int("count_include_pad") else (0, 0)
        inside = (taps >= -before) & (taps < shape[2 + d] + behind)
        count = count[..., None] * inside.sum(1)
    dtype = b.type(step.g).dtype.numpy
    share = compute(step.ctx, over, step.g, b.constant(count.astype(dtype)))
    ones = b.constant(np.ones((shape[1], 1, *kernel), dtype))
    more = {**slid, "group": shape[1], "output_padding": [max(r, 0) for r in rest]}
    return [step.op("ConvTranspose", share, ones, attributes=more)]


@derives("MaxPool")
def max_pool(step: Step) -> list[str]:
    """Add up the gradient where each window's maximum was."""
    b, shape = step.ctx.b, step.shape(0)
    attributes = {k: a for k, a in step.node.attributes.items() if k != "storage_order"}
    _, places = emit_node(step, "MaxPool", step.inputs, attributes, "", max(step.opset, 8), 2)
    size = prod(b.shape(step.g))
    flat = scattered(step, 0, b.reshape(places, (size,)), b.reshape(step.g, (size,)),
                      (prod(shape),))  # fmt: skip
    return [b.reshape(flat, shape)]


def normalized(step: Step, axes: Sequence[int], epsilon: float) -> list[str]:
    """Return the gradients of x, scale and bias where x is normalized over axes.

    The scale is per channel, axis 1.
    """
    ctx, b, shape, x = step.ctx, step.ctx.b, step.shape(0), step.inputs[0]
    count = prod(shape[a] for a in axes)
    channels = (shape[1], *[1] * (len(shape) - 2))

    # The statistics are the forward nodes' own, so that they are computed once.
    away = compute(ctx, minus, x, reduce_axes(ctx, x, axes, True, "Mean"))
    variance = reduce_axes(ctx, compute(ctx, lambda a: times(a, a), away), axes, True, "Mean")
    root = compute(ctx, lambda e: call("Sqrt", call("Add", e, like(e, epsilon))), variance)
    inverse = compute(ctx, lambda r: over(like(r, 1), r), root)
    normal = compute(ctx, times, away, inverse)
    along = compute(ctx, times, step.g, normal)
    scale = b.reshape(step.inputs[1], channels)
    sums = [reduce_axes(ctx, v, axes, True, "Sum") for v in (step.g, along)]
    means = [compute(ctx, lambda t: over(t, like(t, count)), total) for total in sums]
    inner = lambda g, n, m, p: minus(minus(g, m), times(n, p))  # noqa: E731
    rest = compute(ctx, inner, step.g, normal, *means)
    dx = compute(ctx, times, rest, compute(ctx, over, scale, root))
    others = [d for d in range(len(shape)) if d != 1]
    if list(axes) == others:
        return [dx, *(b.reshape(total, (shape[1],)) for total in reversed(sums))]
    return [dx, *(reduce_axes(ctx, v, others, False, "Sum") for v in (along, step.g))]


@derives("BatchNormalization")
def batch_normalization(step: Step) -> list[str]:
    """At inference: y = s (x - m) / sqrt(v + e) + t, per channel."""
    ctx, b, shape = step.ctx, step.ctx.b, step.shape(0)
    epsilon = step.at.float("epsilon", 1e-5)
    if trains(step.at):
        if any(step.gradients[1:]):
            raise step.at.unsupported("the gradient of a BatchNormalization's running statistics")
        return normalized(step, [d for d in range(len(shape)) if d != 1], epsilon)
    channels = (shape[1], *[1] * (len(shape) - 2))
    s, m, v = (b.reshape(step.inputs[i], channels) for i in (1, 3, 4))
    root = compute(ctx, lambda e: call("Sqrt", call("Add", e, like(e, epsilon))), v)
    dx = compute(ctx, lambda g, a, r: over(times(g, a), r), step.g, s, root)
    normal = compute(ctx, lambda x, a, r: over(minus(x, a), r), step.inputs[0], m, root)
    axes = [d for d in range(len(shape)) if d != 1]
    per_element = [
        compute(ctx, times, step.g, normal), step.g, compute(ctx, lambda g: call("Neg", g), dx),
        compute(ctx, lambda g, n, r: over(times(g, n, const(-0.5, g.dtype)), r), dx, normal, root),
    ]  # fmt: skip
    return [dx, *(reduce_axes(ctx, part, axes, False, "Sum") for part in per_element)]
