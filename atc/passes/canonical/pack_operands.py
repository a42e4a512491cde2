"""Packs strided operands into rows that vectors can be read from.

A residual that lies transposed beside a matrix product would have the product computed number by
number; transposed before by itself, it costs a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atc.dims import is_dynamic, max_value, maximum
from atc.ir.expr import Input, cost
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Conv, Map, MatMul
from atc.ir.view import View, dense, gather_view, simplify_loops
from atc.passes.rewriting import Rewriting

DEPTH = 8
"""Terms of the sums from which on a copy is the lesser part."""
COSTLY = 10
"""The cost of an expression that is worth a copy for its being computed in vectors."""


def pack_operands(state: Rewriting, node: Node, width: int) -> Node:
    """Give a product, or a Map in steps of the last loop, operands that follow its last loop."""
    op = node.op
    if any(state.types[n].dtype is not DType.FLOAT for n in _values(node)):
        return node
    match op:
        case MatMul() | Conv():
            first = 2 if isinstance(op, MatMul) else op.operands
            loops = op.loops if isinstance(op, MatMul) else state.types[node.outputs[0]].shape
            strided = [v.strides[-1] not in (0, 1) for v in op.epilogue.views]
            if not any(strided) or max_value(_depth(state, node)) < DEPTH:
                return node
            names, views = _moved(state, node, first, op.epilogue.views, loops, strided)
            epilogue = replace(op.epilogue, views=views)
            return replace(node, op=replace(op, epilogue=epilogue), inputs=names)
        case Map() if not op.is_movement and not op.coordinates:
            return _packed_map(state, node, op, width)
        case _:
            return node


def _packed_map(state: Rewriting, node: Node, op: Map, width: int) -> Node:
    """Return a Map over long loops, after its operands that lie otherwise were moved."""
    if not op.shape or not all(op.shape) or _follow(op.shape, op.views, width):
        return node
    strided = [_is_transposed(v, op.shape, width) for v in op.views]
    if cost(op.expr) >= COSTLY:
        strided = [_fills(v, op.shape) and not v.is_dense(op.shape) for v in op.views]
    after = [dense(op.shape) if a else v for a, v in zip(strided, op.views, strict=True)]
    if not any(strided) or not _follow(*simplify_loops(op.shape, after), width):
        return node
    names, views = _moved(state, node, 0, op.views, op.shape, strided)
    loops, views = simplify_loops(op.shape, views)
    return replace(node, op=replace(op, shape=loops, views=views), inputs=names)


def _follow(loops: Sequence[int], views: Sequence[View], width: int) -> bool:
    """Return whether vectors of all operands can be read along the last loop."""
    wide = bool(loops) and 2 * max_value(loops[-1]) >= width
    return wide and all(v.strides[-1] in (0, 1) for v in views)


def _fills(view: View, shape: Sequence[int]) -> bool:
    """Return whether no loop reads the same elements repeatedly."""
    return all(s != 0 or n == 1 for s, n in zip(view.strides, shape, strict=True))


def _values(node: Node) -> tuple[str, ...]:
    return (*(n for n in node.inputs if n), *node.outputs)


def _depth(state: Rewriting, node: Node) -> int:
    """Return how many products a result sums."""
    op = node.op
    if isinstance(op, MatMul):
        return op.k
    weights = state.types[node.inputs[1]]
    return weights.size // maximum(1, weights.shape[0])


def _is_transposed(view: View, shape: Sequence[int], width: int) -> bool:
    """Return whether squares of `width` rows and columns can be transposed.

    Another loop reads in order.
    """
    if not view.strides or view.strides[-1] in (0, 1) or max_value(shape[-1]) < width:
        return False
    return any(s == 1 and max_value(n) >= width for s, n in zip(view.strides, shape, strict=True))


def _moved(
    state: Rewriting, node: Node, first: int, views: Sequence[View], loops: Sequence[int],
    strided: Sequence[bool],
) -> tuple[tuple[str, ...], tuple[View, ...]]:  # fmt: skip
    """Return operands and views of which those `strided` are copied in the order of the loops."""
    names, kept = list(node.inputs), list(views)
    for k, view in enumerate(views):
        if not strided[k]:
            continue
        array = state.constant(names[first + k])
        if array is None or is_dynamic(tuple(loops)):
            move = Map(tuple(loops), Input(DType.FLOAT, 0), (view,))
            type_ = TensorType(DType.FLOAT, tuple(loops))
            names[first + k] = state.emit(move, (names[first + k],), type_, node, "transposed")
        else:
            packed = gather_view(array, loops, view)
            names[first + k] = state.add_constant(packed, f"{names[first + k]}.transposed")
        kept[k] = dense(loops)
    return tuple(names), tuple(kept)
