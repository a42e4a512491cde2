"""Fuse elementwise nodes into the loops of their readers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from math import prod

from atc.dims import is_dynamic
from atc.ir.expr import Expr, Input, cost, inputs_of, operands_of, renumber, substitute
from atc.ir.graph import Array, DType, Graph, Node, reads
from atc.ir.ops import Map, Reduce
from atc.ir.view import View
from atc.passes.canonical.fold_views import refine, tidy
from atc.passes.canonical.lookup_tables import reads_lookup_table
from atc.passes.rewriting import Rewriting, merge_origin, numbered, operand, rewrite

MAX_COST = 120
"""The most cost of a fused expression: beyond it, registers spill and fusion isn't worth it."""
MAX_OPERANDS = 8
CHEAP = 2
"""Cost up to which an expression may be recomputed for each broadcast read."""
DUPLICATED = 6
"""Cost up to which a long-lived or large value is computed by each of its readers."""
FAR = 32
"""Nodes between the first and the last reader from which a value is long-lived."""
LARGE = 1 << 20
"""Bytes from which a value is large: it doesn't fit a core's private cache."""


def fuse_elementwise(state: Rewriting, node: Node) -> Node:
    """Inline Map operands that only this Map or Reduce reads, or that are nearly free."""
    return _fused(state, node)


def inline_conditions(state: Rewriting, node: Node) -> Node:
    """Inline comparisons of floats into the Maps that choose by them, before epilogues take these.

    An epilogue in vectors reads floats, no booleans.
    """
    return _fused(state, node, takes=_compares_floats) if isinstance(node.op, Map) else node


def _compares_floats(op: Map) -> bool:
    read = operands_of(op.expr)
    return op.expr.dtype is DType.BOOL and all(i.dtype is DType.FLOAT for i in read)


def _fused(
    state: Rewriting, node: Node, wanted: Set[str] = frozenset(),
    takes: Callable[[Map], bool] = lambda _: True,
) -> Node:  # fmt: skip
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
        if source is not None and isinstance(source.op, Map) and takes(source.op):
            fused = _inline(state, node, op, index, source, wanted)
        if fused is None:
            index += 1
        else:
            node = fused


def fuse_maps(state: Rewriting, node: Node) -> Node:
    """Inline Map operands into Maps only: a heavy op's epilogue is a better place than a Reduce."""
    return fuse_elementwise(state, node) if isinstance(node.op, Map) else node


def inline_cheap(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Inline Maps into several readers where keeping the result costs more than computing it.

    Such a Map has one operand of its own size, and small ones beside it: x less its mean, in a
    BatchNormalization that trains and in its gradient, which then needn't be stored in between.
    """
    readers: dict[str, list[int]] = {}
    for step, node in enumerate(graph.nodes):
        for name in reads(node):
            readers.setdefault(name, []).append(step)
    wanted = {
        name for node in graph.nodes for name in node.outputs
        if name in readers and _computed_by_readers(graph, node, readers[name])
    }  # fmt: skip

    def rule(state: Rewriting, node: Node) -> Node:
        return _fused(state, node, wanted)

    return rewrite(graph, rule, outer) if wanted else graph


def _computed_by_readers(graph: Graph, node: Node, steps: Sequence[int]) -> bool:
    """Return whether the readers of a Map's result, at these steps, may compute it themselves."""
    op, (name, *_) = node.op, node.outputs
    if not isinstance(op, Map) or name in graph.ends or not 1 <= cost(op.expr) <= DUPLICATED:
        return False
    type_ = graph.types[name]
    if is_dynamic(type_.size) or not type_.dtype.is_float:
        return False
    if steps[-1] - steps[0] < FAR and type_.nbytes < LARGE:
        return False
    large = [n for n in node.inputs if 8 * graph.types[n].size > type_.size]
    alike = len(large) == 1 and graph.types[large[0]].nbytes <= type_.nbytes
    return alike and all(isinstance(graph.nodes[k].op, Map | Reduce) for k in steps)


def _inline(
    state: Rewriting, node: Node, op: Map | Reduce, index: int, source: Node,
    wanted: Set[str] = frozenset(),
) -> Node | None:  # fmt: skip
    inner = source.op
    assert isinstance(inner, Map)
    if reads_lookup_table(op.expr) or reads_lookup_table(inner.expr):
        return None  # a table is read fastest byte by byte
    name = node.inputs[index]
    loops = (*op.shape, *(op.reduced if isinstance(op, Reduce) else ()))
    by_readers = name in wanted and prod(loops) <= prod(inner.shape)
    if not by_readers and not _worthwhile(state, op, inner, name):
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
        return False  # broadcast: every element would be computed many times
    return state.only_reader(name) or (cheap and isinstance(inner.expr, Input))


def _splice(
    expr: Expr, index: int, names: tuple[str, ...], views: tuple[View, ...], inner: Expr,
    inner_names: tuple[str, ...], inner_views: tuple[View, ...],
) -> tuple[Expr, tuple[str, ...], tuple[View, ...]]:  # fmt: skip
    """Return `expr` with Input(index) computed by `inner`, operands renumbered.

    Views beyond the names are coordinates, in the arguments and in the result.
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
