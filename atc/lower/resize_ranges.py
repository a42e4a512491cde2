"""Resize of axes whose extents are known when the network runs, which computes the tables."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import prod

import numpy as np

from atc.dims import lower_bound, upper_bound
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops.sampling import Resample
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, clamped, gather, not_of_nothing, times, total
from atc.lower.resample import TIE, Axis, Sampling, nearest_table

_FINEST = 64  # denominators of scales up to this give extents that float32 rounding can't move
_EXTENTS = 1 << 16  # so many are tried one by one
_MOST = 16  # repetitions of an element that are looked for
_OF_ANY_SIZE = ("half_pixel", "pytorch_half_pixel", "asymmetric")  # places don't depend on sizes


@dataclass(frozen=True)
class OpenAxis:
    """An axis to be resized: extents, and the scale where it is given as a number."""

    size: int
    out: int
    scale: float | None


def scaled(ctx: LoweringContext, size: int, scale: float) -> int:
    """Return the extent of an axis after scaling: the floor of a product in float32."""
    factor = Fraction(float(np.float32(scale)))
    if factor.denominator > _FINEST:
        factor = _simpler(ctx, size, scale)
    return size * factor.numerator // factor.denominator


def _simpler(ctx: LoweringContext, size: int, scale: float) -> Fraction:
    """Return a fraction by which every extent has the floor that float32 rounding gives it."""
    low, high = max(lower_bound(size), 1), upper_bound(size)
    if high - low < _EXTENTS:
        sizes = np.arange(low, high + 1)
        floors = np.floor(np.float32(scale) * sizes.astype(np.float32)).astype(np.int64)
        pairs = [*zip(floors.tolist(), sizes.tolist(), strict=True)]
        least = max(Fraction(m, n) for m, n in pairs)
        if all(least < Fraction(m + 1, n) for m, n in pairs):
            return least
    raise ctx.unsupported(
        f"scale {scale} of an axis whose extent is a range", "give sizes, or list the shapes"
    )


def resize_axis(ctx: LoweringContext, x: str, d: int, axis: OpenAxis, sampling: Sampling) -> str:
    """Resize one axis of a value in the common coordinates.

    Each run computes the tables of places and weights first, which are those of one axis.
    """
    if sampling.mode == "nearest":
        return _taken(ctx, x, d, axis, sampling)
    if sampling.antialias or sampling.exclude_outside:
        raise ctx.unsupported(
            f"{sampling.mode} interpolation of an axis whose extent is a range, with antialias or "
            "exclude_outside"
        )
    b = ctx.b
    type_ = b.type(x)
    taps = 2 if sampling.mode == "linear" else 4

    def index(q: Expr, tap: Expr) -> Expr:
        left = call("Floor", _place(ctx, cast(q, DType.FLOAT), axis, sampling))
        place = call("Add", left, cast(tap, DType.FLOAT))
        if taps == 4:
            place = call("Sub", place, _real(1))
        return clamped(cast(place, DType.INT64), axis.size)

    def weight(q: Expr, tap: Expr) -> Expr:
        place = _place(ctx, cast(q, DType.FLOAT), axis, sampling)
        part = cast(call("Sub", place, call("Floor", place)), type_.dtype)
        if taps == 4:
            return _cubic(part, cast(tap, type_.dtype), sampling.cubic_a)
        first = call("Equal", tap, const(0, DType.INT64))
        share = call("Where", first, call("Sub", const(1, type_.dtype), part), part)
        edge = call("Equal", *(index(q, const(t, DType.INT64)) for t in (0, 1)))
        return call("Where", edge, const(0.5, type_.dtype), share)

    along = [View((1, 0)), View((0, 1))]
    tables = [
        b.map(f, shape=(axis.out, taps), views=(), coordinates=along) for f in (index, weight)
    ]
    outer, inner = prod(type_.shape[:d]), prod(type_.shape[d + 1 :])
    not_of_nothing(b, x, 1, outer * axis.out * inner)
    shape = (*type_.shape[:d], axis.out, *type_.shape[d + 1 :])
    op = Resample(outer, axis.size, inner, axis.out, taps)
    return b.emit1(op, [x, *tables], TensorType(type_.dtype, shape))


def _cubic(part: Expr, tap: Expr, a: float) -> Expr:
    """Return Keys' weight of a tap by its distance from the place, `part` behind the second tap."""

    def number(value: float) -> Expr:
        return const(value, tap.dtype)

    def polynomial(x: Expr, *factors: float) -> Expr:
        result = number(factors[0])
        for factor in factors[1:]:
            result = call("Add", call("Mul", result, x), number(factor))
        return result

    far = call("Abs", call("Sub", call("Add", part, number(1)), tap))
    near = polynomial(far, a + 2, -(a + 3), 0, 1)
    outer = polynomial(far, a, -5 * a, 8 * a, -4 * a)
    return call("Where", call("LessOrEqual", far, number(1)), near, outer)


def _taken(ctx: LoweringContext, x: str, d: int, axis: OpenAxis, sampling: Sampling) -> str:
    """Read an axis at the nearest places."""
    b = ctx.b
    shape = b.shape(x)
    outer, inner = prod(shape[:d]), prod(shape[d + 1 :])
    resized = (*shape[:d], axis.out, *shape[d + 1 :])
    if count := _repeats(axis, sampling):
        view = View((axis.size * inner, inner, 0, 1))
        return b.reshape(b.view(x, (outer, axis.size, count, inner), view), resized)

    def nearest(q: Expr) -> Expr:
        near = _nearest(ctx, axis, sampling, _place(ctx, cast(q, DType.FLOAT), axis, sampling))
        return clamped(cast(near, DType.INT64), axis.size)

    table = b.map(nearest, shape=(axis.out,), views=(), coordinates=[View((1,))])
    place = IndexedAccess(
        (outer, axis.out), (table,), (View((0, 1)),), (View((axis.size * inner, 0)),),
        lambda at, base: total(base, times(at, inner)), True,
    )  # fmt: skip
    return gather(b, x, place, inner, resized)


def _repeats(axis: OpenAxis, sampling: Sampling) -> int:
    """Return how often each element is repeated, if that is so for all sizes; else 0.

    The places of the largest size begin with those of all others.
    """
    count = next((k for k in range(2, _MOST + 1) if axis.out == axis.size * k), 0)
    largest = upper_bound(axis.size)
    if not count or sampling.coordinates not in _OF_ANY_SIZE or largest > _EXTENTS:
        return 0
    table = nearest_table(Axis(largest, largest * count, axis.scale or float(count)), sampling)
    return count if np.array_equal(table, np.repeat(np.arange(largest), count)) else 0


def _real(value: float | int) -> Expr:
    return const(value, DType.FLOAT)


def _place(ctx: LoweringContext, q: Expr, axis: OpenAxis, sampling: Sampling) -> Expr:
    """Return where element q of the resized axis lies on the original one."""
    scale = _real(axis.scale) if axis.scale is not None else call(
        "Div", _real(axis.out), _real(axis.size)
    )  # fmt: skip
    half = call("Sub", call("Div", call("Add", q, _real(0.5)), scale), _real(0.5))
    single = call("Equal", const(axis.out, DType.INT64), const(1, DType.INT64))
    match sampling.coordinates:
        case "half_pixel":
            return half
        case "pytorch_half_pixel":
            return call("Where", single, _real(0), half)
        case "asymmetric":
            return call("Div", q, scale)
        case "align_corners":
            width = _real(axis.out)
            if axis.scale is not None:  # the standard's, before it is cut off
                width = call("Mul", _real(axis.size), _real(axis.scale))
            last = call("Div", _real(axis.size - 1), call("Sub", width, _real(1)))
            single = call("Equal", width, _real(1))
            return call("Where", single, _real(0), call("Mul", q, last))
        case other:
            raise ctx.unsupported(f"coordinates '{other}' of an axis whose extent is a range")


def _nearest(ctx: LoweringContext, axis: OpenAxis, sampling: Sampling, place: Expr) -> Expr:
    match sampling.nearest:
        case "round_prefer_floor":
            return call("Ceil", call("Sub", place, _real(0.5 + TIE)))
        case "round_prefer_ceil":
            return call("Floor", call("Add", place, _real(0.5 + TIE)))
        case "ceil":
            return call("Ceil", place)
        case "simple" if axis.scale is None or axis.scale < 1:
            raise ctx.unsupported("Resize-10 that shrinks an axis whose extent is a range")
        case _:
            return call("Floor", place)
