"""Shape-only operators: reshape with MXNet's codes, transposition, repetition, joining, padding."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from atc.importers.mxnet.builder import MAX_RANK, Tensor
from atc.importers.mxnet.site import Site, translates


@translates("Reshape", "reshape")
def reshape(s: Site) -> Tensor:
    """Reshape by MXNet's codes, or by the old `target_shape` (0 = what is left)."""
    codes = s.ints("shape", ())
    if not codes:
        return s.b.op("Identity", s.x) if not s.has("target_shape") else _target_shape(s)
    shape = s.x.shape
    if s.bool("reverse", False):
        return _same(s, reshaped(s, shape[::-1], codes[::-1])[::-1])
    return _same(s, reshaped(s, shape, codes))


def _same(s: Site, shape: Sequence[int]) -> Tensor:
    """Reshape, with a node even where nothing changes."""
    y = s.b.reshape(s.x, shape)
    return s.b.op("Identity", y) if y is s.x else y


def reshaped(s: Site, shape: Sequence[int], codes: Sequence[int]) -> list[int]:
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


def _halves(s: Site, length: int, left: int, right: int) -> list[int]:
    if left == -1 and right > 0:
        left = length // right
    elif right == -1 and left > 0:
        right = length // left
    s.require(left > 0 and right > 0 and left * right == length,
              f"-4 in shape splits {length} into {left} and {right}")  # fmt: skip
    return [left, right]


def _inferred(s: Site, shape: list[int], size: int) -> list[int]:
    s.require(shape.count(-1) <= 1, "two dimensions are to be inferred")
    if -1 in shape:
        known = -prod(shape)
        s.require(known > 0 and size % known == 0, f"{size} elements don't fit {shape}")
        shape[shape.index(-1)] = size // known
    return shape


def _target_shape(s: Site) -> Tensor:
    """The form of MXNet 0.x: 0 stands for what is left; the batch may be kept."""
    target = list(s.ints("target_shape"))
    if s.bool("keep_highest", False) and target:
        target[0] = s.x.shape[0]
    shape = [d if d > 0 else -1 for d in target]
    return _same(s, _inferred(s, shape, s.x.size))


@translates("Flatten", "flatten")
def flatten(s: Site) -> Tensor:
    """Join all axes behind the first."""
    s.require(s.x.rank > 0, "a scalar has no batch")
    return s.b.op("Flatten", s.x, axis=1)


@translates("reshape_like")
def reshape_like(s: Site) -> Tensor:
    """Give (a range of) the axes the lengths of (a range of) the other's."""
    left, right = s.x, s.input(1)
    begin, end = _range(s, "lhs", left.rank)
    start, stop = _range(s, "rhs", right.rank)
    return _same(s, [*left.shape[:begin], *right.shape[start:stop], *left.shape[end:]])


def _range(s: Site, side: str, rank: int) -> tuple[int, int]:
    begin, end = s.maybe_int(f"{side}_begin") or 0, s.maybe_int(f"{side}_end")
    end = rank if end is None else end
    begin, end = (v + rank if v < 0 else v for v in (begin, end))
    s.require(0 <= begin <= end <= rank, f"{side}_begin and {side}_end are outside rank {rank}")
    return begin, end


@translates("transpose")
def transpose(s: Site) -> Tensor:
    """Permute the axes; () reverses them."""
    axes = s.axes("axes", s.x.rank) or tuple(reversed(range(s.x.rank)))
    s.require(len(axes) == s.x.rank, f"axes {list(axes)} don't permute rank {s.x.rank}")
    return s.b.op("Transpose", s.x, perm=list(axes))


@translates("SwapAxis", "swapaxes")
def swap_axis(s: Site) -> Tensor:
    """Exchange two axes."""
    first, second = (s.axis(s.int(n, 0), s.x.rank) for n in ("dim1", "dim2"))
    order = list(range(s.x.rank))
    order[first], order[second] = second, first
    return s.b.op("Transpose", s.x, perm=order)


@translates("expand_dims")
def expand_dims(s: Site) -> Tensor:
    """Insert an axis of length one."""
    return s.b.unsqueeze(s.x, s.axis(s.int("axis"), s.x.rank + 1))


@translates("squeeze")
def squeeze(s: Site) -> Tensor:
    """Remove axes of length one; one axis is left at least."""
    axes = s.axes("axis", s.x.rank) or tuple(a for a, d in enumerate(s.x.shape) if d == 1)
    s.require(all(s.x.shape[a] == 1 for a in axes), f"axes {list(axes)} of {list(s.x.shape)}")
    shape = [d for a, d in enumerate(s.x.shape) if a not in axes]
    return _same(s, shape or [1])


@translates("depth_to_space")
def depth_to_space(s: Site) -> Tensor:
    """DepthToSpace in the order block, block, channel."""
    s.rank(4)
    size = _block(s, s.x.shape[1], lambda n: n * n)
    return s.b.op("DepthToSpace", s.x, blocksize=size, mode="DCR")


@translates("space_to_depth")
def space_to_depth(s: Site) -> Tensor:
    """SpaceToDepth."""
    s.rank(4)
    size = _block(s, s.x.shape[2], lambda n: n)
    s.require(s.x.shape[3] % size == 0, "block_size doesn't divide the width")
    return s.b.op("SpaceToDepth", s.x, blocksize=size)


def _block(s: Site, length: int, needed: object) -> int:
    size = s.int("block_size")
    s.require(size > 0 and callable(needed) and length % needed(size) == 0,
              f"block_size {size} doesn't divide {length}")  # fmt: skip
    return size


# ---- repetition --------------------------------------------------------------------------------


@translates("tile")
def tile(s: Site) -> Tensor:
    """Repeat whole axes; missing leading numbers are ones."""
    reps = s.ints("reps")
    s.require(len(reps) <= MAX_RANK and all(r > 0 for r in reps), f"reps {list(reps)}")
    rank = max(len(reps), s.x.rank)
    x = s.b.reshape(s.x, [1] * (rank - s.x.rank) + list(s.x.shape))
    return s.b.op("Tile", x, [1] * (rank - len(reps)) + list(reps))


@translates("repeat")
def repeat(s: Site) -> Tensor:
    """Repeat each element along an axis, or of the flattened tensor."""
    axis, count = s.maybe_int("axis"), s.int("repeats")
    s.require(count > 0, f"repeats is {count}")
    x = s.x if axis is not None else s.b.reshape(s.x, [s.x.size])
    return repeated(s, x, s.axis(axis or 0, x.rank), count)


def repeated(s: Site, x: Tensor, axis: int, count: int) -> Tensor:
    """Repeat each element of one axis `count` times."""
    wide = s.b.unsqueeze(x, axis + 1)
    shape = list(wide.shape)
    shape[axis + 1] = count
    joined = list(x.shape)
    joined[axis] *= count
    return s.b.reshape(s.b.expand(wide, shape), joined)


@translates("broadcast_to")
def broadcast_to(s: Site) -> Tensor:
    """Repeat axes of length one; 0 keeps an axis."""
    shape = s.ints("shape")
    s.require(len(shape) == s.x.rank, f"shape {list(shape)} is not of rank {s.x.rank}")
    return _expanded(s, [d or n for d, n in zip(shape, s.x.shape, strict=True)])


@translates("broadcast_axis", "broadcast_axes")
def broadcast_axis(s: Site) -> Tensor:
    """Repeat some axes of length one."""
    axes, sizes = s.axes("axis", s.x.rank), s.ints("size", ())
    s.require(len(axes) == len(sizes), f"{len(axes)} axes have {len(sizes)} sizes")
    shape = list(s.x.shape)
    for axis, size in zip(axes, sizes, strict=True):
        shape[axis] = size
    return _expanded(s, shape)


@translates("broadcast_like")
def broadcast_like(s: Site) -> Tensor:
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


def _expanded(s: Site, shape: Sequence[int]) -> Tensor:
    fits = all(n in (1, d) and d > 0 for n, d in zip(s.x.shape, shape, strict=True))
    s.require(fits, f"{list(s.x.shape)} cannot be broadcast to {list(shape)}")
    return s.b.op("Expand", s.x, list(shape))


# ---- joining and cutting -----------------------------------------------------------------------


@translates("Concat", "concat", "_rnn_param_concat")
def concat(s: Site) -> Tensor:
    """Join along `dim`."""
    axis = s.axis(s.int("dim", 1), s.x.rank)
    return s.b.op("Concat", *s.inputs, axis=axis)


@translates("stack")
def stack(s: Site) -> Tensor:
    """Join along a new axis."""
    axis = s.axis(s.int("axis", 0), s.x.rank + 1)
    return s.b.op("Concat", *(s.b.unsqueeze(x, axis) for x in s.inputs), axis=axis)


@translates("SliceChannel", "split")
def slice_channel(s: Site) -> list[Tensor]:
    """Cut an axis into equal pieces."""
    axis, count = s.axis(s.int("axis", 1), s.x.rank), s.int("num_outputs")
    length = s.x.shape[axis]
    s.require(0 < count <= length and length % count == 0, f"{length} in {count} pieces")
    return _pieces(s, axis, [length // count] * count)


@translates("_split_v2")
def split_v2(s: Site) -> list[Tensor]:
    """Cut an axis at the indices (the first is 0), or into equal sections."""
    axis, sections = s.axis(s.int("axis", 1), s.x.rank), s.int("sections", 0)
    length = s.x.shape[axis]
    if sections > 0:
        s.require(length % sections == 0 and sections <= length, f"{length} in {sections} pieces")
        return _pieces(s, axis, [length // sections] * sections)
    cuts = [*s.ints("indices", ()), length]
    sizes = [b - a for a, b in zip(cuts, cuts[1:], strict=False)]
    s.require(cuts[0] == 0 and min(sizes, default=0) > 0, f"indices {cuts[:-1]} of {length}")
    return _pieces(s, axis, sizes)


def _pieces(s: Site, axis: int, sizes: Sequence[int]) -> list[Tensor]:
    s.require(len(sizes) <= 4096, f"{len(sizes)} pieces are too many")
    pieces = s.b.split(s.x, axis, sizes)
    if not s.bool("squeeze_axis", False):
        return list(pieces)
    s.require(set(sizes) == {1}, "squeeze_axis with pieces longer than one")
    return [s.b.squeeze(p, axis) for p in pieces]


# ---- padding -----------------------------------------------------------------------------------


@translates("Pad", "pad")
def pad(s: Site) -> Tensor:
    """Pad with a constant, the edge or the reflection."""
    width = s.ints("pad_width")
    s.require(len(width) == 2 * s.x.rank, f"pad_width has {len(width)} numbers")
    s.require(min(width, default=0) >= 0, "pad_width is negative")
    mode = s.str("mode", None, ("constant", "edge", "reflect"))
    if mode == "reflect":
        fits = all(max(width[2 * a : 2 * a + 2]) < d for a, d in enumerate(s.x.shape))
        s.require(fits, f"pad_width {list(width)} reflects more than {list(s.x.shape)}")
    value = s.b.scalar(s.float("constant_value", 0.0), s.x.dtype) if mode == "constant" else None
    return s.b.op("Pad", s.x, [*width[::2], *width[1::2]], value, mode=mode)


@translates("Crop")
def crop(s: Site) -> Tensor:
    """Cut the last two axes to `h_w` or to the second input's, at an offset or in the middle."""
    s.rank(4)
    like = len(s.inputs) > 1
    sizes = s.input(1).shape[2:4] if like else s.spatial("h_w", 2, 0)
    offset = s.spatial("offset", 2, 0)
    if s.bool("center_crop", False):
        offset = tuple((n - size) // 2 for n, size in zip(s.x.shape[2:], sizes, strict=True))
    ends = [o + size for o, size in zip(offset, sizes, strict=True)]
    fits = all(0 <= o < e <= n for o, e, n in zip(offset, ends, s.x.shape[2:], strict=True))
    s.require(fits, f"a window {list(sizes)} at {list(offset)} of {list(s.x.shape)}")
    return s.b.op("Slice", s.x, offset, ends, [2, 3])


@translates("shape_array")
def shape_array(s: Site) -> Tensor:
    """The shape as int64, which is known here."""
    return s.b.ints(*s.x.shape)


@translates("size_array")
def size_array(s: Site) -> Tensor:
    """The number of elements as int64."""
    return s.b.ints(s.x.size)


@translates("diag")
def diag(s: Site) -> Tensor:
    """The diagonal of two axes, last; or a matrix with a vector on its diagonal."""
    k, x = s.int("k", 0), s.x
    if x.rank == 1:
        return _diagonal_matrix(s, k)
    first, second = s.axis(s.int("axis1", 0), x.rank), s.axis(s.int("axis2", 1), x.rank)
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


def _diagonal_matrix(s: Site, k: int) -> Tensor:
    size = s.x.size + abs(k)
    s.require(size <= 2048, "the matrix is too large")
    mask = s.b.constant(np.eye(size, k=k).astype(s.x.dtype))
    widths = [0, max(-k, 0), 0, max(k, 0)] if False else [max(-k, 0), max(k, 0)]
    column = s.b.op("Pad", s.x, widths)
    return s.b.op("Mul", s.b.unsqueeze(column, 1), mask)
