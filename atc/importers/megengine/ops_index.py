"""Indexing: slices, gathers and their writing counterparts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import IndexItem, Operator, Params
from atc.importers.megengine.translation import MANY, Rule, Translation
from atc.importers.megengine.types import BOOL, INT32

_FAR = (1 << 31) - 1
_LARGEST_SCATTER = 1 << 23


@dataclass(frozen=True)
class Slicing:
    """One indexed axis; bounds that are absent are None."""

    axis: int
    begin: ir.Value | None
    end: ir.Value | None
    step: ir.Value | None
    index: ir.Value | None


def _slicings(b: Builder, op: Operator, rank: int, given: Sequence[Var]) -> list[Slicing]:
    """Pair the items of the parameters with the inputs that hold their bounds."""
    rest = iter(given)

    def take(present: bool) -> ir.Value | None:
        if not present:
            return None
        bound = next(rest, None)
        if bound is None:
            raise b.error("fewer inputs than the parameters announce")
        return b.cast(bound.value, ir.DataType.INT64)

    items: Sequence[IndexItem] = op.params("IndexDescMaskDump").indices()
    found = [
        Slicing(b.axis(i.axis, rank), take(i.begin), take(i.end), take(i.step), take(i.index))
        for i in items
    ]
    axes = [slicing.axis for slicing in found]
    if len(set(axes)) != len(axes) or next(rest, None) is not None:
        raise b.error("the parameters and the inputs of an index do not match")
    return found


def _slice(b: Builder, x: ir.Value, slicings: Sequence[Slicing]) -> ir.Value:
    """Apply the items that are ranges; bounds clamp as in Python."""
    ranges = [s for s in slicings if s.index is None]
    if not ranges:
        return x
    begins: list[ir.Value] = []
    ends: list[ir.Value] = []
    steps: list[ir.Value] = []
    for slicing in ranges:
        step = slicing.step or b.integers([1])
        known = b.known(step)
        if known is None or len(known) != 1 or not known[0]:
            raise b.unsupported("a step that is 0 or depends on data is not covered")
        forward = known[0] > 0
        begins.append(slicing.begin or b.integers([0 if forward else _FAR]))
        ends.append(slicing.end or b.integers([_FAR if forward else -_FAR]))
        steps.append(step)
    axes = b.integers([s.axis for s in ranges])
    joined = [_join(b, begins), _join(b, ends), axes, _join(b, steps)]
    return b.op("Slice", [x, *joined])


def _join(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else b.op("Concat", values, {"axis": 0})


def subtensor(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Subtensor: ranges keep an axis, an index drops it; a scalar has shape (1)."""
    x = xs[0]
    rank = b.rank(x.value)
    slicings = _slicings(b, op, rank, xs[1:])
    value = _slice(b, x.value, slicings)
    indexed = sorted((s for s in slicings if s.index is not None), key=lambda s: s.axis)
    for slicing in indexed:
        value = b.op("Gather", [value, slicing.index], {"axis": slicing.axis})
    dropped = [s.axis for s in indexed]
    if len(dropped) == rank:
        dropped = dropped[1:]
    if dropped:
        value = b.op("Squeeze", [value, b.integers(dropped)])
    return [Var(value, x.dtype)]


def _scatter_subtensor(reduction: str) -> Translation:
    """Write to, or add to, the elements that a Subtensor with these bounds would read."""

    def translate(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
        x, value = xs[0], xs[1].value
        shape = b.extents(x.value)
        if math.prod(shape) > _LARGEST_SCATTER:
            raise b.unsupported(f"writing into a tensor of shape {list(shape)} is not covered")
        slicings = _slicings(b, op, len(shape), xs[2:])
        places = _places(b, slicings, shape)
        updates = b.op("Expand", [value, b.integers(places.shape)])
        flat = [
            b.reshape(x.value, (math.prod(shape),)),
            b.constant(places.reshape(-1).astype(np.int64)),
            b.reshape(updates, (places.size,)),
        ]
        attributes = {"axis": 0, "reduction": reduction}
        written = b.op("ScatterElements", flat, attributes)
        return [Var(b.reshape(written, shape), x.dtype)]

    return translate


def _places(b: Builder, slicings: Sequence[Slicing], shape: Sequence[int]) -> np.ndarray:
    """Return the flat positions that the bounds select, in the shape of the selection."""
    everything = np.arange(math.prod(shape)).reshape(shape)
    try:
        places = everything[_python_index(b, slicings, len(shape))]
    except IndexError as error:
        raise b.error(f"an index lies outside shape {list(shape)}") from error
    return places.reshape(places.shape or (1,))


def _python_index(b: Builder, slicings: Sequence[Slicing], rank: int) -> tuple[slice | int, ...]:
    """Return numpy's spelling of constant bounds."""
    index: list[slice | int] = [slice(None)] * rank
    for s in slicings:
        if s.index is not None:
            index[s.axis] = _known(b, s.index)
            continue
        bounds = [None if v is None else _known(b, v) for v in (s.begin, s.end, s.step)]
        if bounds[2] == 0:
            raise b.error("a step of 0")
        index[s.axis] = slice(*bounds)
    return tuple(index)


def _known(b: Builder, value: ir.Value) -> int:
    numbers = b.known(value)
    if numbers is None or len(numbers) != 1:
        raise b.unsupported("writing to a place that depends on data is not covered")
    return numbers[0]


@dataclass(frozen=True)
class Picking:
    """Paired index vectors over some axes: data with those axes first, and the index tuples."""

    axes: tuple[int, ...]
    order: tuple[int, ...]
    tuples: ir.Value
    rank: int  # of one index vector


def _picking(b: Builder, slicings: Sequence[Slicing], rank: int) -> Picking:
    indexed = sorted((s for s in slicings if s.index is not None), key=lambda s: s.axis)
    if not indexed:
        raise b.error("an index without a vector")
    axes = tuple(s.axis for s in indexed)
    order = (*axes, *(a for a in range(rank) if a not in axes))
    vectors = [s.index for s in indexed if s.index is not None]
    shape = np.broadcast_shapes(*(b.extents(v) for v in vectors)) if len(vectors) > 1 else ()
    columns: list[ir.Value] = []
    for vector in vectors:
        if len(vectors) > 1 and b.shape(vector) != shape:
            vector = b.op("Expand", [vector, b.integers(shape)])
        columns.append(b.op("Unsqueeze", [vector, b.integers([-1])]))
    joined = columns[0] if len(columns) == 1 else b.op("Concat", columns, {"axis": -1})
    return Picking(axes, order, joined, b.rank(vectors[0]) if len(vectors) == 1 else len(shape))


def _inverse(order: Sequence[int]) -> list[int]:
    return [order.index(i) for i in range(len(order))]


def _result_order(picking: Picking, rank: int) -> list[int]:
    """Return the order that moves the index axes from the front to the first indexed axis."""
    others = rank - len(picking.axes)
    first = picking.axes[0]
    front = list(range(picking.rank))
    rest = [picking.rank + i for i in range(others)]
    return [*rest[:first], *front, *rest[first:]]


def pick(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate IndexingMultiAxisVec: paired index vectors, result at the first indexed axis."""
    x = xs[0]
    rank = b.rank(x.value)
    slicings = _slicings(b, op, rank, xs[1:])
    value = _slice(b, x.value, slicings)
    indexed = [s for s in slicings if s.index is not None]
    if len(indexed) == 1:
        axis = {"axis": indexed[0].axis}
        return [Var(b.op("Gather", [value, indexed[0].index], axis), x.dtype)]
    picking = _picked(b, slicings, rank)
    gathered = b.op("GatherND", [b.transpose(value, picking.order), picking.tuples])
    return [Var(b.transpose(gathered, _result_order(picking, rank)), x.dtype)]


def _picked(b: Builder, slicings: Sequence[Slicing], rank: int) -> Picking:
    try:
        return _picking(b, slicings, rank)
    except ValueError as error:
        raise b.error("index vectors of different lengths") from error


def _scatter_pick(reduction: str) -> Translation:
    """Write to, or add to, the elements that IndexingMultiAxisVec would read."""

    def translate(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
        x, value = xs[0], xs[1].value
        rank = b.rank(x.value)
        slicings = _slicings(b, op, rank, xs[2:])
        if any(s.index is None for s in slicings):
            raise b.unsupported("writing with index vectors and ranges together is not covered")
        picking = _picked(b, slicings, rank)
        data = b.transpose(x.value, picking.order)
        index_shape = b.extents(picking.tuples)[:-1]
        moved = (*index_shape, *b.extents(data)[len(picking.axes) :])
        order = _result_order(picking, rank)
        wanted = [moved[i] for i in order]
        updates = b.op("Expand", [value, b.integers(wanted)])
        updates = b.transpose(updates, _inverse(order))
        attributes = {"reduction": reduction}
        written = b.op("ScatterND", [data, picking.tuples, updates], attributes)
        return [Var(b.transpose(written, _inverse(picking.order)), x.dtype)]

    return translate


def mesh_index(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate MeshIndexing: each index vector selects along its own axis."""
    x = xs[0]
    slicings = _slicings(b, op, b.rank(x.value), xs[1:])
    value = _slice(b, x.value, slicings)
    for slicing in slicings:
        if slicing.index is not None:
            value = b.op("Gather", [value, slicing.index], {"axis": slicing.axis})
    return [Var(value, x.dtype)]


def one_hot_pick(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate IndexingOneHot: one element along an axis, which stays with size 1."""
    x, axis, index = _one_hot(b, op, xs[0], xs[1])
    return [Var(b.op("GatherElements", [x.value, index], {"axis": axis}), x.dtype)]


def one_hot_set(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate IndexingSetOneHot: inputs x, index, value."""
    x, axis, index = _one_hot(b, op, xs[0], xs[1])
    updates = xs[2].value
    if b.shape(updates) != b.shape(index):
        updates = b.op("Expand", [updates, b.shape_of(index)])
    value = b.op("ScatterElements", [x.value, index, updates], {"axis": axis})
    return [Var(value, x.dtype)]


def _one_hot(b: Builder, op: Operator, x: Var, index: Var) -> tuple[Var, int, ir.Value]:
    axis = b.axis(op.params("Axis").integer("axis"), b.rank(x.value))
    places = b.cast(index.value, ir.DataType.INT64)
    return x, axis, b.op("Unsqueeze", [places, b.integers([axis])])


def cond_take(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate CondTake: the elements where the mask fulfils a condition, and their places."""
    params = op.params("CondTake")
    x, mask = xs
    flat = b.integers([-1])
    data = b.op("Reshape", [x.value, flat])
    holds = b.op("Reshape", [_condition(b, mask, params.word("mode"), params), flat])
    values = b.op("Compress", [data, holds], {"axis": 0})
    places = b.op("Squeeze", [b.op("NonZero", [holds]), b.integers([0])])
    return [Var(values, x.dtype), Var(b.cast(places, ir.DataType.INT32), INT32)]


def _condition(b: Builder, mask: Var, mode: str, params: Params) -> ir.Value:
    limit = params.real("val")
    if mask.dtype == BOOL and mode in ("EQ", "NEQ") and limit in (0.0, 1.0):
        same = (mode == "EQ") == (limit == 1.0)
        return mask.value if same else b.op("Not", [mask.value])
    value = mask.value if mask.dtype.floating else b.cast(mask.value, ir.DataType.FLOAT)
    bound = b.number(limit, value)
    if mode in ("EQ", "NEQ"):
        distance = b.op("Abs", [b.op("Sub", [value, bound])])
        near = b.op("Less", [distance, b.number(params.real("eps"), value)])
        return near if mode == "EQ" else b.op("Not", [near])
    compare = {"LT": "Less", "LEQ": "LessOrEqual", "GT": "Greater", "GEQ": "GreaterOrEqual"}
    return b.op(compare[mode], [value, bound])


RULES: Mapping[str, Rule] = {
    "CondTake": Rule(cond_take, 2),
    "IncrSubtensor": Rule(_scatter_subtensor("add"), 2, MANY),
    "IndexingIncrMultiAxisVec": Rule(_scatter_pick("add"), 3, MANY),
    "IndexingMultiAxisVec": Rule(pick, 2, MANY),
    "IndexingOneHot": Rule(one_hot_pick, 2),
    "IndexingSetMultiAxisVec": Rule(_scatter_pick("none"), 3, MANY),
    "IndexingSetOneHot": Rule(one_hot_set, 3),
    "MeshIndexing": Rule(mesh_index, 2, MANY),
    "SetSubtensor": Rule(_scatter_subtensor("none"), 2, MANY),
    "Subtensor": Rule(subtensor, 1, MANY),
}
