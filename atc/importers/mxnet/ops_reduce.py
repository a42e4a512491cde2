"""Reductions, and the largest and smallest index."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor

REDUCTIONS = {
    "sum": "ReduceSum", "sum_axis": "ReduceSum", "mean": "ReduceMean", "prod": "ReduceProd",
    "max": "ReduceMax", "max_axis": "ReduceMax", "min": "ReduceMin", "min_axis": "ReduceMin",
    "_square_sum": "ReduceSumSquare",
}  # fmt: skip


def reduced_axes(s: NodeContext, rank: int) -> list[int]:
    """Return the axes of a reduction: none given means all, `exclude` those not given."""
    axes = s.axes("axis", rank)
    if not axes:
        return list(range(rank))
    if s.truth("exclude", False):
        return [a for a in range(rank) if a not in axes]
    return list(axes)


def reduce(s: NodeContext, op: str, x: Tensor, axes: Sequence[int]) -> Tensor:
    """Emit a reduction; the result of a whole tensor has the shape (1)."""
    if not axes:  # ONNX would take all
        return s.b.op("Identity", x)
    keep = s.truth("keepdims", False)
    y = s.b.op(op, x, list(axes), keepdims=int(keep))
    return s.b.reshape(y, [1]) if y.rank == 0 else y


@translates(*REDUCTIONS)
def reduction(s: NodeContext) -> Tensor:
    """Translate to a reduction that ONNX has."""
    return reduce(s, REDUCTIONS[s.node.op], s.x, reduced_axes(s, s.x.rank))


@translates("nansum", "nanprod")
def nan_reduction(s: NodeContext) -> Tensor:
    """Reduce without what is not a number."""
    total = s.node.op == "nansum"
    neutral = s.b.scalar(0 if total else 1, s.x.dtype)
    clean = s.b.op("Where", s.b.op("IsNaN", s.x), neutral, s.x)
    return reduce(s, "ReduceSum" if total else "ReduceProd", clean, reduced_axes(s, s.x.rank))


@translates("norm")
def norm(s: NodeContext) -> Tensor:
    """Return the 1- or 2-norm."""
    order = s.integer("ord", 2)
    if order not in (1, 2):
        raise s.unsupported(f"ord={order}", "1 and 2 are possible")
    return reduce(s, f"ReduceL{order}", s.x, reduced_axes(s, s.x.rank))


@translates("moments")
def moments(s: NodeContext) -> tuple[Tensor, Tensor]:
    """Return the mean and the variance."""
    axes = list(s.axes("axes", s.x.rank)) or list(range(s.x.rank))
    mean = s.b.op("ReduceMean", s.x, axes, keepdims=1)
    spread = s.b.op("Sub", s.x, mean)
    first = reduce(s, "ReduceMean", s.x, axes)
    return first, reduce(s, "ReduceMean", s.b.op("Mul", spread, spread), axes)


@translates("argmax", "argmin")
def arg_extreme(s: NodeContext) -> Tensor:
    """Return the first index of the largest or smallest element, as float32."""
    axis, keep = s.maybe_integer("axis"), s.truth("keepdims", False)
    x = s.x if axis is not None else s.b.reshape(s.x, [s.x.size])
    s.require(x.rank > 0, "a scalar has no axis")
    op = "ArgMax" if s.node.op == "argmax" else "ArgMin"
    index = s.b.op(op, x, axis=s.axis(axis or 0, x.rank), keepdims=int(keep))
    if axis is None and keep:
        index = s.b.reshape(index, [1] * s.x.rank)
    return s.b.cast(s.b.reshape(index, [1]) if index.rank == 0 else index, np.float32)


@translates("argmax_channel")
def argmax_channel(s: NodeContext) -> Tensor:
    """Return the first index of the largest element of axis 1, as float32."""
    s.rank(2)
    return s.b.cast(s.b.op("ArgMax", s.x, axis=1, keepdims=0), np.float32)


@translates("softmax_cross_entropy")
def softmax_cross_entropy(s: NodeContext) -> Tensor:
    """Σ -log softmax(x)[label]."""
    s.rank(2)
    label = s.b.unsqueeze(s.b.cast(s.input(1), np.int64), 1)
    picked = s.b.op("GatherElements", s.b.op("LogSoftmax", s.x, axis=1), label, axis=1)
    return s.b.reshape(s.b.op("Neg", s.b.op("ReduceSum", picked, keepdims=0)), [1])


@translates("cumsum", "_np_cumsum")
def cumsum(s: NodeContext) -> Tensor:
    """Sum up along an axis, or of the flattened tensor."""
    axis = s.maybe_integer("axis")
    x = s.x if axis is not None else s.b.reshape(s.x, [s.x.size])
    if s.has("dtype"):
        x = s.b.cast(x, s.element_type())
    index = s.b.scalar(s.axis(axis or 0, x.rank), np.dtype(np.int64))
    return s.b.op("CumSum", x, index)
