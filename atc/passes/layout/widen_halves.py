"""Computes with values of 16 bits as floats that these hold, so that all passes see floats.

No number changes: what makes a value still rounds it. Which of them are stored in 16 bits is
decided at last, by `store_exact`. Constants that are spread over larger results, such as biases,
are stored as floats: an epilogue of floats takes them then.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

from atc.dims import is_dynamic, max_value
from atc.ir.expr import Expr, Input, cast, rewritten
from atc.ir.graph import Array, DType, Graph, Node, TensorType, reads
from atc.ir.ops import Map, Reduce
from atc.ir.ops.sampling import Resample
from atc.ir.view import dense
from atc.passes.layout.store_bf16 import groups, moves
from atc.passes.layout.store_exact import rounded_once_each, without_copies
from atc.passes.rewriting import fresh_name

FLOAT = DType.FLOAT


def widen_halves(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Make floats of the halves between nodes that compute, and only move, them."""
    graph = _resampled_as_floats(graph)
    for half in (DType.FLOAT16, DType.BFLOAT16):
        graph = _as_floats(graph, half)
    return graph


def _as_floats(graph: Graph, half: DType) -> Graph:
    """Make floats of the halves of one type."""
    made = {o for n in graph.nodes if isinstance(n.op, Map) or moves(n) for o in n.outputs}
    able = {n for n in made if graph.types[n].dtype is half and n not in graph.ends}
    for node in graph.nodes:
        if not (isinstance(node.op, Map | Reduce) or moves(node)):
            able.difference_update(reads(node))
        elif isinstance(node.op, Reduce):
            able.difference_update(node.inputs[len(node.op.views) :])
    spread = _spread_constants(graph, half)
    wide = {name for group in groups(graph) if able.issuperset(group) for name in group} | spread
    if not wide:
        return graph
    floats = {name: TensorType(FLOAT, graph.types[name].shape) for name in wide}
    nodes = tuple(_widened(n, wide, half) for n in graph.nodes)
    constants = {name: graph.constants[name].astype("float32") for name in spread}
    widened = replace(
        graph, nodes=nodes, types={**graph.types, **floats},
        constants={**graph.constants, **constants},
    )  # fmt: skip
    return without_copies(replace(widened, nodes=tuple(rounded_once_each(widened, spread, half))))


def _resampled_as_floats(graph: Graph) -> Graph:
    """Let what is interpolated, which is read many times, become floats before."""
    types, nodes = dict(graph.types), list[Node]()
    for node in graph.nodes:
        name = node.inputs[0] if isinstance(node.op, Resample) else ""
        if name and types[name].dtype.is_half:
            shape = types[name].shape
            wide, flat = fresh_name(types, f"{name}.wide"), (prod(shape),)
            types[wide] = TensorType(FLOAT, shape)
            op = Map(flat, cast(Input(types[name].dtype, 0), FLOAT), (dense(flat),))
            nodes.append(Node(op, (name,), (wide,), node.origin))
            node = replace(node, inputs=(wide, *node.inputs[1:]))
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), types=types)


def _spread_constants(graph: Graph, half: DType) -> frozenset[str]:
    """Return the constants that only arithmetic reads, each with more results than they have
    numbers."""
    able = {n for n in graph.constants if graph.types[n].dtype is half and n not in graph.ends}
    able = {n for n in able if not is_dynamic(graph.types[n])}
    for node in graph.nodes:
        op = node.op
        results = max_value(prod(op.shape)) if isinstance(op, Map) and not op.is_movement else 0
        able -= {n for n in able.intersection(reads(node)) if graph.types[n].size >= results}
    return frozenset(able)


def _widened(node: Node, wide: set[str], half: DType) -> Node:
    """Return a node that reads and makes floats for these values."""
    op = node.op
    places = {k for k, name in enumerate(node.inputs) if name in wide}
    stored = bool(wide.intersection(node.outputs))
    if not isinstance(op, Map | Reduce) or not (places or stored):
        return node
    if isinstance(op, Map) and op.is_movement:
        expr: Expr = Input(FLOAT, 0) if places else cast(op.expr, FLOAT)
        return replace(node, op=replace(op, expr=expr if stored else cast(expr, half)))
    floats = {Input(half, k): Input(FLOAT, k) for k in places}
    known: dict[Expr, Expr] = {old: cast(new, half) for old, new in floats.items()}
    known |= {cast(old, FLOAT): new for old, new in floats.items()}
    expr = rewritten(op.expr, known=known)
    return replace(node, op=replace(op, expr=cast(expr, FLOAT) if stored else expr))
