"""Recognise constant masks of an Attention that depend on positions: causal, windows, lengths.

Exporters store such masks as tables of booleans or of zeros and huge negative numbers. Kernels that
know which keys a query sees read neither the others nor a table.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from atc.dims import is_dynamic
from atc.ir.expr import Call, Const, Expr, Input, call, cast, const, unrounded
from atc.ir.graph import Array, DType, Node
from atc.ir.ops import Attention, Epilogue
from atc.ir.view import View, gather_view
from atc.passes.rewriting import Rewriting, distinct_operands

HIDDEN = -1e30
"""Scores up to this have no weight beside any other, see `_masked`."""

HIDDEN_F16 = -6e4
"""Likewise of float16, whose lowest number exporters hide with."""

Visible = NDArray[np.bool_]


def mask_positions(state: Rewriting, node: Node) -> Node:
    """Replace a constant mask of an Attention's scores by comparisons of query and key.

    Every query must see a range of keys, whose ends are fixed or advance by one with each query.
    """
    op = node.op
    if not isinstance(op, Attention) or is_dynamic((op.queries, op.keys)):
        return node
    found = _masked(state, node, op)
    if found is None:
        return node
    visible, shown = found
    split = 3 + len(op.scores.views)
    names, views = [*node.inputs[3:split]], [*op.scores.views]
    rank = len(op.batch)
    named = [k for k, name in enumerate(names) if name]
    if named != [*range(len(named))]:
        return node
    names = names[: len(named)]
    query, key = (Input(DType.INT64, 1 + len(views) + k) for k in range(2))
    views += [View((*[0] * rank, 1, 0)), View((*[0] * rank, 0, 1))]
    conditions = _conditions(visible, query, key)
    if conditions is None:
        return node
    for condition in conditions:
        shown = call("Where", condition, shown, const(float("-inf"), DType.FLOAT))
    expr, kept, score_views = distinct_operands(shown, names, views, 1)
    scores = (*kept, *[""] * (len(score_views) - len(kept)))
    inputs = (*node.inputs[:3], *scores, *node.inputs[split:])
    return replace(node, op=replace(op, scores=Epilogue(expr, score_views)), inputs=inputs)


def _masked(state: Rewriting, node: Node, op: Attention) -> tuple[Visible, Expr] | None:
    """Return the keys that each query sees by a constant mask, and the scores without the mask.

    Beside a visible score, those of HIDDEN and less have the weight 0, as minus infinity has. The
    mask must add 0 to visible scores.
    """
    expr, half = unrounded(op.scores.expr)
    hidden = HIDDEN_F16 if half is DType.FLOAT16 else HIDDEN
    match expr:
        case Call(fn="Where", args=(Input() as mask, shown, Const(value=low))) if low <= hidden:
            table, seen = _table(state, node, op, mask), True
        case Call(fn="Where", args=(Input() as mask, Const(value=low), shown)) if low <= hidden:
            table, seen = _table(state, node, op, mask), False
        case Call(fn="Add", dtype=DType.FLOAT, args=(a, b)):
            shown, mask = (a, _operand(b)) if _operand(b).index > 0 else (b, _operand(a))
            table, seen = _table(state, node, op, mask), True
            if table is not None:
                added = table.astype(np.float64)
                table = added > hidden
                none = (added[table] == 0).all() and not np.isnan(added).any()
                table = table if none else None
        case _:
            return None
    if table is None:
        return None
    visible = table.astype(bool) == seen
    if half is not None and unrounded(shown)[1] is not half:
        shown = cast(cast(shown, half), DType.FLOAT)
    return (visible, shown) if visible.any(axis=1).all() else None


def _operand(expr: Expr) -> Input:
    """Return the operand that an expression is, but for a cast to floats; Input 0 if it isn't."""
    match expr:
        case Input() | Call(dtype=DType.FLOAT, fn="Cast", args=(Input(),)):
            (own,) = (expr,) if isinstance(expr, Input) else expr.args
            assert isinstance(own, Input)
            return own
        case _:
            return Input(DType.FLOAT, 0)


def _table(
    state: Rewriting, node: Node, op: Attention, mask: Input
) -> Array | None:
    """Return a constant operand of the scores over queries and keys, equal for all of a batch.

    None if it is anything else.
    """
    name = node.inputs[2 + mask.index] if mask.index else ""
    array = state.constant(name) if name else None
    if array is None or not op.keys or not op.queries:
        return None
    view = op.scores.views[mask.index - 1]
    *batch, query, key = view.strides
    if any(s for s, n in zip(batch, op.batch, strict=True) if n != 1):
        return None
    return gather_view(array, (op.queries, op.keys), View((query, key), view.offset))


def _conditions(visible: Visible, query: Input, key: Input) -> list[Expr] | None:
    """Return the conditions on a query and the keys it sees; None if these aren't a range."""
    keys, rows = visible.shape[1], np.arange(visible.shape[0])
    first, last = visible.argmax(1), keys - 1 - visible[:, ::-1].argmax(1)
    if (visible.sum(1) != last - first + 1).any():
        return None
    found: list[Expr] = []
    for limit, end, fn in ((last, keys - 1, "LessOrEqual"), (first, 0, "GreaterOrEqual")):
        inner = limit != end
        if not inner.any():
            continue
        row = int(inner.argmax())
        step = int(limit[row] - rows[row])
        moving = np.minimum(rows + step, end) if end else np.maximum(rows + step, 0)
        if (limit == moving).all():
            bound: Expr = call("Add", query, const(step, DType.INT64)) if step else query
        elif (limit == limit[0]).all():
            bound = const(int(limit[0]), DType.INT64)
        else:
            return None
        found.append(call(fn, key, bound))
    return found
