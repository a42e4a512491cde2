"""Resize of axes whose extents are known when the network runs: places are computed, not tabled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import prod

import numpy as np

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, clamped, gather, times, total
from atc.lower.resample import TIE, Sampling

_FINEST = 64  # denominators of scales up to this give extents that float32 rounding can't move


@dataclass(frozen=True)
class OpenAxis:
    """An axis to be resized: extents, and the scale where it is given as a number."""

    size: int
    out: int
    scale: float | None


def scaled(ctx: LoweringContext, size: int, scale: float) -> int:
    """Return the extent of an axis after scaling."""
    factor = Fraction(float(np.float32(scale)))
    if factor.denominator > _FINEST:
        raise ctx.unsupported(
            f"scale {scale} of an axis whose extent is a range", "give sizes, or list the shapes"
        )
    return size * factor.numerator // factor.denominator


def resize_axis(ctx: LoweringContext, x: str, d: int, axis: OpenAxis, sampling: Sampling) -> str:
    """Resize one axis of a value; `nearest` and `linear` in the common coordinates."""
    b = ctx.b
    if sampling.mode == "nearest":
        near = partial(_nearest, ctx, axis, sampling)
        return _read(b, x, d, axis, lambda q: near(_place(ctx, q, axis, sampling)))
    if sampling.mode != "linear" or sampling.antialias or sampling.exclude_outside:
        raise ctx.unsupported(f"{sampling.mode} interpolation of an axis whose extent is a range")
    left = _read(b, x, d, axis, lambda q: call("Floor", _place(ctx, q, axis, sampling)))
    right = _read(
        b, x, d, axis,
        lambda q: call("Add", call("Floor", _place(ctx, q, axis, sampling)), _real(1)),
    )  # fmt: skip
    shape = b.shape(left)

    def between(p: Expr, r: Expr, q: Expr) -> Expr:
        place = _place(ctx, cast(q, DType.FLOAT), axis, sampling)
        part = cast(call("Sub", place, call("Floor", place)), p.dtype)
        rest = call("Sub", const(1, p.dtype), part)
        return call("Add", call("Mul", p, rest), call("Mul", r, part))

    views = [View(b.type(left).strides)] * 2
    along = View(tuple(int(k == d) for k in range(len(shape))))
    return b.map(between, left, right, shape=shape, views=views, coordinates=[along])


def _read(
    b: Builder, x: str, d: int, axis: OpenAxis, index: Callable[[Expr], Expr]
) -> str:
    """Read an axis at the indices that `index` gives for a FLOAT coordinate, clamped to it."""
    shape = b.shape(x)
    outer, inner = prod(shape[:d]), prod(shape[d + 1 :])

    def address(base: Expr, q: Expr) -> Expr:
        at = clamped(cast(index(cast(q, DType.FLOAT)), DType.INT64), axis.size)
        return total(base, times(at, inner))

    bases, along = View((axis.size * inner, 0)), View((0, 1))
    place = IndexedAccess((outer, axis.out), (), (), (bases, along), address, True)
    return gather(b, x, place, inner, (*shape[:d], axis.out, *shape[d + 1 :]))


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
            last = call("Div", _real(axis.size - 1), _real(axis.out - 1))
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
