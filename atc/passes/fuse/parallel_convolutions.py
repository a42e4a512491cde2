"""Merge sums of convolutions of one operand into one convolution whose filters are their sum.

Networks are trained with a 3x3, a 1x1 and a scaled identity side by side where one filter would do:
Ding and others, "RepVGG: making VGG-style ConvNets great again", 2021. Filters are summed in
float64 and rounded once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from atc.dims import concrete, is_dynamic
from atc.ir.expr import Call, Expr, Input, call, operands_of, rewritten, substitute, users_of
from atc.ir.graph import DType, Node
from atc.ir.ops import Conv, Epilogue, Map, Window
from atc.ir.view import View, gather_view
from atc.passes.rewriting import Rewriting, distinct_operands, merge_origin

FLOAT = DType.FLOAT
Filters = npt.NDArray[np.float64]


def merge_parallel_convolutions(state: Rewriting, node: Node) -> Node:
    """Merge branches of a float Conv's operand that are added to its result into its filters."""
    op = node.op
    if not isinstance(op, Conv) or op.accumulator is not FLOAT or is_dynamic(op):
        return node
    while isinstance(op, Conv):
        top, terms = _sum_of(op.epilogue.expr)
        found = (_merged(state, node, op, top, terms, t.index) for t in terms
                 if isinstance(t, Input) and t.index > 0)  # fmt: skip
        new = next((n for n in found if n is not None), None)
        if new is None:
            break
        node, op = new, new.op
    return node


def _sum_of(expr: Expr) -> tuple[Expr, tuple[Expr, ...]]:
    """Return the largest sum that Input(0) is a term of, and its terms."""
    users = users_of(expr)
    top = next((e for e in operands_of(expr) if e.index == 0), expr)
    while len(users.get(top, ())) == 1 and users[top][0].fn == "Add":
        if users[top][0].args[0] == users[top][0].args[1]:
            break
        top = users[top][0]

    def terms(e: Expr) -> tuple[Expr, ...]:
        if isinstance(e, Call) and e.fn == "Add" and (e is top or len(users[e]) == 1):
            return (*terms(e.args[0]), *terms(e.args[1]))
        return (e,)

    return top, terms(top)


def _merged(
    state: Rewriting, node: Node, op: Conv, top: Expr, terms: tuple[Expr, ...], k: int
) -> Node | None:
    """Return the Conv with operand k of its epilogue merged into its filters; None if it isn't a
    branch."""
    name, view = node.inputs[1 + k], op.epilogue.views[k - 1]
    y = state.types[node.outputs[0]]
    weights, branch = state.constant(node.inputs[1]), state.producers.get(name)
    alone = terms.count(Input(FLOAT, k)) == 1 == _uses(op.epilogue.expr, k)
    if weights is None or weights.dtype != np.float32 or branch is None or not alone:
        return None
    if not view.is_dense(y.shape) or state.types[name] != y or not state.only_reader(name):
        return None
    match branch.op:
        case Conv():
            found = _summed(state, node, op, branch, branch.op)
        case Map():
            found = _with_identity(state, node, op, branch, branch.op)
        case _:
            return None
    if found is None:
        return None
    window, filters, rest, names, views = found
    position = 1 + len(op.epilogue.views)
    left = [t for t in terms if t != Input(FLOAT, k)]
    added = left[0]
    for term in (*left[1:], *(_shifted(e, position) for e in rest)):
        added = call("Add", added, term)
    expr = rewritten(op.epilogue.expr, known={top: added})
    operands = (*node.inputs[2:], *names)
    expr, kept, views = distinct_operands(expr, operands, (*op.epilogue.views, *views), 1)
    summed = state.add_constant(filters.astype(np.float32), f"{node.inputs[1]}.sum")
    conv = replace(op, window=window, epilogue=Epilogue(expr, views))
    return Node(conv, (node.inputs[0], summed, *kept), node.outputs, merge_origin(branch, node))


_Branch = tuple[Window, Filters, tuple[Expr, ...], tuple[str, ...], tuple[View, ...]]
"""The common window, the sum of the filters; the branch's other terms and their operands."""


def _summed(state: Rewriting, node: Node, op: Conv, other: Node, its: Conv) -> _Branch | None:
    """Return the sum with another convolution that only adds to its result."""
    a, b = state.constant(node.inputs[1]), state.constant(other.inputs[1])
    top, terms = _sum_of(its.epilogue.expr)
    same = other.inputs[0] == node.inputs[0] and its.group == op.group
    if a is None or b is None or b.dtype != np.float32 or not same or its.accumulator is not FLOAT:
        return None
    if top is not its.epilogue.expr or not all(isinstance(t, Input) for t in terms):
        return None
    rest = tuple(t for t in terms if t != Input(FLOAT, 0))
    if len(rest) != len(terms) - 1:
        return None
    for window in (op.window, its.window):
        parts = [_placed(w, own, window) for w, own in ((a, op.window), (b, its.window))]
        if parts[0] is not None and parts[1] is not None:
            return window, parts[0] + parts[1], rest, other.inputs[2:], its.epilogue.views
    return None


def _placed(weights: npt.NDArray[np.generic], own: Window, window: Window) -> Filters | None:
    """Return filters padded with zeros to a larger window, if it covers them."""
    if own.strides != window.strides:
        return None
    result = np.zeros((*weights.shape[:2], *window.kernel))
    places = [slice(None), slice(None)]
    for d in range(window.rank):
        step, ahead = window.dilations[d], window.pads[d] - own.pads[d]
        begin, kernel = ahead // step, own.kernel[d]
        if ahead % step or begin < 0 or begin + kernel > window.kernel[d]:
            return None
        if kernel > 1 and own.dilations[d] != step:
            return None
        places.append(slice(begin, begin + kernel))
    result[tuple(places)] = weights
    return result


def _with_identity(state: Rewriting, node: Node, op: Conv, other: Node, its: Map) -> _Branch | None:
    """Return the sum with the operand itself, scaled and shifted per channel."""
    x, y = state.types[node.inputs[0]], state.types[node.outputs[0]]
    weights, rank = state.constant(node.inputs[1]), op.window.rank
    arrays = [state.constant(n) for n in other.inputs]
    data = [k for k, n in enumerate(other.inputs) if n == node.inputs[0]]
    if weights is None or x != y or len(data) != 1 or _uses(its.expr, data[0]) != 1:
        return None
    if not its.views[data[0]].is_dense(its.shape) or its.coordinates:
        return None
    known: dict[int, Filters] = {}
    largest: tuple[int, ...] = concrete(y.shape)  # of a range, which holds for all of it
    for k, (array, view) in enumerate(zip(arrays, its.views, strict=True)):
        if k == data[0]:
            continue
        if array is None or array.dtype != np.float32 or is_dynamic(view):
            return None
        full = gather_view(array, concrete(its.shape), view).reshape(largest).astype(np.float64)
        per_channel = full.reshape(*largest[:2], -1)[0, :, 0]
        if not np.array_equal(full, np.broadcast_to(_along(per_channel, rank), largest)):
            return None
        known[k] = per_channel
    shift = _affine(its.expr, {**known, data[0]: np.zeros(y.shape[1])})
    whole = _affine(its.expr, {**known, data[0]: np.ones(y.shape[1])})
    if shift is None or whole is None:
        return None
    one, filters = (1,) * rank, weights.shape[1]
    own = np.zeros((*weights.shape[:2], *one))
    channels = np.arange(y.shape[1])
    own[channels, channels % filters] = (whole - shift).reshape(-1, *one)
    placed = _placed(own, Window(one, one, one, (0,) * rank), op.window)
    if placed is None:
        return None
    name = state.add_constant(shift.astype(np.float32), f"{node.outputs[0]}.shift")
    view = View((0, 1, *[0] * rank))
    return op.window, placed + weights.astype(np.float64), (Input(FLOAT, 1),), (name,), (view,)


def _along(values: Filters, rank: int) -> Filters:
    return values.reshape(1, -1, *[1] * rank)


def _affine(e: Expr, values: Mapping[int, Filters]) -> Filters | None:
    """Return the value of an affine expression of operands; None if it is anything else."""
    match e:
        case Input(index=k) if k in values:
            return values[k]
        case Call(fn="Add" | "Sub" | "Mul", args=(a, b)):
            left, right = _affine(a, values), _affine(b, values)
            if left is None or right is None:
                return None
            return {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[e.fn](left, right)
        case _:
            return None


def _uses(expr: Expr, k: int) -> int:
    """Return how many times an expression uses Input(k) as an operand."""
    return len(users_of(expr).get(Input(FLOAT, k), ()))


def _shifted(e: Expr, position: int) -> Expr:
    """Return a branch's term with its operands numbered from `position`."""
    return substitute(e, lambda k: Input(FLOAT, position + k - 1))
