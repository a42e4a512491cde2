"""Computes three-dimensional convolutions as sums of two-dimensional ones over the planes.

With the depth beside the batch, each tap along the depth is a convolution of all planes that it
meets; the sums go from one to the next through the epilogue.
"""

from __future__ import annotations

from dataclasses import replace

from atc.dims import maximum
from atc.ir.expr import Input, call
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Conv, Epilogue, Map, Window, identity_epilogue
from atc.ir.ops.data import Pad
from atc.ir.view import View, dense
from atc.passes.rewriting import Rewriting

FLOAT = DType.FLOAT


def decompose_conv3d(state: Rewriting, node: Node) -> Node:
    """Replace a Conv over three axes with known weights by those over two, and a Map."""
    op = node.op
    if not isinstance(op, Conv) or op.window.rank != 3 or op.zero_points:
        return node
    y, weights = state.types[node.outputs[0]], state.constant(node.inputs[1])
    floats = op.accumulator is FLOAT and state.types[node.inputs[0]].dtype is FLOAT
    if weights is None or not floats:
        return node
    if not y.size or not state.types[node.inputs[0]].size:
        return node
    batch, filters, depth, *image = y.shape
    window = op.window
    flat = Window(window.kernel[1:], window.strides[1:], window.dilations[1:], window.pads[1:])
    source = _padded(state, node, op, depth)
    planes = TensorType(FLOAT, (batch * depth, filters, *image))
    total: tuple[str, ...] = ()
    for tap in range(window.kernel[0]):
        x = _planes(state, node, source, depth, window.strides[0], tap * window.dilations[0])
        w = state.add_constant(weights[:, :, tap], f"{node.inputs[1]}.{tap}")
        epilogue = identity_epilogue(FLOAT)
        if total:
            added = call("Add", Input(FLOAT, 0), Input(FLOAT, 1))
            epilogue = Epilogue(added, (dense(planes.shape),))
        conv = Conv(flat, op.group, epilogue)
        total = (state.emit(conv, (x, w, *total), planes, node, "conv"),)
    n, c, h, *w_ = dense(planes.shape).strides
    view = View((n * depth, c, n, h, *w_))
    result = Map(y.shape, op.epilogue.expr, (view, *op.epilogue.views))
    return replace(node, op=result, inputs=(*total, *node.inputs[2:]))


def _padded(state: Rewriting, node: Node, op: Conv, depth: int) -> str:
    """Return the operand with all planes that a window reads, those of padding among them."""
    name, window = node.inputs[0], op.window
    x = state.types[name]
    begin = window.pads[0]
    reach = (depth - 1) * window.strides[0] + (window.kernel[0] - 1) * window.dilations[0] + 1
    end = maximum(reach - begin - x.shape[2], 0)
    if not begin and not end:
        return name
    frame = Pad("constant", x.shape, (0, 0, begin, 0, 0), (0, 0, end, 0, 0))
    return state.emit(frame, (name,), TensorType(FLOAT, frame.extents), node, "pad")


def _planes(
    state: Rewriting, node: Node, source: str, depth: int, stride: int, first: int
) -> str:
    """Return the planes that a tap reads, [N * depth, C, H, W]."""
    batch, channels, _, *image = state.types[source].shape
    n, c, d, *rest = state.types[source].strides
    view = View((n, d * stride, c, *rest), first * d)
    op = Map((batch, depth, channels, *image), Input(FLOAT, 0), (view,))
    type_ = TensorType(FLOAT, (batch * depth, channels, *image))
    return state.emit(op, (source,), type_, node, "map")
