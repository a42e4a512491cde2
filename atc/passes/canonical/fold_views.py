"""Reads through data movement: a transpose, slice or expand becomes part of its reader's view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atc.dims import is_dynamic
from atc.ir.graph import Node, TensorType
from atc.ir.ops import Map, MatMul, Normalize, Reduce, Reshape, Softmax
from atc.ir.view import Split, View, compose, compose_refining, dense, simplify_loops
from atc.passes.rewriting import Rewriting, merge_origin


def fold_views(state: Rewriting, node: Node) -> Node:
    """Let Map, Reduce and MatMul read the source of a Reshape or pure-movement operand.

    Views address flat memory, so a Reshape is transparent to them; it is to Normalize and Softmax.
    """
    match node.op:
        case Map() | Reduce():
            return _nest(state, node)
        case MatMul():
            return _matmul(state, node)
        case Reshape():
            source = state.producers.get(node.inputs[0])
            if source is not None and isinstance(source.op, Reshape):
                return replace(node, inputs=source.inputs)
            if source is not None and isinstance(source.op, Map | Reduce | Normalize | Softmax):
                return _reshaped(state, node, source)
        case Normalize() | Softmax():
            source = state.producers.get(node.inputs[0])
            if source is not None and isinstance(source.op, Reshape):
                return _with_input(node, 0, source.inputs[0])
    return node


def _reshaped(state: Rewriting, node: Node, source: Node) -> Node:
    """Let a node that knows no shapes make the reshaped value, if nothing reads the other."""
    if not state.only_reader(node.inputs[0]) or len(source.outputs) > 1:
        return node
    return replace(source, outputs=node.outputs, origin=merge_origin(source, node))


def _nest(state: Rewriting, node: Node) -> Node:
    op = node.op
    assert isinstance(op, Map | Reduce)
    index = 0
    while index < len(node.inputs):
        source = state.producers.get(node.inputs[index])
        if source is not None and isinstance(source.op, Reshape):
            node = _with_input(node, index, source.inputs[0])
            continue
        op = node.op
        assert isinstance(op, Map | Reduce)
        if source is not None and isinstance(source.op, Map) and source.op.is_movement:
            moved = _read_through(node, op, index, source)
            if moved is not None:
                node = moved
                continue
        index += 1
    return node


def _with_input(node: Node, index: int, name: str) -> Node:
    return replace(node, inputs=(*node.inputs[:index], name, *node.inputs[index + 1 :]))


def _read_through(node: Node, op: Map | Reduce, index: int, source: Node) -> Node | None:
    """Return the node reading the movement's own operand, when the views compose."""
    assert isinstance(source.op, Map)
    if index >= len(op.views):
        return None  # an operand of the epilogue
    refined = refine(op, index, source.op.shape, source.op.views)
    if refined is None:
        return None
    new_op, (inner,) = refined
    views = (*new_op.views[:index], inner, *new_op.views[index + 1 :])
    result = replace(node, op=tidy(replace(new_op, views=views)))
    result = _with_input(result, index, source.inputs[0])
    return replace(result, origin=merge_origin(source, node))


def refine(
    op: Map | Reduce, index: int, inner_shape: tuple[int, ...], inner: tuple[View, ...]
) -> tuple[Map | Reduce, tuple[View, ...]] | None:
    """Compose operand `index` with the views it is computed by, splitting the op's loops if needed.

    Returns the op over the refined loops (its other views adapted) and the views of the operand's
    own operands over them.
    """
    match op:
        case Map():
            every = (*op.views, *op.coordinates)
            composed = compose_refining(op.shape, every, index, inner_shape, inner)
            if composed is None:
                return None
            shape, every, found = composed
            own = len(op.views)
            return replace(op, shape=shape, views=every[:own], coordinates=every[own:]), found
        case Reduce():
            return _refine_reduce(op, index, inner_shape, inner)


def _refine_reduce(
    op: Reduce, index: int, inner_shape: tuple[int, ...], inner: tuple[View, ...]
) -> tuple[Reduce, tuple[View, ...]] | None:
    kept, own, last = len(op.shape), len(op.views), len(op.views) + len(op.coordinates)
    marker = View((*[0] * kept, *[1] * len(op.reduced)))  # marks kept loops 0, reduced ones 1
    extra = tuple(View((*v.strides, *[0] * len(op.reduced)), v.offset) for v in op.epilogue.views)
    composed = compose_refining(
        (*op.shape, *op.reduced), (*op.views, *op.coordinates, *extra, marker), index,
        inner_shape, inner,
    )  # fmt: skip
    if composed is None:
        return None
    loops, views, found = composed
    split = sum(1 for s in views[-1].strides if s == 0)
    epilogue = replace(
        op.epilogue,
        views=tuple(View(v.strides[:split], v.offset) for v in views[last:-1]),
    )
    return (
        replace(op, shape=loops[:split], reduced=loops[split:], views=views[:own],
                coordinates=views[own:last], epilogue=epilogue),
        found,
    )  # fmt: skip


def tidy(op: Map | Reduce) -> Map | Reduce:
    """Merge the loops of a Map that all its views walk as one."""
    if isinstance(op, Reduce):
        return op
    shape, (_, *found) = simplify_loops(op.shape, [dense(op.shape), *op.views, *op.coordinates])
    own = len(op.views)
    return replace(op, shape=shape, views=tuple(found[:own]), coordinates=tuple(found[own:]))


def reordered(op: Map, order: Sequence[int]) -> Map:
    """Return a Map over its loops in another order."""
    views = tuple(View(tuple(v.strides[d] for d in order), v.offset) for v in op.views)
    return replace(op, shape=tuple(op.shape[d] for d in order), views=views)


def _as_it_lies(state: Rewriting, node: Node, op: MatMul, source: Node) -> Node | None:
    """Return a product whose B is computed elementwise in the order in which its operand lies: the
    product reads any order, vectors read only the dense one."""
    made = source.op
    assert isinstance(made, Map)
    whole = [v for v in made.views if 0 not in v.strides]
    if len(whole) != 1 or made.coordinates or is_dynamic((made, op.b_view)):
        return None
    order = sorted(range(len(made.shape)), key=lambda d: -whole[0].strides[d])
    if order == sorted(order) or not state.only_reader(source.outputs[0]):
        return None
    before = reordered(made, order)
    steps = dense(before.shape).strides
    view = View(tuple(steps[order.index(d)] for d in range(len(order))))
    found = compose((*op.batch, op.k, op.n), op.b_view, made.shape, (view,))
    if found is None or isinstance(found, Split):
        return None
    dtype = state.types[source.outputs[0]].dtype
    type_ = TensorType(dtype, before.shape)
    name = state.emit(before, source.inputs, type_, source, "in_order")
    return replace(_with_input(node, 1, name), op=replace(op, b_view=found[0]))


def _matmul(state: Rewriting, node: Node) -> Node:
    for index in (0, 1):
        while True:
            op = node.op
            assert isinstance(op, MatMul)
            source = state.producers.get(node.inputs[index])
            if source is not None and isinstance(source.op, Reshape):
                node = _with_input(node, index, source.inputs[0])
                continue
            if source is None or not isinstance(source.op, Map):
                break
            if not source.op.is_movement:
                node = (_as_it_lies(state, node, op, source) if index else None) or node
                break
            view = op.a_view if index == 0 else op.b_view
            tail = (op.m, op.k) if index == 0 else (op.k, op.n)
            found = compose((*op.batch, *tail), view, source.op.shape, source.op.views)
            if found is None or isinstance(found, Split):
                break
            op = replace(op, a_view=found[0]) if index == 0 else replace(op, b_view=found[0])
            origin = merge_origin(source, node)
            node = replace(_with_input(node, index, source.inputs[0]), op=op, origin=origin)
    return node
