"""Lowerings of conversions between element types."""

from __future__ import annotations

from atc.ir.expr import Expr, bitcast, call, cast, const
from atc.ir.graph import DType
from atc.lower.context import Site
from atc.lower.registry import lowers
from atc.lower.text.operators import cast_strings


@lowers("Cast", "CastLike")
def lower_cast(site: Site) -> str:
    """ONNX Cast-25, CastLike-25."""
    dtype = site.type(1).dtype if site.node.op_type == "CastLike" else type_of_code(site, "to")
    x = site.type(0).dtype
    if x is dtype:
        return site.input(0)
    if DType.STRING in (x, dtype):
        return cast_strings(site, dtype)
    if dtype is DType.FLOAT8E8M0:
        mode, saturate = site.str("round_mode", "up"), bool(site.int("saturate", 1))
        site.require(mode in ("up", "down", "nearest"), f"round_mode '{mode}'")
        return site.b.map(lambda v: power_of_two(v, mode, saturate), site.input(0))
    if dtype.is_small and dtype.is_float and site.int("saturate", 1):
        return site.b.map(lambda v: cast(v, dtype, saturate=True), site.input(0))
    return site.b.cast(site.input(0), dtype)


@lowers("BitCast")
def lower_bitcast(site: Site) -> str:
    """ONNX BitCast-26: the same bits as another type."""
    x, dtype = site.type(0).dtype, type_of_code(site, "to")
    site.require(x.bits == dtype.bits, f"{x.label} has not as many bits as {dtype.label}")
    return site.b.map(lambda v: bitcast(v, dtype), site.input(0))


def type_of_code(site: Site, attribute: str) -> DType:
    """Return the element type that an attribute names; UnsupportedError for no number's."""
    code = site.int(attribute)
    try:
        return DType.from_onnx(code)
    except KeyError:
        raise site.unsupported(f"a cast to ONNX type {code} is not covered") from None


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
