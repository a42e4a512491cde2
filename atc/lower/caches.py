"""Caches that grow, as nodes see them: see `growth`."""

from __future__ import annotations

from math import prod

from atc.ir.expr import Expr, call, const
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.indexed_access import IndexedAccess, index, scatter, times, total


def declare(b: Builder, name: str, type_: TensorType) -> str:
    """Add an input of the graph; return the value that is read as it."""
    growth = b.caches.growths.get(name)
    if growth is None:
        return b.declare(name, type_)
    shape = list(type_.shape)
    shape[growth.axis] = growth.room
    buffer = b.declare(name, TensorType(type_.dtype, tuple(shape)))
    past = _begin(b, buffer, growth.axis, type_.shape[growth.axis])
    b.caches.buffers[past] = buffer
    return past


def append(b: Builder, past: str, more: str, axis: int, at: int | str | None = None) -> str:
    """Write `more` behind a past; return what follows reads of both, '' where that is no cache.

    `at` are the places along the axis where it goes, by row, if that isn't the past's end.
    """
    buffer = b.caches.buffers.get(past, "")
    growth = b.caches.growths.get(buffer)
    if growth is None or b.parent is not None or past in b.caches.made:
        return ""
    held, count = b.shape(past)[axis], b.shape(more)[axis]
    if axis != growth.axis or count != growth.more or b.type(more).dtype is not b.type(past).dtype:
        return ""
    left = _written(b, buffer, more, axis, held if at is None else at)
    whole = _begin(b, left, axis, held + count)
    b.caches.made[past] = left, whole
    return whole


def _begin(b: Builder, buffer: str, axis: int, extent: int) -> str:
    shape = list(b.shape(buffer))
    strides = row_major(shape)
    shape[axis] = extent
    return b.view(buffer, shape, View(strides))


def _written(b: Builder, buffer: str, more: str, axis: int, at: int | str) -> str:
    """Return the buffer with `more` at a place along an axis: a number, or one by row.

    Those of rows that would leave the buffer are moved into it.
    """
    room, shape = b.shape(buffer), b.shape(more)
    inner = prod(room[axis + 1 :])

    def address(*operands: Expr) -> Expr:
        if not isinstance(at, str):
            return total(operands[0], times(index(at), inner))
        last = const(room[axis] - shape[axis], DType.INT64)
        place = call("Max", call("Min", operands[0], last), index(0))
        return total(operands[1], times(place, inner))

    names = (at,) if isinstance(at, str) else ()
    by_row = (View((1, *[0] * (axis - 1))),) if names else ()
    base = View(row_major(room)[:axis])
    place = IndexedAccess(shape[:axis], names, by_row, (base,), address, proven=True)
    return scatter(b, buffer, more, place, shape[axis] * inner)
