"""Lowerings of matrix products."""

from __future__ import annotations

from collections.abc import Sequence

from atc.dims import plain
from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Epilogue, MatMul, identity_epilogue
from atc.ir.view import View, broadcast
from atc.lower.context import LoweringContext
from atc.lower.conv import widen
from atc.lower.fitting import common, fitted
from atc.lower.registry import lowers


@lowers("MatMul")
def matmul(ctx: LoweringContext) -> str:
    """ONNX MatMul-13: numpy's rules for vectors, matrices and broadcast batches."""
    x = ctx.type(0)
    result = product(ctx, widen(ctx, ctx.input(0)), widen(ctx, ctx.input(1)))
    return ctx.b.cast(result, x.dtype)


def product(
    ctx: LoweringContext,
    a: str,
    b: str,
    accumulator: DType | None = None,
    zeros: tuple[int, int] = (0, 0),
) -> str:
    """Emit a numpy-style matrix product; the result has the operands' type or `accumulator`.

    `zeros` are the zero points of integers.
    """
    build = ctx.b
    a_shape, b_shape = build.shape(a), build.shape(b)
    ctx.require(len(a_shape) > 0 and len(b_shape) > 0, "an operand is a scalar")
    a2 = (1, *a_shape) if len(a_shape) == 1 else a_shape
    b2 = (*b_shape, 1) if len(b_shape) == 1 else b_shape
    message = plain(f"{list(a_shape)} x {list(b_shape)}: inner sizes differ")
    m, n, k = a2[-2], b2[-1], common(a2[-1], b2[-2])
    a2, b2 = (*a2[:-1], k), (*b2[:-2], k, n)
    a = fitted(ctx, a, a2[-len(a_shape) :], message)
    b = fitted(ctx, b, b2[: len(b_shape)], message)
    batch = build.broadcast(a2[:-2], b2[:-2])
    dtype = accumulator or build.type(a).dtype
    op = MatMul(
        batch, m, n, k, broadcast(a2, (*batch, m, k)), broadcast(b2, (*batch, k, n)),
        identity_epilogue(dtype), dtype, *zeros,
    )  # fmt: skip
    shape: Sequence[int] = (
        *batch, *([] if len(a_shape) == 1 else [m]), *([] if len(b_shape) == 1 else [n]),
    )  # fmt: skip
    return build.emit1(op, [a, b], TensorType(dtype, tuple(shape)))


@lowers("Gemm")
def gemm(ctx: LoweringContext) -> str:
    """ONNX Gemm-13: alpha A' B' + beta C."""
    b = ctx.b
    x_type = ctx.type(0)
    x, w = widen(ctx, ctx.input(0)), widen(ctx, ctx.input(1))
    ctx.require(len(b.shape(x)) == len(b.shape(w)) == 2, f"A is {b.type(x)}, B is {b.type(w)}")
    m, k = b.shape(x)[::-1] if ctx.int("transA") else b.shape(x)
    k2, n = b.shape(w)[::-1] if ctx.int("transB") else b.shape(w)
    message = f"A is {b.type(x)}, B is {b.type(w)}: inner sizes differ"
    k = common(k, k2)
    x = fitted(ctx, x, (k, m) if ctx.int("transA") else (m, k), message)
    w = fitted(ctx, w, (n, k) if ctx.int("transB") else (k, n), message)
    dtype = b.type(x).dtype
    alpha, beta = ctx.float("alpha", 1.0), ctx.float("beta", 1.0)
    inputs, expr = [x, w], _scaled(Input(dtype, 0), alpha)
    views: tuple[View, ...] = ()
    if ctx.has(2) and beta != 0.0:
        inputs.append(widen(ctx, ctx.input(2)))
        views = (broadcast(b.shape(inputs[2]), (m, n)),)
        expr = call("Add", expr, _scaled(Input(dtype, 1), beta))
    a_view = View((1, m) if ctx.int("transA") else (k, 1))
    b_view = View((1, k) if ctx.int("transB") else (n, 1))
    op = MatMul((), m, n, k, a_view, b_view, Epilogue(expr, views), dtype)
    return b.cast(b.emit1(op, inputs, TensorType(dtype, (m, n))), x_type.dtype)


def _scaled(x: Expr, factor: float) -> Expr:
    if factor == 1.0:
        return x
    if x.dtype is DType.FLOAT or x.dtype.is_float:
        return call("Mul", x, const(factor, x.dtype))
    return call("Mul", x, const(int(factor), x.dtype))
