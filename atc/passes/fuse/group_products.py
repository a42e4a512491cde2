"""Products with gathered matrices become grouped ones, which read matrices where they lie.

Mixtures of experts that gather each row's weights would copy all of them. Where rows may be more
than matrices they are sorted, so that those with the same matrix are multiplied together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod

from atc.dims import max_value
from atc.ir.expr import Call, Const, Expr, Input, call, const
from atc.ir.graph import Array, DType, Graph, Node, TensorType, row_major
from atc.ir.ops import Map, MatMul
from atc.ir.ops.data import Gather, ascending
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.view import View, dense
from atc.passes.canonical.movements import whole_of
from atc.passes.rewriting import Rewriting, merge_origin, rewrite


@dataclass(frozen=True)
class _Gathered:
    """A MatMul of rows x through `rows` and gathered matrices, read through `matrix`."""

    node: Node
    x: str
    rows: View
    m: int
    n: int
    matrix: View
    gather: Node
    index: Expr


@dataclass
class _Shared:
    """Values that products with the same matrices share."""

    indices: dict[tuple[object, ...], str] = field(default_factory=dict)
    """The matrix of each row, by what computes it."""
    orders: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Sorted indices, the rows that they are of, and each one's place, by unsorted indices."""


def group_products(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Return the graph without copies of matrices that only products read."""
    return rewrite(graph, partial(_rule, _Shared()), outer)


def _rule(shared: _Shared, state: Rewriting, node: Node) -> Node:
    found = _gathered(state, node)
    if found is None:
        return node
    op, gather = node.op, found.gather
    assert isinstance(op, MatMul)
    assert isinstance(gather.op, Gather)
    rows = prod(op.batch) * found.m
    count = state.types[gather.inputs[0]].size // gather.op.run
    key = (found.index, gather.inputs[1:], gather.op.views, gather.op.coordinates, found.m)
    if key not in shared.indices:
        shared.indices[key] = _index(state, found, rows)
    index, x = shared.indices[key], _dense_rows(state, found, op)
    place = ""
    if max_value(rows) * 2 > count:
        if index not in shared.orders:
            shared.orders[index] = _order(state, node, index, rows)
        index, place, back = shared.orders[index]
        x = _moved(state, node, x, place, rows, op.k)
    one = MatMul(
        (), rows, found.n, op.k, View((op.k, 1)), found.matrix, op.epilogue, op.accumulator
    )
    inputs = (x, gather.inputs[0], index)
    grouped = GroupedMatMul(one, count)
    origin = merge_origin(gather, node)
    if not place:
        return Node(grouped, inputs, node.outputs, origin)
    type_ = TensorType(state.types[node.outputs[0]].dtype, (rows, found.n))
    y = state.emit(grouped, inputs, type_, replace(node, origin=origin), "sorted")
    return Node(_rows_at(rows, found.n), (y, back), node.outputs, node.origin)


def _gathered(state: Rewriting, node: Node) -> _Gathered | None:
    """Return what a node multiplies, if one side is a matrix for each batch, gathered whole."""
    op = node.op
    if not isinstance(op, MatMul) or op.accumulator is not DType.FLOAT or op.epilogue.views:
        return None
    if not op.batch or not max_value(prod(op.loops)):
        return None
    sides = [(1, op.b_view, op.a_view, op.m, op.n)]
    if op.n == 1:  # matrices times columns: y' = x' w'
        sides.append((0, _turned(op.a_view), _turned(op.b_view), 1, op.m))
    for side, matrices, rows, m, n in sides:
        gather = _source(state, node.inputs[side])
        index = None if gather is None else _index_of(state, gather)
        if gather is None or index is None:
            continue
        assert isinstance(gather.op, Gather)
        run = gather.op.run
        steps = tuple(s * run for s in row_major(op.batch))
        matrix = View(matrices.strides[-2:], matrices.offset)
        inside = matrix.offset + (op.k - 1) * matrix.strides[0] + (n - 1) * matrix.strides[1] >= 0
        reach = sum(s * (e - 1) for s, e in zip(matrix.strides, (op.k, n), strict=True) if s > 0)
        inside = inside and min(matrix.strides) >= 0 and matrix.offset + reach < run
        if inside and matrices.strides[:-2] == steps and prod(gather.op.shape) == prod(op.batch):
            other = node.inputs[1 - side]
            return _Gathered(node, other, rows, m, n, matrix, gather, index)
    return None


def _turned(view: View) -> View:
    """Return a view of matrices with rows and columns exchanged."""
    *batch, row, column = view.strides
    return View((*batch, column, row), view.offset)


def _source(state: Rewriting, name: str) -> Node | None:
    """Return the Gather that computes a value, seen through reshapes."""
    node = state.producers.get(whole_of(state.producers, name))
    return node if node is not None and isinstance(node.op, Gather) else None


def _index_of(state: Rewriting, gather: Node) -> Expr | None:
    """Return the number of the matrix that a Gather reads, if it reads whole ones."""
    op, size = gather.op, state.types[gather.inputs[0]].size
    assert isinstance(op, Gather)
    match op.address:
        case Call(fn="Mul", args=(index, Const(value=run))) if run == op.run and size % run == 0:
            return index
    return None


def _index(state: Rewriting, found: _Gathered, rows: int) -> str:
    """Return the matrix of each row."""
    gather, m = found.gather, found.m
    op = gather.op
    assert isinstance(op, Gather)
    shape, repeated = (*op.shape, m), (0,)
    views, coordinates = [
        tuple(View((*v.strides, *repeated), v.offset) for v in each)
        for each in (op.views, op.coordinates)
    ]
    read = Map(shape, found.index, views, coordinates)
    return state.emit(read, gather.inputs[1:], TensorType(DType.INT64, (rows,)), gather, "index")


def _dense_rows(state: Rewriting, found: _Gathered, op: MatMul) -> str:
    """Return the rows one after the other."""
    type_, shape = state.types[found.x], (*op.batch, found.m, op.k)
    if found.rows == dense(shape) and type_.size == prod(shape):
        return found.x
    copy = Map(shape, Input(type_.dtype, 0), (found.rows,))
    return state.emit(copy, (found.x,), TensorType(type_.dtype, shape), found.node, "rows")


def _order(state: Rewriting, node: Node, index: str, rows: int) -> tuple[str, str, str]:
    """Return sorted indices, the rows that they are of, and where each row's result is then."""
    type_, sorting = TensorType(DType.INT64, (rows,)), ascending(rows)
    values, order = state.emit_all(sorting, (index,), {"matrices": type_, "order": type_}, node)
    _, back = state.emit_all(sorting, (order,), {"places": type_, "back": type_}, node)
    return values, order, back


def _moved(state: Rewriting, node: Node, x: str, place: str, rows: int, k: int) -> str:
    """Return rows of k in another order."""
    type_ = TensorType(state.types[x].dtype, (rows, k))
    return state.emit(_rows_at(rows, k), (x, place), type_, node, "ordered")


def _rows_at(rows: int, width: int) -> Gather:
    """Return the op that reads whole rows where operand 1 says."""
    at = call("Mul", Input(DType.INT64, 0), const(width, DType.INT64))
    return Gather((rows,), width, at, (View((1,)),), proven=True)
