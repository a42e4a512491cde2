"""Lowering of onnxruntime's own attention with a cache of keys and values."""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

from atc.dims import is_dynamic, maximum, not_equal
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.attention import Mask, Rotary, attend, merge_heads, positions, rotate
from atc.lower.caches import append
from atc.lower.concat_pad import pad
from atc.lower.context import LoweringContext
from atc.lower.contrib.attention import columns
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import like
from atc.lower.indexed_access import (
    IndexedAccess,
    clamped,
    gather,
    gather_axis,
    index,
    scatter,
    times,
    total,
)
from atc.lower.normalize import trailing
from atc.lower.registry import lowers

_ZERO = index(0)


@dataclass(frozen=True)
class Cache:
    """The positions of GroupQueryAttention's steps: `before` each row's come that many keys."""

    before: int | str
    length: int
    """Keys that are attended to, those of rows that have fewer included."""
    first: int | str
    """The position of each row's first new step in its text."""
    kept: str = ""
    """Where each row's keys begin that a cache of the size of a window keeps."""


@lowers("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft GroupQueryAttention on an unquantized cache, with rotary embeddings."""
    b, heads, groups = ctx.b, ctx.int("num_heads"), ctx.int("kv_num_heads")
    _refuse(ctx)
    q, k, v = _operands(ctx, heads, groups)
    batch, steps = b.shape(q)[:2]
    cache = _windowed(ctx, steps) if ctx.int("sliding_window_cache") else _cache(ctx, steps)
    if ctx.int("do_rotary"):
        q, k = _rotated(ctx, q, k, cache)
    q, k, v = (b.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    k, v = (_appended(ctx, i, x, cache) for i, x in ((3, k), (4, v)))
    window, causal = ctx.int("local_window_size", -1), bool(ctx.int("causal", 1))
    mask = Mask(
        (ctx.input(10),) if ctx.has(10) else (), causal, window - 1 if window > 0 else -1,
        offset=cache.before, lengths="" if causal else _totals(ctx, batch),
    )  # fmt: skip
    sink = ctx.optional(11)
    if ctx.int("smooth_softmax", -1) > 0 and not sink:
        sink = b.constant(np.zeros(heads, np.float32))
    scale = ctx.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    softcap = ctx.float("softcap", 0.0)
    y = attend(ctx, q, k, v, mask, scale=scale, softcap=softcap, sink=sink).y
    if cache.kept:
        k, v = (_from(ctx, x, cache.kept, ctx.shape(3)[2]) for x in (k, v))
    return (b.cast(merge_heads(b, y), ctx.type(0).dtype), k, v)


def _refuse(ctx: LoweringContext) -> None:
    for name in ("k_quant_type", "v_quant_type"):
        if ctx.str(name, "NONE") not in ("", "NONE"):
            raise ctx.unsupported("a quantized cache")
    if ctx.wants(3):
        raise ctx.unsupported("the output of the scores")
    if ctx.has(16):
        raise ctx.unsupported("query_seqlens, steps that don't count")


def _operands(ctx: LoweringContext, heads: int, groups: int) -> list[str]:
    """Return q, k and v as [batch, steps, heads, size], normalized where that is asked for."""
    b = ctx.b
    batch, steps, width = ctx.shape(0)
    parts = [ctx.input(0)]
    if ctx.has(1):
        parts += [ctx.input(1), ctx.input(2)]
    else:
        size = width // (heads + 2 * groups)
        parts = columns(ctx, parts[0], [heads * size, groups * size, groups * size])
    counts = (heads, groups, groups)
    q, k, v = (
        b.reshape(x, (batch, b.shape(x)[1], n, b.shape(x)[2] // n))
        for x, n in zip(parts, counts, strict=True)
    )
    if ctx.has(14):
        both = ctx.float("qk_norm_epsilon", 1e-6)
        q, k = (
            _normalized(ctx, x, i, ctx.float(f"{name}_norm_epsilon", both))
            for x, i, name in ((q, 14, "q"), (k, 15, "k"))
        )
    return [q, k, v]


def _normalized(ctx: LoweringContext, x: str, i: int, epsilon: float) -> str:
    """Return heads by the root of their mean square, times the weights that are input i."""
    y = trailing(ctx, x, 3, "MeanSquare", epsilon, [ctx.input(i)])[0]
    return ctx.b.cast(y, ctx.b.type(x).dtype)


def _cache(ctx: LoweringContext, steps: int) -> Cache:
    """Return where the new steps go: behind as many keys as the row has had, none at the start."""
    (limit,) = ctx.ints_const(6, "total_sequence_length")
    held = ctx.shape(3)[2] if ctx.has(3) else 0
    length = maximum(limit, held)
    before = _before(ctx, limit, steps)
    if limit != steps:
        ctx.b.must_be_zero(maximum(0, steps - length))
    return Cache(before, length, before)


def _before(ctx: LoweringContext, limit: int, steps: int) -> int | str:
    """Return how many keys each row has had before its new steps, given the largest total."""
    if limit == steps:
        return 0

    def count(last: Expr) -> Expr:
        own = call("Sub", cast(last, DType.INT64), const(steps - 1, DType.INT64))
        if not_equal(limit, steps) == 1:
            return own
        at_the_start = call("Equal", const(limit, DType.INT64), const(steps, DType.INT64))
        return call("Where", at_the_start, const(0, DType.INT64), own)

    return ctx.b.map(count, ctx.b.reshape(ctx.input(5), (ctx.shape(0)[0],)))


def _windowed(ctx: LoweringContext, steps: int) -> Cache:
    """Return where the new steps go if the cache keeps a window of the last keys.

    Its rows begin with those that are kept, as many as `_held` says. They are attended to with the
    new ones behind them, then the last of both are kept.
    """
    b, batch, window = ctx.b, ctx.shape(0)[0], ctx.int("local_window_size", -1)
    room = ctx.shape(3)[2] if ctx.has(3) else 0
    if is_dynamic(room):
        raise ctx.unsupported(
            "a cache of the size of the window with a range", hint="give it one length, at least "
            f"that of the window: {window}",
        )  # fmt: skip
    ctx.require(0 < window <= room, f"a cache of {room} keys for a window of {window}")
    if ctx.has(10):
        raise ctx.unsupported("attention_bias with a cache of the size of the window")
    (limit,) = ctx.ints_const(6, "total_sequence_length")
    first = _before(ctx, limit, steps)
    past: list[str] = []
    if isinstance(first, str):
        past = [first, b.map(lambda n: _held(n, room, window), first)]

    def begin(last: Expr, before: Expr = _ZERO, held: Expr = _ZERO) -> Expr:
        count = call("Add", cast(last, DType.INT64), index(1))
        both = call("Add", held, call("Sub", count, before))
        return call("Sub", both, _held(count, room, window))

    kept = b.map(begin, b.reshape(ctx.input(5), (batch,)), *past)
    if past:
        return Cache(past[1], room + steps, first, kept)
    return Cache(first, steps, first, kept)


def _held(count: Expr, room: int, window: int) -> Expr:
    """Return how many keys a cache with this room holds after so many, none less than a window.

    It fills up; then room - window + 1 are dropped at a time.
    """
    dropped = room - window + 1
    over = call("Sub", count, index(room - dropped + 1))
    times_ = call("Div", call("Max", over, index(0)), index(dropped))
    return call("Sub", count, times(times_, dropped))


def _from(ctx: LoweringContext, x: str, begin: str, count: int) -> str:
    """Return so many keys from each row's begin on, the last one again behind the end."""
    b = ctx.b
    batch, groups, length, size = b.shape(x)

    def address(first: Expr, base: Expr, step: Expr) -> Expr:
        return total(base, times(clamped(total(first, step), length), size))

    loops, bases = (batch, groups, count), View((groups * length * size, length * size, 0))
    place = IndexedAccess(
        loops, (begin,), (View((1, 0, 0)),), (bases, View((0, 0, 1))), address, proven=True
    )
    return gather(b, x, place, size, (*loops, size))


def _totals(ctx: LoweringContext, batch: int) -> str:
    """Return INT64 [batch], the number of each row's keys."""
    last = ctx.b.reshape(ctx.input(5), (batch,))
    return ctx.b.map(lambda n: call("Add", cast(n, DType.INT64), index(1)), last)


def _rotated(ctx: LoweringContext, q: str, k: str, cache: Cache) -> tuple[str, str]:
    b = ctx.b
    batch, steps = b.shape(q)[:2]
    places = ctx.input(9) if ctx.has(9) else positions(ctx, batch, steps, cache.first)
    cos, sin = (gather_axis(b, ctx.input(i), 0, places, proven=False) for i in (7, 8))
    angles = Rotary(cos, sin, bool(ctx.int("rotary_interleaved")))
    return rotate(ctx, q, angles, steps_axis=1), rotate(ctx, k, angles, steps_axis=1)


def _appended(ctx: LoweringContext, i: int, x: str, cache: Cache) -> str:
    """Return the present: the past (input i), the new steps behind each row's keys, then zeros."""
    b = ctx.b
    batch, groups, steps, size = b.shape(x)
    grown = append(b, ctx.input(i), x, 2, cache.before) if ctx.has(i) else ""
    if grown:
        return grown
    if isinstance(cache.before, int):
        return pad(b, x, [0] * 4, [0, 0, cache.length - steps, 0])
    shape = (batch, groups, cache.length, size)
    whole = b.expand(b.scalar(0.0, b.type(x).dtype), shape)
    if ctx.has(i):
        held = pad(b, ctx.input(i), [0] * 4, [0, 0, cache.length - ctx.shape(i)[2], 0])
        whole = b.map(
            lambda v, n, t: call("Where", call("Less", t, n), v, like(v, 0)), held, cache.before,
            shape=shape, views=[View(row_major(shape)), View((1, 0, 0, 0))],
            coordinates=[View((0, 0, 1, 0))],
        )  # fmt: skip
    last = const(cache.length - steps, DType.INT64)

    def address(before: Expr, base: Expr) -> Expr:
        at = call("Max", call("Min", before, last), const(0, DType.INT64))
        return total(base, times(at, size))

    loops, per_row, first = (batch, groups, steps), View((1, 0, 0)), View(row_major(shape)[:3])
    place = IndexedAccess(loops, (cache.before,), (per_row,), (first,), address, proven=True)
    return scatter(b, whole, x, place, size)
