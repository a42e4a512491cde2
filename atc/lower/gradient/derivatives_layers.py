"""Derivatives of ONNX operators that pad, scatter, sort, resize, upsample and normalize."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from atc.ir.expr import Expr, call, cast
from atc.lower.elementwise import compute, like
from atc.lower.gradient.derivatives import Step, derives, minus, over, summed_to, times, zeros
from atc.lower.gradient.derivatives_tensor import filter_gradient, normalized, scattered
from atc.lower.indexed_access import take
from atc.lower.reduce import reduce_axes, reduction_axes


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


@derives("Resize")
def resized(step: Step) -> list[str]:
    """Apply the transpose of the interpolation, axis by axis: that of an identity matrix."""
    at, b, shape, g = step.at, step.ctx.b, step.shape(0), step.g
    at.require(at.str("coordinate_transformation_mode") != "tf_crop_and_resize",
               "the gradient of tf_crop_and_resize")  # fmt: skip
    out = b.shape(g)
    axes = [a % len(shape) for a in at.ints("axes", list(range(len(shape)))) or []]
    scales = [float(s) for s in np.asarray(at.const(2)).reshape(-1)] if at.has(2) else []
    kept = {k: a for k, a in step.node.attributes.items()
            if k not in ("axes", "keep_aspect_ratio_policy")}  # fmt: skip
    more = {k: a.value for k, a in kept.items()}
    for k, axis in enumerate(axes):
        if out[axis] == shape[axis] and (not scales or scales[k] == 1):
            continue
        eye = b.constant(np.eye(shape[axis], dtype=b.type(g).dtype.numpy))
        scale = b.constant(np.array([scales[k], 1], np.float32)) if scales else ""
        sizes = "" if scales else step.ints([out[axis], shape[axis]])
        matrix = step.op("Resize", eye, "", scale, sizes, attributes=more)
        g = _along(step, g, axis, matrix)
    return [g]


# ---- indices ------------------------------------------------------------------------------------


@derives("ScatterElements", "ScatterND")
def scattering(step: Step) -> list[str]:
    """Give the data what wasn't replaced, the updates what is in their places."""
    op, how = step.node.op_type, step.at.str("reduction", "none")
    step.at.require(how in ("none", "add"), f"the gradient of {op} with reduction {how}")
    axis = {"axis": step.at.int("axis", 0)} if op == "ScatterElements" else {}
    gather = "GatherElements" if axis else "GatherND"
    updates = step.op(gather, step.g, step.inputs[1], attributes=axis)
    if how == "add":
        return [step.g, "", updates]
    return [_zeros_at(step, op, step.g, step.inputs[1], step.shape(2), **axis), "", updates]


@derives("GatherND")
def nd_gathered(step: Step) -> list[str]:
    """Add up the gradient where the elements were taken."""
    step.at.require(not step.at.int("batch_dims"), "the gradient of GatherND with batch_dims")
    data = zeros(step.ctx.b, step.shape(0), step.ctx.b.type(step.g).dtype)
    return [step.op("ScatterND", data, step.inputs[1], step.g, attributes={"reduction": "add"})]


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
    is_it = lambda v, m: cast(call("Equal", v, m), v.dtype)  # noqa: E731
    hits = compute(step.ctx, is_it, step.inputs[0], step.y)
    total = reduce_axes(step.ctx, hits, axes, True, "Sum")
    share = lambda p, h, n: over(times(p, h), n)  # noqa: E731
    return [compute(step.ctx, share, step.g, hits, total)]


@derives("ReduceProd")
def multiplied(step: Step) -> list[str]:
    """Return g times the product of the others, right where some are 0."""
    b, shape, x = step.ctx.b, step.shape(0), step.inputs[0]
    axes = reduction_axes(step.at, 18)
    kept = [1 if d in axes else n for d, n in enumerate(shape)]

    def is_zero(v: Expr) -> Expr:
        return cast(call("Equal", v, like(v, 0)), v.dtype)

    zeros = reduce_axes(step.ctx, compute(step.ctx, is_zero, x), axes, True, "Sum")
    filled = compute(step.ctx, lambda v: call("Add", v, is_zero(v)), x)
    rest = reduce_axes(step.ctx, filled, axes, True, "Prod")

    def slope(g: Expr, v: Expr, filled: Expr, n: Expr, p: Expr) -> Expr:
        own = is_zero(v)
        others = minus(n, own)  # zeros among the others
        value = over(p, filled)
        return times(g, call("Where", call("Equal", others, like(n, 0)), value, like(v, 0)))

    return [compute(step.ctx, slope, b.reshape(step.g, kept), x, filled, zeros, rest)]


@derives("Einsum")
def einsum(step: Step) -> list[str]:
    """Return for each operand the sum of products of the gradient and the other operands."""
    at, b = step.at, step.ctx.b
    text = at.str("equation").replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    plain = "." not in text and all(len({*t}) == len(t) for t in terms)
    at.require(plain, f"the gradient of the equation {text}")
    if not arrow:
        letters = sorted({*left} - {","})
        result = "".join(c for c in letters if left.count(c) == 1)
    results = []
    for k, term in enumerate(terms):
        others = [t for i, t in enumerate(terms) if i != k]
        known = {*result}.union(*others)
        kept = "".join(c for c in term if c in known)
        equation = f"{','.join([result, *others])}->{kept}"
        values = [v for i, v in enumerate(step.inputs) if i != k]
        part = step.op("Einsum", step.g, *values, attributes={"equation": equation})
        shape = step.shape(k)
        spread = [n if c in known else 1 for c, n in zip(term, shape, strict=True)]
        results.append(b.expand(b.reshape(part, spread), shape))
    return results


@derives("ConvTranspose")
def conv_transpose(step: Step) -> list[str]:
    """Make a Conv for the input's gradient, one over the batch for the filters'."""
    at, b, shape = step.at, step.ctx.b, step.shape(0)
    kernel, group = step.shape(1)[2:], at.int("group", 1)
    explicit = at.str("auto_pad", "NOTSET") == "NOTSET" and not at.ints("output_shape")
    at.require(explicit, "the gradient of a ConvTranspose with auto_pad or output_shape")
    rank = len(kernel)
    slid = {"strides": at.ints("strides", [1] * rank) or [],
            "dilations": at.ints("dilations", [1] * rank) or [],
            "pads": at.ints("pads", [0] * 2 * rank) or []}  # fmt: skip
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
