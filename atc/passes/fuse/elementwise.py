"""Fuses elementwise nodes into the loops of their readers."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.ir.expr import Expr, Input, cost, inputs_of, operands_of, renumber, substitute
from atc.ir.graph import Node
from atc.ir.ops import Map, Reduce
from atc.ir.view import View
from atc.passes.canonical.fold_views import refine, tidy
from atc.passes.canonical.lookup_tables import reads_lookup_table
from atc.passes.rewriting import Rewriting, merge_origin, numbered, operand

MAX_COST = 120
"""Of a fused expression: beyond it, registers spill and recomputation isn't worth it."""
MAX_OPERANDS = 8
CHEAP = 2
"""Cost up to which an expression may be computed again for each broadcast read."""


def fuse_elementwise(state: Rewriting, node: Node) -> Node:
    """Inline Map operands that only this Map or Reduce reads, or that cost next to nothing."""
    if not isinstance(node.op, Map | Reduce):
        return node
    index = 0
    while True:
        op = node.op
        assert isinstance(op, Map | Reduce)
        if index >= len(op.views):
            return node
        source = state.producers.get(node.inputs[index])
        fused = None
        if source is not None and isinstance(source.op, Map):
            fused = _inline(state, node, op, index, source)
        if fused is None:
            index += 1
        else:
            node = fused


def fuse_maps(state: Rewriting, node: Node) -> Node:
    """Inline Map operands into Maps only: a heavy op's epilogue is a better place than a Reduce."""
    return fuse_elementwise(state, node) if isinstance(node.op, Map) else node


def _inline(
    state: Rewriting, node: Node, op: Map | Reduce, index: int, source: Node
) -> Node | None:
    inner = source.op
    assert isinstance(inner, Map)
    if reads_lookup_table(op.expr) or reads_lookup_table(inner.expr):
        return None  # a table is read fastest byte after byte
    if not _worthwhile(state, op, inner, node.inputs[index]):
        return None
    if cost(op.expr) + cost(inner.expr) > 2 * MAX_COST:
        return None  # hopeless, even if half of it is shared
    refined = refine(op, index, inner.shape, (*inner.views, *inner.coordinates))
    if refined is None:
        return None
    new_op, found = refined
    own = len(op.views)
    expr, names, views = _splice(
        new_op.expr, index, node.inputs[:own], (*new_op.views, *new_op.coordinates),
        inner.expr, source.inputs, found,
    )  # fmt: skip
    if len(names) > MAX_OPERANDS or cost(expr) > MAX_COST:
        return None
    read = len(names)
    new_op = replace(new_op, expr=expr, views=views[:read], coordinates=views[read:])
    merged = tidy(new_op)
    origin = merge_origin(source, node)
    return replace(node, op=merged, inputs=(*names, *node.inputs[own:]), origin=origin)


def _worthwhile(state: Rewriting, op: Map | Reduce, inner: Map, name: str) -> bool:
    loops = (*op.shape, *(op.reduced if isinstance(op, Reduce) else ()))
    cheap = cost(inner.expr) <= CHEAP and len(inputs_of(inner.expr)) <= 1
    if prod(loops) > prod(inner.shape) and not cheap:
        return False  # broadcast: every element would be computed again and again
    return state.only_reader(name) or (cheap and isinstance(inner.expr, Input))


def _splice(
    expr: Expr, index: int, names: tuple[str, ...], views: tuple[View, ...], inner: Expr,
    inner_names: tuple[str, ...], inner_views: tuple[View, ...],
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]]:  # fmt: skip
    """Return `expr` with Input(index) computed by `inner`, operands numbered anew.

    Views beyond the names are coordinates, in what is given and in what is returned.
    """
    alone = len(names) == len(views) == 1 and inputs_of(expr) == (0,)
    if alone and _distinct(inner_names, inner_views):
        return substitute(expr, lambda k: inner), inner_names, inner_views
    outer = {i.index: operand(i.index, names, views) for i in operands_of(expr)}
    within = {i.index: operand(i.index, inner_names, inner_views) for i in operands_of(inner)}
    number = numbered(
        o for k, own in outer.items() for o in (within.values() if k == index else (own,))
    )
    moved = renumber(inner, {k: number[o] for k, o in within.items()})
    types = {i.index: i.dtype for i in operands_of(expr)}
    joint = substitute(expr, lambda k: moved if k == index else Input(types[k], number[outer[k]]))
    return joint, tuple(name for name, _ in number if name), tuple(view for _, view in number)


def _distinct(names: tuple[str, ...], views: tuple[View, ...]) -> bool:
    """Return whether no two operands and no two coordinates are the same."""
    operands, coordinates = {*zip(names, views, strict=False)}, {*views[len(names) :]}
    return len(operands) + len(coordinates) == len(views)
