"""Join what overwrites all of a Concat's operand in its place: a buffer that was rolled, say."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from atc.dims import is_dynamic
from atc.ir.expr import Const, Input
from atc.ir.graph import Node
from atc.ir.ops import Map, Reshape
from atc.ir.ops.data import Concat, Scatter
from atc.ir.view import addresses, affine_table
from atc.passes.rewriting import Rewriting

Places = npt.NDArray[np.int64]


def overwrite_parts(state: Rewriting, node: Node) -> Node:
    """Join the updates instead of the operand that a Scatter overwrites, moved as the Concat is."""
    op = node.op
    if not isinstance(op, Scatter) or not _overwrites(op) or len(node.inputs) != 2:
        return node
    moves, joined = _sources(state, node.inputs[0])
    if joined is None or not isinstance(joined.op, Concat):
        return node
    if any(is_dynamic(state.types[v].shape) for v in (*joined.inputs, *node.inputs)):
        return node
    whole = np.arange(state.types[node.inputs[0]].size)
    for move in moves:
        whole = addresses(move.shape, move.views[0])[whole]
    found = _part(joined.op, whole[_written(op)])
    if found is None or np.unique(whole).size != whole.size:
        return node
    number, places = found
    part, (_, updates) = joined.inputs[number], node.inputs
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


def _overwrites(op: Scatter) -> bool:
    """Return whether updates replace elements at places that are known when compiling."""
    known = isinstance(op.address, Const) or (
        isinstance(op.address, Input) and len(op.coordinates) == 1
    )
    return known and isinstance(op.combine, Input) and op.combine.index == 1 and not op.views


def _written(op: Scatter) -> Places:
    """Return the address that each update is written to."""
    if isinstance(op.address, Const):
        begins = np.array([int(op.address.value)])
    else:
        begins = addresses(op.shape, op.coordinates[0])
    return (begins[:, None] + np.arange(op.run)).ravel()


def _sources(state: Rewriting, value: str) -> tuple[list[Map], Node | None]:
    """Return the movements that make a value, last one first, and the node whose result they move.

    None where something else reads what is between them, or it is computed by none.
    """
    moves: list[Map] = []
    while (made := state.producers.get(value)) is not None and state.only_reader(value):
        op = made.op
        if isinstance(op, Map) and op.is_movement and len(made.inputs) == 1:
            moves.append(op)
        elif not isinstance(op, Reshape):
            return moves, made
        (value,) = made.inputs
    return moves, None


def _part(op: Concat, places: Places) -> tuple[int, Places] | None:
    """Return the only operand that places in a Concat's result are all of, and where in it."""
    row, column = np.divmod(places, sum(op.parts))
    number = int(np.searchsorted([*accumulate(op.parts)], column.min(), side="right"))
    size = op.parts[number]
    inside = row * size + column - sum(op.parts[:number])
    whole = np.array_equal(np.sort(inside), np.arange(op.outer * size))
    return (number, inside) if whole and (column < sum(op.parts[: number + 1])).all() else None
