"""Lowerings of operators that write at computed places (see `atc/lower/indexed_access.py`)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atc.dims import is_data_dependent, not_equal
from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.fitting import read_as
from atc.lower.indexed_access import (
    COMBINATIONS,
    IndexedAccess,
    clamped,
    element_access,
    index,
    index_operand,
    scatter,
    slice_access,
    times,
    total,
    tuple_extents,
)  # fmt: skip
from atc.lower.registry import lowers


def _reduction(ctx: LoweringContext) -> str:
    reduction = ctx.str("reduction", "none")
    ctx.require(reduction in ("none", *COMBINATIONS), f"reduction is '{reduction}'")
    return reduction


@lowers("ScatterElements", "Scatter")
def scatter_elements(ctx: LoweringContext) -> str:
    """ONNX ScatterElements-18 and Scatter-9, its old name; of equal indices the last one wins."""
    shape = ctx.shape(0)
    axis = ctx.axis(ctx.int("axis", 0), len(shape))
    indices, proven = index_operand(ctx, 1, [shape[axis]])
    ctx.require(ctx.shape(2) == ctx.shape(1), f"updates {ctx.type(2)}, indices {ctx.type(1)}")
    ctx.require(ctx.type(2).dtype is ctx.type(0).dtype, f"updates {ctx.type(2)}")
    place = element_access(ctx, axis, indices, proven)
    return scatter(ctx.b, ctx.input(0), ctx.input(2), place, 1, _reduction(ctx))


@lowers("ScatterND")
def scatter_nd(ctx: LoweringContext) -> str:
    """ONNX ScatterND-18."""
    indices, proven = index_operand(ctx, 1, tuple_extents(ctx, 0))
    place, run = slice_access(ctx, 0, indices, proven)
    expected = (*place.loops, *ctx.shape(0)[ctx.shape(1)[-1] :])
    updates = _counted_updates(ctx, expected)
    ctx.require(ctx.b.shape(updates) == expected, f"updates {ctx.type(2)}, not {list(expected)}")
    ctx.require(ctx.type(2).dtype is ctx.type(0).dtype, f"updates {ctx.type(2)}")
    return scatter(ctx.b, ctx.input(0), updates, place, run, _reduction(ctx))


def _counted_updates(ctx: LoweringContext, expected: Sequence[int]) -> str:
    """Return the updates in the expected shape where the run counts them in two ways."""
    found = ctx.shape(2)
    if len(found) != len(expected) or not is_data_dependent((*found, *expected)):
        return ctx.input(2)
    differences = [not_equal(n, m) for n, m in zip(found, expected, strict=True)]
    if not any(differences) or 1 in differences:
        return ctx.input(2)
    for difference in differences:
        ctx.b.must_be_zero(difference)
    return read_as(ctx.b, ctx.input(2), expected)


@lowers("TensorScatter")
def tensor_scatter(ctx: LoweringContext) -> str:
    """ONNX TensorScatter-24: per batch, the update is written from its start index on.

    `mode` circular wraps at the end of the axis; linear is clamped to it.
    """
    shape, updates = ctx.shape(0), ctx.shape(1)
    axis = ctx.axis(ctx.int("axis", -2), len(shape))
    mode = ctx.str("mode", "linear")
    ctx.require(mode in ("linear", "circular"), f"mode is '{mode}'")
    others = [d for d in range(len(shape)) if d != axis]
    same = len(updates) == len(shape) and all(shape[d] == updates[d] for d in others)
    ctx.require(same and axis > 0, f"update {ctx.type(1)} for {ctx.type(0)} along axis {axis}")
    ctx.require(updates[axis] <= shape[axis], f"update {ctx.type(1)} is longer than the axis")
    strides, loops = row_major(shape), updates[: axis + 1]
    start = ctx.input(2) if ctx.has(2) else ctx.b.constant(np.zeros(shape[0], np.int64))
    ctx.require(ctx.b.shape(start) == (shape[0],), f"the start indices are {ctx.b.type(start)}")

    def address(first: Expr, step: Expr, base: Expr) -> Expr:
        place = call("Add", cast(first, DType.INT64), step)
        if mode == "circular":
            place = call("Mod", place, index(shape[axis]))
        return total(base, times(clamped(place, shape[axis]), strides[axis]))

    on_batch, on_axis = (View(tuple(int(d == k) for d in range(len(loops)))) for k in (0, axis))
    bases = View((*strides[:axis], 0))
    place = IndexedAccess(loops, (start,), (on_batch,), (on_axis, bases), address)
    return scatter(ctx.b, ctx.input(0), ctx.input(1), place, strides[axis])
