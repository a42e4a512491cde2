"""Lowerings of operators that read at computed places (see `atc/lower/indexed_access.py`)."""

from __future__ import annotations

from math import prod

from atc.dims import high, low
from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import Site
from atc.lower.indexed_access import (
    Place,
    element_place,
    gather,
    gather_axis,
    index,
    index_operand,
    known_indices,
    slice_place,
    take,
    times,
    total,
    tuple_extents,
)  # fmt: skip
from atc.lower.registry import lowers


@lowers("Gather")
def lower_gather(site: Site) -> str:
    """ONNX Gather-13: constant even indices are a view, such as one row or every second."""
    shape = site.shape(0)
    site.require(len(shape) > 0, "the data is a scalar")
    axis = site.axis(site.int("axis", 0), len(shape))
    known = known_indices(site, 1, [shape[axis]])
    if known is not None:
        return take(site.b, site.input(0), axis, known)
    single = site.const(1)
    if single is not None and single.size == 1 and -low(shape[axis]) <= single.item() < 0:
        return _from_end(site, axis, int(single.item()))
    indices, _ = index_operand(site, 1, [shape[axis]])
    site.require(high(shape[axis]) > 0 or not site.type(1).size, f"axis {axis} is empty")
    return gather_axis(site.b, site.input(0), axis, indices, proven=False)


def _from_end(site: Site, axis: int, index: int) -> str:
    """Read one element of an axis of unknown extent, counted from its end."""
    shape = site.shape(0)
    strides = row_major(shape)
    kept = View((*strides[:axis], *strides[axis + 1 :]), (shape[axis] + index) * strides[axis])
    row = site.b.view(site.input(0), (*shape[:axis], *shape[axis + 1 :]), kept)
    return site.b.reshape(row, (*shape[:axis], *site.shape(1), *shape[axis + 1 :]))


@lowers("GatherElements")
def gather_elements(site: Site) -> str:
    """ONNX GatherElements-13."""
    shape = site.shape(0)
    axis = site.axis(site.int("axis", 0), len(shape))
    indices, proven = index_operand(site, 1, [shape[axis]])
    place = element_place(site, axis, indices, proven)
    return gather(site.b, site.input(0), place, 1, place.loops)


@lowers("GatherND")
def gather_nd(site: Site) -> str:
    """ONNX GatherND-13."""
    batch = site.int("batch_dims", 0)
    indices, proven = index_operand(site, 1, tuple_extents(site, batch))
    place, run = slice_place(site, batch, indices, proven)
    rest = site.shape(0)[batch + site.shape(1)[-1] :]
    return gather(site.b, site.input(0), place, run, (*place.loops, *rest))


@lowers("ReverseSequence")
def reverse_sequence(site: Site) -> str:
    """ONNX ReverseSequence-10: the first lens[b] steps of each sequence backwards."""
    shape = site.shape(0)
    time, batch = site.int("time_axis", 0), site.int("batch_axis", 1)
    site.require({time, batch} == {0, 1}, f"time_axis {time}, batch_axis {batch}")
    site.require(len(shape) >= 2 and site.shape(1) == (shape[batch],), f"lengths {site.type(1)}")
    if not prod(shape):
        return site.input(0)
    strides = row_major(shape)

    def address(length: Expr, step: Expr, sequence: Expr) -> Expr:
        length = call("Min", cast(length, DType.INT64), index(shape[time]))
        mirrored = call("Sub", call("Sub", length, index(1)), step)
        step = call("Where", call("Less", step, length), mirrored, step)
        return total(times(step, strides[time]), times(sequence, strides[batch]))

    on_time, on_batch = (View(tuple(int(d == axis) for d in (0, 1))) for axis in (time, batch))
    place = Place(shape[:2], (site.input(1),), (on_batch,), (on_time, on_batch), address, True)
    return gather(site.b, site.input(0), place, prod(shape[2:]), shape)
