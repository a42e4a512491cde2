"""Greedy non-maximum suppression with static shapes.

ONNX's own NonMaxSuppression knows classes only as separate score rows and returns a list of
unknown length; MXNet compares class numbers per box and keeps the tensor's shape.

Up to MATRIX boxes it is a recurrence without control flow: keep = relu(alive - S·keep), where
S[j, i] = 1 when box i removes the later box j. After k steps the first k boxes are final, so that
an RNN of as many steps as boxes gives the greedy result exactly (all values are 0 or 1 before the
relu's lower clip). More boxes take a Loop, which needs no matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from atc.importers.mxnet.builder import Builder
from atc.importers.mxnet.tensor import Tensor

MATRIX = 512
"""The most boxes whose overlaps are held as a matrix."""

BATCH = 64
"""The most images that get a recurrence each."""


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
    if alive.shape[1] <= 1:
        return alive
    few = alive.shape[0] <= BATCH and alive.shape[1] <= MATRIX
    way = _by_recurrence if few else _by_loop
    return way(b, boxes, alive, threshold, inclusive)


def _by_recurrence(
    b: Builder, boxes: Boxes, alive: Tensor, threshold: float, inclusive: bool
) -> Tensor:
    batch, count = alive.shape
    removes = _removes(b, _each(b, boxes, 2), _each(b, boxes, 1), threshold, inclusive)
    earlier = b.constant(np.tri(count, k=-1, dtype=np.bool_))
    matrix = b.op("Neg", b.cast(b.op("And", removes, earlier), np.float32))
    bias = b.concat([b.cast(alive, np.float32), b.constant(np.zeros((batch, count), "f4"))], 1)
    kept = [_recurrence(b, b.slice(matrix, 0, n, n + 1), b.slice(bias, 0, n, n + 1))
            for n in range(batch)]  # fmt: skip
    return b.cast(b.concat(kept, 0), np.bool_)


def _recurrence(b: Builder, matrix: Tensor, bias: Tensor) -> Tensor:
    """Return relu(bias + matrix·x), started at 0 and applied once for each of x's elements."""
    count = matrix.shape[1]
    nothing = b.constant(np.zeros((count, 1, 1), np.float32))
    weight = b.constant(np.zeros((1, count, 1), np.float32))
    attributes = {"hidden_size": count, "activations": ["Relu"]}
    steps, last = b.emit("RNN", [nothing, weight, matrix, bias], attributes, 2)
    steps.value.name = ""  # nobody reads the single steps
    return b.reshape(last, [1, count])


def _by_loop(b: Builder, boxes: Boxes, alive: Tensor, threshold: float, inclusive: bool) -> Tensor:
    count = alive.shape[1]
    place = b.constant(np.arange(count, dtype=np.int64))

    def step(inner: Builder, index: Tensor, kept: Tensor) -> Tensor:
        row = inner.unsqueeze(index, 0)

        def at(values: Tensor) -> Tensor:
            return inner.op("Gather", values, row, axis=1)

        hit = _removes(inner, boxes, _mapped(boxes, at), threshold, inclusive)
        hit = inner.op("And", hit, inner.op("Greater", place, index))
        hit = inner.op("And", hit, at(kept))
        return inner.op("And", kept, inner.op("Not", hit))

    return b.loop(count, alive, step)


def _mapped(boxes: Boxes, change: Callable[[Tensor], Tensor]) -> Boxes:
    classes = None if boxes.classes is None else change(boxes.classes)
    left, top, right, bottom, area = map(
        change, (boxes.left, boxes.top, boxes.right, boxes.bottom, boxes.area)
    )
    return Boxes(left, top, right, bottom, area, classes)


def _each(b: Builder, boxes: Boxes, axis: int) -> Boxes:
    return _mapped(boxes, lambda t: b.unsqueeze(t, axis))


def _removes(b: Builder, later: Boxes, earlier: Boxes, threshold: float, inclusive: bool) -> Tensor:
    """Return where boxes of the same class overlap too much, whatever their order."""
    overlap = _overlap(b, later, earlier)
    hit = b.op("GreaterOrEqual" if inclusive else "Greater", overlap, threshold)
    if later.classes is None or earlier.classes is None:
        return hit
    return b.op("And", hit, b.op("Equal", later.classes, earlier.classes))


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
