"""Makes matrix products as large and as plain as they can be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields as dataclass_fields
from dataclasses import replace
from typing import TypeVar

from atc.ir.expr import Call, Const, Expr, Input, call, substitute, unrounded, walk
from atc.ir.graph import DType, Node, TensorType
from atc.ir.ops import Attention, Epilogue, Map, MatMul, Reshape
from atc.ir.view import View, compose, dense, simplify_loops, split_loop
from atc.passes.rewriting import Rewriting, merge_origin


def simplify_matmul(state: Rewriting, node: Node) -> Node:
    """Scale results instead of operands, make a single column a row, fold batches into rows."""
    if not isinstance(node.op, MatMul) or 0 in (*node.op.loops, node.op.k):
        return node
    for index in (0, 1):
        while (found := _read_through(state, node, index)) is not None:
            node = found
    node = _column_as_row(node)
    assert isinstance(node.op, MatMul)
    simpler = merged(node.op)
    return node if simpler == node.op else replace(node, op=simpler)


def _read_through(state: Rewriting, node: Node, index: int) -> Node | None:
    """Read an operand's source through its movement; a factor, if any, moves to the results."""
    op = node.op
    assert isinstance(op, MatMul)
    name = node.inputs[index]
    source = state.producers.get(name)
    if source is None:
        return None
    if isinstance(source.op, Reshape):
        return _with_operand(node, op, index, source)
    if not isinstance(source.op, Map) or len(source.op.views) != 1:
        return None
    scale = _scaled(source.op.expr)
    if scale is not None and state.only_reader(name) and op.accumulator is scale.dtype:
        op = _scale_results(op, scale)
        if not isinstance(scale.args[0], Input):
            wide = replace(source.op, expr=scale.args[0])
            type_ = TensorType(scale.dtype, state.types[name].shape)
            name = state.emit(wide, source.inputs, type_, source, "unscaled")
            return replace(node, op=op, inputs=_with_input(node, index, name))
    elif not source.op.is_movement:
        return _in_memory_order(state, node, op, index)
    refined = read_through(op, index, source.op.shape, source.op.views)
    return None if refined is None else _with_operand(node, refined, index, source)


def _in_memory_order(state: Rewriting, node: Node, op: MatMul, index: int) -> Node | None:
    """Compute an operand in the order in which its source lies, where a product of bytes, which
    arranges them itself, is its only reader."""
    name = node.inputs[index]
    source = state.producers[name]
    assert isinstance(source.op, Map)
    shape, (view,) = source.op.shape, source.op.views
    if op.accumulator is not DType.INT32 or not state.only_reader(name):
        return None
    order = sorted(range(len(shape)), key=lambda d: -view.strides[d])
    if 0 in view.strides or order == list(range(len(shape))):
        return None
    extents = tuple(shape[d] for d in order)
    strides = dense(extents).strides
    moved = View(tuple(strides[order.index(d)] for d in range(len(shape))))
    refined = read_through(op, index, shape, (moved,))
    if refined is None:
        return None
    sorted_view = View(tuple(view.strides[d] for d in order), view.offset)
    computed = state.emit(
        replace(source.op, shape=extents, views=(sorted_view,)), source.inputs,
        TensorType(source.op.expr.dtype, extents), source, "sorted",
    )  # fmt: skip
    return replace(node, op=refined, inputs=_with_input(node, index, computed))


def _with_operand(node: Node, op: MatMul, index: int, source: Node) -> Node:
    inputs = _with_input(node, index, source.inputs[0])
    return replace(node, op=op, inputs=inputs, origin=merge_origin(source, node))


def _with_input(node: Node, index: int, name: str) -> tuple[str, ...]:
    return (*node.inputs[:index], name, *node.inputs[index + 1 :])


def _scale_results(op: MatMul, scale: Call) -> MatMul:
    """Multiply the results before the epilogue."""
    result = call(scale.fn, Input(op.accumulator, 0), scale.args[1])
    types = {e.index: e for e in walk(op.epilogue.expr) if isinstance(e, Input)}
    expr = substitute(op.epilogue.expr, lambda k: types[k] if k else result)
    return replace(op, epilogue=Epilogue(expr, op.epilogue.views))


ProductT = TypeVar("ProductT", bound=MatMul | Attention)


def read_through(
    op: ProductT, index: int, shape: tuple[int, ...], views: tuple[View, ...]
) -> ProductT | None:
    """Return the product with operand `index` read through the view that moves it.

    The movement's loops are `shape`; batches are split where that helps.
    """
    for _ in range(8):
        name, tail = _operands(op)[index]
        found = compose((*op.batch, *tail), getattr(op, name), shape, views)
        if isinstance(found, tuple):
            return replace(op, **{name: found[0]})  # type: ignore[arg-type]
        if found is None or found.axis >= len(op.batch):
            return None
        op = split_batch(op, found.axis, found.inner)
    return None


def _operands(op: MatMul | Attention) -> tuple[tuple[str, tuple[int, int]], ...]:
    """Return the field with the view of each operand, and its loops behind the batch's."""
    if isinstance(op, MatMul):
        return (("a_view", (op.m, op.k)), ("b_view", (op.k, op.n)))
    return (
        ("q_view", (op.queries, op.depth)), ("k_view", (op.depth, op.keys)),
        ("v_view", (op.keys, op.width)),
    )  # fmt: skip


def split_batch(op: ProductT, axis: int, inner: int) -> ProductT:
    """Return the product over batch loops of which one is split in two."""

    def over(own: View | Epilogue) -> View | Epilogue:
        if isinstance(own, View):
            return split_loop(own, axis, inner)
        return replace(own, views=tuple(split_loop(v, axis, inner) for v in own.views))

    fields = ((f.name, getattr(op, f.name)) for f in dataclass_fields(op))
    split_fields = {n: over(own) for n, own in fields if isinstance(own, View | Epilogue)}
    batch = (*op.batch[:axis], op.batch[axis] // inner, inner, *op.batch[axis + 1 :])
    return replace(op, batch=batch, **split_fields)  # type: ignore[arg-type]


def split_rows(op: MatMul, rows: int) -> MatMul:
    """Return a product of so many rows, a divisor of those that there are; others are a batch."""
    axis, b = len(op.batch), op.b_view
    extra = tuple(split_loop(v, axis, rows) for v in op.epilogue.views)
    return replace(
        op, batch=(*op.batch, op.m // rows), m=rows, a_view=split_loop(op.a_view, axis, rows),
        b_view=View((*b.strides[:axis], 0, *b.strides[axis:]), b.offset),
        epilogue=replace(op.epilogue, views=extra),
    )  # fmt: skip


def _scaled(expr: Expr) -> Call | None:
    """Return an expression that is its operand, or this widened, times or divided by a number.

    What rounds it to 16 bits is left out, as within an activation: results are nearer to exact
    ones, and on all targets the same.
    """
    expr, half = unrounded(expr)
    if half is not None:
        return _scaled(expr)
    match expr:
        case Call(dtype=DType.FLOAT | DType.DOUBLE, fn="Mul" | "Div", args=(x, Const())):
            return expr if _is_operand(x) else None
        case Call(dtype=DType.FLOAT | DType.DOUBLE, fn="Mul", args=(Const() as c, x)):
            return Call(expr.dtype, "Mul", (x, c)) if _is_operand(x) else None
        case _:
            return None


def _is_operand(expr: Expr) -> bool:
    """Return whether an expression is an operand, or one of 16 bits widened."""
    match expr:
        case Call(dtype=DType.FLOAT, fn="Cast", args=(Input() as x,)):
            return x.dtype.is_half
        case _:
            return isinstance(expr, Input)


def _column_as_row(node: Node) -> Node:
    """Compute a single column as a row: its matrix may then be packed, and batches fold."""
    op = node.op
    assert isinstance(op, MatMul)
    if op.n != 1 or op.m == 1 or op.accumulator not in (DType.FLOAT, DType.DOUBLE):
        return node
    swapped = replace(
        op, m=1, n=op.m, a_view=_transposed(op.b_view), b_view=_transposed(op.a_view),
        epilogue=replace(op.epilogue, views=tuple(map(_transposed, op.epilogue.views))),
    )  # fmt: skip
    a, b, *extra = node.inputs
    return replace(node, op=swapped, inputs=(b, a, *extra))


def _transposed(view: View) -> View:
    *batch, row, column = view.strides
    return View((*batch, column, row), view.offset)


def merged(op: MatMul) -> MatMul:
    """Fold batches that share B into the rows, and merge batches that all views walk as one."""
    batch, m = list(op.batch), op.m
    rows = [list(v.strides) for v in (op.a_view, *op.epilogue.views)]
    shared = list(op.b_view.strides)
    while batch and (batch[-1] == 1 or (shared[-3] == 0 and _continue_rows(rows, m))):
        extent = batch.pop()
        del shared[-3]
        for strides in rows:
            step = strides.pop(-3)
            if m == 1 and extent > 1:
                strides[-2] = step
        m *= extent
    views = [View(tuple(s[:-2])) for s in (shared, *rows)]
    loops, outer = simplify_loops(batch, views)

    def view(k: int, strides: Sequence[int], offset: int) -> View:
        return View((*outer[k].strides, *strides[-2:]), offset)

    extra = op.epilogue.views
    after = tuple(view(2 + k, rows[1 + k], v.offset) for k, v in enumerate(extra))
    return replace(
        op, batch=loops, m=m, a_view=view(1, rows[0], op.a_view.offset),
        b_view=view(0, shared, op.b_view.offset), epilogue=replace(op.epilogue, views=after),
    )  # fmt: skip


def _continue_rows(rows: Sequence[Sequence[int]], m: int) -> bool:
    """Return whether the last batch continues the rows, for A and the epilogue's operands."""
    return m == 1 or all(s[-3] == m * s[-2] for s in rows)
