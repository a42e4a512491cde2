"""Computes gradients of a convolution's filters as convolutions whose filters are the other side's.

With batch and channels exchanged on both sides, the gradient at the result slides over the input,
its strides and dilations exchanged. For targets that have no kernel of their own for it.
"""

from __future__ import annotations

from math import prod

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import Node, TensorType
from atc.ir.ops import Conv, ConvFilterGradient, Map, Window, identity_epilogue
from atc.ir.ops.data import Concat
from atc.ir.view import View
from atc.passes.rewriting import Rewriting


def filter_gradient_as_conv(state: Rewriting, node: Node) -> Node:
    """Replace a ConvFilterGradient by a Conv for each group."""
    op = node.op
    if not isinstance(op, ConvFilterGradient):
        return node
    y = state.types[node.outputs[0]]
    g = state.types[node.inputs[1]]
    if is_dynamic((y, g, state.types[node.inputs[0]])):
        return node
    window = Window(g.shape[2:], op.window.dilations, op.window.strides, op.window.pads)
    conv = Conv(window, 1, identity_epilogue(y.dtype), y.dtype)
    channels, filters = y.shape[1], y.shape[0] // op.group
    results = []
    for k in range(op.group):
        sides = [_exchanged(state, node, i, k, op.group) for i in (0, 1)]
        type_ = TensorType(y.dtype, (channels, filters, *y.shape[2:]))
        results.append(state.emit(conv, sides, type_, node, "slid"))
    kernel = y.shape[2:]
    steps = TensorType(y.dtype, (channels, filters, *kernel)).strides
    back = Map((filters, channels, *kernel), Input(y.dtype, 0),
               (View((steps[1], steps[0], *steps[2:])),))  # fmt: skip
    if op.group == 1:
        return Node(back, tuple(results), node.outputs, node.origin)
    own = TensorType(y.dtype, (filters, channels, *kernel))
    parts = [state.emit(back, (z,), own, node, "group") for z in results]
    size = prod(own.shape)
    return Node(Concat(1, (size,) * op.group), tuple(parts), node.outputs, node.origin)


def _exchanged(state: Rewriting, node: Node, i: int, group: int, groups: int) -> str:
    """Return a group's channels of operand i, [C, N, *spatial]."""
    type_ = state.types[node.inputs[i]]
    batch, all_channels, *spatial = type_.shape
    channels = all_channels // groups
    image, plane, *steps = type_.strides
    view = View((plane, image, *steps), group * channels * plane)
    move = Map((channels, batch, *spatial), Input(type_.dtype, 0), (view,))
    result = TensorType(type_.dtype, (channels, batch, *spatial))
    return state.emit(move, node.inputs[i : i + 1], result, node, "exchanged")
