"""Reshape with MXNet's codes, transposition, and what else only moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor
from atc.importers.onnx_builder import MAX_RANK


@translates("Reshape", "reshape")
def reshape(s: NodeContext) -> Tensor:
    """Reshape by MXNet's codes, or by the old `target_shape` (0 = what is left)."""
    codes = s.integers("shape", ())
    if not codes:
        return s.b.op("Identity", s.x) if not s.has("target_shape") else _target_shape(s)
    shape = s.x.shape
    if s.truth("reverse", False):
        return _same(s, reshaped(s, shape[::-1], codes[::-1])[::-1])
    return _same(s, reshaped(s, shape, codes))


def _same(s: NodeContext, shape: Sequence[int]) -> Tensor:
    """Reshape, with a node even where nothing changes."""
    y = s.b.reshape(s.x, shape)
    return s.b.op("Identity", y) if y is s.x else y


def reshaped(s: NodeContext, shape: Sequence[int], codes: Sequence[int]) -> list[int]:
    """Return the shape that MXNet's codes give; each takes input axes in order.

    0 keeps an axis, -1 is inferred, -2 keeps all that are left, -3 joins two, -4 splits one into
    the two numbers that follow; a plain number takes one axis too.
    """
    result: list[int] = []
    axis, position = 0, 0
    while position < len(codes):
        code = codes[position]
        position += 1
        if code == -2:
            result += shape[axis:]
            axis = len(shape)
        elif code == -3:
            s.require(axis + 1 < len(shape), "-3 in shape has no two axes to join")
            result.append(shape[axis] * shape[axis + 1])
            axis += 2
        elif code == -4:
            s.require(axis < len(shape) and position + 1 < len(codes), "-4 in shape has no parts")
            result += _halves(s, shape[axis], codes[position], codes[position + 1])
            axis, position = axis + 1, position + 2
        elif code == 0:
            s.require(axis < len(shape), "0 in shape has no axis to keep")
            result.append(shape[axis])
            axis += 1
        else:
            s.require(code >= -1, f"shape has the code {code}")
            result.append(code)
            axis += 1
        s.require(len(result) <= MAX_RANK, "the shape is too long")
    return _inferred(s, result, prod(shape))


def _halves(s: NodeContext, length: int, left: int, right: int) -> list[int]:
    if left == -1 and right > 0:
        left = length // right
    elif right == -1 and left > 0:
        right = length // left
    s.require(left > 0 and right > 0 and left * right == length,
              f"-4 in shape splits {length} into {left} and {right}")  # fmt: skip
    return [left, right]


def _inferred(s: NodeContext, shape: list[int], size: int) -> list[int]:
    s.require(shape.count(-1) <= 1, "two dimensions are to be inferred")
    if -1 in shape:
        known = -prod(shape)
        s.require(known > 0 and size % known == 0, f"{size} elements don't fit {shape}")
        shape[shape.index(-1)] = size // known
    return shape


def _target_shape(s: NodeContext) -> Tensor:
    """Read the form of MXNet 0.x: 0 stands for what is left; the batch may be kept."""
    target = list(s.integers("target_shape"))
    if s.truth("keep_highest", False) and target:
        target[0] = s.x.shape[0]
    shape = [d if d > 0 else -1 for d in target]
    return _same(s, _inferred(s, shape, s.x.size))


@translates("Flatten", "flatten")
def flatten(s: NodeContext) -> Tensor:
    """Join all axes behind the first."""
    s.require(s.x.rank > 0, "a scalar has no batch")
    return s.b.op("Flatten", s.x, axis=1)


@translates("reshape_like")
def reshape_like(s: NodeContext) -> Tensor:
    """Give (a range of) the axes the lengths of (a range of) the other's."""
    left, right = s.x, s.input(1)
    begin, end = _range(s, "lhs", left.rank)
    start, stop = _range(s, "rhs", right.rank)
    return _same(s, [*left.shape[:begin], *right.shape[start:stop], *left.shape[end:]])


def _range(s: NodeContext, side: str, rank: int) -> tuple[int, int]:
    begin, end = s.maybe_integer(f"{side}_begin") or 0, s.maybe_integer(f"{side}_end")
    end = rank if end is None else end
    begin, end = (v + rank if v < 0 else v for v in (begin, end))
    s.require(0 <= begin <= end <= rank, f"{side}_begin and {side}_end are outside rank {rank}")
    return begin, end


@translates("transpose")
def transpose(s: NodeContext) -> Tensor:
    """Permute the axes; () reverses them."""
    axes = s.axes("axes", s.x.rank) or tuple(reversed(range(s.x.rank)))
    s.require(len(axes) == s.x.rank, f"axes {list(axes)} don't permute rank {s.x.rank}")
    return s.b.op("Transpose", s.x, perm=list(axes))


@translates("SwapAxis", "swapaxes")
def swap_axis(s: NodeContext) -> Tensor:
    """Exchange two axes."""
    first, second = (s.axis(s.integer(n, 0), s.x.rank) for n in ("dim1", "dim2"))
    order = list(range(s.x.rank))
    order[first], order[second] = second, first
    return s.b.op("Transpose", s.x, perm=order)


@translates("expand_dims")
def expand_dims(s: NodeContext) -> Tensor:
    """Insert an axis of length one."""
    return s.b.unsqueeze(s.x, s.axis(s.integer("axis"), s.x.rank + 1))


@translates("squeeze")
def squeeze(s: NodeContext) -> Tensor:
    """Remove axes of length one; one axis is left at least."""
    axes = s.axes("axis", s.x.rank) or tuple(a for a, d in enumerate(s.x.shape) if d == 1)
    s.require(all(s.x.shape[a] == 1 for a in axes), f"axes {list(axes)} of {list(s.x.shape)}")
    shape = [d for a, d in enumerate(s.x.shape) if a not in axes]
    return _same(s, shape or [1])


@translates("depth_to_space")
def depth_to_space(s: NodeContext) -> Tensor:
    """DepthToSpace in the order block, block, channel."""
    s.rank(4)
    size = s.integer("block_size")
    fits = size > 0 and s.x.shape[1] % (size * size) == 0
    s.require(fits, f"block_size {size} doesn't divide {s.x.shape[1]} channels")
    return s.b.op("DepthToSpace", s.x, blocksize=size, mode="DCR")


@translates("space_to_depth")
def space_to_depth(s: NodeContext) -> Tensor:
    """SpaceToDepth."""
    s.rank(4)
    size = s.integer("block_size")
    fits = size > 0 and s.x.shape[2] % size == 0 and s.x.shape[3] % size == 0
    s.require(fits, f"block_size {size} doesn't divide {list(s.x.shape)}")
    return s.b.op("SpaceToDepth", s.x, blocksize=size)


@translates("shape_array")
def shape_array(s: NodeContext) -> Tensor:
    """Return the shape as int64, which is known here."""
    return s.b.ints(*s.x.shape)


@translates("size_array")
def size_array(s: NodeContext) -> Tensor:
    """Return the number of elements as int64."""
    return s.b.ints(s.x.size)


@translates("diag")
def diag(s: NodeContext) -> Tensor:
    """Return the diagonal of two axes, last; or a matrix with a vector on its diagonal."""
    k, x = s.integer("k", 0), s.x
    if x.rank == 1:
        return _diagonal_matrix(s, k)
    first, second = s.axis(s.integer("axis1", 0), x.rank), s.axis(s.integer("axis2", 1), x.rank)
    s.require(first != second, "axis1 and axis2 are the same")
    rows, columns = x.shape[first], x.shape[second]
    s.require(-rows < k < columns, f"diagonal {k} of {rows} x {columns}")
    count = min(rows + min(k, 0), columns - max(k, 0))
    others = [a for a in range(x.rank) if a not in (first, second)]
    flat = s.b.reshape(
        s.b.transpose(x, [*others, first, second]), [*(x.shape[a] for a in others), rows * columns]
    )
    start = max(k, 0) - min(k, 0) * columns
    s.require(count <= 1 << 20, "the diagonal is too long")
    index = start + np.arange(count) * (columns + 1)
    return s.b.op("Gather", flat, s.b.constant(index.astype(np.int64)), axis=flat.rank - 1)


def _diagonal_matrix(s: NodeContext, k: int) -> Tensor:
    size = s.x.size + abs(k)
    s.require(size <= 2048, "the matrix is too large")
    mask = s.b.constant(np.eye(size, k=k).astype(s.x.dtype))
    column = s.b.op("Pad", s.x, [max(-k, 0), max(k, 0)])
    return s.b.op("Mul", s.b.unsqueeze(column, 1), mask)
