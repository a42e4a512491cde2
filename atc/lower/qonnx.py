"""Lowerings of QONNX, whose operators quantize to any number of bits and back at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import Dequantization, DType
from atc.lower.context import LoweringContext
from atc.lower.quantize import dequantized, quantized
from atc.lower.registry import lowers

Floats = NDArray[np.floating[Any]]

QONNX, BREVITAS = "qonnx.custom_op.general", "onnx.brevitas"
"""The domain, and the one that Brevitas gave the same operators before."""

LIMITS = {
    DType.UINT8: (0, 255), DType.INT8: (-128, 127),
    DType.UINT16: (0, 65535), DType.INT16: (-32768, 32767),
}  # fmt: skip
"""The least and the greatest number of each type that holds quantized ones."""


def _even(x: Expr) -> Expr:
    return call("Round", x)


def _of_magnitude(fn: str, shift: float = 0.0) -> Callable[[Expr], Expr]:
    """Return a rounding that is the same on both sides of 0."""

    def rounded(x: Expr) -> Expr:
        size = call("Add", call("Abs", x), const(shift, DType.FLOAT))
        return call("Mul", call("Sign", x), call(fn, size))

    return rounded


ROUNDINGS: dict[str, Callable[[Expr], Expr]] = {
    "ROUND": _even, "HALF_EVEN": _even, "CEIL": lambda x: call("Ceil", x),
    "FLOOR": lambda x: call("Floor", x), "DOWN": lambda x: call("Trunc", x),
    "UP": _of_magnitude("Ceil"), "HALF_UP": _of_magnitude("Floor", 0.5),
    "HALF_DOWN": _of_magnitude("Ceil", -0.5),
}  # fmt: skip
"""Values of `rounding_mode`."""


@lowers("Quant", "IntQuant", domain=QONNX)
@lowers("Quant", domain=BREVITAS)
def quant(ctx: LoweringContext) -> str:
    """QONNX Quant: (round(clip(x / scale + zero)) - zero) * scale, in numbers of `bitwidth` bits.

    With up to 16 bits, rounded to even, the numbers are integers, with which layers compute.
    """
    b, (x, scale, zero) = ctx.b, (ctx.input(i) for i in range(3))
    _require_float(ctx)
    rounding = _rounding(ctx, "ROUND")
    low, high = _bounds(ctx, 3)
    dtype = _holding(low, high)
    point = _floats(ctx, zero)
    if dtype is None or point is None or rounding is not _even or not _fits(point, dtype):

        def real(v: Expr, s: Expr, z: Expr) -> Expr:
            y = call("Add", call("Div", v, s), z)
            y = call("Max", y, const(low, DType.FLOAT))
            y = rounding(call("Min", y, const(high, DType.FLOAT)))
            return call("Mul", call("Sub", y, z), s)

        return b.map(real, x, scale, zero)
    values, steps = _floats(ctx, x), _floats(ctx, scale)
    if values is not None and steps is not None:
        integers = np.clip(np.rint(values / steps) + point, low, high) - point
        return _dequantized(ctx, integers, steps)
    stored = b.constant(point.astype(dtype.numpy), zero)
    q = b.map(lambda v, s, z: quantized(v, s, z, dtype), x, scale, stored)
    if (low, high) != LIMITS[dtype]:
        least, most = const(int(low), dtype), const(int(high), dtype)
        q = b.map(lambda v: call("Min", call("Max", v, least), most), q)
    return b.map(dequantized, q, scale, stored)


@lowers("BipolarQuant", domain=QONNX)
@lowers("BipolarQuant", domain=BREVITAS)
def bipolar_quant(ctx: LoweringContext) -> str:
    """QONNX BipolarQuant: the scale, with the sign of x; that of 0 is plus."""
    b, x, scale = ctx.b, ctx.input(0), ctx.input(1)
    _require_float(ctx)
    values, steps = _floats(ctx, x), _floats(ctx, scale)
    if values is not None and steps is not None:
        return _dequantized(ctx, np.where(values >= 0, np.float32(1), np.float32(-1)), steps)

    def signed(v: Expr, s: Expr) -> Expr:
        zero, one, minus = (const(c, DType.FLOAT) for c in (0.0, 1.0, -1.0))
        return call("Mul", call("Where", call("GreaterOrEqual", v, zero), one, minus), s)

    return b.map(signed, x, scale)


@lowers("Trunc", domain=QONNX)
@lowers("Trunc", domain=BREVITAS)
def trunc(ctx: LoweringContext) -> str:
    """QONNX Trunc-2: numbers of a coarser scale, in `out_bitwidth` bits; Trunc-1 keeps the scale.

    Trunc-2 has inputs behind the input's bit width beside the output's: the scale, and in files of
    some writers a zero point, which follows from the scales. The ratio of scales is rounded to a
    power of two.
    """
    b, (x, scale, zero) = ctx.b, (ctx.input(i) for i in range(3))
    _require_float(ctx)
    rounding = _rounding(ctx, "FLOOR")
    steps, point = (
        np.asarray(ctx.required_const(i, what), np.float32)
        for i, what in ((1, "the scale"), (2, "the zero point"))
    )
    ctx.require(bool((steps > 0).all()), f"the scale is {steps.tolist()}")

    def parts(v: Expr, s: Expr, z: Expr, ratio: Expr) -> Expr:
        return call("Div", call("Round", call("Add", call("Div", v, s), z)), ratio)

    def real(y: Expr, s: Expr, z: Expr) -> Expr:
        return call("Mul", call("Sub", y, z), s)

    if not ctx.has(5):
        bits = (np.asarray(ctx.required_const(i, "a bit width"), np.float32) for i in (3, 4))
        ratio = b.constant(np.float32(2) ** np.subtract(*bits), ctx.input(3))
        return b.map(lambda v, s, z, r: real(rounding(parts(v, s, z, r)), s, z),
                     x, scale, zero, ratio)  # fmt: skip
    coarse = np.asarray(ctx.required_const(4, "the scale of the output"), np.float32)
    ctx.require(bool((coarse > 0).all()), f"the output's scale is {coarse.tolist()}")
    low, high = _bounds(ctx, 6 if ctx.has(6) else 5)
    ratios = np.exp2(np.rint(np.log2(coarse / steps)))
    ratio, shifted = b.constant(ratios, ctx.input(4)), np.asarray(point / ratios, np.float32)

    def number(v: Expr, s: Expr, z: Expr, r: Expr) -> Expr:
        y = call("Min", parts(v, s, z, r), const(high, DType.FLOAT))
        return rounding(call("Max", y, const(low, DType.FLOAT)))

    dtype = _holding(low, high)
    if dtype is None or not (_within(shifted, dtype) and (np.rint(shifted) == shifted).all()):
        y = b.map(number, x, scale, zero, ratio)
        return b.map(real, y, ctx.input(4), b.constant(shifted, zero))
    q = b.map(lambda *of: cast(number(*of), dtype, saturate=True), x, scale, zero, ratio)
    return b.map(dequantized, q, ctx.input(4), b.constant(shifted.astype(dtype.numpy), zero))


def _rounding(ctx: LoweringContext, default: str) -> Callable[[Expr], Expr]:
    """Return the function of `rounding_mode`."""
    mode = ctx.str("rounding_mode", default).upper()
    ctx.require(mode in ROUNDINGS, f"rounding_mode '{mode}'")
    return ROUNDINGS[mode]


def _floats(ctx: LoweringContext, name: str) -> Floats | None:
    """Return a constant's array; None where it is computed."""
    array = ctx.b.value(name)
    return None if array is None else np.asarray(array, np.float32)


def _require_float(ctx: LoweringContext) -> None:
    dtype = ctx.type(0).dtype
    ctx.require(dtype is DType.FLOAT, f"x is {dtype.label}, not f32")


def _bounds(ctx: LoweringContext, index: int) -> tuple[float, float]:
    """Return the least and the greatest number of so many bits as an input says."""
    width = np.asarray(ctx.required_const(index, "the bit width"), np.float64)
    ctx.require(width.size == 1 and width.min() >= 1, f"the bit width is {width.tolist()}")
    bits, narrow = float(width.reshape(())), bool(ctx.int("narrow"))
    if ctx.int("signed", 1):
        most = 2.0 ** (bits - 1) - 1
        return -most - (not narrow), most
    return 0.0, 2.0**bits - 1 - narrow


def _holding(low: float, high: float) -> DType | None:
    """Return the narrowest type of integers that holds all between whole bounds."""
    whole = float(low).is_integer() and float(high).is_integer()
    types = (DType.INT8, DType.INT16) if low < 0 else (DType.UINT8, DType.UINT16)
    fitting = (t for t in types if whole and LIMITS[t][0] <= low and high <= LIMITS[t][1])
    return next(fitting, None)


def _fits(point: Floats, dtype: DType) -> bool:
    """Return whether zero points are numbers of a type that change no rounding: even ones."""
    return _within(point, dtype) and bool((point % 2 == 0).all())


def _within(point: Floats, dtype: DType) -> bool:
    """Return whether zero points lie within the bounds of a type."""
    least, most = LIMITS[dtype]
    return bool(((point >= least) & (point <= most)).all())


def _dequantized(ctx: LoweringContext, integers: Floats, steps: Floats) -> str:
    """Add the constant integers * scale, and note what it was made of."""
    whole = integers.astype(np.int32)
    name = ctx.b.constant(whole.astype(np.float32) * steps, ctx.input(0))
    ctx.b.remember(name, Dequantization(whole, steps.reshape(()) if steps.size == 1 else steps))
    return name
