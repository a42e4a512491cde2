"""Affine views: how a loop nest addresses the flat memory of a tensor.

A view over loops `i` reads element `offset + sum(strides[d] * i[d])`. Transpose, slice, expand,
flip and most reshapes are views; composing them is what makes data movement vanish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, partial
from itertools import pairwise
from math import prod

import numpy as np
import numpy.typing as npt

from atc.dims import (
    Symbol,
    Undecided,
    at_least_one,
    decided,
    divides_by_zero,
    is_dynamic,
    lower_bound,
    maximum,
    minimum,
    not_equal,
    reach,
    substituted,
    upper_bound,
)
from atc.ir.graph import Array, row_major


@dataclass(frozen=True)
class View:
    """Element address as an affine function of the loop indices."""

    strides: tuple[int, ...]
    offset: int = 0

    def bounds(self, shape: Sequence[int]) -> tuple[int, int]:
        """Return the lowest and highest address over a non-empty index space."""
        lowest = highest = self.offset
        for s, n in zip(self.strides, shape, strict=True):
            if upper_bound(s) <= 0 or s < 0:  # one that may be 0 reaches nowhere then
                lowest += reach(s, n)
            else:
                highest += reach(s, n)
        return lowest, highest

    def is_inside(self, shape: Sequence[int], size: int) -> bool:
        """Return whether all addresses over a non-empty index space lie in `size` elements."""
        lowest, highest = self.bounds(shape)
        try:
            return lowest >= 0 and highest < size
        except Undecided:
            if self._nests(shape, size):
                return True
            raise

    def _nests(self, shape: Sequence[int], size: int) -> bool:
        """Return whether each axis stays inside a step of the next, and the last inside the tensor.

        It also decides for extents where no bound is found for the whole sum.
        """
        axes = [(s, n) for s, n in zip(self.strides, shape, strict=True) if s != 0 and n != 1]
        if any(lower_bound(s) <= 0 for s, _ in axes) or lower_bound(self.offset) < 0:
            return False
        if not axes:
            return lower_bound(size - self.offset) > 0
        axes.sort(key=cmp_to_key(_by_stride))
        ends = [*(s for s, _ in axes[1:]), size - self.offset]
        return all(lower_bound(end - s * n) >= 0 for (s, n), end in zip(axes, ends, strict=True))

    def is_dense(self, shape: Sequence[int]) -> bool:
        """Return whether the view walks memory from its offset in row-major order without gaps."""
        dense = row_major(shape)
        return all(n == 1 or s == d for s, d, n in zip(self.strides, dense, shape, strict=True))


def dense(shape: Sequence[int], offset: int = 0) -> View:
    """Return the view that reads a contiguous tensor of this shape in order."""
    return View(row_major(shape), offset)


def addresses(shape: Sequence[int], view: View) -> npt.NDArray[np.int64]:
    """Return the address at each position of loops of known extents, in row-major order."""
    found = np.full(1, view.offset, np.int64)
    for extent, stride in zip(shape, view.strides, strict=True):
        found = (found[:, None] + np.arange(extent) * stride).ravel()
    return found


def affine_table(table: Array) -> View | None:
    """Return the view whose addresses over the table's shape are its elements, if there is one."""
    if not table.size:
        return None
    corner = (0,) * table.ndim
    base = int(table[corner])
    strides = tuple(
        int(table[(*corner[:d], 1, *corner[d + 1 :])]) - base if n > 1 else 0
        for d, n in enumerate(table.shape)
    )
    grid = np.full(table.shape, base, np.int64)
    for d, stride in enumerate(strides):
        step = np.arange(table.shape[d]) * stride
        grid += step.reshape([-1 if k == d else 1 for k in range(table.ndim)])
    return View(strides, base) if np.array_equal(grid, table) else None


def broadcast(shape: Sequence[int], to: Sequence[int]) -> View:
    """Return the view of a contiguous tensor broadcast to a shape (numpy's rules)."""
    pad = len(to) - len(shape)
    strides = row_major(shape)
    kept = zip(shape, strides, to[pad:], strict=True)
    return View((0,) * pad + tuple(_step(n, s, wanted) for n, s, wanted in kept))


def _step(extent: int, stride: int, wanted: int) -> int:
    """Return the stride of an axis that is walked over `wanted` steps."""
    if extent == 1 or extent == wanted or not is_dynamic(extent):
        return 0 if extent == 1 else stride
    return stride * not_equal(extent, 1)


def split_loop(view: View, axis: int, inner: int) -> View:
    """Return the view after loop `axis` is split into (n / inner, inner)."""
    s = view.strides[axis]
    return View((*view.strides[:axis], s * inner, s, *view.strides[axis + 1 :]), view.offset)


def simplify_loops(
    shape: Sequence[int], views: Sequence[View], barriers: Sequence[int] = ()
) -> tuple[tuple[int, ...], tuple[View, ...]]:
    """Drop loops of extent 1 and merge neighbours that every view walks as one.

    Loops are never merged across a barrier (a position before which a new group starts).
    """
    keep = [d for d, n in enumerate(shape) if n != 1]
    starts = {next((i for i, d in enumerate(keep) if d >= b), len(keep)) for b in barriers}
    groups: list[list[int]] = []
    for i, d in enumerate(keep):
        mergeable = (
            groups
            and i not in starts
            and all(v.strides[groups[-1][-1]] == v.strides[d] * shape[d] for v in views)
        )
        if mergeable:
            groups[-1].append(d)
        else:
            groups.append([d])
    extents = []
    for group in groups:
        extent = 1
        for d in group:
            extent *= shape[d]
        extents.append(extent)
    merged = tuple(View(tuple(v.strides[g[-1]] for g in groups), v.offset) for v in views)
    return tuple(extents), merged


def _digits(value: int, shape: Sequence[int]) -> list[int] | None:
    """Return the mixed-radix digits of an address in a dense shape, with the sign of `value`."""
    sign, rest = (1, value) if value >= 0 else (-1, -value)
    digits = []
    for n, stride in zip(shape, row_major(shape), strict=True):
        if n == 1:
            digits.append(0)
            continue
        if is_dynamic(stride) and rest != stride and lower_bound(stride - rest) >= 0:
            digits.append(0)  # also where they are the same: the next stride is 1 then
            continue
        digits.append(sign * (rest // stride))
        rest %= stride
    return digits if rest == 0 else None


@dataclass(frozen=True)
class Split:
    """A loop to be split into (extent / inner, inner)."""

    axis: int
    inner: int


def compose(
    shape: Sequence[int], outer: View, inner_shape: Sequence[int], inner: Sequence[View]
) -> tuple[View, ...] | Split | None:
    """Read through a view of a value that is itself computed by views.

    `outer` addresses, over loops `shape`, the dense value of `inner_shape`, whose operands are read
    by the `inner` views over `inner_shape`. Returns the operands' views over the loops `shape`, or
    the loop that must be split first (see `compose_refining`), or None when the composition is not
    affine.

    Loops and the value are taken to have elements: without any, nothing is read, and every view
    will do. But a size of 0 or 1 that no loop has stays one: views that take it for 1 are not
    inside of the value by their numbers alone.
    """
    some, own = at_least_one((*shape, *inner_shape)), at_least_one(shape)
    some = {symbol: new for symbol, new in some.items() if symbol in own or symbol.high != 1}
    if not some:
        return _compose(shape, outer, inner_shape, inner)
    found = _compose(
        _each(shape, some), _renamed(outer, some),
        _each(inner_shape, some), [_renamed(v, some) for v in inner],
    )  # fmt: skip
    back = {positive: symbol for symbol, positive in some.items()}
    match found:
        case None:
            return None
        case Split():
            return Split(found.axis, substituted(found.inner, back))
    views = tuple(_renamed(v, back) for v in found)
    unsafe = any(divides_by_zero(n) for v in views for n in (*v.strides, v.offset))
    return None if unsafe else views


def _each(extents: Sequence[int], by: Mapping[Symbol, Symbol]) -> tuple[int, ...]:
    return tuple(substituted(n, by) for n in extents)


def _renamed(view: View, by: Mapping[Symbol, Symbol]) -> View:
    return View(_each(view.strides, by), substituted(view.offset, by))


def _compose(
    shape: Sequence[int], outer: View, inner_shape: Sequence[int], inner: Sequence[View]
) -> tuple[View, ...] | Split | None:
    base = None if 0 in inner_shape else _digits(outer.offset, inner_shape)
    if base is None:
        return None
    first, last = list(base), list(base)
    steps: list[list[int]] = []
    for axis, (extent, stride) in enumerate(zip(shape, outer.strides, strict=True)):
        moves = upper_bound(extent) > 1
        digits = _digits(stride, inner_shape) if moves else [0] * len(inner_shape)
        if digits is None:
            return None
        steps.append(digits)
        for k, digit in enumerate(digits):
            way = digit * (extent - 1)
            first[k], last[k] = first[k] + minimum(way, 0), last[k] + maximum(way, 0)
        split = _split_for(axis, extent, digits, inner_shape, first, last)
        if split is not None:
            return split
    if any(lo < 0 or hi >= n for lo, hi, n in zip(first, last, inner_shape, strict=True)):
        return None
    return tuple(
        View(
            tuple(sum(d * s for d, s in zip(ds, v.strides, strict=True)) for ds in steps),
            v.offset + sum(b * s for b, s in zip(base, v.strides, strict=True)),
        )
        for v in inner
    )


def _split_for(
    axis: int,
    extent: int,
    digits: Sequence[int],
    inner_shape: Sequence[int],
    first: Sequence[int],
    last: Sequence[int],
) -> Split | None:
    """Return the split that keeps this loop inside one digit, when the loop overflows just one."""
    moving = [k for k, d in enumerate(digits) if d]
    if len(moving) != 1:
        return None
    k = moving[0]
    step = abs(digits[k])
    if first[k] >= 0 and upper_bound(last[k] - inner_shape[k]) < 0:
        return None
    if inner_shape[k] % step:
        return None
    inner = inner_shape[k] // step
    if inner > 1 and inner != extent and extent % inner == 0 and upper_bound(extent - inner) > 0:
        return Split(axis, inner)
    return None


def compose_refining(
    shape: Sequence[int],
    views: Sequence[View],
    index: int,
    inner_shape: Sequence[int],
    inner: Sequence[View],
) -> tuple[tuple[int, ...], tuple[View, ...], tuple[View, ...]] | None:
    """Compose through `views[index]`, splitting loops of the nest where that makes it affine.

    Returns the refined loops, all the nest's views over them, and the views of the inner operands.
    """
    loops, current = tuple(shape), tuple(views)
    for _ in range(8):
        result = decided(partial(compose, loops, current[index], inner_shape, inner))
        if result is None:
            return None
        if not isinstance(result, Split):
            return loops, current, result
        axis, extent = result.axis, result.inner
        count = _times(loops[axis], extent)
        if count is None:
            return None
        loops = (*loops[:axis], count, extent, *loops[axis + 1 :])
        current = tuple(split_loop(v, axis, extent) for v in current)
    return None


def _times(extent: int, inner: int) -> int | None:
    """Return how often `inner` goes into an extent, if that is so even where both are 0."""
    some = at_least_one((extent, inner))
    count = substituted(extent, some) // substituted(inner, some)
    count = substituted(count, {positive: symbol for symbol, positive in some.items()})
    return None if divides_by_zero(count) or count * inner != extent else count


def overlaps_itself(shape: Sequence[int], view: View) -> bool:
    """Return whether two indices may address the same element (conservative)."""
    axes = [(abs(s), n) for s, n in zip(view.strides, shape, strict=True) if upper_bound(n) > 1]
    if any(s == 0 for s, _ in axes):
        return True
    if _nest(axes):
        return False
    ordered = decided(partial(sorted, axes, key=cmp_to_key(_by_stride)))
    return ordered is None or any(
        upper_bound(s * n - t) > 0 for (s, n), (t, _) in pairwise(ordered)
    )


def _nest(axes: Sequence[tuple[int, int]]) -> bool:
    """Return whether axes in some order are as far apart as what lies within them is long.

    Strides are then products of extents, so that one which may be 0 is so for empty views only.
    """
    rest = list(axes)
    fixed = (axis for axis in rest if not is_dynamic(axis[:1]))
    inner = min(fixed, key=lambda axis: axis[0], default=None)
    while inner is not None:
        rest.remove(inner)
        step = inner[0] * inner[1]
        inner = next((axis for axis in rest if axis[0] == step), None)
    return not rest


def _by_stride(a: tuple[int, int], b: tuple[int, int]) -> int:
    """Order axes by stride, then extent; a stride that is never larger comes first."""
    for x, y in zip(a, b, strict=True):
        if x != y:
            return -1 if lower_bound(y - x) >= 0 else 1 if x >= y else -1
    return 0


def gather_view(array: Array, shape: Sequence[int], view: View) -> Array:
    """Read a constant through a view, as numpy."""
    flat = np.ascontiguousarray(array).reshape(-1)
    if not prod(shape):
        return np.empty(tuple(shape), array.dtype)
    strides = tuple(s * array.itemsize for s in view.strides)
    window = np.lib.stride_tricks.as_strided(flat[view.offset :], tuple(shape), strides)
    return np.ascontiguousarray(window).reshape(tuple(shape))  # numpy makes a scalar a vector
