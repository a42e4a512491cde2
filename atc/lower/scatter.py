"""Lowerings of operators that write at computed places (see `atc/lower/indexed_access.py`)."""

from __future__ import annotations

import numpy as np

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import Site
from atc.lower.indexed_access import (
    COMBINATIONS,
    Place,
    clamped,
    element_place,
    index,
    index_operand,
    scatter,
    slice_place,
    times,
    total,
    tuple_extents,
)  # fmt: skip
from atc.lower.registry import lowers


def _reduction(site: Site) -> str:
    reduction = site.str("reduction", "none")
    site.require(reduction in ("none", *COMBINATIONS), f"reduction is '{reduction}'")
    return reduction


@lowers("ScatterElements", "Scatter")
def scatter_elements(site: Site) -> str:
    """ONNX ScatterElements-18 and Scatter-9, its old name; of equal indices the last one wins."""
    shape = site.shape(0)
    axis = site.axis(site.int("axis", 0), len(shape))
    indices, proven = index_operand(site, 1, [shape[axis]])
    site.require(site.shape(2) == site.shape(1), f"updates {site.type(2)}, indices {site.type(1)}")
    site.require(site.type(2).dtype is site.type(0).dtype, f"updates {site.type(2)}")
    place = element_place(site, axis, indices, proven)
    return scatter(site.b, site.input(0), site.input(2), place, 1, _reduction(site))


@lowers("ScatterND")
def scatter_nd(site: Site) -> str:
    """ONNX ScatterND-18."""
    indices, proven = index_operand(site, 1, tuple_extents(site, 0))
    place, run = slice_place(site, 0, indices, proven)
    expected = (*place.loops, *site.shape(0)[site.shape(1)[-1] :])
    site.require(site.shape(2) == expected, f"updates {site.type(2)}, not {list(expected)}")
    site.require(site.type(2).dtype is site.type(0).dtype, f"updates {site.type(2)}")
    return scatter(site.b, site.input(0), site.input(2), place, run, _reduction(site))


@lowers("TensorScatter")
def tensor_scatter(site: Site) -> str:
    """ONNX TensorScatter-24: per batch, the update is written from its start index on.

    `mode` circular wraps at the end of the axis; linear is clamped to it.
    """
    shape, updates = site.shape(0), site.shape(1)
    axis = site.axis(site.int("axis", -2), len(shape))
    mode = site.str("mode", "linear")
    site.require(mode in ("linear", "circular"), f"mode is '{mode}'")
    others = [d for d in range(len(shape)) if d != axis]
    same = len(updates) == len(shape) and all(shape[d] == updates[d] for d in others)
    site.require(same and axis > 0, f"update {site.type(1)} for {site.type(0)} along axis {axis}")
    site.require(updates[axis] <= shape[axis], f"update {site.type(1)} is longer than the axis")
    strides, loops = row_major(shape), updates[: axis + 1]
    start = site.input(2) if site.has(2) else site.b.constant(np.zeros(shape[0], np.int64))
    site.require(site.b.shape(start) == (shape[0],), f"the start indices are {site.b.type(start)}")

    def address(first: Expr, step: Expr, base: Expr) -> Expr:
        place = call("Add", cast(first, DType.INT64), step)
        if mode == "circular":
            place = call("Mod", place, index(shape[axis]))
        return total(base, times(clamped(place, shape[axis]), strides[axis]))

    on_batch, on_axis = (View(tuple(int(d == k) for d in range(len(loops)))) for k in (0, axis))
    bases = View((*strides[:axis], 0))
    place = Place(loops, (start,), (on_batch,), (on_axis, bases), address)
    return scatter(site.b, site.input(0), site.input(1), place, strides[axis])
