"""Greedy non-maximum suppression as an ONNX Loop with static shapes.

ONNX's own NonMaxSuppression knows classes only as separate score rows and returns a list of
unknown length; MXNet compares class numbers per box and keeps the tensor's shape.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from atc.importers.mxnet.builder import Builder
from atc.importers.mxnet.tensor import Tensor


@dataclass(frozen=True)
class Boxes:
    """Boxes (batch, count) in the order of their scores: corners, areas and class numbers."""

    left: Tensor
    top: Tensor
    right: Tensor
    bottom: Tensor
    area: Tensor
    classes: Tensor | None
    """None suppresses across classes."""


def corners(b: Builder, coordinates: Tensor, center: bool) -> tuple[Tensor, ...]:
    """Split (batch, count, 4) into left, top, right and bottom (batch, count)."""
    first, second, third, fourth = (
        b.squeeze(t, 2) for t in b.split(coordinates, 2, [1, 1, 1, 1])
    )
    if not center:
        return first, second, third, fourth
    half_width, half_height = b.op("Mul", third, 0.5), b.op("Mul", fourth, 0.5)
    return (
        b.op("Sub", first, half_width), b.op("Sub", second, half_height),
        b.op("Add", first, half_width), b.op("Add", second, half_height),
    )  # fmt: skip


def area(b: Builder, width: Tensor, height: Tensor) -> Tensor:
    """Return width · height, 0 where one is negative."""
    negative = b.op("Less", b.op("Min", width, height), 0)
    return b.op("Where", negative, b.scalar(0, width.dtype), b.op("Mul", width, height))


def suppress(b: Builder, boxes: Boxes, alive: Tensor, threshold: float, inclusive: bool) -> Tensor:
    """Return which of the `alive` boxes stay: each one that stays removes those it overlaps.

    A box is removed when its intersection over union is above `threshold`, or equal where
    `inclusive`. Both masks are (batch, count).
    """
    count = alive.shape[1]
    place = b.constant(np.arange(count, dtype=np.int64))

    def step(inner: Builder, index: Tensor, kept: Tensor) -> Tensor:
        row = inner.unsqueeze(index, 0)

        def at(values: Tensor) -> Tensor:
            return inner.op("Gather", values, row, axis=1)

        overlap = _overlap(inner, boxes, Boxes(
            at(boxes.left), at(boxes.top), at(boxes.right), at(boxes.bottom), at(boxes.area), None
        ))  # fmt: skip
        hit = inner.op("GreaterOrEqual" if inclusive else "Greater", overlap, threshold)
        hit = inner.op("And", hit, inner.op("Greater", place, index))
        if boxes.classes is not None:
            same = inner.op("Equal", boxes.classes, at(boxes.classes))
            hit = inner.op("And", hit, same)
        hit = inner.op("And", hit, at(kept))
        return inner.op("And", kept, inner.op("Not", hit))

    return b.loop(count, alive, step) if count > 1 else alive


def _overlap(b: Builder, boxes: Boxes, one: Boxes) -> Tensor:
    """Return the intersection over union of all boxes with one."""
    width = b.op("Sub", b.op("Min", boxes.right, one.right), b.op("Max", boxes.left, one.left))
    height = b.op("Sub", b.op("Min", boxes.bottom, one.bottom), b.op("Max", boxes.top, one.top))
    inside = b.op("Mul", b.op("Relu", width), b.op("Relu", height))
    union = b.op("Sub", b.op("Add", boxes.area, one.area), inside)
    return b.op("Div", inside, union)


def compact(b: Builder, rows: Tensor, kept: Tensor) -> Tensor:
    """Move the kept rows (batch, count, width) to the front, in order; the rest are -1."""
    count = kept.shape[1]
    descending = b.constant(np.arange(count, 0, -1).astype(np.float32))
    rank = b.op("Where", kept, descending, b.scalar(0, np.dtype(np.float32)))
    values, order = b.emit("TopK", [rank, [count]], {"axis": 1}, 2)
    moved = take_rows(b, rows, order)
    valid = b.unsqueeze(b.op("Greater", values, 0), 2)
    return b.op("Where", valid, moved, b.scalar(-1, rows.dtype))


def take_rows(b: Builder, rows: Tensor, order: Tensor) -> Tensor:
    """Reorder axis 1 of (batch, count, width) by indices (batch, n)."""
    return b.op("GatherND", rows, b.unsqueeze(order, 2), batch_dims=1)
