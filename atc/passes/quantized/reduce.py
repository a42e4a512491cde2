"""Averages and extremes of what was dequantized, computed on the integers themselves.

A sum is exact in INT32; taking off the zero points, the scale and the division are one step each in
float. Scales are positive, so the largest integer stands for the largest number.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial, reduce
from math import prod

import numpy as np

from atc.dims import is_dynamic, lower_bound, max_value
from atc.ir.expr import Expr, Input, call, cast, const, operands_of, substitute
from atc.ir.graph import DType, Node, TensorType, row_major
from atc.ir.ops import (
    ArgReduce,
    Conv,
    Epilogue,
    Map,
    Pool,
    Reduce,
    Window,
    identity_epilogue,
)  # fmt: skip
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View, dense
from atc.passes.quantized.matching import SUM_LIMIT, Dequantized, Vector, dequantized, shaped
from atc.passes.rewriting import Rewriting, merge_origin, zero_points

EXACT = 1 << 24
"""Whole numbers up to it are floats."""


def largest_sum(x: Dequantized, count: int) -> int:
    """Return the largest magnitude that a sum of so many of its integers, or differences, has."""
    return int((256**x.dtype.itemsize - 1) * max_value(count))


def reduced_integers(state: Rewriting, node: Node, op: Reduce) -> Node | None:
    """Sum or compare the integers that a Reduce of dequantized numbers stands for."""
    x = dequantized(state, node.inputs[0])
    own = len(node.inputs) - len(op.epilogue.views)
    count = prod(op.reduced)
    if x is None or own != 1 or len(op.views) != 1 or op.expr != Input(DType.FLOAT, 0):
        return None
    if lower_bound(count) < 1:
        return None
    match op.how:
        case "Sum" if largest_sum(x, count) <= SUM_LIMIT:
            element = cast(Input(x.dtype, 0), DType.INT32)
            result = _scaled(x, count)
        case "Max" | "Min":
            return _extreme(state, node, op, x)
        case _:
            return None
    epilogue = replace(op.epilogue, expr=_after(op.epilogue.expr, result))
    new = replace(op, expr=element, epilogue=epilogue)
    inputs = (x.source, *node.inputs[1:])
    return Node(new, inputs, node.outputs, merge_origin(x.node, node))


def _extreme(state: Rewriting, node: Node, op: Reduce, x: Dequantized) -> Node | None:
    """Return what dequantizes the largest or smallest integer."""
    if op.epilogue != identity_epilogue(DType.FLOAT):
        return None
    result = state.types[node.outputs[0]]
    of_bytes = replace(op, expr=Input(x.dtype, 0), epilogue=identity_epilogue(x.dtype))
    extreme = state.emit(of_bytes, (x.source,), TensorType(x.dtype, result.shape), node, "q")
    dequantize = Map((result.size,), x.expr(0), (View((1,)),))
    return Node(dequantize, (extreme,), node.outputs, merge_origin(x.node, node))


def _scaled(x: Dequantized, count: int) -> Expr:
    """Return the sum of `count` dequantized numbers, of their integers' sum as Input(0)."""
    total: Expr = Input(DType.INT32, 0)
    zeros = x.zero * count
    if largest_sum(x, count) <= EXACT:  # then the difference is exact in float too
        total = cast(total, DType.FLOAT)
        total = call("Sub", total, const(zeros, DType.FLOAT)) if zeros else total
    elif zeros:
        total = cast(call("Sub", total, const(zeros, DType.INT32)), DType.FLOAT)
    else:
        total = cast(total, DType.FLOAT)
    return call("Mul", total, const(x.scale, DType.FLOAT))


def _after(expr: Expr, result: Expr) -> Expr:
    """Return an epilogue's expression of a result that is computed first."""
    types = {i.index: i.dtype for i in operands_of(expr)}
    return substitute(expr, lambda k: Input(types[k], k) if k else result)


def compared_integers(state: Rewriting, node: Node, op: ArgReduce) -> Node | None:
    """Find the largest or smallest integer in place of the number dequantized from it."""
    x = dequantized(state, node.inputs[0])
    if x is None:
        return None
    return Node(op, (x.source,), node.outputs, merge_origin(x.node, node))


# ---- average pooling -----------------------------------------------------------------------------


def averaged_integers(state: Rewriting, node: Node, op: Pool) -> Node | None:
    """Return average pooling as a sum of integers: a convolution by ones, or a Reduce.

    What is divided by differs at the borders, where padding isn't counted.
    """
    x = dequantized(state, node.inputs[0])
    shape, result = state.types[node.inputs[0]].shape, state.types[node.outputs[0]].shape
    if x is None or len(node.outputs) > 1 or is_dynamic((shape[1], result[1])) or 0 in result:
        return None
    taps = prod(op.window.kernel)
    if x.dtype not in BYTES or largest_sum(x, taps) > SUM_LIMIT:
        return None
    source = shaped(state, x.source, node.inputs[0], node)
    origin = merge_origin(x.node, node)
    if _is_global(op, shape, result):
        return _global(x, source, shape, node, taps)
    counts = _counts(state, node, op)
    if counts is None:
        return None
    divisor, names, views = counts
    total = call("Mul", cast(Input(DType.INT32, 0), DType.FLOAT), const(x.scale, DType.FLOAT))
    ones = state.add_constant(np.ones((shape[1], 1, *op.window.kernel), np.int8), "ones")
    points = zero_points(state, node.inputs[0], x.zero, x.dtype)
    epilogue = Epilogue(call("Div", total, divisor), views)
    conv = Conv(op.window, shape[1], epilogue, DType.INT32, bool(points))
    return Node(conv, (source, ones, *points, *names), node.outputs, origin)


def _is_global(op: Pool, shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    """Return whether the one window is the whole image, and nothing but the image."""
    whole = op.window.kernel == tuple(shape[2:]) and set(op.window.dilations) == {1}
    return whole and set(result[2:]) == {1} and not any(op.window.pads) and not any(op.end_pads)


def _global(x: Dequantized, source: str, shape: tuple[int, ...], node: Node, count: int) -> Node:
    mean = call("Div", _scaled(x, count), const(count, DType.FLOAT))
    element = cast(Input(x.dtype, 0), DType.INT32)
    outer = shape[0] * shape[1]
    whole = Reduce("Sum", (outer,), (count,), element, (dense((outer, count)),),
                   replace(identity_epilogue(DType.FLOAT), expr=mean))  # fmt: skip
    return Node(whole, (source,), node.outputs, merge_origin(x.node, node))


def _counts(
    state: Rewriting, node: Node, op: Pool
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]] | None:
    """Return what each output pixel is divided by, its operands and their views.

    The run computes it where that depends on the image's size; None for dilated windows then.
    """
    shape, result = state.types[node.inputs[0]].shape, state.types[node.outputs[0]].shape
    window, size, out = op.window, shape[2:], result[2:]
    if op.count_include_pad:
        axes = zip(window.pads, size, op.end_pads, strict=True)
        size = tuple(p + n + end for p, n, end in axes)
        window = replace(window, pads=(0,) * window.rank)
    if window.stays_inside(size, out):
        return const(prod(window.kernel), DType.FLOAT), (), ()
    if not is_dynamic((size, out)):
        counts = _known_counts(window, size, out)
        if (counts == counts.flat[0]).all():
            return const(float(counts.flat[0]), DType.FLOAT), (), ()
        name = state.add_constant(counts.astype(np.float32), f"{node.outputs[0]}.counts")
    elif set(window.dilations) == {1}:
        views = tuple(View(tuple(int(a == b) for b in range(len(out)))) for a in range(len(out)))
        each = Map(out, _count(window, size), (), views)
        name = state.emit(each, (), TensorType(DType.FLOAT, out), node, "counts")
    else:
        return None
    return Input(DType.FLOAT, 1), (name,), (View((0, 0, *row_major(out))),)


def _known_counts(window: Window, size: tuple[int, ...], out: tuple[int, ...]) -> Vector:
    """Return how many elements each output's window has, at least 1."""
    total: Vector = np.ones((), np.float64)
    extents = (window.kernel, window.strides, window.dilations, window.pads)
    axes = zip(size, out, *extents, strict=True)
    for n, o, k, s, d, p in axes:
        places = np.arange(o)[:, None] * s + np.arange(k) * d - p
        inside = ((places >= 0) & (places < n)).sum(1)
        total = np.multiply.outer(total, np.maximum(inside, 1))
    return total


def _count(window: Window, size: tuple[int, ...]) -> Expr:
    """Return how many elements the window of the output at coordinates Input(k) has, at least 1."""

    def integer(value: int) -> Expr:
        return const(value, DType.INT64)

    counts = list[Expr]()
    axes = zip(size, window.kernel, window.strides, window.pads, strict=True)
    for axis, (n, k, s, p) in enumerate(axes):
        first = call("Sub", call("Mul", Input(DType.INT64, axis), integer(s)), integer(p))
        end = call("Min", call("Add", first, integer(k)), integer(n))
        inside = call("Sub", end, call("Max", first, integer(0)))
        counts.append(call("Max", inside, integer(1)))
    return cast(reduce(partial(call, "Mul"), counts), DType.FLOAT)
