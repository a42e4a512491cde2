"""Padding with the zero point becomes the convolution's own.

Kernels without vectors take that, and those of a network's first layer, which copy what they read.
"""

from __future__ import annotations

from dataclasses import replace

from atc.dims import is_dynamic
from atc.ir.graph import DType, Node
from atc.ir.ops import Conv, ConvBlocked
from atc.ir.ops.data import Pad
from atc.passes.rewriting import Rewriting, merge_origin


def merge_padding(state: Rewriting, node: Node) -> Node:
    """Let a convolution of bytes pad what is padded with its zero point in memory before."""
    op = node.op
    pad = state.producers.get(node.inputs[0]) if isinstance(op, Conv | ConvBlocked) else None
    if not isinstance(op, Conv | ConvBlocked) or op.accumulator is not DType.INT32:
        return node
    if pad is None or not isinstance(pad.op, Pad) or pad.op.mode != "constant":
        return node
    source, *value = pad.inputs
    given = state.constant(value[0]) if value else None
    point = _zero_point(state, node, op)
    if given is None or point is None:
        return node
    if isinstance(op, ConvBlocked) and is_dynamic(pad.op.extents):  # no vector kernel takes that
        return node
    same = int(given.reshape(())) == point
    around = (*pad.op.begins[:2], *pad.op.ends[:2])
    if not same or any(around) or state.types[source].shape != pad.op.shape:
        return node
    pads = tuple(a + b for a, b in zip(op.window.pads, pad.op.begins[2:], strict=True))
    return replace(
        node, op=replace(op, window=replace(op.window, pads=pads)),
        inputs=(source, *node.inputs[1:]), origin=merge_origin(pad, node),
    )  # fmt: skip


def _zero_point(state: Rewriting, node: Node, op: Conv | ConvBlocked) -> int | None:
    """Return the zero point of a convolution's operand, None where it mayn't pad with that."""
    if isinstance(op, Conv):
        point = state.constant(node.inputs[2]) if op.zero_points else None
        return int(point.reshape(())) if point is not None and point.size == 1 else None
    first = len(state.types[node.inputs[0]].shape) == op.plain and op.group == 1
    dense = op.window.rank <= 2 and op.window.dilations[-1] == 1 and op.window.kernel[-1] > 1
    return op.zero if first and dense else None
