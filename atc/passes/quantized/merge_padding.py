"""Padding with the zero point becomes the convolution's own, which kernels without vectors take."""

from __future__ import annotations

from dataclasses import replace

from atc.dims import is_dynamic
from atc.ir.graph import DType, Node
from atc.ir.ops import Conv
from atc.ir.ops.data import Pad
from atc.passes.rewriting import Rewriting, merge_origin


def merge_padding(state: Rewriting, node: Node) -> Node:
    """Let a convolution of bytes pad what is padded with its zero point in memory before."""
    op = node.op
    pad = state.producers.get(node.inputs[0]) if isinstance(op, Conv) else None
    if not isinstance(op, Conv) or op.accumulator is not DType.INT32 or not op.zero_points:
        return node
    if pad is None or not isinstance(pad.op, Pad) or pad.op.mode != "constant":
        return node
    source, *value = pad.inputs
    given, point = state.constant(value[0]) if value else None, state.constant(node.inputs[2])
    if given is None or point is None or is_dynamic(pad.op.extents) or point.size != 1:
        return node
    same = int(given.reshape(())) == int(point.reshape(()))
    around = (*pad.op.begins[:2], *pad.op.ends[:2])
    if not same or any(around) or state.types[source].shape != pad.op.shape:
        return node
    pads = tuple(a + b for a, b in zip(op.window.pads, pad.op.begins[2:], strict=True))
    return replace(
        node, op=replace(op, window=replace(op.window, pads=pads)),
        inputs=(source, *node.inputs[1:]), origin=merge_origin(pad, node),
    )  # fmt: skip
