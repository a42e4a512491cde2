"""Moves transposes behind what comes after them, until they meet those that undo them.

Networks from frameworks whose channels lie last transpose before and after every convolution.
Elementwise nodes, joins and frames in between are computed in the convolution's order instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from atc.ir.expr import Input
from atc.ir.graph import Array, Graph, Node, Op, TensorType, row_major
from atc.ir.ops import Map
from atc.ir.ops.data import Concat, Pad
from atc.ir.view import View, compose_refining, dense
from atc.passes.rewriting import Rewriting, rewrite


def sink_transposes(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Compute what lies between two transposes in the order before the first."""
    wanted = _transposed_later(graph)
    return rewrite(graph, partial(_sink, wanted), outer) if wanted else graph


def _transposed_later(graph: Graph) -> frozenset[str]:
    """Return what is transposed somewhere behind elementwise nodes, joins and frames."""
    found: set[str] = set()
    for node in reversed(graph.nodes):
        if _order(node, graph.types) is not None or (
            isinstance(node.op, Map | Concat | Pad) and node.outputs[0] in found
        ):
            rank = len(graph.types[node.outputs[0]].shape)
            found.update(i for i in node.inputs if i and len(graph.types[i].shape) == rank)
    return frozenset(found)


def _order(node: Node, types: Mapping[str, TensorType]) -> tuple[int, ...] | None:
    """Return the source's axes in the order of the result's where a node only transposes."""
    op = node.op
    if not isinstance(op, Map) or not op.is_movement or len(node.inputs) != 1:
        return None
    source, result = types[node.inputs[0]].shape, types[node.outputs[0]].shape
    views, rank = _unfolded(op, result), len(source)
    if views is None or len(result) != rank or rank < 3 or views[0].offset or not prod(source):
        return None
    (view,) = views
    left = {(n, s): d for d, (n, s) in enumerate(zip(source, row_major(source), strict=True))}
    if len(left) != rank:
        return None
    ones = [d for d, n in enumerate(source) if n == 1]
    order = []
    for n, s in zip(result, view.strides, strict=True):
        axis = (ones.pop(0) if ones else None) if n == 1 else left.get((n, s))
        if axis is None:
            return None
        order.append(axis)
    return tuple(order) if sorted(order) == list(range(rank)) != order else None


def _unfolded(op: Map, shape: tuple[int, ...]) -> tuple[View, ...] | None:
    """Return the views of a Map over the axes of its result, whose loops may be merged."""
    found = compose_refining(shape, [dense(shape)], 0, op.shape, op.views)
    return found[2] if found is not None and found[0] == shape else None


def _sink(wanted: frozenset[str], state: Rewriting, node: Node) -> Node:
    op = node.op
    if len(node.outputs) != 1 or node.outputs[0] not in wanted:
        return node
    if not isinstance(op, Map | Concat | Pad) or isinstance(op, Map) and op.is_movement:
        return node
    shape = state.types[node.outputs[0]].shape
    transposed = {name: _source(state, name) for name in node.inputs if name}
    orders = {t[1] for t in transposed.values() if t is not None}
    if len(orders) != 1:
        return node
    (order,) = orders
    if len(order) != len(shape):  # the result has axes of its own, or less
        return node
    sources = {name: t[0] for name, t in transposed.items() if t is not None}
    new: Op | None
    match op:
        case Map():
            new = _map(state, node, op, sources, order)
        case Concat():
            new = _concat(state, node, sources, order)
        case Pad():
            new = _pad(op, state.types[node.inputs[0]].shape, order)
    if new is None:
        return node
    before = _before(shape, order)
    inputs = [sources.get(name, name) for name in node.inputs]
    type_ = TensorType(state.types[node.outputs[0]].dtype, before)
    name = state.emit(new, inputs, type_, node, "transposed")
    steps = row_major(before)
    view = View(tuple(steps[axis] for axis in order))
    return replace(node, op=Map(shape, Input(type_.dtype, 0), (view,)), inputs=(name,))


def _source(state: Rewriting, name: str) -> tuple[str, tuple[int, ...]] | None:
    """Return what a value is the transpose of, and the order of its axes."""
    source = state.producers.get(name)
    order = None if source is None else _order(source, state.types)
    return None if source is None or order is None else (source.inputs[0], order)


def _before(extents: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Return numbers per axis of the result in the order of the source's axes."""
    found = [0] * len(order)
    for n, axis in zip(extents, order, strict=True):
        found[axis] = n
    return tuple(found)


def _map(
    state: Rewriting, node: Node, op: Map, sources: Mapping[str, str], order: Sequence[int]
) -> Map | None:
    """Return an elementwise node in the source's order: others it reads are small or constant."""
    shape = state.types[node.outputs[0]].shape
    unfolded = _unfolded(op, shape)
    if unfolded is None or op.coordinates:
        return None
    before = _before(shape, order)
    whole = View(tuple(s if n > 1 else 0 for n, s in zip(shape, row_major(shape), strict=True)))
    views = []
    for name, found in zip(node.inputs, unfolded, strict=True):
        steps = zip(shape, found.strides, strict=True)
        view = View(tuple(s if n > 1 else 0 for n, s in steps), found.offset)
        if name in sources:
            if view != whole:
                return None
            views.append(dense(before))
            continue
        if state.constant(name) is None and 2 * state.types[name].size > prod(shape):
            return None
        views.append(View(_before(view.strides, order), view.offset))
    return Map(before, op.expr, tuple(views))


def _concat(
    state: Rewriting, node: Node, sources: Mapping[str, str], order: Sequence[int]
) -> Concat | None:
    if len(sources) != len({*node.inputs}):
        return None
    shapes = [state.types[name].shape for name in node.inputs]
    whole = state.types[node.outputs[0]].shape
    axes = [d for d, n in enumerate(whole) if any(s[d] != n for s in shapes)]
    if len(axes) != 1 or any(len(s) != len(whole) for s in shapes):
        return None
    at = order[axes[0]]
    before = [_before(s, order) for s in shapes]
    return Concat(prod(before[0][:at]), tuple(prod(s[at:]) for s in before))


def _pad(op: Pad, shape: Sequence[int], order: Sequence[int]) -> Pad | None:
    """Return a frame in the source's order."""
    rows = frame_axes(op, shape)
    if rows is None:
        return None
    extents, begins, ends = (_before(column, order) for column in zip(*rows, strict=True))
    return replace(op, shape=extents, begins=begins, ends=ends)


def frame_axes(op: Pad, shape: Sequence[int]) -> list[tuple[int, int, int]] | None:
    """Return (extent, begin, end) for each axis of an operand; axes of one may lack in the op."""
    own = list(zip(op.shape, op.begins, op.ends, strict=True))
    rows: list[tuple[int, int, int]] = []
    for n in shape:
        if own and own[0][0] == n:
            rows.append(own.pop(0))
        elif n == 1:
            rows.append((1, 0, 0))
        else:
            return None
    return None if own else rows
