"""Lets readers of a slice that lies densely in its tensor read it there."""

from __future__ import annotations

from dataclasses import replace

from atc.dims import is_dynamic
from atc.ir.graph import Node
from atc.ir.ops import Map, SubView
from atc.passes.rewriting import Rewriting

ALIGNMENT = 64
"""Bytes: a slice that begins off a cache line is copied, lest every vector read of it be slower."""


def alias_slices(state: Rewriting, node: Node) -> Node:
    """Turn a movement that keeps the order of a dense slice of its operand into a SubView."""
    op = node.op
    if not isinstance(op, Map) or not op.is_movement or len(node.inputs) != 1:
        return node
    (view,), type_ = op.views, state.types[node.outputs[0]]
    if not view.is_dense(op.shape) or view.offset * type_.dtype.itemsize % ALIGNMENT:
        return node
    if node.outputs[0] in state.graph.ends or not type_.size:
        return node
    if is_dynamic((view.offset, type_.shape)) and state.constant(node.inputs[0]) is not None:
        return node  # a constant's part is a constant
    return replace(node, op=SubView(view.offset))
