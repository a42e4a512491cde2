"""Lowerings of onnxruntime's own attention operators."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from atc.ir.expr import Expr, call, cast, const
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.attention import (
    Mask,
    Rotary,
    attend,
    merge_heads,
    positions,
    rotated_layout,
    split_heads,
)
from atc.lower.concat_pad import join, pad
from atc.lower.context import LoweringContext
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import compute, like
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
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
    parts = columns(ctx, whole, [width // 3] * 3)
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
    return columns(ctx, whole, sizes)


def columns(ctx: LoweringContext, x: str, sizes: list[int]) -> list[str]:
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
        inputs[:3] = columns(ctx, inputs[0], sizes)
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
    return columns(ctx, ctx.input(3), [width, width, ctx.type(3).size - 2 * width])


def _packed(ctx: LoweringContext, x: str, i: int) -> str:
    """Return part i of [batch, steps, heads, parts, size] as [batch, heads, steps, size]."""
    batch, steps, heads, _, size = ctx.b.shape(x)
    s = row_major(ctx.b.shape(x))
    view = View((s[0], s[2], s[1], s[4]), i * s[3])
    return ctx.b.view(x, (batch, heads, steps, size), view)


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
