"""Derivatives of ONNX operators that pad, scatter, sort, resize, upsample and normalize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from string import ascii_letters
from typing import Any

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import DType
from atc.lower.conv import transposed_extents, transposed_size
from atc.lower.einsum import parse_equation
from atc.lower.elementwise import compute, like
from atc.lower.gradient.derivatives import (
    Step,
    derives,
    is_equal,
    minus,
    over,
    share,
    summed_to,
    times,
    zeros,
)
from atc.lower.gradient.derivatives_tensor import filter_gradient, normalized, scattered
from atc.lower.indexed_access import take
from atc.lower.reduce import reduce_axes, reduction_axes
from atc.lower.resample import Axis, outside
from atc.lower.resize import resize, resizing, upsampling


def _along(step: Step, g: str, axis: int, matrix: str) -> str:
    """Return g times a matrix [from, to] along an axis."""
    b, rank = step.ctx.b, len(step.ctx.b.shape(g))
    order = [*(k for k in range(rank) if k != axis), axis]
    product = step.op("MatMul", b.transpose(g, order), matrix)
    return b.transpose(product, [int(k) for k in np.argsort(order)])


def _zeros_at(step: Step, op: str, g: str, indices: str, shape: Sequence[int], **more: Any) -> str:
    """Return g with zeros where an operator scatters."""
    updates = zeros(step.ctx.b, shape, step.ctx.b.type(g).dtype)
    return step.op(op, g, indices, updates, attributes=more)


# ---- movement -----------------------------------------------------------------------------------


@derives("Pad")
def pad(step: Step) -> list[str]:
    """Return the gradient of what isn't padding; where a value was repeated, of all of it."""
    at, b, shape, g = step.at, step.ctx.b, step.shape(0), step.g
    mode = at.str("mode", "constant")
    pads = at.ints_const(1, "the pads") if step.opset >= 11 else at.ints("pads") or []
    axes = at.ints_const(3, "the axes") if at.has(3) else list(range(len(shape)))
    total = g
    for axis, begin, end in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        axis %= len(shape)
        size = shape[axis]
        source = np.arange(-begin, size + end)
        inside = (source >= 0) & (source < size)
        if mode == "reflect" and size > 1:
            source = size - 1 - abs((source % (2 * size - 2)) - (size - 1))
        elif mode == "wrap":
            source = source % size
        elif mode == "edge":
            source = source.clip(0, size - 1)
        keep = inside if mode == "constant" else np.ones_like(inside)
        matrix = (source[:, None] == np.arange(size)) & keep[:, None]
        g = _along(step, g, axis, b.constant(matrix.astype(b.type(g).dtype.numpy)))
    results = [g]
    if mode == "constant" and step.is_real(2):
        every = [list(range(len(b.shape(v)))) for v in (total, g)]
        whole, inner = (reduce_axes(step.ctx, v, a, False, "Sum")
                        for v, a in zip((total, g), every, strict=True))  # fmt: skip
        filled = compute(step.ctx, minus, whole, inner)
        results += ["", b.reshape(filled, step.shape(2))]
    return results


@derives("Tile")
def tiled(step: Step) -> list[str]:
    """Add up the gradient of all copies."""
    shape = step.shape(0)
    repeats = step.at.ints_const(1, "the repeats")
    split = [n for pair in zip(repeats, shape, strict=True) for n in pair]
    g = step.ctx.b.reshape(step.g, split)
    return [reduce_axes(step.ctx, g, list(range(0, len(split), 2)), False, "Sum")]


@derives("CumSum")
def cumulated(step: Step) -> list[str]:
    """Add up the gradient from the other end."""
    more = {"exclusive": step.at.int("exclusive"), "reverse": 1 - step.at.int("reverse")}
    return [step.op("CumSum", step.g, step.inputs[1], attributes=more)]


@derives("Trilu")
def triangle(step: Step) -> list[str]:
    """Return the same triangle of the gradient."""
    more = {"upper": step.at.int("upper", 1)}
    return [step.op("Trilu", step.g, *step.inputs[1:], attributes=more)]


@derives("DepthToSpace", "SpaceToDepth")
def blocks(step: Step) -> list[str]:
    """Move the gradient's blocks back."""
    size = step.at.int("blocksize")
    if step.node.op_type == "SpaceToDepth":
        return [step.op("DepthToSpace", step.g, attributes={"blocksize": size})]
    n, c, h, w = step.shape(0)
    rest, b = c // size**2, step.ctx.b
    split = b.reshape(step.g, (n, rest, h, size, w, size))
    crd = step.at.str("mode", "DCR") == "CRD"
    return [b.reshape(b.transpose(split, [0, 1, 3, 5, 2, 4] if crd else [0, 3, 5, 1, 2, 4]),
                      (n, c, h, w))]  # fmt: skip


@derives("Resize", "Upsample")
def resized(step: Step) -> list[str]:
    """Apply the transpose of the interpolation, axis by axis: that of an identity matrix."""
    at, b, g = step.at, step.ctx.b, step.g
    axes, sampling = (resizing if step.node.op_type == "Resize" else upsampling)(at)
    for d, axis in enumerate(axes):
        if axis.is_identity:
            continue
        eye = b.constant(np.eye(axis.size, dtype=b.type(g).dtype.numpy))
        kept = Axis(axis.size, axis.size, 1.0)
        matrix = resize(replace(at, inputs=(eye,)), [axis, kept], sampling)
        gone = outside(axis, sampling)
        if gone.any():  # these are a constant
            matrix = compute(step.ctx, _where_not, b.constant(gone[:, None]), matrix)
        g = _along(step, g, d, matrix)
    return [g]


def _where_not(gone: Expr, x: Expr) -> Expr:
    return call("Where", gone, like(x, 0), x)


# ---- indices ------------------------------------------------------------------------------------


@derives("Scatter", "ScatterElements", "ScatterND")
def scattering(step: Step) -> list[str]:
    """Give the data what wasn't replaced, the updates what is in their places.

    Of equal largest and of equal least ones each gets the same share.
    """
    op, how = step.node.op_type, step.at.str("reduction", "none")
    data, indices, updates = step.inputs
    op = "ScatterElements" if op == "Scatter" else op
    axis = {"axis": step.at.int("axis", 0)} if op == "ScatterElements" else {}

    def there(x: str) -> str:
        gather = "GatherElements" if axis else "GatherND"
        return step.op(gather, x, indices, attributes=axis)

    def combined(a: str, b: str, reduction: str) -> str:
        return step.op(op, a, indices, b, attributes={**axis, "reduction": reduction})

    if how == "none":
        return [_zeros_at(step, op, step.g, indices, step.shape(2), **axis), "", there(step.g)]
    if how == "add":
        return [step.g, "", there(step.g)]
    g = there(step.g)
    if how == "mul":
        (old, new), filled = ([compute(step.ctx, fn, x) for x in (data, updates)]
                              for fn in (_is_zero, _filled))  # fmt: skip
        count, rest = combined(old, new, "add"), combined(filled[0], filled[1], "mul")
        return [compute(step.ctx, _by_factor, step.g, data, filled[0], count, rest), "",
                compute(step.ctx, _by_factor, g, updates, filled[1], there(count), there(rest))]
    kept = compute(step.ctx, is_equal, data, step.y)
    given = compute(step.ctx, is_equal, updates, there(step.y))
    count = combined(kept, given, "add")
    return [compute(step.ctx, share, step.g, kept, count), "",
            compute(step.ctx, share, g, given, there(count))]


@derives("GatherND")
def nd_gathered(step: Step) -> list[str]:
    """Add up the gradient where the elements were taken."""
    data = zeros(step.ctx.b, step.shape(0), step.ctx.b.type(step.g).dtype)
    indices, lead = step.inputs[1], step.shape(1)[: step.at.int("batch_dims")]
    if lead:  # ScatterND has none: the batch's places are indices, too
        own = np.moveaxis(np.indices(lead), 0, -1)
        shape = (*step.shape(1)[:-1], len(lead))
        own = own.reshape(*lead, *[1] * (len(shape) - 1 - len(lead)), len(lead))
        full = step.ctx.b.constant(np.ascontiguousarray(np.broadcast_to(own, shape)))
        indices = step.op("Concat", full, step.ctx.b.cast(indices, DType.INT64),
                          attributes={"axis": -1})  # fmt: skip
    return [step.op("ScatterND", data, indices, step.g, attributes={"reduction": "add"})]


@derives("TopK")
def chosen(step: Step) -> list[str]:
    """Return the gradient where the largest were, 0 elsewhere."""
    axis = step.at.axis(step.at.int("axis", -1), len(step.shape(0)))
    return [scattered(step, axis, step.outputs[1], step.g, step.shape(0))]


# ---- reductions and products --------------------------------------------------------------------


@derives("GlobalMaxPool")
def largest(step: Step) -> list[str]:
    """Give each image's maxima equal shares."""
    axes = list(range(2, len(step.shape(0))))
    hits = compute(step.ctx, is_equal, step.inputs[0], step.y)
    total = reduce_axes(step.ctx, hits, axes, True, "Sum")
    return [compute(step.ctx, share, step.g, hits, total)]


def _is_zero(x: Expr) -> Expr:
    return is_equal(x, like(x, 0))


def _filled(x: Expr) -> Expr:
    return call("Add", x, _is_zero(x))


def _by_factor(g: Expr, x: Expr, filled: Expr, count: Expr, rest: Expr) -> Expr:
    """Return g times the product of the other factors than x, of which `count` are 0.

    `rest` is the product of all of them, 1 in place of 0.
    """
    others = call("Equal", minus(count, _is_zero(x)), like(x, 0))
    return times(g, call("Where", others, over(rest, filled), like(x, 0)))


@derives("ReduceProd")
def multiplied(step: Step) -> list[str]:
    """Return g times the product of the others, right where some are 0."""
    b, shape, x = step.ctx.b, step.shape(0), step.inputs[0]
    axes = reduction_axes(step.at, 18)
    kept = [1 if d in axes else n for d, n in enumerate(shape)]
    count = reduce_axes(step.ctx, compute(step.ctx, _is_zero, x), axes, True, "Sum")
    filled = compute(step.ctx, _filled, x)
    rest = reduce_axes(step.ctx, filled, axes, True, "Prod")
    return [compute(step.ctx, _by_factor, b.reshape(step.g, kept), x, filled, count, rest)]


@derives("Einsum")
def einsum(step: Step) -> list[str]:
    """Return for each operand the sum of products of the gradient and the other operands.

    Where an operand's diagonal was taken, identity matrices put the gradient there.
    """
    at, b = step.at, step.ctx.b
    terms, output = parse_equation(at, at.str("equation"), step.inputs)
    fresh = iter(ascii_letters)
    names = {k: next(fresh) for k in dict.fromkeys([k for t in terms for k in t.labels])}
    given = ["".join(names[k] for k in t.labels) for t in terms]
    at.require(len(names) + max(map(len, given)) <= len(ascii_letters), "so many labels")
    results = []
    for k, term in enumerate(given):
        shape, own, factors = step.shape(k), "", [(step.g, "".join(names[x] for x in output))]
        factors += [(v, t) for i, (v, t) in enumerate(zip(step.inputs, given, strict=True))
                    if i != k]  # fmt: skip
        spares = iter(ascii_letters[len(names) :])
        for letter, size in zip(term, shape, strict=True):
            if letter in own:
                first, letter = letter, next(spares)
                eye = b.constant(np.eye(size, dtype=b.type(step.g).dtype.numpy))
                factors.append((eye, first + letter))
            own += letter
        known: dict[str, int] = {}
        for value, labels in factors:
            for x, n in zip(labels, b.shape(value), strict=True):
                known[x] = n if known.get(x, 1) == 1 else known[x]
        spread = [n if known.get(x) == n else 1 for x, n in zip(own, shape, strict=True)]
        kept = "".join(x for x, n in zip(own, spread, strict=True) if n != 1)
        equation = f"{','.join(t for _, t in factors)}->{kept}"
        part = step.op("Einsum", *(v for v, _ in factors), attributes={"equation": equation})
        results.append(b.expand(b.reshape(part, spread), shape))
    return results


@derives("ConvTranspose")
def conv_transpose(step: Step) -> list[str]:
    """Make a Conv for the input's gradient, one over the batch for the filters'."""
    at, b, shape = step.at, step.ctx.b, step.shape(0)
    kernel, group = step.shape(1)[2:], at.int("group", 1)
    rank = len(kernel)
    strides, dilations = (at.ints(w, [1] * rank) or [] for w in ("strides", "dilations"))
    full = transposed_size(shape[2:], strides, kernel, dilations)
    begins, out = transposed_extents(at, full, strides, shape[2:])
    ends = [max(f - p - n, 0) for f, p, n in zip(full, begins, out, strict=True)]
    slid = {"strides": strides, "dilations": dilations, "pads": [*begins, *ends]}
    dx = step.op("Conv", step.g, step.inputs[1], attributes={**slid, "group": group})
    for d, n in enumerate(shape[2:], 2):
        dx = take(b, dx, d, np.arange(n))
    dw = filter_gradient(step, slid, group, step.g, step.inputs[0])
    results = [dx, dw]
    if step.is_real(2):
        axes = [d for d in range(rank + 2) if d != 1]
        results.append(reduce_axes(step.ctx, step.g, axes, False, "Sum"))
    return results


# ---- normalization ------------------------------------------------------------------------------


@derives("InstanceNormalization")
def instance_normalization(step: Step) -> list[str]:
    """Normalize each image's channels."""
    axes = list(range(2, len(step.shape(0))))
    return normalized(step, axes, step.at.float("epsilon", 1e-5))


# ---- others -------------------------------------------------------------------------------------


@derives("Hardmax")
def flat(step: Step) -> list[str]:
    """0: the result is constant around almost every operand."""
    return [compute(step.ctx, lambda g: like(g, 0), step.g)]


@derives("Mod")
def remainder(step: Step) -> list[str]:
    """g, and -g times the quotient's whole part."""
    def whole(g: Expr, a: Expr, b: Expr, y: Expr) -> Expr:
        return call("Neg", times(g, call("Round", over(minus(a, y), b))))

    operands = (step.g, *step.inputs[:2], step.y)
    return [summed_to(step.ctx, step.g, step.shape(0)),
            summed_to(step.ctx, compute(step.ctx, whole, *operands), step.shape(1))]  # fmt: skip


@derives("ReverseSequence")
def reversed_sequences(step: Step) -> list[str]:
    """Reverse the gradient likewise."""
    at = step.at
    more = {"batch_axis": at.int("batch_axis", 1), "time_axis": at.int("time_axis", 0)}
    return [step.op("ReverseSequence", step.g, step.inputs[1], attributes=more)]


@derives("OneHot")
def hot(step: Step) -> list[str]:
    """Give the two values the sums of the gradient where they are."""
    b, g, values = step.ctx.b, step.g, step.inputs[2]
    dtype = b.type(values).dtype.numpy
    marks = b.constant(np.array([0, 1], dtype))
    more = {"axis": step.at.int("axis", -1)}
    on = step.op("OneHot", step.inputs[0], step.inputs[1], marks, attributes=more)
    every = list(range(len(b.shape(g))))
    hit = reduce_axes(step.ctx, compute(step.ctx, times, g, on), every, False, "Sum")
    missed = compute(step.ctx, minus, reduce_axes(step.ctx, g, every, False, "Sum"), hit)
    parts = [b.reshape(v, (1,)) for v in (missed, hit)]
    return ["", "", step.op("Concat", *parts, attributes={"axis": 0})]


@derives("MaxUnpool")
def unpooled(step: Step) -> list[str]:
    """Return the gradient where the elements went."""
    b, shape = step.ctx.b, step.shape(0)
    step.at.require(len(step.inputs) < 3, "the gradient of a MaxUnpool with output_shape")
    size = (int(np.prod(b.shape(step.g))),)
    flat_places = b.reshape(step.inputs[1], (int(np.prod(shape)),))
    taken = step.op("GatherElements", b.reshape(step.g, size), flat_places)
    return [b.reshape(taken, shape)]


@derives("Col2Im")
def blocks_taken(step: Step) -> list[str]:
    """Take from the gradient what each place of each block was added to."""
    at, b, (n, rows, count) = step.at, step.ctx.b, step.shape(0)
    image, block = at.ints_const(1, "the image's shape"), at.ints_const(2, "the block's shape")
    rank = len(image)
    pads = at.ints("pads", [0] * 2 * rank) or []
    strides, dilations = (at.ints(w, [1] * rank) or [] for w in ("strides", "dilations"))
    places, inside = np.zeros((1, 1), np.int64), np.ones((1, 1), bool)
    for d, (size, k) in enumerate(zip(image, block, strict=True)):
        reach = dilations[d] * (k - 1) + 1
        starts = np.arange((size + pads[d] + pads[rank + d] - reach) // strides[d] + 1)
        at_ = starts * strides[d] - pads[d] + np.arange(k)[:, None] * dilations[d]
        fits = (at_ >= 0) & (at_ < size)
        grid = (len(places) * k, places.shape[1] * len(starts))
        places = (places[:, None, :, None] * size + at_[None, :, None]).reshape(grid)
        inside = (inside[:, None, :, None] & fits[None, :, None]).reshape(grid)
    total, channels = int(np.prod(image)), rows // len(places)
    g = b.reshape(step.g, (n, channels, total))
    zero = b.constant(np.zeros((n, channels, 1), b.type(g).dtype.numpy))
    padded = step.op("Concat", g, zero, attributes={"axis": 2})
    taken = take(b, padded, 2, np.where(inside, places, total).reshape(-1))
    return [b.reshape(taken, (n, rows, count))]
