"""Fuse MatMul, Softmax and MatMul into one Attention, and the transpose after it into its view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from functools import partial
from math import prod

from atc.dims import decided, lower_bound, upper_bound
from atc.ir.expr import Call, Input, operands_of, substitute, unrounded
from atc.ir.graph import DType, Node
from atc.ir.key_bounds import key_bounds
from atc.ir.ops import Attention, Epilogue, Map, MatMul, Softmax
from atc.ir.view import View, dense
from atc.passes.canonical.simplify_matmul import split_batch, split_rows
from atc.passes.fuse.epilogue import fuse_positions
from atc.passes.rewriting import Rewriting, merge_origin

LEAST_QUERIES, LEAST_KEYS = 4, 8
"""Smaller matrices of scores aren't worth a kernel of their own."""


class Kernels(Enum):
    """The kernels of Attention that a target has."""

    PLAIN = "plain"
    VECTORS = "vectors"
    """They know weights that are rounded, position masks that bound the keys that a query sees, and
    any number of queries where keys and values lie along their numbers."""
    DEVICE = "device"
    """They know all position masks, too, and any number of queries."""


def fuse_attention(state: Rewriting, node: Node, kernels: Kernels = Kernels.PLAIN) -> Node:
    """Replace the second product by an Attention; a transpose of one by an Attention in its order.

    Nothing else may read the values in between.
    """
    match node.op:
        case MatMul():
            return decided(partial(_attention, state, node, node.op, kernels)) or node
        case Map() if _only_moves(node.op, kernels):
            return _in_order(state, node, node.op) or node
        case _:
            return node


def _attention(state: Rewriting, node: Node, second: MatMul, kernels: Kernels) -> Node | None:
    weights = state.maker_for_one(node.inputs[0])
    if weights is None or not isinstance(weights.op, Softmax) or not _plain(weights.op):
        return None
    rounded = _rounded(weights.op)
    scores = state.maker_for_one(weights.inputs[0])
    more = kernels is not Kernels.PLAIN
    if rounded is not None and not more:
        return None
    if scores is not None and isinstance(scores.op, Map) and more:
        scores = fuse_positions(state, scores, scores.op)
    if scores is None or not isinstance(scores.op, MatMul):
        return None
    first, keys = scores.op, weights.op.axis
    if more and first.m != second.m:  # heads that share keys may be rows of one of them
        first, second = _of_rows(first, second.m), _of_rows(second, first.m)
    if first.n != keys or second.k != keys or first.m != second.m:
        return None
    parts = (node.inputs[0], node.inputs[1])
    if any(state.types[name].dtype is not DType.FLOAT for name in parts):
        return None
    if prod((*first.batch, first.m)) != weights.op.outer:
        return None
    if not _worthwhile(state, scores, first, second, kernels):
        return None
    batch = _refined(first.batch, second.batch)
    if batch is None or not second.a_view.is_dense((*second.batch, second.m, keys)):
        return None
    first, second = _over(first, batch), _over(second, batch)
    op = Attention(
        batch, first.m, keys, first.k, second.n, first.a_view, first.b_view, second.b_view,
        dense(second.loops), first.epilogue, second.epilogue, weights.op.masked,
        rounded,
    )  # fmt: skip
    inputs = (*scores.inputs[:2], node.inputs[1], *scores.inputs[2:], *node.inputs[2:])
    return Node(op, inputs, node.outputs, merge_origin(scores, weights, node))


def _plain(op: Softmax) -> bool:
    own = isinstance(op.epilogue.expr, Input) or _rounded(op) is not None
    return op.inner == 1 and not op.log and own


def _rounded(op: Softmax) -> DType | None:
    """Return the type that floats are rounded to, if that is all that happens to a softmax."""
    inner, half = unrounded(op.epilogue.expr)
    return half if isinstance(inner, Input) else None


def _worthwhile(
    state: Rewriting, scores: Node, op: MatMul, second: MatMul, kernels: Kernels
) -> bool:
    """Return whether rows are long, and scores computed from floats, elsewhere also along them."""
    if op.accumulator is not DType.FLOAT or upper_bound(op.n) < LEAST_KEYS:
        return False
    if kernels is Kernels.DEVICE:
        return upper_bound(op.m) >= 1 and _floats(state, (*scores.inputs[:2], *scores.outputs))
    along = op.b_view.strides[-2] == 1 and second.b_view.strides[-1] == 1
    if upper_bound(op.m) < (1 if kernels is Kernels.VECTORS and along else LEAST_QUERIES):
        return False
    present = [bool(name) for name in scores.inputs[2:]]
    read = [*range(len(present))]
    if not all(present):
        bounds = key_bounds(op.epilogue, present)
        read = [i.index - 1 for i in operands_of(bounds.shown) if i.index]
        if not bounds.whole or not all(present[k] for k in read) or lower_bound(op.n) < 1:
            return False
    views, names = op.epilogue.views, (*scores.inputs[:2], *scores.outputs)
    fits = all(views[k].strides[-1] in (0, 1) for k in read)
    shown = [state.types[scores.inputs[2 + k]].dtype for k in read]
    return fits and _floats(state, names) and all(t is DType.FLOAT or t.is_half for t in shown)


def _floats(state: Rewriting, names: Sequence[str]) -> bool:
    return all(state.types[name].dtype is DType.FLOAT for name in names)


def _refined(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...] | None:
    """Return loops, none of extent 1, that both nests of equal size can be split into."""
    left, right, found = [n for n in a if n != 1], [n for n in b if n != 1], []
    while left and right:
        x, y = left.pop(), right.pop()
        small = x if x == y else min(x, y)
        if x % small or y % small:
            return None
        found.append(small)
        left += [x // small] * (x != small)
        right += [y // small] * (y != small)
    return None if left or right else tuple(reversed(found))


def _over(op: MatMul, batch: Sequence[int]) -> MatMul:
    """Return the product over batch loops that its own are split into."""
    for axis in reversed(range(len(op.batch))):
        if op.batch[axis] == 1:
            op = _without_batch(op, axis)
    axis = len(op.batch) - 1
    for inner in reversed(batch):
        if op.batch[axis] == inner:
            axis -= 1
        else:
            op = split_batch(op, axis, inner)
    return op


def _without_batch(op: MatMul, axis: int) -> MatMul:
    def view(v: View) -> View:
        return View((*v.strides[:axis], *v.strides[axis + 1 :]), v.offset)

    extra = tuple(map(view, op.epilogue.views))
    return replace(
        op, batch=(*op.batch[:axis], *op.batch[axis + 1 :]), a_view=view(op.a_view),
        b_view=view(op.b_view), epilogue=Epilogue(op.epilogue.expr, extra),
    )  # fmt: skip


def _of_rows(op: MatMul, rows: int) -> MatMul:
    """Return a product with `rows` rows, whose other rows become a batch; itself if they can't."""
    if lower_bound(rows) < 1 or op.m == rows or op.m % rows != 0:
        return op
    return split_rows(op, rows)


def _only_moves(move: Map, kernels: Kernels) -> bool:
    """Return whether a Map moves at most, and makes floats of 16-bit ones, for a GPU also these."""
    match move.expr:
        case Call(fn="Cast", args=(Input() as x,)) if x.dtype.is_half or kernels is Kernels.DEVICE:
            cast = {x.dtype, move.expr.dtype}
            floats = DType.FLOAT in cast and any(t.is_half for t in cast)
            return floats and len(move.views) == 1 and not move.coordinates
        case _:
            return move.is_movement


def _in_order(state: Rewriting, node: Node, move: Map) -> Node | None:
    """Make an Attention write its result as a Map moves elements, or casts them."""
    source = state.maker_for_one(node.inputs[0])
    if source is None or not isinstance(source.op, Attention):
        return None
    op = source.op
    if op.y_view != dense(op.loops) or prod(move.shape) != prod(op.loops):
        return None
    while None in (steps := _steps(op, move)):
        axis = steps.index(None)
        inner = _inner(op.y_view.strides[axis], move)
        if axis >= len(op.batch) or inner is None or op.batch[axis] % inner != 0:
            return None
        op = split_batch(op, axis, inner)
    strides = tuple(s for s in steps if s is not None)
    if move.views[0].offset or strides[-1] != 1:
        return None
    view = View(strides)
    if view.bounds(op.loops) != (0, prod(op.loops) - 1):
        return None
    origin = merge_origin(source, node)
    result = replace(op.result, expr=substitute(move.expr, lambda _: op.result.expr))
    return Node(replace(op, y_view=view, result=result), source.inputs, node.outputs, origin)


def _steps(op: Attention, move: Map) -> list[int | None]:
    """Return the strides of an Attention's loops in a Map's result, None where there is none."""
    return [_step(n, s, move) for n, s in zip(op.loops, op.y_view.strides, strict=True)]


def _inner(stride: int, move: Map) -> int | None:
    """Return how many steps of this stride are within a loop of a Map, if that has several."""
    for n, read in zip(move.shape, move.views[0].strides, strict=True):
        if 0 < read <= stride and stride % read == 0 and stride < n * read:
            return n * read // stride if n * read % stride == 0 else None
    return None


def _step(extent: int, stride: int, move: Map) -> int | None:
    """Return the stride in a Map's result of the elements that it reads with this stride."""
    if extent == 1:
        return 0
    loops = zip(move.shape, move.views[0].strides, dense(move.shape).strides, strict=True)
    for n, read, written in loops:
        if 0 < read <= stride and stride % read == 0 and extent * stride <= n * read:
            return written * (stride // read)
    return None
