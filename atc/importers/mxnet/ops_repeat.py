"""Repetition and broadcasting."""

from __future__ import annotations

from collections.abc import Sequence

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor
from atc.importers.onnx_builder import MAX_RANK


@translates("tile")
def tile(s: NodeContext) -> Tensor:
    """Repeat whole axes; missing leading numbers are ones."""
    reps = s.integers("reps")
    s.require(len(reps) <= MAX_RANK and all(r > 0 for r in reps), f"reps {list(reps)}")
    rank = max(len(reps), s.x.rank)
    x = s.b.reshape(s.x, [1] * (rank - s.x.rank) + list(s.x.shape))
    return s.b.op("Tile", x, [1] * (rank - len(reps)) + list(reps))


@translates("repeat")
def repeat(s: NodeContext) -> Tensor:
    """Repeat each element along an axis, or of the flattened tensor."""
    axis, count = s.maybe_integer("axis"), s.integer("repeats")
    s.require(count > 0, f"repeats is {count}")
    x = s.x if axis is not None else s.b.reshape(s.x, [s.x.size])
    return repeated(s, x, s.axis(axis or 0, x.rank), count)


def repeated(s: NodeContext, x: Tensor, axis: int, count: int) -> Tensor:
    """Repeat each element of one axis `count` times."""
    wide = s.b.unsqueeze(x, axis + 1)
    shape = list(wide.shape)
    shape[axis + 1] = count
    joined = list(x.shape)
    joined[axis] *= count
    return s.b.reshape(s.b.expand(wide, shape), joined)


@translates("broadcast_to")
def broadcast_to(s: NodeContext) -> Tensor:
    """Repeat axes of length one; 0 keeps an axis."""
    shape = s.integers("shape")
    s.require(len(shape) == s.x.rank, f"shape {list(shape)} is not of rank {s.x.rank}")
    return _expanded(s, [d or n for d, n in zip(shape, s.x.shape, strict=True)])


@translates("broadcast_axis", "broadcast_axes")
def broadcast_axis(s: NodeContext) -> Tensor:
    """Repeat some axes of length one."""
    axes, sizes = s.axes("axis", s.x.rank), s.integers("size", ())
    s.require(len(axes) == len(sizes), f"{len(axes)} axes have {len(sizes)} sizes")
    shape = list(s.x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    return _expanded(s, shape)


@translates("broadcast_like")
def broadcast_like(s: NodeContext) -> Tensor:
    """Repeat axes of length one as the other tensor has them."""
    other = s.input(1)
    if not s.has("lhs_axes"):
        s.require(other.rank == s.x.rank, "the ranks differ")
        return _expanded(s, list(other.shape))
    shape = list(s.x.shape)
    pairs = zip(s.axes("lhs_axes", s.x.rank), s.axes("rhs_axes", other.rank), strict=False)
    for left, right in pairs:
        shape[left] = other.shape[right]
    return _expanded(s, shape)


def _expanded(s: NodeContext, shape: Sequence[int]) -> Tensor:
    fits = all(n in (1, d) and d > 0 for n, d in zip(s.x.shape, shape, strict=True))
    s.require(fits, f"{list(s.x.shape)} cannot be broadcast to {list(shape)}")
    return s.b.op("Expand", s.x, list(shape))
