"""Computes three-dimensional convolutions as two-dimensional ones of planes.

With the depth beside the batch, each tap along the depth is a convolution of all planes that it
meets; the sums go from one to the next through the epilogue. Of bytes, the planes that a window
meets lie beside each other as channels of a single convolution, whose sums stay exact. Depthwise
ones go from sum to sum in float, where all of these are whole numbers that a float holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atc.dims import maximum
from atc.ir.expr import Call, Expr, Input, call, cast, rewritten, walk
from atc.ir.graph import Array, DType, Node, TensorType
from atc.ir.ops import Conv, Epilogue, Map, Window, identity_epilogue
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Pad
from atc.ir.view import View, dense
from atc.passes.quantized.reduce import EXACT
from atc.passes.rewriting import Rewriting

FLOAT = DType.FLOAT


def decompose_conv3d(state: Rewriting, node: Node) -> Node:
    """Replace a Conv over three axes with known weights by those over two, and a Map."""
    op = node.op
    if not isinstance(op, Conv) or op.window.rank != 3:
        return node
    x, y = state.types[node.inputs[0]], state.types[node.outputs[0]]
    weights = state.constant(node.inputs[1])
    if weights is None or not y.size or not x.size:
        return node
    if op.accumulator is DType.INT32 and x.dtype in BYTES:
        return _sums_of_bytes(state, node, op, weights)
    if op.accumulator is not FLOAT or x.dtype is not FLOAT or op.zero_points:
        return node
    batch, filters, depth, *image = y.shape
    window, flat = op.window, _flat(op.window)
    source = _padded(state, node, op, depth)
    planes = TensorType(FLOAT, (batch * depth, filters, *image))
    total: tuple[str, ...] = ()
    for tap in range(window.kernel[0]):
        met = _planes(state, node, source, depth, window, range(tap, tap + 1))
        w = state.add_constant(weights[:, :, tap], f"{node.inputs[1]}.{tap}")
        epilogue = identity_epilogue(FLOAT)
        if total:
            added = call("Add", Input(FLOAT, 0), Input(FLOAT, 1))
            epilogue = Epilogue(added, (dense(planes.shape),))
        conv = Conv(flat, op.group, epilogue)
        total = (state.emit(conv, (met, w, *total), planes, node, "conv"),)
    result = Map(y.shape, op.epilogue.expr, (_in_depth(planes, depth), *op.epilogue.views))
    return replace(node, op=result, inputs=(*total, *node.inputs[2:]))


def _sums_of_bytes(state: Rewriting, node: Node, op: Conv, weights: Array) -> Node:
    """Replace a Conv of bytes by one of planes that have the channels of all taps, and a Map."""
    y, window = state.types[node.outputs[0]], op.window
    batch, filters, depth, *image = y.shape
    zero = state.constant(node.inputs[2]) if op.zero_points else np.zeros((), np.int32)
    if zero is None or zero.size != 1 or op.zero_points and node.inputs[3]:
        return node
    views = []
    for view in op.epilogue.views:
        n, m, d, *rest = view.strides
        if batch != 1 and n != d * depth:
            return node
        views.append(View((d, m, *rest), view.offset))
    if op.group > 1 and weights.shape[1] == 1:  # windows of few numbers stay that
        alone = op.group == filters
        return _depthwise(state, node, op, weights, zero, views) if alone else node
    source = _padded(state, node, op, depth, zero)
    x = _planes(state, node, source, depth, window, range(window.kernel[0]), op.group)
    joined = weights.swapaxes(1, 2).reshape(filters, -1, *window.kernel[1:])
    w = state.add_constant(joined, f"{node.inputs[1]}.taps")
    planes = TensorType(y.dtype, (batch * depth, filters, *image))
    conv = replace(op, window=_flat(window), epilogue=Epilogue(op.epilogue.expr, tuple(views)))
    sums = state.emit(conv, (x, w, *node.inputs[2:]), planes, node, "conv")
    result = Map(y.shape, Input(y.dtype, 0), (_in_depth(planes, depth),))
    return replace(node, op=result, inputs=(sums,))


def _depthwise(
    state: Rewriting, node: Node, op: Conv, weights: Array, zero: Array, views: Sequence[View]
) -> Node:
    """Replace a depthwise Conv of bytes by one of planes for each tap along the depth, and a Map.

    The views are those of the epilogue over planes.
    """
    y, window = state.types[node.outputs[0]], op.window
    batch, filters, depth, *image = y.shape
    extra = node.inputs[op.operands :]
    casts = _exact_casts(state, op, extra, weights)
    if casts is None:
        return node
    source, points = _padded(state, node, op, depth, zero), node.inputs[2 : op.operands]
    planes, taps = (batch * depth, filters, *image), window.kernel[0]
    total: tuple[str, ...] = ()
    for tap in range(taps):
        last, sums = tap == taps - 1, cast(Input(op.accumulator, 0), FLOAT)
        own, shown, expr = (extra, tuple(views), op.epilogue.expr) if last else ((), (), sums)
        if total:
            before = Input(FLOAT, len(own) + 1)
            added = {e: call("Add", e, before) for e in (casts if last else (sums,))}
            expr, shown = rewritten(expr, known=added), (*shown, dense(planes))
        conv = replace(op, window=_flat(window), epilogue=Epilogue(expr, shown))
        met = _planes(state, node, source, depth, window, range(tap, tap + 1))
        w = state.add_constant(weights[:, :, tap], f"{node.inputs[1]}.{tap}")
        inputs = (met, w, *points, *own, *total)
        total = (state.emit(conv, inputs, TensorType(expr.dtype, planes), node, "conv"),)
    result = Map(y.shape, Input(y.dtype, 0), (_in_depth(TensorType(y.dtype, planes), depth),))
    return replace(node, op=result, inputs=total)


def _exact_casts(
    state: Rewriting, op: Conv, extra: Sequence[str], weights: Array
) -> list[Expr] | None:
    """Return where the epilogue takes the sums, or these and a known bias, as floats.

    None where it takes them otherwise, or one may be more than a float holds exactly.
    """
    largest = 256 * int(np.abs(weights, dtype=np.int64).sum((1, 2, 3, 4)).max())
    whole: set[Expr] = {Input(op.accumulator, 0)}
    found: list[Expr] = []
    for e in walk(op.epilogue.expr):
        if not isinstance(e, Call) or whole.isdisjoint(e.args):
            continue
        match e:
            case Call(fn="Cast", dtype=DType.FLOAT):
                found.append(e)
            case Call(fn="Add", args=(Input(index=0), Input(index=k))):
                bias = state.constant(extra[k - 1])
                if bias is None:
                    return None
                largest += int(np.abs(bias, dtype=np.int64).max())
                whole.add(e)
            case _:
                return None
    return found if found and largest <= EXACT else None


def _flat(window: Window) -> Window:
    """Return a window without its first axis."""
    return Window(window.kernel[1:], window.strides[1:], window.dilations[1:], window.pads[1:])


def _in_depth(planes: TensorType, depth: int) -> View:
    """Return how planes [N * depth, M, H, W] are read over (N, M, depth, H, W)."""
    n, c, *image = dense(planes.shape).strides
    return View((n * depth, c, n, *image))


def _padded(
    state: Rewriting, node: Node, op: Conv, depth: int, zero: Array | None = None
) -> str:
    """Return the operand with all planes that a window reads, those of padding among them.

    These are zeros, or hold the zero point.
    """
    name, window = node.inputs[0], op.window
    x = state.types[name]
    begin = window.pads[0]
    reach = (depth - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
    end = maximum(reach - begin - x.shape[2], 0)
    if not begin and not end:
        return name
    frame = Pad("constant", x.shape, (0, 0, begin, 0, 0), (0, 0, end, 0, 0))
    value: tuple[str, ...] = ()
    if zero is not None:
        point = zero.reshape(()).astype(x.dtype.numpy)
        value = (state.add_constant(point, f"{name}.padding"),)
    return state.emit(frame, (name, *value), TensorType(x.dtype, frame.extents), node, "pad")


def _planes(
    state: Rewriting, node: Node, source: str, depth: int, window: Window, taps: range,
    group: int = 1,
) -> str:  # fmt: skip
    """Return the planes that taps along the depth read, [N * depth, len(taps) * C, H, W].

    Channels are those of a group for each tap, group by group.
    """
    x = state.types[source]
    batch, channels, _, *image = x.shape
    n, c, d, *rest = x.strides
    step, each = window.dilations[0] * d, channels // group
    view = View((n, d * window.strides[0], c * each, step, c, *rest), taps.start * step)
    op = Map((batch, depth, group, len(taps), each, *image), Input(x.dtype, 0), (view,))
    type_ = TensorType(x.dtype, (batch * depth, len(taps) * channels, *image))
    return state.emit(op, (source,), type_, node, "map")
