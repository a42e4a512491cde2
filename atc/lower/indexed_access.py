"""Indexed access: how lowerings read and write where an index says.

An index that the data gives at run time is wrapped once where it is negative, as ONNX says, and
then clamped: nothing outside a tensor is ever read or written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from atc.dims import is_dynamic, lower_bound, not_equal, upper_bound
from atc.ir.expr import Const, Expr, Input, call, cast, const
from atc.ir.graph import Array, DType, TensorType, row_major
from atc.ir.ops.data import Gather, Scatter
from atc.ir.view import View, addresses, affine_table, dense, simplify_loops
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext


def index(value: int) -> Expr:
    """Return an INT64 literal."""
    return const(value, DType.INT64)


def wrapped(i: Expr, extent: int) -> Expr:
    """Return the index with negative ones counted from the end, then clamped to the axis."""
    i = cast(i, DType.INT64)
    i = call("Where", call("Less", i, index(0)), call("Add", i, index(extent)), i)
    return clamped(i, extent)


def clamped(i: Expr, extent: int) -> Expr:
    """Return the index, or the nearest one of the axis."""
    return call("Max", call("Min", i, index(extent - 1)), index(0))


def times(x: Expr, factor: int) -> Expr:
    """Return x * factor."""
    return x if factor == 1 else call("Mul", x, index(factor))


def total(*terms: Expr) -> Expr:
    """Return the sum of INT64 terms; zeros vanish."""
    rest = [t for t in terms if not (isinstance(t, Const) and t.value == 0)]
    result, *more = rest or [index(0)]
    for term in more:
        result = call("Add", result, term)
    return result


@dataclass(frozen=True)
class Nest:
    """The loops of a Gather or Scatter, and the address over them."""

    loops: tuple[int, ...]
    views: tuple[View, ...]
    coordinates: tuple[View, ...]
    address: Expr


@dataclass(frozen=True)
class IndexedAccess:
    """The element of a tensor that each position of the loops reads or writes.

    `build(*operands, *coordinates)` is the INT64 address: `names` are operands read through
    `views`, `coordinates` are affine values of the position. `proven` says that no address leaves
    the tensor. `even` is the address itself, where it is affine.
    """

    loops: tuple[int, ...]
    names: tuple[str, ...]
    views: tuple[View, ...]
    coordinates: tuple[View, ...]
    build: Callable[..., Expr]
    proven: bool = False
    even: View | None = None

    def nest(self, b: Builder) -> Nest:
        """Return the merged loops with the views over them and the address."""
        own = len(self.views)
        every = [dense(self.loops), *self.views, *self.coordinates]
        loops, (_, *merged) = simplify_loops(self.loops, every)
        args: list[Expr] = [Input(b.type(n).dtype, k) for k, n in enumerate(self.names)]
        moving: list[View] = []
        for view in merged[own:]:
            still = not any(view.strides)
            used = len(self.names) + len(moving)
            args.append(index(view.offset) if still else Input(DType.INT64, used))
            moving += [] if still else [view]
        return Nest(loops, tuple(merged[:own]), tuple(moving), self.build(*args))


def gather(b: Builder, x: str, place: IndexedAccess, run: int, shape: Sequence[int]) -> str:
    """Read `run` neighbours of `x` at each place; `shape` is that of the result."""
    type_ = TensorType(b.type(x).dtype, tuple(shape))
    if not type_.size:
        return b.constant(np.empty(shape, type_.dtype.numpy))
    if place.even is not None:
        view = View((*place.even.strides, 1), place.even.offset)
        return b.reshape(b.view(x, (*place.loops, run), view), shape)
    not_of_nothing(b, x, run, prod(place.loops))
    nest = place.nest(b)
    op = Gather(nest.loops, run, nest.address, nest.views, place.proven, nest.coordinates)
    return b.emit1(op, [x, *place.names], type_)


def not_of_nothing(b: Builder, x: str, run: int, places: int) -> None:
    """Note that a tensor that may turn out to be empty is read or written at no place then."""
    size = b.type(x).size
    if upper_bound(run - size) > 0:
        b.must_be_zero((1 - not_equal(size, 0)) * places)


def scatter(
    b: Builder, x: str, updates: str, place: IndexedAccess, run: int, reduction: str = "none"
) -> str:
    """Combine `run` neighbours of `x` at each place with the next updates."""
    type_ = b.type(x)
    if not b.type(updates).size or not type_.size:
        return x
    not_of_nothing(b, x, run, prod(place.loops))
    if place.even is not None:
        place, run = _in_runs(place.loops, place.even, run)
    nest, combine = place.nest(b), combination(reduction, type_.dtype)
    op = Scatter(
        nest.loops, run, nest.address, nest.views, combine, place.proven, nest.coordinates
    )
    return b.emit1(op, [x, updates, *place.names], type_)


def _in_runs(loops: tuple[int, ...], even: View, run: int) -> tuple[IndexedAccess, int]:
    """Return the access to even places without indices, and how many neighbours are one run."""
    loops, (_, even) = simplify_loops(loops, [dense(loops), even])
    while loops and even.strides[-1] == run:
        run *= loops[-1]
        loops, even = loops[:-1], View(even.strides[:-1], even.offset)
    return IndexedAccess(loops, (), (), (even,), lambda base: base, True), run


COMBINATIONS = {"add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}


def combination(reduction: str, dtype: DType) -> Expr:
    """Return what becomes of an old element, Input(0), and its update, Input(1)."""
    old, new = Input(dtype, 0), Input(dtype, 1)
    if reduction == "none":
        return new
    fn = COMBINATIONS[reduction]
    if dtype is DType.BOOL:
        return call("Or" if reduction in ("add", "max") else "And", old, new)
    if dtype.is_half:
        return cast(call(fn, cast(old, DType.FLOAT), cast(new, DType.FLOAT)), dtype)
    return call(fn, old, new)


# ---- indices known when compiling ---------------------------------------------------------------


def known_indices(ctx: LoweringContext, i: int, extents: Sequence[int]) -> Array | None:
    """Return a constant index operand without negative indices, None when it is computed.

    `extents` broadcast to the indices: the extent of the axis that each one counts along. An index
    outside raises ModelError.
    """
    array = ctx.const(i)
    if array is None:
        return None
    wide = np.asarray(array).astype(np.int64)
    if is_dynamic(tuple(extents)):
        inside = not wide.size or (wide.min() >= 0 and wide.max() < min(map(lower_bound, extents)))
        return wide if inside else None
    one = len(extents) == 1  # may belong to a 0-d index
    limit = np.broadcast_to(np.asarray(extents[0] if one else extents, np.int64), wide.shape)
    outside = (wide < -limit) | (wide >= limit)
    if outside.any():
        where = tuple(np.argwhere(outside)[0])
        ctx.require(False, f"index {wide[where]} is outside an axis of {limit[where]}")
    return np.where(wide < 0, wide + limit, wide)


def take(b: Builder, x: str, axis: int, indices: Array) -> str:
    """Read the constant `indices` (inside the axis) of one axis, as a view where they are even."""
    shape = b.shape(x)
    strides = row_major(shape)
    out = (*shape[:axis], *indices.shape, *shape[axis + 1 :])
    table = affine_table(indices)
    if table is not None and prod(out):
        inner = tuple(s * strides[axis] for s in table.strides)
        view = View((*strides[:axis], *inner, *strides[axis + 1 :]), table.offset * strides[axis])
        return b.view(x, out, view)
    return gather_axis(b, x, axis, b.constant(indices), proven=True)


def gather_axis(b: Builder, x: str, axis: int, indices: str, *, proven: bool) -> str:
    """Read the indices of one axis, ONNX Gather."""
    shape, table = b.shape(x), b.shape(indices)
    outer, inner, count = prod(shape[:axis]), prod(shape[axis + 1 :]), prod(table)

    def address(i: Expr, base: Expr) -> Expr:
        return total(base, times(i if proven else wrapped(i, shape[axis]), inner))

    bases = View((shape[axis] * inner, 0))
    place = IndexedAccess((outer, count), (indices,), (View((0, 1)),), (bases,), address, proven)
    return gather(b, x, place, inner, (*shape[:axis], *table, *shape[axis + 1 :]))


def index_operand(ctx: LoweringContext, i: int, extents: Sequence[int]) -> tuple[str, bool]:
    """Return an index operand and whether it is known never to leave its axis."""
    dtype = ctx.type(i).dtype
    ctx.require(not dtype.is_float and dtype is not DType.BOOL, f"the indices are {ctx.type(i)}")
    known = known_indices(ctx, i, extents)
    return (ctx.input(i), False) if known is None else (ctx.b.constant(known), True)


def element_access(ctx: LoweringContext, axis: int, indices: str, proven: bool) -> IndexedAccess:
    """Return where GatherElements and ScatterElements find each index's element."""
    shape, loops = ctx.shape(0), ctx.b.shape(indices)
    strides = row_major(shape)
    ctx.require(len(loops) == len(shape), f"indices {list(loops)} for data {list(shape)}")
    fits = all(n <= m for d, (n, m) in enumerate(zip(loops, shape, strict=True)) if d != axis)
    ctx.require(fits or not prod(loops), f"indices {list(loops)} leave data {list(shape)}")
    ctx.require(upper_bound(shape[axis]) > 0 or not prod(loops), f"axis {axis} is empty")

    def address(i: Expr, base: Expr) -> Expr:
        return total(base, times(i if proven else wrapped(i, shape[axis]), strides[axis]))

    bases = View(tuple(0 if d == axis else s for d, s in enumerate(strides)))
    even = _even(ctx, indices, loops, bases, strides[axis : axis + 1]) if proven else None
    return IndexedAccess(loops, (indices,), (dense(loops),), (bases,), address, proven, even)


def _even(
    ctx: LoweringContext, indices: str, loops: Sequence[int], bases: View, steps: Sequence[int]
) -> View | None:
    """Return the addresses of known indices as a view over the loops, if they are affine."""
    table = ctx.b.value(indices)
    if table is None or is_dynamic((*loops, *bases.strides, *steps)):
        return None
    columns = np.asarray(table, np.int64).reshape(*loops, len(steps))
    found = addresses(loops, bases).reshape(loops)
    return affine_table(found + columns @ np.array(steps, np.int64))


def tuple_extents(ctx: LoweringContext, batch: int) -> tuple[int, ...]:
    """Return the extents that an index tuple of GatherND or ScatterND counts along."""
    shape, table = ctx.shape(0), ctx.shape(1)
    ctx.require(len(table) > 0, "the indices are a scalar")
    depth = table[-1]
    ctx.require(0 <= batch < len(table), f"batch_dims {batch} for indices {list(table)}")
    fits = shape[:batch] == table[:batch] and batch + depth <= len(shape)
    ctx.require(fits, f"indices {list(table)} for data {list(shape)}")
    return shape[batch : batch + depth]


def slice_access(
    ctx: LoweringContext, batch: int, indices: str, proven: bool
) -> tuple[IndexedAccess, int]:
    """Return where GatherND and ScatterND find each index tuple's slice, and its size."""
    shape, table = ctx.shape(0), ctx.b.shape(indices)
    depth, loops = table[-1], table[:-1]
    strides = row_major(shape)
    extents, steps = shape[batch : batch + depth], strides[batch : batch + depth]
    full = all(upper_bound(n) > 0 for n in extents)
    ctx.require(full or not prod(loops), f"data {list(shape)} is empty")

    def address(*args: Expr) -> Expr:
        *found, base = args
        if not proven:
            found = [wrapped(i, n) for i, n in zip(found, extents, strict=True)]
        return total(base, *(times(i, s) for i, s in zip(found, steps, strict=True)))

    over = tuple(s * depth for s in dense(loops).strides)
    views = tuple(View(over, j) for j in range(depth))
    bases = View((*strides[:batch], *[0] * (len(loops) - batch)))
    even = _even(ctx, indices, loops, bases, steps) if proven else None
    place = IndexedAccess(loops, (indices,) * depth, views, (bases,), address, proven, even)
    return place, prod(shape[batch + depth :])
