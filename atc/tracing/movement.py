"""The array API: functions that move, repeat and gather elements, and products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from atc.tracing.creation import axis_of, fixed, made
from atc.tracing.errors import ArgumentError, place
from atc.tracing.reductions import axes_of
from atc.tracing.reductions import sum as _sum
from atc.tracing.tensor import Tensor, binary, ints, node, promoted
from atc.tracing.tensor import asarray as _asarray

# ---- movement -----------------------------------------------------------------------------------


def reshape(x: Tensor, /, shape: Any, *, copy: Any = None) -> Tensor:
    """Return the elements in another shape; one extent may be -1."""
    sizes = [shape] if isinstance(shape, int) else [*shape]
    return node("Reshape", x, ints(*sizes), allowzero=int(0 in sizes) or None)


def permute_dims(x: Tensor, /, axes: Sequence[int]) -> Tensor:
    """Return x with its axes in another order."""
    return node("Transpose", x, perm=[axis_of(x, a) for a in axes])


def matrix_transpose(x: Tensor, /) -> Tensor:
    """Return x with its last two axes swapped."""
    return x.mT


def moveaxis(x: Tensor, source: Any, destination: Any, /) -> Tensor:
    """Return x with some axes moved."""
    froms = [axis_of(x, a) for a in ([source] if isinstance(source, int) else source)]
    tos = [axis_of(x, a) for a in ([destination] if isinstance(destination, int) else destination)]
    left = [a for a in range(x.ndim) if a not in froms]
    for to, from_ in sorted(zip(tos, froms, strict=True)):
        left.insert(to, from_)
    return permute_dims(x, left)


def expand_dims(x: Tensor, /, *, axis: int = 0) -> Tensor:
    """Return x with one more axis of extent 1."""
    return node("Unsqueeze", x, ints(axis))


def squeeze(x: Tensor, /, axis: Any) -> Tensor:
    """Return x without axes of extent 1."""
    return node("Squeeze", x, ints(*([axis] if isinstance(axis, int) else axis)))


def broadcast_to(x: Tensor, /, shape: Sequence[int]) -> Tensor:
    """Return x broadcast to a shape."""
    return node("Expand", x, ints(*shape))


def broadcast_arrays(*arrays: Tensor) -> list[Tensor]:
    """Return the tensors broadcast to one shape."""
    shape = np.broadcast_shapes(*map(fixed, arrays))
    return [broadcast_to(x, shape) for x in arrays]


def concat(arrays: Sequence[Tensor], /, *, axis: int | None = 0) -> Tensor:
    """Concatenate tensors along an axis, or flattened."""
    parts = promoted(*arrays)
    if axis is None:
        parts, axis = [reshape(x, [-1]) for x in parts], 0
    return node("Concat", *parts, axis=axis)


def stack(arrays: Sequence[Tensor], /, *, axis: int = 0) -> Tensor:
    """Stack tensors along a new axis."""
    return concat([expand_dims(x, axis=axis) for x in arrays], axis=axis)


def unstack(x: Tensor, /, *, axis: int = 0) -> tuple[Tensor, ...]:
    """Return the parts along an axis."""
    return tuple(moveaxis(x, axis, 0))


def flip(x: Tensor, /, *, axis: int | Sequence[int] | None = None) -> Tensor:
    """Return x reversed along axes."""
    axes = axes_of(x, axis)
    most = int(np.iinfo(np.int64).max)
    count = len(axes)
    if not count:
        return x
    return node("Slice", x, ints(*[-1] * count), ints(*[-most] * count), ints(*axes),
                ints(*[-1] * count))  # fmt: skip


def roll(x: Tensor, /, shift: Any, *, axis: Any = None) -> Tensor:
    """Return x rotated along axes."""
    if axis is None:
        return reshape(roll(reshape(x, [-1]), shift, axis=0), fixed(x))
    shifts = [shift] if isinstance(shift, int) else [*shift]
    axes = [axis] if isinstance(axis, int) else [*axis]
    for by, a in zip(shifts * (len(axes) if len(shifts) == 1 else 1), axes, strict=True):
        size = fixed(x)[axis_of(x, a)]
        if size and by % size:
            index = np.roll(np.arange(size), by)
            x = node("Gather", x, made(index), axis=a)
    return x


def tile(x: Tensor, repetitions: Sequence[int], /) -> Tensor:
    """Return x repeated along its axes."""
    rank = max(x.ndim, len(repetitions))
    whole = reshape(x, [1] * (rank - x.ndim) + [*fixed(x)])
    return node("Tile", whole, ints(*[1] * (rank - len(repetitions)), *repetitions))


def repeat(x: Tensor, repeats: int, /, *, axis: int | None = None) -> Tensor:
    """Return x with each element repeated."""
    if axis is None:
        return repeat(reshape(x, [-1]), repeats, axis=0)
    index = np.repeat(np.arange(fixed(x)[axis_of(x, axis)]), repeats)
    return node("Gather", x, made(index), axis=axis)


def take(x: Tensor, indices: Tensor, /, *, axis: int | None = None) -> Tensor:
    """Return the slices along an axis that indices select."""
    if axis is None and x.ndim != 1:
        raise ArgumentError("take needs an axis", where=place())
    return node("Gather", x, _asarray(indices), axis=axis or 0)


def take_along_axis(x: Tensor, indices: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the element along an axis that each index selects."""
    return node("GatherElements", x, _asarray(indices), axis=axis)


def meshgrid(*arrays: Tensor, indexing: str = "xy") -> list[Tensor]:
    """Return the coordinates of a grid."""
    rank = len(arrays)
    order = [1, 0, *range(2, rank)] if indexing == "xy" and rank > 1 else [*range(rank)]
    shapes = [[-1 if k == order[i] else 1 for k in range(rank)] for i in range(rank)]
    return broadcast_arrays(*(reshape(x, s) for x, s in zip(arrays, shapes, strict=True)))


# ---- products -----------------------------------------------------------------------------------


def vecdot(x1: Tensor, x2: Tensor, /, *, axis: int = -1) -> Tensor:
    """Return the products of vectors along an axis."""
    return _sum(binary("Mul", x1, x2), axis=axis)


def tensordot(x1: Tensor, x2: Tensor, /, *, axes: Any = 2) -> Tensor:
    """Multiply, and sum along corresponding axes of both operands."""
    if isinstance(axes, int):
        left, right = [*range(x1.ndim - axes, x1.ndim)], [*range(axes)]
    else:
        left = [axis_of(x1, a) for a in axes[0]]
        right = [axis_of(x2, a) for a in axes[1]]
    rows = [a for a in range(x1.ndim) if a not in left]
    columns = [a for a in range(x2.ndim) if a not in right]
    count = math.prod(fixed(x1)[a] for a in left)
    a = reshape(permute_dims(x1, [*rows, *left]), [-1, count] if count else [0, 0])
    b = reshape(permute_dims(x2, [*right, *columns]), [count, -1] if count else [0, 0])
    shape = [*(fixed(x1)[k] for k in rows), *(fixed(x2)[k] for k in columns)]
    return reshape(binary("MatMul", a, b), shape)


__all__ = [
    "broadcast_arrays", "broadcast_to", "concat", "expand_dims", "flip", "matrix_transpose",
    "meshgrid", "moveaxis", "permute_dims", "repeat", "reshape", "roll", "squeeze", "stack",
    "take", "take_along_axis", "tensordot", "tile", "unstack", "vecdot",
]  # fmt: skip
