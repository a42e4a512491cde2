"""Convolutions of dequantized tensors by dequantized weights, as convolutions of integers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod

import numpy as np

from atc.dims import is_dynamic, upper_bound
from atc.ir.expr import Call, Expr, Input, call, cast, operands_of, substitute
from atc.ir.graph import Array, DType, Node, TensorType
from atc.ir.ops import Conv, ConvTranspose, Epilogue, Window
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Concat, Pad
from atc.ir.view import View
from atc.passes.quantized.matching import (
    SUM_LIMIT,
    Dequantized,
    Integers,
    Vector,
    dequantized,
    shaped,
)  # fmt: skip
from atc.passes.rewriting import Rewriting, distinct_operands, merge_origin, zero_points


@dataclass(frozen=True)
class _Sums:
    """The sums of a convolution in integers, and the epilogue that scales them."""

    x: Dequantized
    w: Array
    """The weights less their zero points, INT32 of 16 bits at most."""
    epilogue: Epilogue
    operands: tuple[str, ...]


def integer_conv(state: Rewriting, node: Node, op: Conv) -> Node | None:
    """Return the convolution of integers, if x and w are dequantized."""
    found = _integers(state, node, op)
    if found is None:
        return None
    x = found.x
    source, window = _source(state, node, op, x)
    source, w = _in_bytes(state, node, op, source, found.w)
    points = zero_points(state, node.inputs[0], x.zero, x.dtype)
    weights = state.add_constant(w, f"{node.inputs[1]}.integers")
    new = Conv(window, op.group, found.epilogue, DType.INT32, bool(points))
    inputs = (source, weights, *points, *found.operands)
    return Node(new, inputs, node.outputs, merge_origin(x.node, node))


def integer_conv_transpose(state: Rewriting, node: Node, op: ConvTranspose) -> Node | None:
    """Return the transposed convolution of integers, if x and w are dequantized."""
    found = _integers(state, node, op)
    if found is None:
        return None
    x, w = found.x, found.w
    narrow = w.min() >= -128 and w.max() <= 127
    weights = state.add_constant(
        w.astype(np.int8 if narrow else np.int16), f"{node.inputs[1]}.integers"
    )
    source = shaped(state, x.source, node.inputs[0], node)
    new = replace(op, epilogue=found.epilogue, accumulator=DType.INT32, zero=x.zero)
    inputs = (source, weights, *found.operands)
    return Node(new, inputs, node.outputs, merge_origin(x.node, node))


def conv_for_vectors(state: Rewriting, node: Node, op: Conv) -> Node | None:
    """Return a convolution that the model has in integers, in the form that vectors compute."""
    x, w = state.types[node.inputs[0]], state.constant(node.inputs[1])
    point = state.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    plain = not (op.zero_points and node.inputs[3])
    if w is None or point is None or point.size != 1 or not plain or x.dtype not in BYTES:
        return None
    given = Dequantized(node.inputs[0], int(point.reshape(())), 1.0, x.dtype, node)
    padded, window = _source(state, node, op, given)
    source, weights = _in_bytes(state, node, op, padded, w.astype(np.int32))
    if source == node.inputs[0]:
        return None
    name = node.inputs[1] if weights.shape == w.shape else ""
    name = name or state.add_constant(weights, f"{node.inputs[1]}.integers")
    return replace(node, op=replace(op, window=window), inputs=(source, name, *node.inputs[2:]))


def _integers(state: Rewriting, node: Node, op: Conv | ConvTranspose) -> _Sums | None:
    """Return a convolution's integers and scales; None where x or w has none that fit."""
    x, grid = dequantized(state, node.inputs[0]), state.graph.quantization.get(node.inputs[1])
    result = state.types[node.outputs[0]]
    if x is None or grid is None or is_dynamic(result.shape[1:2]) or 0 in result.shape:
        return None
    filters = result.shape[1]
    w = grid.integers.reshape(state.types[node.inputs[1]].shape)
    scales = _per_filter(grid.scale, w.ndim, 0 if isinstance(op, Conv) else 1, filters)
    if scales is None or w.size == 0 or w.min() < -(1 << 15) or w.max() >= 1 << 15:
        return None
    if not np.isfinite(scales).all() or (scales <= 0).any():
        return None
    factors = scales * float(np.float32(x.scale))
    bias = _integer_bias(state, node, op, factors)
    room = SUM_LIMIT - 256**x.dtype.itemsize * _magnitudes(op, w, filters)
    if (room < 0).any() or bias is not None and (np.abs(bias) > room).any():
        return None
    expr, extra, views = _scaled_sums(state, node, op, factors, bias)
    expr, extra, views = distinct_operands(expr, extra, views, 1)
    return _Sums(x, w, Epilogue(expr, views), extra)


def _per_filter(scale: Array, rank: int, axis: int, filters: int) -> Vector | None:
    """Return the scale of each filter in float64; None where it varies along another axis of w.

    Groups of a transposed convolution share the scales.
    """
    shape = (1,) * (rank - scale.ndim) + scale.shape
    if scale.size not in (1, shape[axis]) or filters % scale.size:
        return None
    return np.tile(scale.astype(np.float64).reshape(-1), filters // scale.size)


def _magnitudes(op: Conv | ConvTranspose, w: Array, filters: int) -> Integers:
    """Return the sum of the magnitudes of each filter's weights."""
    sizes: Integers = np.abs(w, dtype=np.int64)
    if isinstance(op, ConvTranspose):
        sizes = sizes.reshape(op.group, w.shape[0] // op.group, w.shape[1], -1).swapaxes(1, 2)
    return np.asarray(sizes.reshape(filters, -1).sum(1))


def _in_bytes(
    state: Rewriting, node: Node, op: Conv, source: str, w: Array
) -> tuple[str, Array]:
    """Return operand and weights of the same sums, the weights as bytes where that is possible.

    Those of 9 bits, as UINT8 with a zero point has them, become sums of bytes: as many times the
    channels. Wider ones, or in groups, are INT16.
    """
    rest: Integers = w.astype(np.int64)
    parts: list[Integers] = []
    while not parts or rest.any() and len(parts) < 4:
        parts.append(np.clip(rest, -128, 127))
        rest = rest - parts[-1]
    x = state.types[source]
    if len(parts) == 1:
        return source, parts[0].astype(np.int8)
    if rest.any() or op.group > 1 or x.dtype not in BYTES:
        return source, w.astype(np.int16)
    n = len(parts)
    joined = TensorType(x.dtype, (x.shape[0], n * x.shape[1], *x.shape[2:]))
    concat = Concat(x.shape[0], (prod(x.shape[1:]),) * n)
    repeated = state.emit(concat, [source] * n, joined, node, "q")
    return repeated, np.concatenate(parts, 1).astype(np.int8)


def _integer_bias(
    state: Rewriting, node: Node, op: Conv | ConvTranspose, factors: Vector
) -> Integers | None:
    """Return the bias on the sums' scale, where the epilogue is the addition of such a one."""
    match op.epilogue.expr:
        case Call(fn="Add", args=(Input(index=0), Input(index=1))) if len(node.inputs) == 3:
            grid = state.graph.quantization.get(node.inputs[2])
        case _:
            return None
    if grid is None or grid.integers.size != factors.size:
        return None
    given = np.broadcast_to(grid.scale, grid.integers.shape).reshape(-1).astype(np.float64)
    same = np.allclose(given, factors, rtol=1e-6, atol=0)
    return grid.integers.reshape(-1).astype(np.int64) if same else None


def _scaled_sums(
    state: Rewriting, node: Node, op: Conv | ConvTranspose, factors: Vector, bias: Integers | None
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]]:
    """Return the epilogue that scales the sums, its operands and their views."""
    rank = len(state.types[node.outputs[0]].shape)
    channel = View(tuple(int(d == 1) for d in range(rank)))
    scale = state.add_constant(factors.astype(np.float32), f"{node.outputs[0]}.scale")
    total: Expr = Input(DType.INT32, 0)
    if bias is not None:
        name = state.add_constant(bias.astype(np.int32), f"{node.inputs[2]}.integers")
        total = call("Add", total, Input(DType.INT32, 2))
        expr = call("Mul", cast(total, DType.FLOAT), Input(DType.FLOAT, 1))
        return expr, (scale, name), (channel, channel)
    last = len(op.epilogue.views) + 1
    result = call("Mul", cast(total, DType.FLOAT), Input(DType.FLOAT, last))
    types = {i.index: i.dtype for i in operands_of(op.epilogue.expr)}
    expr = substitute(op.epilogue.expr, lambda k: Input(types[k], k) if k else result)
    return expr, (*node.inputs[2:], scale), (*op.epilogue.views, channel)


def _source(state: Rewriting, node: Node, op: Conv, x: Dequantized) -> tuple[str, Window]:
    """Return x as it is, or padded in memory where padding isn't the least of its type.

    One channel at a time, padding is left out of the sums.
    """
    source = shaped(state, x.source, node.inputs[0], node)
    least = 0 if not x.dtype.is_signed else -(1 << 8 * x.dtype.itemsize - 1)
    window, size = op.window, state.types[node.inputs[0]].shape
    out = state.types[node.outputs[0]].shape[2:]
    ends = [  # one more than some sizes of a range need does no harm
        max(0, upper_bound((o - 1) * s + (k - 1) * d + 1 - p - n))
        for o, s, k, d, p, n in zip(
            out, window.strides, window.kernel, window.dilations, window.pads, size[2:], strict=True
        )
    ]
    depthwise = op.group == size[1] == state.types[node.outputs[0]].shape[1]
    if x.zero == least or depthwise or not any((*window.pads, *ends)):
        return source, window
    value = state.add_constant(np.asarray(x.zero, x.dtype.numpy), f"{node.inputs[0]}.padding")
    pad = Pad("constant", size, (0, 0, *window.pads), (0, 0, *ends))
    padded = state.emit(pad, [source, value], TensorType(x.dtype, pad.extents), node, "q")
    return padded, replace(window, pads=(0,) * window.rank)
