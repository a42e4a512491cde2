"""Moves pointwise convolutions to where there are fewer pixels: before upsampling, after pooling.

Both sides mix only channels or only pixels, so that they may change places. Segmentation networks
join maps of several sizes, upsampled, and convolve the result: W [up(a), b] = up(W_a a) + W_b b.
What is interpolated then is the product's channels, in the place of the operand's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod

import numpy as np

from atc.dims import max_value
from atc.ir.expr import Input, substitute, unrounded
from atc.ir.graph import Array, DType, Graph, Node, TensorType, reads
from atc.ir.ops import Conv, Epilogue, Map, Pool
from atc.ir.ops.data import Concat
from atc.ir.ops.sampling import Resample
from atc.ir.view import View, compose_refining, dense
from atc.passes.canonical.fold_views import tidy
from atc.passes.fuse.linear import (
    add_filters,
    added,
    is_pointwise,
    only_adds_bias,
    pointwise_filters,
    with_terms,
)
from atc.passes.rewriting import Rewriting, distinct_operands, rewrite

FLOAT = DType.FLOAT
WORTH = 32
"""Multiplications saved for each element that is interpolated, or pooled, in another place."""


def move_pointwise(graph: Graph, outer: Mapping[str, Array]) -> Graph:
    """Return the graph with pointwise convolutions of known filters where pixels are fewest."""
    return rewrite(graph, partial(_rule, _only_convolved(graph)), outer)


def _rule(movable: frozenset[str], state: Rewriting, node: Node) -> Node:
    match node.op:
        case Conv():
            return _before_upsampling(movable, state, node, node.op)
        case Pool(how="Average"):
            return _after_pooling(state, node, node.op)
    return node


def _only_convolved(graph: Graph) -> frozenset[str]:
    """Return the values that nothing reads but pointwise convolutions, perhaps resampled and
    joined before."""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in set(reads(node)):
            readers.setdefault(name, []).append(node)
    found: set[str] = set()

    def convolved(name: str, reader: Node) -> bool:
        if is_pointwise(reader.op):
            return reader.inputs[0] == name and name not in reader.inputs[1:]
        return isinstance(reader.op, Concat | Resample | Map) and reader.outputs[0] in found

    for node in reversed(graph.nodes):
        for name in node.outputs:
            own = readers.get(name, [])
            if own and name not in graph.outputs and all(convolved(name, r) for r in own):
                found.add(name)
    return frozenset(found)


# ---- upsampling ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Part:
    """Channels [begin, end) of a convolution's operand: `source`, resampled by `steps`."""

    begin: int
    end: int
    source: str
    steps: tuple[Node, ...]


def _before_upsampling(
    movable: frozenset[str], state: Rewriting, node: Node, op: Conv
) -> Node:
    """Convolve what has fewer pixels, and upsample and add the results."""
    filters = pointwise_filters(state, node)
    if filters is None or len(op.epilogue.views) != len(node.inputs) - 2:
        return node
    parts = _parts(movable, state, node.inputs[0])
    rest = [p for p in parts if not p.steps]
    moved = [p for p in parts if p.steps]
    if not moved:
        return node
    plain = Conv(op.window, 1, Epilogue(Input(FLOAT, 0)))
    upsampled = [_upsampled(state, node, plain, part, filters) for part in moved]
    if rest:
        return _with_rest(state, node, op, rest, filters, upsampled)
    return _sum(state, node, op, upsampled)


def _parts(movable: frozenset[str], state: Rewriting, name: str) -> list[_Part]:
    """Return the parts of a convolution's operand along its channels."""
    shape, join = state.types[name].shape, state.producers.get(name)
    parts: tuple[str, ...] = (name,)
    if join is not None and isinstance(join.op, Concat) and name in movable:
        shapes = [state.types[part].shape for part in join.inputs]
        if all(s[:1] == shape[:1] and s[2:] == shape[2:] for s in shapes):
            parts = join.inputs
    found, end = [], 0
    for part in parts:
        begin, end = end, end + state.types[part].shape[1]
        found.append(_Part(begin, end, *_source(movable, state, part)))
    return found


def _source(movable: frozenset[str], state: Rewriting, name: str) -> tuple[str, tuple[Node, ...]]:
    """Return the value of fewest pixels that a part is resampled from, and by which nodes."""
    found: tuple[str, tuple[Node, ...]] = (name, ())
    _, channels, *whole = state.types[name].shape
    least = max_value(prod(whole))
    saved = 0
    steps: list[Node] = []
    current = name
    while current in movable and (step := state.producers.get(current)) is not None:
        if not _resamples(state, step):
            break
        steps.insert(0, step)
        current = step.inputs[0]
        pixels = max_value(prod(state.types[current].shape[2:]))
        if pixels < least:
            least, found = pixels, (current, tuple(steps))
            saved = channels * (max_value(prod(whole)) - pixels)
    return found if saved >= WORTH * max_value(prod(whole)) else (name, ())


def _resamples(state: Rewriting, step: Node) -> bool:
    """Return whether a node computes pixels of each channel from those of the same channel."""
    moves = isinstance(step.op, Map) and (step.op.is_movement or _rounds(step.op))
    if not (moves or isinstance(step.op, Resample)) or state.constant(step.inputs[0]) is not None:
        return False
    x, y = state.types[step.inputs[0]], state.types[step.outputs[0]]
    same = len(x.shape) == len(y.shape) > 2 and x.shape[:2] == y.shape[:2]
    if not same or x.dtype is not FLOAT or y.dtype is not FLOAT:
        return False
    return _of_channels(state, step, x.shape[1]) is not None


def _rounds(op: Map) -> bool:
    """Return whether numbers are only rounded to 16 bits, which results may be, too."""
    inner, half = unrounded(op.expr)
    return half is not None and isinstance(inner, Input) and not op.coordinates


def _of_channels(state: Rewriting, step: Node, channels: int) -> Resample | Map | None:
    """Return the op that resamples another number of channels; None where it mixes channels."""
    x, y = (state.types[n].shape for n in (step.inputs[0], step.outputs[0]))
    match step.op:
        case Resample() as op:
            axis = op.axis(x, y)
            if axis is None or axis < 2:
                return None
            return replace(op, outer=prod((x[0], channels, *x[2:axis])))
        case Map() as op:
            found = compose_refining(y, [dense(y)], 0, op.shape, op.views)
            if found is None or found[0][:2] != y[:2]:
                return None
            loops, _, (view,) = found
            pixels = prod(x[2:])
            inside = View(view.strides[2:], view.offset).is_inside(loops[2:], pixels)
            steps = [(n, s) for n, s in zip(loops[:2], view.strides[:2], strict=True)]
            want = (pixels * x[1], pixels)
            if not inside or any(n != 1 and s != w for (n, s), w in zip(steps, want, strict=True)):
                return None
            new = View((pixels * channels, pixels, *view.strides[2:]), view.offset)
            return tidy(Map((y[0], channels, *loops[2:]), op.expr, (new,)))  # type: ignore[return-value]
    return None


def _upsampled(
    state: Rewriting, node: Node, op: Conv, part: _Part, filters: Array
) -> str:
    """Convolve a part's source and resample the result."""
    batch, _, *pixels = state.types[part.source].shape
    own = add_filters(state, node, filters[:, part.begin : part.end], "part")
    shape = (batch, len(filters), *pixels)
    current = state.emit(op, (part.source, own), TensorType(FLOAT, shape), node, "small")
    for step in part.steps:
        new = _of_channels(state, step, len(filters))
        assert new is not None
        shape = (batch, len(filters), *state.types[step.outputs[0]].shape[2:])
        like = replace(node, origin=step.origin)
        inputs = (current, *step.inputs[1:])
        current = state.emit(new, inputs, TensorType(FLOAT, shape), like, "resampled")
    return current


def _with_rest(
    state: Rewriting, node: Node, op: Conv, rest: Sequence[_Part], filters: Array,
    upsampled: Sequence[str],
) -> Node:  # fmt: skip
    """Return the convolution of the other parts, to which the upsampled ones are added."""
    batch, _, *pixels = state.types[node.inputs[0]].shape
    x = rest[0].source
    if len(rest) > 1:
        names = [p.source for p in rest]
        channels = sum(p.end - p.begin for p in rest)
        concat = Concat(batch, tuple(state.types[n].size // batch for n in names))
        type_ = TensorType(FLOAT, (batch, channels, *pixels))
        x = state.emit(concat, names, type_, node, "rest")
    own = np.concatenate([filters[:, p.begin : p.end] for p in rest], axis=1)
    weights = add_filters(state, node, own, "rest")
    view = dense(state.types[node.outputs[0]].shape)
    new, operands = with_terms(node, op, [(name, view) for name in upsampled])
    return replace(node, op=new, inputs=(x, weights, *operands))


def _sum(state: Rewriting, node: Node, op: Conv, upsampled: Sequence[str]) -> Node:
    """Return what the convolution's epilogue makes of the sum of upsampled parts."""
    y = state.types[node.outputs[0]].shape
    count = len(upsampled)
    total = added(Input(FLOAT, 0), range(1, count))
    expr = substitute(op.epilogue.expr, lambda k: Input(FLOAT, k + count - 1) if k else total)
    names = (*upsampled, *node.inputs[2:])
    views = (*(dense(y) for _ in upsampled), *op.epilogue.views)
    expr, names, views = distinct_operands(expr, names, views)
    return replace(node, op=tidy(Map(y, expr, views)), inputs=names)


# ---- pooling -------------------------------------------------------------------------------------


def _after_pooling(state: Rewriting, node: Node, op: Pool) -> Node:
    """Average the operand of a pointwise convolution in the place of its result."""
    conv = state.producers.get(node.inputs[0])
    if conv is None or not isinstance(conv.op, Conv) or not state.only_reader(node.inputs[0]):
        return node
    filters = pointwise_filters(state, conv)
    if filters is None or not only_adds_bias(conv.op.epilogue, state.types[node.inputs[0]].shape):
        return node
    x, y = state.types[conv.inputs[0]], state.types[node.outputs[0]]
    sums = not op.count_include_pad or op.window.stays_inside(x.shape[2:], y.shape[2:])
    if conv.op.epilogue.views and not sums:
        return node  # a bias isn't averaged where padding counts
    before, after = max_value(prod(x.shape[2:])), max_value(prod(y.shape[2:]))
    if len(filters) * (before - after) < WORTH * before:
        return node
    shape = (*x.shape[:2], *y.shape[2:])
    pooled = state.emit(op, (conv.inputs[0],), TensorType(FLOAT, shape), node, "pooled")
    return replace(conv, inputs=(pooled, *conv.inputs[1:]), outputs=node.outputs)
