"""Lowerings of operators that make values of positions: ranges, masks, windows, random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np

from atc.dims import Dim, is_dynamic, maximum
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View, broadcast
from atc.lower.context import LoweringContext
from atc.lower.exact_floats import steps_between
from atc.lower.indexed_access import index
from atc.lower.registry import lowers
from atc.lower.value_bounds import bounded_integers, unbounded

MAX_STORED = 1 << 16
"""Elements up to which a computable tensor is a constant; larger ones are computed at run time."""


def on_axis(rank: int, axis: int) -> View:
    """Return the coordinate along one axis."""
    return View(tuple(int(d == axis) for d in range(rank)))


# ---- ranges and masks ---------------------------------------------------------------------------


@lowers("Range")
def range_(ctx: LoweringContext) -> str:
    """ONNX Range-11: start + i * delta; what the run computes of them needs a bound."""
    names = ("the start", "the limit", "the step")
    extents = [ctx.extents(i) for i in range(3)]
    open_ = any(ctx.const(i) is None for i in range(3))
    if open_ and None not in extents and not isinstance(extents[2][0], Dim):  # type: ignore[index]
        return _range_of_extents(ctx, [e[0] for e in extents if e is not None])
    if open_:
        return _range_of_values(ctx)
    start, limit, delta = (ctx.required_const(i, n).reshape(()) for i, n in enumerate(names))
    dtype = ctx.type(0).dtype
    first, last, step = float(start), float(limit), float(delta)
    ctx.require(step != 0, "the step is 0")
    exact = not dtype.is_float
    count = len(range(int(start), int(limit), int(delta))) if exact else ceil((last - first) / step)
    count = max(0, count)
    if count <= MAX_STORED:
        steps = np.arange(count, dtype=np.float64 if dtype.is_float else np.int64)
        work = np.float64 if dtype.is_float else dtype.numpy
        values = start.astype(work) + steps.astype(work) * delta.astype(work)
        return ctx.b.constant(values.astype(dtype.numpy))
    work_type = DType.DOUBLE if dtype.is_float else dtype

    def value(i: Expr) -> Expr:
        a, d = (const(v.item() if exact else float(v), work_type) for v in (start, delta))
        return cast(call("Add", a, call("Mul", cast(i, work_type), d)), dtype)

    return ctx.b.map(value, shape=[count], views=[], coordinates=[View((1,))])


def _range_of_extents(ctx: LoweringContext, operands: Sequence[int]) -> str:
    """Return a range of integers whose ends depend on the inputs' shapes."""
    start, limit, delta = operands
    dtype = ctx.type(0).dtype
    ctx.require(delta != 0, "the step is 0")
    room = limit - start if delta > 0 else start - limit
    count = maximum(0, -(-room // abs(delta)))

    def value(i: Expr) -> Expr:
        return call("Add", const(start, dtype), call("Mul", cast(i, dtype), const(delta, dtype)))

    return ctx.b.map(value, shape=[count], views=[], coordinates=[View((1,))])


def _range_of_values(ctx: LoweringContext) -> str:
    """Return a range whose ends the run computes; their bounds say how long it gets."""
    b, dtype = ctx.b, ctx.type(0).dtype
    ends = [b.cast(b.reshape(ctx.input(i), ()), DType.DOUBLE) for i in range(3)]
    if not dtype.is_float:
        ends = [b.cast(b.reshape(ctx.input(i), ()), DType.INT64) for i in range(3)]

    def steps(start: Expr, limit: Expr, delta: Expr) -> Expr:
        room = call("Sub", limit, start)
        if dtype.is_float:
            return cast(call("Ceil", call("Div", room, delta)), DType.INT64)
        way = call("Where", call("Less", delta, index(0)), index(-1), index(1))
        whole = call("Div", call("Sub", call("Add", room, delta), way), delta)
        ahead = call("Greater", call("Mul", room, way), index(0))
        return call("Where", ahead, whole, index(0))

    exact = steps_between(b, *map(ctx.input, range(3))) if dtype.is_float else None
    if exact is not None:
        found: list[int] | None = [exact]
    else:
        count = b.map(lambda *e: call("Max", steps(*e), index(0)), *ends)
        found = bounded_integers(b, count, 0, f"elements of {ctx.name}")
    if found is None:
        first = next(i for i in (1, 0, 2) if ctx.const(i) is None)
        name = ctx.node.inputs[first].name  # type: ignore[union-attr]  # a required operand
        where = "start or step" if first != 1 else "limit"
        raise unbounded(f"the {where}", name or "", ctx.label, ctx.input(first))
    scalar = View((0,))

    def value(start: Expr, delta: Expr, i: Expr) -> Expr:
        work = DType.DOUBLE if dtype.is_float else DType.INT64
        return cast(call("Add", start, call("Mul", cast(i, work), delta)), dtype)

    return b.map(
        value, ends[0], ends[2], shape=found, views=[scalar, scalar], coordinates=[View((1,))]
    )


@lowers("Trilu", domain="com.microsoft")
@lowers("Trilu")
def trilu(ctx: LoweringContext) -> str:
    """ONNX Trilu-14: zero above or below the k-th diagonal."""
    shape = ctx.shape(0)
    ctx.require(len(shape) >= 2, f"the input is {ctx.type(0)}")
    dtype = ctx.type(0).dtype
    k = ctx.input(1) if ctx.has(1) else ctx.b.scalar(0, DType.INT64)
    ctx.require(ctx.b.type(k).size == 1, f"k is {ctx.b.type(k)}")
    k = ctx.b.cast(ctx.b.reshape(k, ()), DType.INT64)
    keeps = "GreaterOrEqual" if ctx.int("upper", 1) else "LessOrEqual"
    rank = len(shape)
    diagonal = View((*[0] * (rank - 2), -1, 1))
    zero = const(0, dtype)

    def chosen(x: Expr, shift: Expr, distance: Expr) -> Expr:
        return call("Where", call(keeps, distance, shift), x, zero)

    views = [broadcast(shape, shape), View((0,) * rank)]
    return ctx.b.map(chosen, ctx.input(0), k, shape=shape, views=views, coordinates=[diagonal])


@lowers("EyeLike")
def eye_like(ctx: LoweringContext) -> str:
    """ONNX EyeLike-22: ones on the k-th diagonal of a matrix."""
    shape = ctx.shape(0)
    ctx.require(len(shape) == 2, f"the input is {ctx.type(0)}")
    dtype = ctx.dtype("dtype", ctx.type(0).dtype)
    k = ctx.int("k", 0)
    if not is_dynamic(shape) and prod(shape) <= MAX_STORED:
        return ctx.b.constant(np.eye(shape[0], shape[1], k, dtype=np.float32).astype(dtype.numpy))
    build = lambda d: cast(call("Equal", d, index(k)), dtype)  # noqa: E731
    return ctx.b.map(build, shape=shape, views=[], coordinates=[View((-1, 1))])


@lowers("OneHot")
def one_hot(ctx: LoweringContext) -> str:
    """ONNX OneHot-11: the on value where the index is the new axis' coordinate, else off."""
    indices, values = ctx.type(0), ctx.type(2)
    depths = ctx.ints_const(1, "the depth", 0)
    ctx.require(len(depths) == 1, f"{len(depths)} depths")
    (depth,) = depths
    ctx.require(isinstance(depth, Dim) or depth >= 0, f"depth {depth}")
    ctx.require(values.size == 2, f"the values are {values}")
    axis = ctx.axis(ctx.int("axis", -1), len(indices.shape) + 1)
    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    strides = row_major(indices.shape)
    view = View((*strides[:axis], 0, *strides[axis:]))
    still = (0,) * len(shape)

    def chosen(i: Expr, off: Expr, on: Expr, coordinate: Expr) -> Expr:
        i = cast(i, DType.INT64)
        i = call("Where", call("Less", i, index(0)), call("Add", i, index(depth)), i)
        return call("Where", call("Equal", i, coordinate), on, off)

    if not prod(shape):
        return ctx.b.constant(np.empty(shape, values.dtype.numpy))
    pair = ctx.b.reshape(ctx.input(2), [2])
    return ctx.b.map(
        chosen,
        ctx.input(0),
        pair,
        pair,
        shape=shape,
        views=[view, View(still, 0), View(still, 1)],
        coordinates=[on_axis(len(shape), axis)],
    )
