"""Join what overwrites all of a Concat's operand in its place: a buffer that was rolled, say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.graph import Node
from atc.ir.ops import Map
from atc.ir.ops.data import Concat
from atc.ir.view import affine_table
from atc.passes.canonical.movements import part_of, places_of, source_of, written_places
from atc.passes.rewriting import Rewriting


def overwrite_parts(state: Rewriting, node: Node) -> Node:
    """Join the updates instead of the operand that a Scatter overwrites, moved as the Concat is."""
    written = written_places(node)
    if written is None:
        return node
    moves, name = source_of(state.producers, node.inputs[0], state.only_reader)
    joined = state.producers.get(name)
    if joined is None or not isinstance(joined.op, Concat) or not state.only_reader(name):
        return node
    if any(is_dynamic(state.types[v].shape) for v in (*joined.inputs, *node.inputs)):
        return node
    whole = places_of(moves, state.types[node.inputs[0]].size)
    found = part_of(joined.op, whole[written])
    if found is None or np.unique(whole).size != whole.size:
        return node
    number, places = found
    part, (_, updates) = joined.inputs[number], node.inputs
    if not np.array_equal(np.sort(places), np.arange(state.types[part].size)):
        return node
    order = np.empty_like(places)
    order[places] = np.arange(places.size)
    view = affine_table(order.reshape(state.types[part].shape))
    out = state.types[node.outputs[0]].shape
    moved = affine_table(whole.reshape(out))
    if view is None or moved is None:
        return node
    if not view.is_dense(state.types[part].shape):
        shape, type_ = state.types[part].shape, state.types[part]
        step = Map(shape, Input(type_.dtype, 0), (view,))
        updates = state.emit(step, [updates], type_, node, "part")
    inputs = (*joined.inputs[:number], updates, *joined.inputs[number + 1 :])
    type_ = state.types[joined.outputs[0]]
    if moved.is_dense(out) and whole.size == type_.size:
        return replace(node, op=joined.op, inputs=inputs)
    again = state.emit(joined.op, inputs, type_, node, "joined")
    return replace(node, op=Map(out, Input(type_.dtype, 0), (moved,)), inputs=(again,))
