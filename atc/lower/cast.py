"""Lowerings of conversions between element types."""

from __future__ import annotations

from atc.ir.expr import Expr, bitcast, call, cast, const
from atc.ir.graph import DType
from atc.lower.context import LoweringContext
from atc.lower.exact_floats import truncated
from atc.lower.registry import lowers
from atc.lower.text.operators import cast_strings
from atc.lower.value_bounds import MOST


@lowers("Cast", "CastLike")
def lower_cast(ctx: LoweringContext) -> str:
    """ONNX Cast-25, CastLike-25."""
    dtype = ctx.type(1).dtype if ctx.node.op_type == "CastLike" else ctx.dtype("to")
    x = ctx.type(0).dtype
    if x is dtype:
        return ctx.input(0)
    if DType.STRING in (x, dtype):
        return cast_strings(ctx, dtype)
    if dtype is DType.FLOAT8E8M0:
        mode, saturate = ctx.str("round_mode", "up"), bool(ctx.int("saturate", 1))
        ctx.require(mode in ("up", "down", "nearest"), f"round_mode '{mode}'")
        return ctx.b.map(lambda v: power_of_two(v, mode, saturate), ctx.input(0))
    if dtype.is_small and dtype.is_float and ctx.int("saturate", 1):
        return ctx.b.map(lambda v: cast(v, dtype, saturate=True), ctx.input(0))
    if x.is_float and dtype in (DType.INT64, DType.INT32) and ctx.type(0).size in range(1, MOST):
        extents = truncated(ctx.b, ctx.input(0))
        if extents is not None:
            return ctx.b.extents(extents, dtype)
    return ctx.b.cast(ctx.input(0), dtype)


@lowers("BitCast")
def lower_bitcast(ctx: LoweringContext) -> str:
    """ONNX BitCast-26: the same bits as another type."""
    x, dtype = ctx.type(0).dtype, ctx.dtype("to")
    ctx.require(x.bits == dtype.bits, f"{x.label} has not as many bits as {dtype.label}")
    return ctx.b.map(lambda v: bitcast(v, dtype), ctx.input(0))



def power_of_two(x: Expr, mode: str, saturate: bool) -> Expr:
    """Return the FLOAT8E8M0 of a number's magnitude, rounded up, down or to nearest.

    A tie goes up, except at 2^-127. What overflows is NaN, or with `saturate` 2^127; infinity is
    NaN in either case (ONNX Cast-25; `onnx.numpy_helper.to_float8e8m0`).
    """
    bits = bitcast(cast(x, DType.FLOAT), DType.UINT32)
    exponent = call("BitwiseAnd", call("ShiftRight", bits, _word(23)), _word(255))
    fraction = call("BitwiseAnd", bits, _word(0x7FFFFF))
    if mode != "down":
        least = _word(0)
        if mode == "nearest":
            denormal = call("Equal", exponent, _word(0))
            least = call("Where", denormal, _word(0x400000), _word(0x3FFFFF))
        last = call("Less", exponent, _word(254 if saturate else 255))
        up = call("And", call("Greater", fraction, least), last)
        exponent = call("Add", exponent, cast(up, DType.UINT32))
    return bitcast(cast(exponent, DType.UINT8), DType.FLOAT8E8M0)


def _word(value: int) -> Expr:
    return const(value, DType.UINT32)
