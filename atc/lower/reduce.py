"""Lowerings of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import ArgReduce, Epilogue, Reduce
from atc.ir.view import View, dense, simplify_loops
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers


def reduce_axes(ctx: LoweringContext, x: str, axes: Sequence[int], keep: bool, how: str) -> str:
    """Reduce `x` over axes. `how`: Sum Mean Prod Max Min SumSquare L1 L2 LogSum.

    16-bit floats are reduced in float.
    """
    source = ctx.b.type(x)
    work = DType.FLOAT if source.dtype.is_half else source.dtype
    count = prod(source.shape[a] for a in axes)
    element: Expr = cast(Input(source.dtype, 0), work)
    if how in ("SumSquare", "L2"):
        element = call("Mul", element, element)
    elif how == "L1":
        element = call("Abs", element)
    result: Expr = Input(work, 0)
    if how == "Mean":
        result = call("Div", result, const(count, work))
    elif how in ("L2", "LogSum"):
        result = _float_function({"L2": "Sqrt", "LogSum": "Log"}[how], result)
    base = how if how in ("Prod", "Max", "Min") else "Sum"
    if work is DType.BOOL:
        base = {"Max": "Or", "Min": "And"}[base]
    return reduction(ctx, x, axes, keep, base, element, cast(result, source.dtype))


def _float_function(fn: str, x: Expr) -> Expr:
    if x.dtype.is_float:
        return call(fn, x)
    return cast(call(fn, cast(x, DType.DOUBLE)), x.dtype)


def reduction(
    ctx: LoweringContext,
    x: str,
    axes: Sequence[int],
    keep: bool,
    how: str,
    element: Expr,
    result: Expr,
) -> str:
    """Emit a Reduce of one operand; `element` and `result` are over Input(0)."""
    source = ctx.b.type(x)
    strides = row_major(source.shape)
    kept = [d for d in range(len(source.shape)) if d not in axes]
    shape = [source.shape[d] for d in kept]
    reduced = [source.shape[d] for d in axes]
    view = View(tuple(strides[d] for d in (*kept, *axes)))
    out = dense(shape)
    target = View((*out.strides, *[0] * len(reduced)))
    loops, (_, merged) = simplify_loops((*shape, *reduced), [target, view], [len(shape)])
    split = next((i for i in range(len(loops) + 1) if prod(loops[:i]) == prod(shape)
                  and prod(loops[i:]) == prod(reduced)), 0)  # fmt: skip
    op = Reduce(how, loops[:split], loops[split:], element, (merged,), Epilogue(result))
    final = [1 if d in axes else n for d, n in enumerate(source.shape)] if keep else shape
    return ctx.b.emit1(op, [x], TensorType(result.dtype, tuple(final)))


def reduction_axes(ctx: LoweringContext, axes_input_since: int) -> tuple[int, ...]:
    """Return the axes from the attribute or, from an opset on, the optional input."""
    rank = len(ctx.shape(0))
    if ctx.opset >= axes_input_since:
        given = ctx.ints_const(1, "the list of axes") if ctx.has(1) else []
        if not given and ctx.int("noop_with_empty_axes"):
            return ()
    else:
        given = ctx.ints("axes") or []
    return ctx.axes(given, rank) if given else tuple(range(rank))


REDUCTIONS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceProd",
    "ReduceMax",
    "ReduceMin",
    "ReduceSumSquare",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
]


@lowers(*REDUCTIONS)
def reduce(ctx: LoweringContext) -> str:
    """ONNX ReduceSum-13, ReduceMean-18 and the others of the family."""
    how = ctx.node.op_type.removeprefix("Reduce")
    axes = reduction_axes(ctx, 13 if how == "Sum" else 18)
    return reduce_axes(ctx, ctx.input(0), axes, bool(ctx.int("keepdims", 1)), how)


@lowers("ReduceLogSumExp")
def reduce_log_sum_exp(ctx: LoweringContext) -> str:
    """ONNX ReduceLogSumExp-18: m + log(sum(exp(x - m))), m the maximum: nothing overflows."""
    b, x = ctx.b, ctx.input(0)
    axes = reduction_axes(ctx, 18)
    keep = bool(ctx.int("keepdims", 1))
    source = b.type(x)
    if not source.dtype.is_float:
        x = b.cast(x, DType.DOUBLE)
    maximum = reduce_axes(ctx, x, axes, True, "Max")
    finite = b.map(lambda m: call("Where", call("IsInf", m), const(0, m.dtype), m), maximum)
    exps = b.map(lambda v, m: call("Exp", call("Sub", v, m)), x, finite)
    total = reduce_axes(ctx, exps, axes, True, "Sum")
    result = b.map(lambda s, m: call("Add", call("Log", s), m), total, finite)
    if not keep:
        result = b.reshape(result, [n for d, n in enumerate(source.shape) if d not in axes])
    return b.cast(result, source.dtype)


@lowers("ArgMax", "ArgMin")
def arg_reduce(ctx: LoweringContext) -> str:
    """ONNX ArgMax-13, ArgMin-13."""
    x = ctx.type(0)
    axis = ctx.axis(ctx.int("axis", 0), len(x.shape))
    op = ArgReduce(
        ctx.node.op_type.removeprefix("Arg"), prod(x.shape[:axis]), x.shape[axis],
        prod(x.shape[axis + 1 :]), bool(ctx.int("select_last_index")),
    )  # fmt: skip
    ctx.require(op.axis > 0, f"axis {axis} of {x} is empty")
    kept = [1] if ctx.int("keepdims", 1) else []
    shape = (*x.shape[:axis], *kept, *x.shape[axis + 1 :])
    return ctx.b.emit1(op, [ctx.input(0)], TensorType(DType.INT64, shape))
