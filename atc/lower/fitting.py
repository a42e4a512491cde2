"""Values of a range of shapes in the shapes that operators need: a run of others ends."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.dims import (
    Dim,
    Symbol,
    lower_bound,
    maximum,
    minimum,
    not_equal,
    symbols_of,
    upper_bound,
)
from atc.ir.graph import row_major
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.indexed_access import IndexedAccess, clamped, gather


def fitted(ctx: LoweringContext, x: str, shape: Sequence[int], message: str) -> str:
    """Return a value in the shape that it must have, or the run ends.

    Raises a ModelError of this message where it never has.
    """
    own = ctx.b.shape(x)
    ctx.require(len(own) == len(shape), message)
    for n, wanted in zip(own, shape, strict=True):
        require_equal(ctx, n, wanted, message)
    return read_as(ctx.b, x, shape)


def require_equal(ctx: LoweringContext, a: int, b: int, message: str) -> None:
    """Require two extents to be the same; where only the run knows, it ends if they aren't.

    Two ranges that must agree are a relation, which the user can say: then kernels know it, too.
    """
    differ, (ours, theirs) = not_equal(a, b), map(_given, (a, b))
    ctx.require(differ != 1 and not (ours - theirs and theirs - ours), message)
    ctx.b.must_be_zero(differ)


def _given(extent: int) -> frozenset[Symbol]:
    return frozenset(s for s in symbols_of(extent) if s.given)


def require_at_least(ctx: LoweringContext, extent: int, least: int, message: str) -> None:
    """Require an extent to be `least` or more; where only the run knows, it ends if it's less."""
    ctx.require(upper_bound(extent - least) >= 0, message)
    ctx.b.must_be_zero(maximum(0, least - extent))


def common(a: int, b: int) -> int:
    """Return one of two extents that must be the same: the number, or that which is never more."""
    if isinstance(a, Dim) and isinstance(b, Dim):
        return b if minimum(a, b) == b else a
    return b if isinstance(a, Dim) else a


def read_as(b: Builder, x: str, shape: Sequence[int]) -> str:
    """Return a value in a shape that it has, or the run ends: only the run knows."""
    size = b.type(x).size
    if size == prod(shape):
        return b.reshape(x, shape)
    if lower_bound(size - prod(shape)) >= 0:
        return b.view(x, shape, View(row_major(shape)))
    place = IndexedAccess((prod(shape),), (), (), (View((1,)),), lambda i: clamped(i, size))
    return gather(b, x, place, 1, shape)
