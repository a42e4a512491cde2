"""Lowerings of onnxruntime's own attention operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atc.dims import maximum, not_equal
from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.attention import (
    Mask,
    Rotary,
    attend,
    merge_heads,
    positions,
    rotate,
    rotated_layout,
    split_heads,
)
from atc.lower.caches import append
from atc.lower.concat_pad import join, pad
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import compute, like
from atc.lower.indexed_access import IndexedAccess, gather_axis, scatter, times, total
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.quantize import integer_product, scale_ratio
from atc.lower.registry import lowers

# ---- masks --------------------------------------------------------------------------------------


def _penalty(ctx: LoweringContext, mask: str, keys: int) -> str:
    """Return what a mask of onnxruntime's Attention adds to scores [batch, heads, steps, keys].

    Shapes: [batch], the number of keys of each row; [2 * batch], their ends and their begins;
    [batch, keys] and [batch, steps, keys], where 0 hides. Hidden keys get `mask_filter_value`.
    """
    b, shape = ctx.b, ctx.b.shape(mask)
    hidden = const(ctx.float("mask_filter_value", -10000.0), DType.FLOAT)
    zero = const(0, DType.FLOAT)
    if len(shape) in (2, 3):
        ctx.require(shape[-1] == keys, f"the mask {list(shape)} for {keys} keys")
        seen = b.map(lambda m: call("Where", call("Greater", m, like(m, 0)), zero, hidden), mask)
        return b.reshape(seen, (shape[0], 1, 1 if len(shape) == 2 else shape[1], keys))
    batch = ctx.shape(0)[0]
    if len(shape) != 1 or shape[0] not in (batch, 2 * batch):
        raise ctx.unsupported(f"a mask of the shape {list(shape)}")
    begins = shape[0] == 2 * batch

    def inside(end: Expr, *rest: Expr) -> Expr:
        j = rest[-1]
        seen = call("Less", j, cast(end, DType.INT64))
        if begins:
            seen = call("And", seen, call("GreaterOrEqual", j, cast(rest[0], DType.INT64)))
        return call("Where", seen, zero, hidden)

    views = [View((1, 0)), View((1, 0), batch)][: 1 + begins]
    bias = b.map(inside, *[mask] * len(views), shape=(batch, keys), views=views,
                 coordinates=[View((0, 1))])  # fmt: skip
    return b.reshape(bias, (batch, 1, 1, keys))


# ---- attention with merged weights --------------------------------------------------------------


@lowers("Attention", domain=MICROSOFT)
def attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft Attention: q, k and v come from one product with merged weights."""
    b, heads = ctx.b, ctx.int("num_heads")
    if ctx.int("do_rotary") or ctx.int("past_present_share_buffer") or ctx.has(6):
        raise ctx.unsupported("Attention with do_rotary or a shared past buffer")
    q, k, v = (split_heads(ctx, x, heads) for x in _projected(ctx))
    y, present = _attended(ctx, [q, k, v], ctx.optional(4), ctx.optional(3), ctx.optional(5))
    return (b.cast(y, ctx.type(0).dtype), present)


def _attended(
    ctx: LoweringContext, heads: list[str], past: str, mask: str, bias: str
) -> tuple[str, str]:
    """Return [batch, steps, width], and keys and values with those of the past before them."""
    b, (q, k, v) = ctx.b, heads
    before = 0
    if past:
        before = b.shape(past)[3]
        k, v = (join(b, [_half(ctx, past, i), x], 2) for i, x in enumerate((k, v)))
    present = _stacked(ctx, k, v) if ctx.wants(1) else ""
    added = [_penalty(ctx, mask, b.shape(k)[2])] if mask else []
    added += [bias] if bias else []
    hides = Mask(tuple(added), bool(ctx.int("unidirectional")), offset=before)
    scale = ctx.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    return merge_heads(b, attend(ctx, q, k, v, hides, scale=scale).y), present


@lowers("QAttention", domain=MICROSOFT)
def quantized_attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft QAttention: Attention whose merged product is one of bytes."""
    if ctx.int("do_rotary") or ctx.int("past_present_share_buffer"):
        raise ctx.unsupported("QAttention with do_rotary or a shared past buffer")
    b, width = ctx.b, ctx.shape(1)[1]
    total = integer_product(ctx, ctx.input(0), ctx.input(1), ctx.optional(6), ctx.optional(7))
    one = b.scalar(1.0, DType.FLOAT)
    scale = scale_ratio(ctx, b.reshape(ctx.input(3), ()), ctx.input(4), one)
    scale = b.reshape(scale, ()) if b.type(scale).size == 1 else scale

    def real(t: Expr, s: Expr, c: Expr) -> Expr:
        return call("Add", call("Mul", cast(t, DType.FLOAT), s), c)

    whole = b.map(real, total, scale, b.cast(ctx.input(2), DType.FLOAT))
    parts = _columns(ctx, whole, [width // 3] * 3)
    heads = [split_heads(ctx, x, ctx.int("num_heads")) for x in parts]
    y, present = _attended(ctx, heads, ctx.optional(8), ctx.optional(5), "")
    return (b.cast(y, ctx.type(3).dtype), present)


def _projected(ctx: LoweringContext) -> list[str]:
    """Return the columns of x W + b that are q, k and v."""
    b, width = ctx.b, ctx.shape(1)[1]
    sizes = ctx.ints("qkv_hidden_sizes") or [width // 3] * 3
    ctx.require(len(sizes) == 3 and sum(sizes) == width, f"{sizes} columns of {ctx.type(1)}")
    dtype = ctx.type(0).dtype
    work = DType.FLOAT if dtype.is_half else dtype
    whole = product(ctx, b.cast(ctx.input(0), work), b.cast(ctx.input(1), work))
    if ctx.has(2):
        whole = b.map(lambda x, c: call("Add", x, c), whole, b.cast(ctx.input(2), work))
    whole = b.cast(whole, dtype)
    return _columns(ctx, whole, sizes)


def _columns(ctx: LoweringContext, x: str, sizes: list[int]) -> list[str]:
    """Return parts of the last axis."""
    shape = ctx.b.shape(x)
    ctx.require(sum(sizes) == shape[-1], f"{sizes} columns of {list(shape)}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    strides = row_major(shape)
    return [
        ctx.b.view(x, (*shape[:-1], n), View(strides, first))
        for n, first in zip(sizes, starts, strict=True)
    ]


def _half(ctx: LoweringContext, x: str, i: int) -> str:
    """Return x[i]."""
    shape = ctx.b.shape(x)
    strides = row_major(shape)
    return ctx.b.view(x, shape[1:], View(strides[1:], i * strides[0]))


def _stacked(ctx: LoweringContext, k: str, v: str) -> str:
    return join(ctx.b, [ctx.b.reshape(x, (1, *ctx.b.shape(x))) for x in (k, v)], 0)


# ---- attention with projected operands ----------------------------------------------------------


@lowers("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft MultiHeadAttention: self and cross, packed or not, with a growing past."""
    b = ctx.b
    if ctx.has(8) or ctx.has(9):
        raise ctx.unsupported("MultiHeadAttention with a shared past buffer")
    q, k, v = _operands(ctx)
    past = 0
    if ctx.has(6):
        past = ctx.shape(6)[2]
        k, v = join(b, [ctx.input(6), k], 2), join(b, [ctx.input(7), v], 2)
    keys = b.shape(k)[2]
    added = [_penalty(ctx, ctx.input(4), keys)] if ctx.has(4) else []
    added += [ctx.input(5)] if ctx.has(5) else []
    mask = Mask(tuple(added), bool(ctx.int("unidirectional")), offset=past)
    scale = ctx.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    result = attend(ctx, q, k, v, mask, scale=scale)
    dtype = ctx.type(0).dtype
    return (
        b.cast(merge_heads(b, result.y), dtype), k, v, b.cast(result.probabilities, dtype),
    )  # fmt: skip


@lowers("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft DecoderMaskedMultiHeadAttention of one step, without beams.

    The past may be a buffer for all steps, whose first `past_sequence_length` ones count.
    """
    if ctx.has(9):
        raise ctx.unsupported("beams")
    b, inputs = ctx.b, [ctx.optional(i) for i in (0, 1, 2, 10, 3, 4, 5, 6)]
    ctx.require(ctx.shape(0)[1] == 1, f"more than one step: {ctx.type(0)}")
    if not inputs[1]:
        past = b.shape(inputs[6])[1] * b.shape(inputs[6])[3] if inputs[6] else 0
        hidden = past or ctx.shape(0)[2] // 3
        sizes = [hidden, hidden, ctx.shape(0)[2] - 2 * hidden]
        inputs[:3] = _columns(ctx, inputs[0], sizes)
    if not (ctx.int("past_present_share_buffer") and inputs[6]):
        return multi_head_attention(replace(ctx, inputs=tuple(inputs)))
    q, k, v = _operands(replace(ctx, inputs=tuple(inputs[:4])))
    before = b.reshape(b.cast(ctx.input(7), DType.INT64), ())
    k, v = (_written(ctx, i, x, before) for i, x in ((5, k), (6, v)))
    limit, batch = b.shape(k)[2], b.shape(k)[0]
    added = [_penalty(ctx, _widened(ctx, 3, limit), limit)] if ctx.has(3) else []
    added += [_widened(ctx, 4, limit)] if ctx.has(4) else []
    counts = b.map(lambda n: call("Add", n, like(n, 1)), before, shape=(batch,), views=[View((0,))])
    scale = ctx.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    y = attend(ctx, q, k, v, Mask(tuple(added), lengths=counts), scale=scale).y
    return (b.cast(merge_heads(b, y), ctx.type(0).dtype), k, v)


def _written(ctx: LoweringContext, i: int, x: str, place: str) -> str:
    """Return the buffer (input i) with x as its step number `place`."""
    b, shape = ctx.b, ctx.shape(i)
    views = [View(row_major(shape)), View((shape[1] * shape[3], shape[3], 0, 1)), View((0,) * 4)]
    return b.map(
        lambda old, new, p, t: call("Where", call("Equal", t, p), new, old),
        ctx.input(i), x, place, shape=shape, views=views, coordinates=[View((0, 0, 1, 0))],
    )  # fmt: skip


def _widened(ctx: LoweringContext, i: int, keys: int) -> str:
    """Return a mask for so many keys; the new ones are beyond the steps that count."""
    rank = len(ctx.shape(i))
    return pad(ctx.b, ctx.input(i), [0] * rank, [*[0] * (rank - 1), keys - ctx.shape(i)[-1]])


def _operands(ctx: LoweringContext) -> list[str]:
    """Return q, k and v as [batch, heads, steps, size], with the bias added."""
    b, heads = ctx.b, ctx.int("num_heads")
    shape = ctx.shape(0)
    if len(shape) == 5:  # [batch, steps, heads, 3, size]
        ctx.require(not ctx.has(3), "a bias of packed operands")
        return [_packed(ctx, ctx.input(0), i) for i in range(3)]
    parts: list[str | None] = [ctx.input(0), None, None]
    biases = _bias_parts(ctx)
    unpacked: list[str] = []
    if ctx.has(1) and len(ctx.shape(1)) == 5:  # [batch, steps, heads, 2, size]
        ctx.require(not biases[1], "a bias of packed operands")
        unpacked = [_packed(ctx, ctx.input(1), i) for i in range(2)]
    else:
        parts[1:] = [ctx.input(1), ctx.input(2)]
    result = []
    for x, bias in zip(parts, biases, strict=True):
        if x is None:
            continue
        if len(b.shape(x)) == 4:  # already [batch, heads, steps, size]
            result.append(x)
            continue
        if bias:
            x = compute(ctx, lambda v, c: call("Add", v, c), x, bias)
        result.append(split_heads(ctx, x, heads))
    return [*result, *unpacked]


def _bias_parts(ctx: LoweringContext) -> list[str]:
    """Return the bias of q, k and v, '' where there is none."""
    if not ctx.has(3):
        return ["", "", ""]
    width = ctx.shape(0)[-1]
    return _columns(ctx, ctx.input(3), [width, width, ctx.type(3).size - 2 * width])


def _packed(ctx: LoweringContext, x: str, i: int) -> str:
    """Return part i of [batch, steps, heads, parts, size] as [batch, heads, steps, size]."""
    batch, steps, heads, _, size = ctx.b.shape(x)
    s = row_major(ctx.b.shape(x))
    view = View((s[0], s[2], s[1], s[4]), i * s[3])
    return ctx.b.view(x, (batch, heads, steps, size), view)


# ---- attention with a cache ---------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """The positions of GroupQueryAttention's steps: `before` each row's come that many keys."""

    before: int | str
    length: int
    """Keys of the present."""


@lowers("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft GroupQueryAttention on an unquantized cache, with rotary embeddings."""
    b, heads, groups = ctx.b, ctx.int("num_heads"), ctx.int("kv_num_heads")
    _refuse(ctx)
    q, k, v = _grouped_operands(ctx, heads, groups)
    batch, steps = b.shape(q)[:2]
    cache = _cache(ctx, steps)
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
    return (b.cast(merge_heads(b, y), ctx.type(0).dtype), k, v)


def _refuse(ctx: LoweringContext) -> None:
    for name in ("k_quant_type", "v_quant_type"):
        if ctx.str(name, "NONE") not in ("", "NONE"):
            raise ctx.unsupported("a quantized cache")
    if ctx.int("sliding_window_cache"):
        raise ctx.unsupported("a cache of the size of the window")
    if ctx.wants(3):
        raise ctx.unsupported("the output of the scores")


def _grouped_operands(ctx: LoweringContext, heads: int, groups: int) -> list[str]:
    """Return q, k and v as [batch, steps, heads, size], normalized where that is asked for."""
    b = ctx.b
    batch, steps, width = ctx.shape(0)
    parts = [ctx.input(0)]
    if ctx.has(1):
        parts += [ctx.input(1), ctx.input(2)]
    else:
        size = width // (heads + 2 * groups)
        parts = _columns(ctx, parts[0], [heads * size, groups * size, groups * size])
    counts = (heads, groups, groups)
    q, k, v = (
        b.reshape(x, (batch, b.shape(x)[1], n, b.shape(x)[2] // n))
        for x, n in zip(parts, counts, strict=True)
    )
    if ctx.has(14):
        epsilon = ctx.float("qk_norm_epsilon", 1e-6)
        q, k = (
            b.cast(trailing(ctx, x, 3, "MeanSquare", epsilon, [ctx.input(i)])[0], b.type(x).dtype)
            for x, i in ((q, 14), (k, 15))
        )
    return [q, k, v]


def _cache(ctx: LoweringContext, steps: int) -> Cache:
    """Return where the new steps go: behind as many keys as the row has had, none at the start."""
    (limit,) = ctx.ints_const(6, "total_sequence_length")
    held = ctx.shape(3)[2] if ctx.has(3) else 0
    length = maximum(limit, held)
    if limit == steps:
        return Cache(0, length)
    ctx.b.must_be_zero(maximum(0, steps - length))

    def count(last: Expr) -> Expr:
        own = call("Sub", cast(last, DType.INT64), const(steps - 1, DType.INT64))
        if not_equal(limit, steps) == 1:
            return own
        at_the_start = call("Equal", const(limit, DType.INT64), const(steps, DType.INT64))
        return call("Where", at_the_start, const(0, DType.INT64), own)

    before = ctx.b.map(count, ctx.b.reshape(ctx.input(5), (ctx.shape(0)[0],)))
    return Cache(before, length)


def _totals(ctx: LoweringContext, batch: int) -> str:
    """Return INT64 [batch], the number of each row's keys."""
    last = ctx.b.reshape(ctx.input(5), (batch,))
    return ctx.b.map(lambda n: call("Add", cast(n, DType.INT64), const(1, DType.INT64)), last)


def _rotated(ctx: LoweringContext, q: str, k: str, cache: Cache) -> tuple[str, str]:
    b = ctx.b
    batch, steps = b.shape(q)[:2]
    places = ctx.input(9) if ctx.has(9) else positions(ctx, batch, steps, cache.before)
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


# ---- rotary embeddings --------------------------------------------------------------------------


@lowers("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(ctx: LoweringContext) -> str:
    """com.microsoft RotaryEmbedding: position_ids are one first position, or one per step."""
    b, shape = ctx.b, ctx.shape(0)
    if ctx.int("is_packed_batching"):
        raise ctx.unsupported("packed batches")
    places = ctx.input(1)
    if ctx.type(1).size == 1:
        steps = shape[2] if len(shape) == 4 else shape[1]
        places = positions(ctx, 1, steps, b.reshape(places, (1,)))
    cos, sin = (gather_axis(b, ctx.input(i), 0, places, proven=False) for i in (2, 3))
    heads = ctx.int("num_heads")
    if not heads and len(shape) == 3:
        heads = shape[2] // (2 * ctx.shape(2)[1])
    angles = Rotary(cos, sin, bool(ctx.int("interleaved")))
    return rotated_layout(ctx, ctx.input(0), heads, angles)
