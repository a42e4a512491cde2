"""Look up tables in the panels that products pack, so that they are in memory once.

Language models share one embedding table between their first layer, which gathers rows of it, and
their last one, a product with all rows. The product's kernel packs it; the gather reads the same
panels element by element, which costs little as it reads few rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.kernel import PacksPanels
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Call, Const, Expr, Input, call, const
from atc.ir.graph import Array, DType, Graph, Node, reads, type_of
from atc.ir.ops import MatMul
from atc.ir.ops.data import Gather
from atc.ir.view import View, gather_view
from atc.select.select import Selection, select

SMALLEST = 1 << 16
"""Bytes of a table from which it is looked up in panels."""


@dataclass(frozen=True)
class _Table:
    """A constant [rows, depth] that a product reads in `panels` of rows, which are its columns."""

    depth: int
    rows: int
    columns: int
    panels: Array


def share_tables(graph: Graph, selection: Selection, target: Target) -> tuple[Graph, Selection]:
    """Return the graph whose lookups read the panels that products pack, and its selection.

    Constants that anything else reads unpacked stay. Equal constants are in memory once, so that
    those of the lookups take no additional room.
    """
    nodes = {node.outputs[0]: node for node in graph.nodes if node.outputs}
    types, constants, chosen = dict(graph.types), dict(graph.constants), dict(selection)
    for name, table in _tables(graph, selection, target):
        panels = f"{name}#panels"
        types[panels], constants[panels] = type_of(table.panels), table.panels
        for key, node in nodes.items():
            if isinstance(node.op, Gather) and node.inputs[0] == name:
                op = _in_panels(node.op, table)
                nodes[key] = replace(node, op=op, inputs=(panels, *node.inputs[1:]))
                own = {v: types[v] for v in (*nodes[key].inputs, *node.outputs) if v}
                fixed = {v: constants[v] for v in own if v in constants}
                alone = Graph("lookup", tuple(v for v in own if v not in fixed), node.outputs,
                              (nodes[key],), own, fixed, dims=graph.dims)  # fmt: skip
                chosen[key] = select(alone, target)[key]
    whole = tuple(nodes[n.outputs[0]] if n.outputs else n for n in graph.nodes)
    return replace(graph, nodes=whole, types=types, constants=constants), chosen


def _tables(graph: Graph, selection: Selection, target: Target) -> Iterator[tuple[str, _Table]]:
    """Yield constants that are read only by lookups of rows and by a product, in panels."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for value in {v for v in reads(node) if v in graph.constants}:
            readers.setdefault(value, []).append(node)
    for name, nodes in readers.items():
        table = graph.constants[name]
        runs = {_run(node, name) for node in nodes}
        (run,) = runs if len(runs) == 1 else (0,)
        if table.nbytes < SMALLEST or name in graph.ends or not run or table.size % run:
            continue
        rows = table.reshape(-1, run)
        found = (_packed(graph, node, rows, selection, target) for node in graph.nodes)
        packed = next((f for f in found if f is not None), None)
        if packed is not None:
            yield name, packed


def _run(node: Node, name: str) -> int:
    """Return how many contiguous elements a node gathers of a table; 0 if it reads it otherwise."""
    op = node.op
    own = isinstance(op, Gather) and node.inputs[0] == name and node.inputs.count(name) == 1
    return op.run if own and isinstance(op, Gather) and not is_dynamic(op.run) else 0


def _packed(
    graph: Graph, node: Node, rows: Array, selection: Selection, target: Target
) -> _Table | None:
    """Return the panels of a product whose columns are the rows of a table."""
    op = node.op
    if not isinstance(op, MatMul) or (op.n, op.k) != rows.shape or any(op.b_view.strides[:-2]):
        return None
    choice = selection[node.outputs[0]]
    kernel, params, w = choice.candidate.kernel, choice.candidate.params, choice.workload
    columns = kernel.panel_columns(w, params, target) if isinstance(kernel, PacksPanels) else 0
    if not columns:
        return None
    b = graph.constants[node.inputs[1]]
    view = View(op.b_view.strides[-2:], op.b_view.offset)
    if b.dtype != rows.dtype or not np.array_equal(gather_view(b, (op.k, op.n), view).T, rows):
        return None
    panels = kernel.packs(w, params, target)[1](b)
    return _Table(op.k, op.n, columns, panels)


def _in_panels(op: Gather, table: _Table) -> Gather:
    """Return the gather of the same elements from panels [rows / columns, depth, columns]."""
    row = _row(op, op.address, table.depth)
    if not op.proven:
        row = call("Max", call("Min", row, _index(table.rows - 1)), _index(0))
    panel = call("Div", row, _index(table.columns))
    begin = call("Mul", panel, _index(table.columns * (table.depth - 1)))
    along = Input(DType.INT64, len(op.views) + len(op.coordinates))
    address = call("Add", call("Add", begin, row), call("Mul", along, _index(table.columns)))
    views, coordinates = (
        tuple(View((*v.strides, 0), v.offset) for v in old) for old in (op.views, op.coordinates)
    )
    each = View((*[0] * len(op.shape), 1))
    return Gather((*op.shape, table.depth), 1, address, views, True, (*coordinates, each))


def _row(op: Gather, address: Expr, depth: int) -> Expr:
    """Return the row that begins at an address."""
    match address:
        case Call(fn="Add", args=(Input(index=k), rest)) if k >= len(op.views):
            origin = op.coordinates[k - len(op.views)]
            if not any((*origin.strides, origin.offset)):
                return _row(op, rest, depth)
        case Call(fn="Mul", args=(row, Const(value=factor))) if factor == depth:
            return row
    return call("Div", address, _index(depth))


def _index(value: int) -> Expr:
    return const(value, DType.INT64)
