"""Fuse the elementwise node after a heavy op into that op's epilogue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from atc.ir.expr import Call, Expr, Input, cast, cost, operands_of, substitute
from atc.ir.graph import DType, Node, Op, TensorType
from atc.ir.ops import Conv, Epilogue, Map, MatMul, Normalize, Reduce, Reshape
from atc.ir.ops.blocked import BYTES
from atc.ir.view import Split, View, compose, compose_refining, dense
from atc.passes.canonical.fold_views import reordered
from atc.passes.canonical.lookup_tables import reads_lookup_table
from atc.passes.canonical.simplify_matmul import split_rows
from atc.passes.rewriting import Rewriting, distinct_operands, merge_origin

MAX_OPERANDS = 6
MAX_COST = 240
"""The most cost of an epilogue: beyond it, the result is better stored than kept in registers."""
SMALL = (*BYTES, DType.UINT16, DType.INT16)
"""Types that tensors are quantized to."""


def fuse_epilogue(
    state: Rewriting, node: Node, bytes_last: bool = False, vectors: bool = False
) -> Node:
    """Replace a Map that reads a heavy op's result in place by that op with a longer epilogue.

    Nothing else may read the result; other operands (bias, residual) become the node's. With
    `bytes_last` convolutions that end in bytes do: floats don't lie with their channels last. With
    `vectors` a Map narrows floats to 16 bits by itself, which kernels of vectors don't store.
    """
    if not isinstance(node.op, Map) or reads_lookup_table(node.op.expr):
        return node  # a table is read fastest byte by byte
    latest_first = sorted(
        range(len(node.inputs)), key=lambda k: -state.position.get(node.inputs[k], -1)
    )
    for index in latest_first:  # the others are then computed before it
        if bytes_last and _takes_from_bytes(state, node.op, node.inputs[index]):
            continue
        narrows = vectors and _narrows_floats(state, node.op, node.inputs[index])
        fuse = _fuse_before_narrowing if narrows else _fuse
        fused = fuse(state, node, node.op, index)
        if fused is not None:
            return fused
    found = (_fuse_before_transposing(state, node, node.op, k) for k in latest_first)
    return next(filter(None, found), node)


def _fuse_before_transposing(state: Rewriting, node: Node, op: Map, index: int) -> Node | None:
    """Return what only transposes a heavy op's floats, which has the arithmetic in its epilogue."""
    view, heavy = op.views[index], _maker(state, node.inputs[index])
    if heavy is None or isinstance(heavy.op, Reduce) or op.is_movement or op.coordinates:
        return None
    result = state.types[heavy.outputs[0]]
    if result.dtype is not DType.FLOAT or op.expr.dtype is not DType.FLOAT:
        return None
    others = [state.types[name].size for name in node.inputs if state.constant(name) is None]
    if sum(others) > 3 * result.size // 2:
        return None  # what is large would be read with strides
    order = sorted(range(len(op.shape)), key=lambda d: -view.strides[d])
    if order == sorted(order):
        return None
    fused = _fuse(state, node, reordered(op, order), index, shape=result.shape)
    if fused is None:
        return None
    name = state.emit(fused.op, fused.inputs, result, fused, "before")
    return replace(node, op=Map(op.shape, Input(DType.FLOAT, 0), (view,)), inputs=(name,))


def _narrows_floats(state: Rewriting, op: Map, name: str) -> bool:
    """Return whether a Map narrows floats to 16 bits that no kernel of vectors stores so."""
    maker = _maker(state, name)
    if maker is None or not op.expr.dtype.is_half or op.is_movement:
        return False
    return not isinstance(maker.op, Reduce) and not _sums_integers(maker)


def _fuse_before_narrowing(state: Rewriting, node: Node, op: Map, index: int) -> Node | None:
    """Return what narrows a heavy op's result that has the arithmetic before in its epilogue."""
    match op.expr:
        case Call(fn="Cast", args=(Call(dtype=DType.FLOAT) as floats,)):
            fused = _fuse(state, node, replace(op, expr=floats), index)
        case _:
            return None
    if fused is None:
        return None
    wide = TensorType(DType.FLOAT, state.types[node.outputs[0]].shape)
    name = state.emit(fused.op, fused.inputs, wide, fused, "wide")
    narrowing = Map(op.shape, cast(Input(DType.FLOAT, 0), op.expr.dtype), (dense(op.shape),))
    return replace(node, op=narrowing, inputs=(name,))


def _takes_from_bytes(state: Rewriting, op: Map, name: str) -> bool:
    """Return whether a Map makes something larger of a convolution's bytes."""
    maker = _maker(state, name)
    if maker is None or not isinstance(maker.op, Conv):
        return False
    return maker.op.epilogue.expr.dtype in BYTES and op.expr.dtype not in SMALL


def fuse_known_epilogue(
    state: Rewriting, node: Node, bytes_last: bool = False, vectors: bool = False
) -> Node:
    """Fuse an epilogue whose other operands are constants: bias and activation, no residual."""
    computed = [name for name in node.inputs if state.constant(name) is None]
    return fuse_epilogue(state, node, bytes_last, vectors) if len(computed) == 1 else node


def look_up_sums(state: Rewriting, node: Node) -> Node:
    """Look bytes up in a table where they are computed, as sums of integers.

    So kernels that finish one sum after the other do best.
    """
    op = node.op
    if not isinstance(op, Map) or not isinstance(op.expr, Call) or op.expr.fn != "Lookup":
        return node
    maker = _maker(state, node.inputs[0])
    if op.expr.args[1] != Input(op.expr.args[1].dtype, 0) or maker is None:
        return node
    found = _fuse(state, node, op, 0) if _sums_integers(maker) else None
    return node if found is None else found


def fuse_positions(state: Rewriting, node: Node, op: Map) -> Node | None:
    """Return a heavy op with a Map of its result and of indices as epilogue; None if none fits.

    Indices are operands '' of it, views without a tensor. Only kernels of Attention support them.
    """
    found = (_fuse(state, node, op, index, positions=True) for index in range(len(node.inputs)))
    return next(filter(None, found), None)


def _fuse(
    state: Rewriting, node: Node, op: Map, index: int, positions: bool = False,
    shape: tuple[int, ...] | None = None,
) -> Node | None:  # fmt: skip
    """Return the op of an operand with a Map as its epilogue; `shape` is the result's."""
    heavy = _maker(state, node.inputs[index])
    if heavy is None or (op.coordinates and not positions):
        return None
    epilogue: Epilogue = heavy.op.epilogue  # type: ignore[attr-defined]
    view = op.views[index]
    if view.offset or not view.is_dense(op.shape):
        return None
    result = state.types[heavy.outputs[0]]
    if result.dtype is DType.FLOAT and op.expr.dtype in SMALL and not _sums_integers(heavy):
        return None  # tuned float kernels store floats
    if prod(op.shape) != result.size:
        return None  # the Map reads a part of the result only
    space = epilogue_space(heavy, result.shape)
    shape = state.types[node.outputs[0]].shape if shape is None else shape
    reshaped = space is result.shape and shape != result.shape
    if reshaped and not _sums_integers(heavy):
        return None  # a Conv keeps its shape, whatever reshape follows
    map_views = (*op.views, *op.coordinates)
    map_names = (*node.inputs, *[""] * len(op.coordinates))
    others = [k for k in range(len(map_views)) if k != index]
    if any(map_names[k] == node.inputs[index] for k in others):
        return None
    found = _read_over(heavy.op, space, op.shape, [map_views[k] for k in others], positions)
    if found is None:
        return None
    target, views = found
    epilogue = target.epilogue  # type: ignore[attr-defined]
    fused = _joined(epilogue, op, index, others)
    first = len(heavy.inputs) - len(epilogue.views)
    names = (*heavy.inputs[first:], *(map_names[k] for k in others))
    expr, extra, all_views = distinct_operands(fused, names, (*epilogue.views, *views), 1)
    if len(extra) > MAX_OPERANDS or cost(expr) > MAX_COST:
        return None
    extra += ("",) * (len(all_views) - len(extra))
    new_op = replace(target, epilogue=Epilogue(expr, all_views))  # type: ignore[type-var]
    fused_node = Node(
        new_op, (*heavy.inputs[:first], *extra), node.outputs, merge_origin(heavy, node)
    )
    return _reshaped(state, fused_node, result.shape) if reshaped else fused_node


def _reshaped(state: Rewriting, node: Node, shape: tuple[int, ...]) -> Node:
    """Return a node whose result is computed in another shape and then reshaped."""
    own = TensorType(state.types[node.outputs[0]].dtype, shape)
    name = state.emit(node.op, node.inputs, own, node, "whole")
    return Node(Reshape(), (name,), node.outputs, node.origin)


def _read_over(
    op: Op, space: tuple[int, ...], shape: tuple[int, ...], views: Sequence[View],
    positions: bool,
) -> tuple[Op, tuple[View, ...]] | None:  # fmt: skip
    """Return the views of a Map's operands over an epilogue's index space, and the op with it.

    Only Normalize may have its loops split for them, and a product its rows if `positions` are
    wanted.
    """
    if not views:
        return op, ()
    found = compose(space, dense(space), shape, views)
    if isinstance(found, Split) and isinstance(op, Normalize):
        return _split(op, shape, views)
    if isinstance(found, Split):
        if not (positions and isinstance(op, MatMul) and found.axis == len(op.batch)):
            return None
        rows = split_rows(op, found.inner)
        return _read_over(rows, rows.loops, shape, views, positions)
    return None if found is None else (op, found)


def _split(
    op: Normalize, shape: tuple[int, ...], views: Sequence[View]
) -> tuple[Op, tuple[View, ...]] | None:
    own = (op.outer, op.axis, op.inner)
    marks = [View(tuple(int(k == part) for k in range(3) for _ in own[k])) for part in (0, 1)]
    nest = (dense(op.loops), *op.epilogue.views, *marks)
    composed = compose_refining(op.loops, nest, 0, shape, views)
    if composed is None:
        return None
    loops, refined, found = composed
    outer, axis = (sum(s != 0 for s in mark.strides) for mark in refined[-2:])
    epilogue = replace(op.epilogue, views=refined[1:-2])
    return (
        replace(op, outer=loops[:outer], axis=loops[outer : outer + axis],
                inner=loops[outer + axis :], epilogue=epilogue),
        found,
    )  # fmt: skip


def _sums_integers(node: Node) -> bool:
    """Return whether the result is a sum of integers: kernels of these store bytes, too."""
    if isinstance(node.op, Reduce):
        return node.op.expr.dtype is DType.INT32 or node.op.expr.dtype in BYTES
    return getattr(node.op, "accumulator", DType.FLOAT) is DType.INT32


def _maker(state: Rewriting, name: str) -> Node | None:
    """Return the node with an epilogue that computes a value, through unshared reshapes."""
    while state.only_reader(name):
        maker = state.producers.get(name)
        if maker is None:
            return None
        if isinstance(maker.op, Reshape):
            name = maker.inputs[0]
            continue
        fits = hasattr(maker.op, "epilogue") and len(maker.outputs) == 1
        return maker if fits else None
    return None


def epilogue_space(node: Node, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index space of an op's epilogue: its own loops, else the shape of its result."""
    op = node.op
    loops = getattr(op, "loops", None)
    if loops is not None:
        return tuple(loops)
    inner = getattr(op, "shape", None)
    return shape if inner is None else tuple(inner)


def _joined(epilogue: Epilogue, op: Map, index: int, others: list[int]) -> Expr:
    """Return the Map's expression with the epilogue in place of operand `index`."""
    base = 1 + len(epilogue.views)
    number = {k: base + i for i, k in enumerate(others)}
    types = {i.index: i.dtype for i in operands_of(op.expr)}
    return substitute(
        op.expr, lambda k: epilogue.expr if k == index else Input(types[k], number[k])
    )
