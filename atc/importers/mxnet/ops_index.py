"""Slices and gathers: indices come as floats and are clipped to the axis."""

from __future__ import annotations

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor

FAR = (1 << 31) - 1
"""An end of a slice that lies behind every axis."""


@translates("slice", "crop")
def slice_(s: NodeContext) -> Tensor:
    """Slice by begin, end and step, each None where it is the axis's own end."""
    begin, end = s.maybe_integers("begin"), s.maybe_integers("end")
    step = s.maybe_integers("step", ()) or (None,) * len(begin)
    s.require(len(begin) == len(end) == len(step) <= s.x.rank, "begin, end and step differ")
    starts, stops, steps = [], [], []
    for axis, (b, e, k) in enumerate(zip(begin, end, step, strict=True)):
        k = 1 if k is None else k
        s.require(k != 0, "step is 0")
        length = s.x.shape[axis]
        start, stop, k = slice(b, e, k).indices(length)
        s.require((stop - start) * k > 0, f"the range {b}, {e}, {k} of axis {axis} is empty")
        starts.append(start)
        stops.append(stop if stop >= 0 else -FAR)
        steps.append(k)
    return s.b.op("Slice", s.x, starts, stops, list(range(len(begin))), steps)


@translates("slice_axis")
def slice_axis(s: NodeContext) -> Tensor:
    """Take begin … end of one axis; `end` None is the axis's end."""
    axis = s.axis(s.integer("axis"), s.x.rank)
    start, stop, _ = slice(s.integer("begin"), s.maybe_integer("end")).indices(s.x.shape[axis])
    s.require(start < stop, f"the range {s.integer('begin')}, {s.maybe_integer('end')} is empty")
    return s.b.op("Slice", s.x, [start], [stop], [axis])


@translates("slice_like")
def slice_like(s: NodeContext) -> Tensor:
    """Cut some axes (all, if none are given) to the other's lengths."""
    other = s.input(1)
    axes = s.axes("axes", s.x.rank)
    axes = axes or tuple(range(min(s.x.rank, other.rank)))
    s.require(all(a < other.rank and other.shape[a] <= s.x.shape[a] for a in axes),
              f"{list(s.x.shape)} cannot be cut to {list(other.shape)}")  # fmt: skip
    ends = [other.shape[a] for a in axes]
    return s.b.op("Slice", s.x, [0] * len(axes), ends, list(axes))


@translates("reverse", "flip")
def reverse(s: NodeContext) -> Tensor:
    """Turn axes around."""
    axes = list(s.axes("axis", s.x.rank))
    s.require(bool(axes), "axis is missing")
    count = len(axes)
    return s.b.op("Slice", s.x, [-1] * count, [-FAR] * count, axes, [-1] * count)


def index_of(s: NodeContext, indices: Tensor, length: int, mode: str) -> Tensor:
    """Return indices as int64 inside 0 … length - 1: clipped, or wrapped around."""
    whole = s.b.cast(indices, np.int64)
    if mode == "wrap":
        return s.b.op("Mod", whole, length)
    return s.b.op("Clip", whole, s.b.scalar(0, whole.dtype), s.b.scalar(length - 1, whole.dtype))


@translates("Embedding", "_contrib_SparseEmbedding", weights=(1,))
def embedding(s: NodeContext) -> Tensor:
    """Rows of the weight; an index outside is clipped."""
    weight = s.input(1)
    s.require(weight.rank == 2 and weight.shape[0] > 0, "the weight is not a matrix")
    return s.b.op("Gather", weight, index_of(s, s.x, weight.shape[0], "clip"), axis=0)


@translates("take")
def take(s: NodeContext) -> Tensor:
    """Entries of one axis; an index outside is clipped or wrapped."""
    mode = s.word("mode", "clip", ("clip", "wrap", "raise"))
    axis = s.axis(s.integer("axis", 0), s.x.rank)
    s.require(s.x.shape[axis] > 0, "the axis is empty")
    index = index_of(s, s.input(1), s.x.shape[axis], "clip" if mode == "raise" else mode)
    return s.b.op("Gather", s.x, index, axis=axis)


@translates("pick", "choose_element_0index")
def pick(s: NodeContext) -> Tensor:
    """One element of an axis for each index."""
    mode, given = s.word("mode", "clip", ("clip", "wrap")), s.node.attrs.get("axis", "-1")
    x = s.x if given.strip() != "None" else s.b.reshape(s.x, [s.x.size])
    axis = s.axis(s.integer("axis", -1), x.rank)
    shape = list(x.shape)
    shape[axis] = 1
    index = s.b.reshape(index_of(s, s.input(1), x.shape[axis], mode), shape)
    y = s.b.op("GatherElements", x, index, axis=axis)
    if s.truth("keepdims", False):
        return y
    del shape[axis]
    return s.b.reshape(y, shape or [1])


@translates("batch_take")
def batch_take(s: NodeContext) -> Tensor:
    """One element of each row."""
    s.rank(2)
    index = s.b.reshape(index_of(s, s.input(1), s.x.shape[1], "clip"), [s.x.shape[0], 1])
    return s.b.reshape(s.b.op("GatherElements", s.x, index, axis=1), [s.x.shape[0]])


@translates("gather_nd")
def gather_nd(s: NodeContext) -> Tensor:
    """Elements at the indices of the columns: indices (M, ...), M axes of the data."""
    index = s.input(1)
    s.require(index.rank > 0 and index.shape[0] <= s.x.rank, "the indices don't fit the data")
    last = s.b.transpose(s.b.cast(index, np.int64), [*range(1, index.rank), 0])
    limit = np.asarray(s.x.shape[: index.shape[0]], np.int64) - 1
    inside = s.b.op("Max", s.b.op("Min", last, s.b.constant(limit)), s.b.ints(0))
    return s.b.op("GatherND", s.x, inside)


@translates("scatter_nd")
def scatter_nd(s: NodeContext) -> Tensor:
    """Zeros with the data at the indices of the columns."""
    index, shape = s.input(1), s.integers("shape")
    s.require(index.rank > 0 and index.shape[0] <= len(shape), "the indices don't fit shape")
    s.require(all(d > 0 for d in shape), f"shape {list(shape)}")
    last = s.b.transpose(s.b.cast(index, np.int64), [*range(1, index.rank), 0])
    zeros = s.b.expand(s.b.constant(np.zeros(1, s.x.dtype)), shape)
    return s.b.op("ScatterND", zeros, last, s.x)


@translates("_scatter_set_nd")
def scatter_set_nd(s: NodeContext) -> Tensor:
    """Return the first tensor with the second's elements at the indices of the columns."""
    index = s.input(2)
    last = s.b.transpose(s.b.cast(index, np.int64), [*range(1, index.rank), 0])
    return s.b.op("ScatterND", s.x, last, s.input(1))


@translates("_contrib_index_copy")
def index_copy(s: NodeContext) -> Tensor:
    """Return the first tensor with rows replaced."""
    rows = s.b.unsqueeze(s.b.cast(s.input(1), np.int64), 1)
    return s.b.op("ScatterND", s.x, rows, s.input(2))


@translates("one_hot", "_npx_one_hot")
def one_hot(s: NodeContext) -> Tensor:
    """`on_value` at the index of a new last axis; nothing where it lies outside."""
    depth, dtype = s.integer("depth"), s.element_type()
    s.require(0 < depth <= 1 << 22, f"depth is {depth}")
    index = s.b.unsqueeze(s.b.cast(s.x, np.int64), s.x.rank)
    hit = s.b.op("Equal", index, s.b.constant(np.arange(depth, dtype=np.int64)))
    on, off = (s.b.scalar(s.number(n, v), dtype) for n, v in (("on_value", 1), ("off_value", 0)))
    return s.b.op("Where", hit, on, off)


@translates("_slice_assign", "_crop_assign")
def slice_assign(s: NodeContext) -> Tensor:
    """Return the first tensor with a slice replaced by the second."""
    return _assign(s, s.input(1))


@translates("_slice_assign_scalar", "_crop_assign_scalar")
def slice_assign_scalar(s: NodeContext) -> Tensor:
    """Return the tensor with a slice replaced by a number."""
    return _assign(s, s.b.scalar(s.number("scalar", 0.0), s.x.dtype))


def _assign(s: NodeContext, value: Tensor) -> Tensor:
    """Scatter the values to the slice's elements, by their flat positions."""
    begin, end = s.maybe_integers("begin"), s.maybe_integers("end")
    step = s.maybe_integers("step", ()) or (None,) * len(begin)
    s.require(len(begin) == len(end) == len(step) <= s.x.rank, "begin, end and step differ")
    s.require(s.x.size <= 1 << 22 and 0 not in step, "the tensor is too large")
    cuts = tuple(slice(b, e, k) for b, e, k in zip(begin, end, step, strict=True))
    positions = np.arange(s.x.size, dtype=np.int64).reshape(s.x.shape)[cuts]
    values = s.b.reshape(s.b.expand(value, positions.shape), [positions.size])
    flat = s.b.reshape(s.x, [s.x.size])
    updated = s.b.op("ScatterElements", flat, s.b.constant(positions.reshape(-1)), values, axis=0)
    return s.b.reshape(updated, s.x.shape)


@translates("_ravel_multi_index", "ravel_multi_index")
def ravel_multi_index(s: NodeContext) -> Tensor:
    """Flat positions of the columns' indices."""
    shape = s.integers("shape")
    s.require(s.x.shape[:1] == (len(shape),), "the data has not one row for each axis of shape")
    strides = np.cumprod([1, *shape[:0:-1]])[::-1].astype(s.x.dtype)
    scaled = s.b.op("Mul", s.x, s.b.constant(strides.reshape([-1] + [1] * (s.x.rank - 1))))
    return s.b.op("ReduceSum", scaled, [0], keepdims=0)


@translates("_unravel_index", "unravel_index")
def unravel_index(s: NodeContext) -> Tensor:
    """Return the indices of flat positions, one row for each axis."""
    rest, rows = s.b.cast(s.x, np.int64), []
    shape = s.integers("shape")
    s.require(len(shape) > 0 and all(d > 0 for d in shape), f"shape {list(shape)}")
    for length in shape[:0:-1]:
        rows.append(s.b.op("Mod", rest, length))
        rest = s.b.op("Div", rest, length)
    rows.append(rest)
    return s.b.cast(s.b.concat([s.b.unsqueeze(r, 0) for r in rows[::-1]], 0), s.x.dtype)
