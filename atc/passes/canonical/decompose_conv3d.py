"""Computes three-dimensional convolutions as two-dimensional ones of planes.

With the depth beside the batch, each tap along the depth is a convolution of all planes that it
meets; the sums go from one to the next through the epilogue. Of bytes, the planes that a window
meets lie beside each other as channels of a single convolution, whose sums stay exact.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.dims import maximum
from atc.ir.expr import Input, call
from atc.ir.graph import Array, DType, Node, TensorType
from atc.ir.ops import Conv, Epilogue, Map, Window, identity_epilogue
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.data import Pad
from atc.ir.view import View, dense
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
    if op.group > 1 and weights.shape[1] == 1:  # depthwise: windows of few numbers stay that
        return node
    views = []
    for view in op.epilogue.views:
        n, m, d, *rest = view.strides
        if batch != 1 and n != d * depth:
            return node
        views.append(View((d, m, *rest), view.offset))
    source = _padded(state, node, op, depth, zero)
    x = _planes(state, node, source, depth, window, range(window.kernel[0]), op.group)
    joined = weights.swapaxes(1, 2).reshape(filters, -1, *window.kernel[1:])
    w = state.add_constant(joined, f"{node.inputs[1]}.taps")
    planes = TensorType(y.dtype, (batch * depth, filters, *image))
    conv = replace(op, window=_flat(window), epilogue=Epilogue(op.epilogue.expr, tuple(views)))
    sums = state.emit(conv, (x, w, *node.inputs[2:]), planes, node, "conv")
    result = Map(y.shape, Input(y.dtype, 0), (_in_depth(planes, depth),))
    return replace(node, op=result, inputs=(sums,))


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
