"""Lowerings of random operators: a hash of each element's position, the same in every run.

ONNX asks for a distribution only. A generated program has no state, so the numbers depend on the
seed (or, without one, on the node's name) and the position alone: two calls give the same numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import pi
from zlib import crc32

import numpy as np

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import ArgReduce
from atc.ir.view import View, broadcast, dense
from atc.lower.context import LoweringContext
from atc.lower.registry import lowers

RANDOM = ["RandomUniform", "RandomNormal", "RandomUniformLike", "RandomNormalLike"]
DOMAIN = "atc.random"
"""The same operators with one more operand, an integer that is a part of the seed."""


@lowers(*RANDOM)
@lowers(*RANDOM, domain=DOMAIN)
def random(ctx: LoweringContext) -> str:
    """ONNX RandomUniform-22, RandomNormal-22 and the same like another tensor."""
    like = ctx.node.op_type.endswith("Like")
    shape = ctx.shape(0) if like else tuple(ctx.ints("shape") or ())
    ctx.require(min(shape, default=0) >= 0, f"shape {list(shape)}")
    dtype = ctx.dtype("dtype", ctx.type(0).dtype if like else DType.FLOAT)
    ctx.require(dtype.is_float, f"random numbers of {dtype.label}")
    work = DType.FLOAT if dtype.is_half else dtype
    own = _seed(ctx)
    if "Uniform" in ctx.node.op_type:
        low, high = ctx.float("low", 0.0), ctx.float("high", 1.0)
        width = const(high - low, work)

        def value(position: Expr, seed: Seed) -> Expr:
            return call("Add", const(low, work), call("Mul", width, uniform(position, seed, work)))

    else:
        mean, scale = ctx.float("mean", 0.0), ctx.float("scale", 1.0)

        def value(position: Expr, seed: Seed) -> Expr:
            return call(
                "Add",
                const(mean, work),
                call("Mul", const(scale, work), normal(position, seed, work)),
            )

    def filled(*operands: Expr) -> Expr:
        *given, position = operands
        return cast(value(position, _mixed(given, own)), dtype)

    given = _given(ctx)
    views = [View((0,) * len(shape))] * len(given)
    return ctx.b.map(filled, *given, shape=shape, views=views, coordinates=[dense(shape)])


@lowers("Bernoulli")
@lowers("Bernoulli", domain=DOMAIN)
def bernoulli(ctx: LoweringContext) -> str:
    """ONNX Bernoulli-22: 1 with the probability that the element gives."""
    x = ctx.type(0)
    dtype, own = ctx.dtype("dtype", x.dtype), _seed(ctx)
    ctx.require(x.dtype.is_float, f"probabilities {x}")
    work = DType.FLOAT if x.dtype.is_half else x.dtype

    def value(p: Expr, *more: Expr) -> Expr:
        *given, position = more
        return cast(call("Less", uniform(position, _mixed(given, own), work), cast(p, work)), dtype)

    given = _given(ctx)
    views = [dense(x.shape), *[View((0,) * len(x.shape))] * len(given)]
    return ctx.b.map(
        value, ctx.input(0), *given, shape=x.shape, views=views, coordinates=[dense(x.shape)]
    )


@lowers("Multinomial")
def multinomial(ctx: LoweringContext) -> str:
    """ONNX Multinomial-22: the class whose log-probability plus Gumbel noise is the largest."""
    x = ctx.type(0)
    ctx.require(len(x.shape) == 2 and x.dtype.is_float and x.shape[1] > 0, f"the input is {x}")
    dtype, seed = ctx.dtype("dtype", DType.INT32), _seed(ctx)
    ctx.require(dtype in (DType.INT32, DType.INT64), f"indices of {dtype.label}")
    batch, classes = x.shape
    count = ctx.int("sample_size", 1)
    ctx.require(count > 0, f"sample_size {count}")
    loops = (batch, count, classes)

    def noisy(p: Expr, position: Expr) -> Expr:
        gumbel = call(
            "Neg", call("Log", call("Neg", call("Log", uniform(position, seed, DType.FLOAT))))
        )
        return call("Add", cast(p, DType.FLOAT), gumbel)

    view = broadcast((batch, 1, classes), loops)
    scores = ctx.b.map(noisy, ctx.input(0), shape=loops, views=[view], coordinates=[dense(loops)])
    op = ArgReduce("Max", batch * count, classes, 1)
    drawn = ctx.b.emit1(op, [scores], TensorType(DType.INT64, (batch, count)))
    return ctx.b.cast(drawn, dtype)


def _given(ctx: LoweringContext) -> tuple[str, ...]:
    """Return the operand that is a part of the seed, if the operator has one."""
    if ctx.node.domain != DOMAIN:
        return ()
    last = len(ctx.inputs) - 1
    ctx.require(ctx.type(last).size == 1, f"the seed is {ctx.type(last)}")
    return (ctx.b.reshape(ctx.input(last), ()),)


def _mixed(given: Sequence[Expr], own: int) -> Seed:
    """Return the seed: the node's own, mixed with what a run gives."""
    return hashed(given[0], own) if given else own


def _seed(ctx: LoweringContext) -> int:
    if ctx.attribute("seed") is None:
        return crc32(ctx.name.encode())
    return int(np.float32(ctx.float("seed")).view(np.uint32))


# ---- the generator ------------------------------------------------------------------------------


def _bits(value: int) -> Expr:
    return const(value % 2**64, DType.UINT64)


Seed = int | Expr
"""A number, or 64 bits that are known when the network runs."""


def hashed(position: Expr, seed: Seed) -> Expr:
    """Return 64 well mixed bits of a position (Steele, Lea, Flood: splitmix64, OOPSLA 2014)."""
    if isinstance(seed, int):
        start = _bits(seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15)
    else:
        scattered = call("Mul", seed, _bits(0xD1342543DE82EF95))
        start = call("Add", scattered, _bits(0x9E3779B97F4A7C15))
    z = call("Add", call("Mul", cast(position, DType.UINT64), _bits(0x9E3779B97F4A7C15)), start)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z = call("Mul", call("BitwiseXor", z, call("ShiftRight", z, _bits(shift))), _bits(factor))
    return call("BitwiseXor", z, call("ShiftRight", z, _bits(31)))


def uniform(position: Expr, seed: Seed, dtype: DType) -> Expr:
    """Return a number inside (0, 1): a multiple of 2^-24 or 2^-53, plus half of that."""
    digits = 53 if dtype is DType.DOUBLE else 23
    high = call("ShiftRight", hashed(position, seed), _bits(64 - digits))
    centred = call("Add", cast(high, dtype), const(0.5, dtype))
    return call("Mul", centred, const(2.0**-digits, dtype))


def normal(position: Expr, seed: Seed, dtype: DType) -> Expr:
    """Return a standard normal number (Box and Muller's transform)."""
    radius = call(
        "Sqrt", call("Mul", const(-2.0, dtype), call("Log", uniform(position, seed, dtype)))
    )
    angle = call("Mul", const(2 * pi, dtype), uniform(position, _next(seed), dtype))
    return call("Mul", radius, call("Cos", angle))


def _next(seed: Seed) -> Seed:
    return seed + 1 if isinstance(seed, int) else call("Add", seed, _bits(1))
