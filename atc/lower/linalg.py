"""Lowerings of linear algebra on small matrices."""

from __future__ import annotations

from math import prod

from atc.ir.graph import TensorType
from atc.ir.ops.linalg import Determinant, Inverse
from atc.lower.context import LoweringContext
from atc.lower.conv import widen
from atc.lower.registry import lowers


@lowers("Det")
def determinant(ctx: LoweringContext) -> str:
    """ONNX Det-22 of every matrix of a batch."""
    batch, n, wide = _matrices(ctx)
    type_ = TensorType(ctx.b.type(wide).dtype, ctx.shape(0)[:-2])
    return ctx.b.cast(ctx.b.emit1(Determinant(batch, n), [wide], type_), ctx.type(0).dtype)


@lowers("Inverse", domain="com.microsoft")
def inverse(ctx: LoweringContext) -> str:
    """com.microsoft Inverse of every matrix of a batch."""
    batch, n, wide = _matrices(ctx)
    y = ctx.b.emit1(Inverse(batch, n), [wide], ctx.b.type(wide))
    return ctx.b.cast(y, ctx.type(0).dtype)


def _matrices(ctx: LoweringContext) -> tuple[int, int, str]:
    """Return how many matrices there are, of how many rows, and the operand."""
    x = ctx.type(0)
    square = len(x.shape) >= 2 and x.shape[-1] == x.shape[-2]
    ctx.require(square, f"{x} is not a batch of square matrices")
    return prod(x.shape[:-2]), x.shape[-1], widen(ctx, ctx.input(0))
