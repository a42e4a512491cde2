"""Sorting: topk, sort and argsort. Indices are float32 unless `dtype` says otherwise."""

from __future__ import annotations

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor


def _sortable(s: NodeContext) -> tuple[Tensor, int]:
    """Return the data and the axis to sort: the flattened data where `axis` is None."""
    if s.node.attrs.get("axis", "-1").strip() == "None":
        return s.b.reshape(s.x, [s.x.size]), 0
    return s.x, s.axis(s.integer("axis", -1), s.x.rank)


def top(s: NodeContext, x: Tensor, axis: int, count: int, largest: bool) -> tuple[Tensor, Tensor]:
    """Emit TopK: the sorted values and their int64 indices."""
    values, indices = s.b.emit(
        "TopK", [x, [count]], {"axis": axis, "largest": int(largest), "sorted": 1}, 2
    )
    return values, indices


@translates("topk")
def topk(s: NodeContext) -> tuple[Tensor, ...]:
    """Return the largest (or smallest) elements: values, indices, both or a mask of them."""
    x, axis = _sortable(s)
    count = s.integer("k", 1)
    count = x.shape[axis] if count < 1 else count
    s.require(count <= x.shape[axis], f"k is {count} of {x.shape[axis]}")
    values, indices = top(s, x, axis, count, not s.truth("is_ascend", False))
    numbers = s.b.cast(indices, s.element_type())
    match s.word("ret_typ", "indices", ("indices", "value", "both", "mask")):
        case "indices":
            return (numbers,)
        case "value":
            return (values,)
        case "both":
            return values, numbers
        case _:
            zeros = s.b.expand(s.b.constant(np.zeros(1, x.dtype)), x.shape)
            ones = s.b.expand(s.b.constant(np.ones(1, x.dtype)), indices.shape)
            mask = s.b.op("ScatterElements", zeros, indices, ones, axis=axis)
            return (s.b.reshape(mask, s.x.shape),)


@translates("sort")
def sort(s: NodeContext) -> Tensor:
    """Return the elements of an axis in order."""
    x, axis = _sortable(s)
    return top(s, x, axis, x.shape[axis], not s.truth("is_ascend", True))[0]


@translates("argsort")
def argsort(s: NodeContext) -> Tensor:
    """Return the indices that sort an axis."""
    x, axis = _sortable(s)
    indices = top(s, x, axis, x.shape[axis], not s.truth("is_ascend", True))[1]
    return s.b.cast(indices, s.element_type())
