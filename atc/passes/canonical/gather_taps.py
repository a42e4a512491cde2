"""Convolutions whose windows have gaps, of one place along an axis, read their taps alone.

Streams are such: a frame comes, and a filter of many dilations looks back for each. Without gaps
there are vector kernels, and what lies between the taps isn't moved into their layout.
"""

from __future__ import annotations

from dataclasses import replace

from atc.dims import is_dynamic, upper_bound
from atc.ir.expr import Input
from atc.ir.graph import Node, TensorType, row_major
from atc.ir.ops import Conv, Map, Window
from atc.ir.view import View
from atc.passes.rewriting import Rewriting


def gather_taps(state: Rewriting, node: Node) -> Node:
    """Replace dilations along axes where a result has one place by a view of the taps."""
    op = node.op
    if not isinstance(op, Conv) or state.types[node.inputs[1]].shape[1] == 1:
        return node  # depthwise ones compute too little with what would be copied
    x, y, window = state.types[node.inputs[0]], state.types[node.outputs[0]], op.window
    axes = [k for k in range(window.rank) if _is_apart(window, x.shape[k + 2], y.shape[k + 2], k)]
    if not axes:
        return node
    shape, strides, dilations = [*x.shape], [*row_major(x.shape)], [*window.dilations]
    for k in axes:
        shape[k + 2] = window.kernel[k]
        strides[k + 2] *= dilations[k]
        dilations[k] = 1
    taps = Map(tuple(shape), Input(x.dtype, 0), (View(tuple(strides)),))
    read = state.emit(taps, node.inputs[:1], TensorType(x.dtype, tuple(shape)), node, "taps")
    dense = replace(window, dilations=tuple(dilations))
    return replace(node, op=replace(op, window=dense), inputs=(read, *node.inputs[1:]))


def _is_apart(window: Window, size: int, out: int, axis: int) -> bool:
    """Return whether one window is all there is along an axis, with gaps, and no tap is padding."""
    taps, step = window.kernel[axis], window.dilations[axis]
    if is_dynamic(out) or out != 1 or taps == 1 or step == 1:
        return False
    return window.pads[axis] == 0 and upper_bound((taps - 1) * step - size) < 0
