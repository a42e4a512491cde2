"""Lowerings of onnxruntime's own attention operators."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import sqrt

import numpy as np

from atc.dims import maximum, unlike
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
from atc.lower.concat_pad import join, pad
from atc.lower.context import Site
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import compute, like
from atc.lower.indexed_access import Place, gather_axis, scatter, times, total
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.quantize import integer_product, scale_ratio
from atc.lower.registry import lowers

# ---- masks --------------------------------------------------------------------------------------


def _penalty(site: Site, mask: str, keys: int) -> str:
    """Return what a mask of onnxruntime's Attention adds to scores [batch, heads, steps, keys].

    Shapes: [batch], the number of keys of each row; [2 * batch], their ends and their begins;
    [batch, keys] and [batch, steps, keys], where 0 hides. Hidden keys get `mask_filter_value`.
    """
    b, shape = site.b, site.b.shape(mask)
    hidden = const(site.float("mask_filter_value", -10000.0), DType.FLOAT)
    zero = const(0, DType.FLOAT)
    if len(shape) in (2, 3):
        site.require(shape[-1] == keys, f"the mask {list(shape)} for {keys} keys")
        seen = b.map(lambda m: call("Where", call("Greater", m, like(m, 0)), zero, hidden), mask)
        return b.reshape(seen, (shape[0], 1, 1 if len(shape) == 2 else shape[1], keys))
    batch = site.shape(0)[0]
    if len(shape) != 1 or shape[0] not in (batch, 2 * batch):
        raise site.unsupported(f"a mask of the shape {list(shape)}")
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
def attention(site: Site) -> tuple[str, ...]:
    """com.microsoft Attention: q, k and v come from one product with merged weights."""
    b, heads = site.b, site.int("num_heads")
    if site.int("do_rotary") or site.int("past_present_share_buffer") or site.has(6):
        raise site.unsupported("Attention with do_rotary or a shared past buffer")
    q, k, v = (split_heads(site, x, heads) for x in _projected(site))
    y, present = _attended(site, [q, k, v], site.optional(4), site.optional(3), site.optional(5))
    return (b.cast(y, site.type(0).dtype), present)


def _attended(site: Site, heads: list[str], past: str, mask: str, bias: str) -> tuple[str, str]:
    """Return [batch, steps, width], and keys and values with those of the past before them."""
    b, (q, k, v) = site.b, heads
    before = 0
    if past:
        before = b.shape(past)[3]
        k, v = (join(b, [_half(site, past, i), x], 2) for i, x in enumerate((k, v)))
    present = _stacked(site, k, v) if site.wants(1) else ""
    added = [_penalty(site, mask, b.shape(k)[2])] if mask else []
    added += [bias] if bias else []
    hides = Mask(tuple(added), bool(site.int("unidirectional")), offset=before)
    scale = site.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    return merge_heads(b, attend(site, q, k, v, hides, scale=scale).y), present


@lowers("QAttention", domain=MICROSOFT)
def quantized_attention(site: Site) -> tuple[str, ...]:
    """com.microsoft QAttention: Attention whose merged product is one of bytes."""
    if site.int("do_rotary") or site.int("past_present_share_buffer"):
        raise site.unsupported("QAttention with do_rotary or a shared past buffer")
    b, width = site.b, site.shape(1)[1]
    total = integer_product(site, site.input(0), site.input(1), site.optional(6), site.optional(7))
    one = b.scalar(1.0, DType.FLOAT)
    scale = scale_ratio(site, b.reshape(site.input(3), ()), site.input(4), one)
    scale = b.reshape(scale, ()) if b.type(scale).size == 1 else scale

    def real(t: Expr, s: Expr, c: Expr) -> Expr:
        return call("Add", call("Mul", cast(t, DType.FLOAT), s), c)

    whole = b.map(real, total, scale, b.cast(site.input(2), DType.FLOAT))
    parts = _columns(site, whole, [width // 3] * 3)
    heads = [split_heads(site, x, site.int("num_heads")) for x in parts]
    y, present = _attended(site, heads, site.optional(8), site.optional(5), "")
    return (b.cast(y, site.type(3).dtype), present)


def _projected(site: Site) -> list[str]:
    """Return the columns of x W + b that are q, k and v."""
    b, width = site.b, site.shape(1)[1]
    sizes = site.ints("qkv_hidden_sizes") or [width // 3] * 3
    site.require(len(sizes) == 3 and sum(sizes) == width, f"{sizes} columns of {site.type(1)}")
    dtype = site.type(0).dtype
    work = DType.FLOAT if dtype.is_half else dtype
    whole = product(site, b.cast(site.input(0), work), b.cast(site.input(1), work))
    if site.has(2):
        whole = b.map(lambda x, c: call("Add", x, c), whole, b.cast(site.input(2), work))
    whole = b.cast(whole, dtype)
    return _columns(site, whole, sizes)


def _columns(site: Site, x: str, sizes: list[int]) -> list[str]:
    """Return parts of the last axis."""
    shape = site.b.shape(x)
    site.require(sum(sizes) == shape[-1], f"{sizes} columns of {list(shape)}")
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    strides = row_major(shape)
    return [
        site.b.view(x, (*shape[:-1], n), View(strides, first))
        for n, first in zip(sizes, starts, strict=True)
    ]


def _half(site: Site, x: str, i: int) -> str:
    """Return x[i]."""
    shape = site.b.shape(x)
    strides = row_major(shape)
    return site.b.view(x, shape[1:], View(strides[1:], i * strides[0]))


def _stacked(site: Site, k: str, v: str) -> str:
    return join(site.b, [site.b.reshape(x, (1, *site.b.shape(x))) for x in (k, v)], 0)


# ---- attention with projected operands ----------------------------------------------------------


@lowers("MultiHeadAttention", domain=MICROSOFT)
def multi_head_attention(site: Site) -> tuple[str, ...]:
    """com.microsoft MultiHeadAttention: self and cross, packed or not, with a growing past."""
    b = site.b
    if site.has(8) or site.has(9):
        raise site.unsupported("MultiHeadAttention with a shared past buffer")
    q, k, v = _operands(site)
    past = 0
    if site.has(6):
        past = site.shape(6)[2]
        k, v = join(b, [site.input(6), k], 2), join(b, [site.input(7), v], 2)
    keys = b.shape(k)[2]
    added = [_penalty(site, site.input(4), keys)] if site.has(4) else []
    added += [site.input(5)] if site.has(5) else []
    mask = Mask(tuple(added), bool(site.int("unidirectional")), offset=past)
    scale = site.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    result = attend(site, q, k, v, mask, scale=scale)
    dtype = site.type(0).dtype
    return (
        b.cast(merge_heads(b, result.y), dtype), k, v, b.cast(result.probabilities, dtype),
    )  # fmt: skip


@lowers("DecoderMaskedMultiHeadAttention", domain=MICROSOFT)
def decoder_masked_attention(site: Site) -> tuple[str, ...]:
    """com.microsoft DecoderMaskedMultiHeadAttention of one step, without beams.

    The past may be a buffer for all steps, whose first `past_sequence_length` ones count.
    """
    if site.has(9):
        raise site.unsupported("beams")
    b, inputs = site.b, [site.optional(i) for i in (0, 1, 2, 10, 3, 4, 5, 6)]
    site.require(site.shape(0)[1] == 1, f"more than one step: {site.type(0)}")
    if not inputs[1]:
        past = b.shape(inputs[6])[1] * b.shape(inputs[6])[3] if inputs[6] else 0
        hidden = past or site.shape(0)[2] // 3
        sizes = [hidden, hidden, site.shape(0)[2] - 2 * hidden]
        inputs[:3] = _columns(site, inputs[0], sizes)
    if not (site.int("past_present_share_buffer") and inputs[6]):
        return multi_head_attention(replace(site, inputs=tuple(inputs)))
    q, k, v = _operands(replace(site, inputs=tuple(inputs[:4])))
    before = b.reshape(b.cast(site.input(7), DType.INT64), ())
    k, v = (_written(site, i, x, before) for i, x in ((5, k), (6, v)))
    limit, batch = b.shape(k)[2], b.shape(k)[0]
    added = [_penalty(site, _widened(site, 3, limit), limit)] if site.has(3) else []
    added += [_widened(site, 4, limit)] if site.has(4) else []
    counts = b.map(lambda n: call("Add", n, like(n, 1)), before, shape=(batch,), views=[View((0,))])
    scale = site.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    y = attend(site, q, k, v, Mask(tuple(added), lengths=counts), scale=scale).y
    return (b.cast(merge_heads(b, y), site.type(0).dtype), k, v)


def _written(site: Site, i: int, x: str, place: str) -> str:
    """Return the buffer (input i) with x as its step number `place`."""
    b, shape = site.b, site.shape(i)
    views = [View(row_major(shape)), View((shape[1] * shape[3], shape[3], 0, 1)), View((0,) * 4)]
    return b.map(
        lambda old, new, p, t: call("Where", call("Equal", t, p), new, old),
        site.input(i), x, place, shape=shape, views=views, coordinates=[View((0, 0, 1, 0))],
    )  # fmt: skip


def _widened(site: Site, i: int, keys: int) -> str:
    """Return a mask for so many keys; the new ones are beyond the steps that count."""
    rank = len(site.shape(i))
    return pad(site.b, site.input(i), [0] * rank, [*[0] * (rank - 1), keys - site.shape(i)[-1]])


def _operands(site: Site) -> list[str]:
    """Return q, k and v as [batch, heads, steps, size], with the bias added."""
    b, heads = site.b, site.int("num_heads")
    shape = site.shape(0)
    if len(shape) == 5:  # [batch, steps, heads, 3, size]
        site.require(not site.has(3), "a bias of packed operands")
        return [_packed(site, site.input(0), i) for i in range(3)]
    parts: list[str | None] = [site.input(0), None, None]
    biases = _bias_parts(site)
    apart: list[str] = []
    if site.has(1) and len(site.shape(1)) == 5:  # [batch, steps, heads, 2, size]
        site.require(not biases[1], "a bias of packed operands")
        apart = [_packed(site, site.input(1), i) for i in range(2)]
    else:
        parts[1:] = [site.input(1), site.input(2)]
    result = []
    for x, bias in zip(parts, biases, strict=True):
        if x is None:
            continue
        if len(b.shape(x)) == 4:  # already [batch, heads, steps, size]
            result.append(x)
            continue
        if bias:
            x = compute(site, lambda v, c: call("Add", v, c), x, bias)
        result.append(split_heads(site, x, heads))
    return [*result, *apart]


def _bias_parts(site: Site) -> list[str]:
    """Return the bias of q, k and v, '' where there is none."""
    if not site.has(3):
        return ["", "", ""]
    width = site.shape(0)[-1]
    return _columns(site, site.input(3), [width, width, site.type(3).size - 2 * width])


def _packed(site: Site, x: str, i: int) -> str:
    """Return part i of [batch, steps, heads, parts, size] as [batch, heads, steps, size]."""
    batch, steps, heads, _, size = site.b.shape(x)
    s = row_major(site.b.shape(x))
    view = View((s[0], s[2], s[1], s[4]), i * s[3])
    return site.b.view(x, (batch, heads, steps, size), view)


# ---- attention with a cache ---------------------------------------------------------------------


@dataclass(frozen=True)
class Cache:
    """The positions of GroupQueryAttention's steps: `before` each row's come that many keys."""

    before: int | str
    length: int
    """Keys of the present."""


@lowers("GroupQueryAttention", domain=MICROSOFT)
def group_query_attention(site: Site) -> tuple[str, ...]:
    """com.microsoft GroupQueryAttention on an unquantized cache, with rotary embeddings."""
    b, heads, groups = site.b, site.int("num_heads"), site.int("kv_num_heads")
    _refuse(site)
    q, k, v = _grouped_operands(site, heads, groups)
    batch, steps = b.shape(q)[:2]
    cache = _cache(site, steps)
    if site.int("do_rotary"):
        q, k = _rotated(site, q, k, cache)
    q, k, v = (b.transpose(x, (0, 2, 1, 3)) for x in (q, k, v))
    k, v = (_appended(site, i, x, cache) for i, x in ((3, k), (4, v)))
    window, causal = site.int("local_window_size", -1), bool(site.int("causal", 1))
    mask = Mask(
        (site.input(10),) if site.has(10) else (), causal, window - 1 if window > 0 else -1,
        offset=cache.before, lengths="" if causal else _totals(site, batch),
    )  # fmt: skip
    sink = site.optional(11)
    if site.int("smooth_softmax", -1) > 0 and not sink:
        sink = b.constant(np.zeros(heads, np.float32))
    scale = site.float("scale", 0.0) or 1 / sqrt(b.shape(q)[3])
    softcap = site.float("softcap", 0.0)
    y = attend(site, q, k, v, mask, scale=scale, softcap=softcap, sink=sink).y
    return (b.cast(merge_heads(b, y), site.type(0).dtype), k, v)


def _refuse(site: Site) -> None:
    for name in ("k_quant_type", "v_quant_type"):
        if site.str(name, "NONE") not in ("", "NONE"):
            raise site.unsupported("a quantized cache")
    if site.int("sliding_window_cache"):
        raise site.unsupported("a cache of the size of the window")
    if site.wants(3):
        raise site.unsupported("the output of the scores")


def _grouped_operands(site: Site, heads: int, groups: int) -> list[str]:
    """Return q, k and v as [batch, steps, heads, size], normalized where that is asked for."""
    b = site.b
    batch, steps, width = site.shape(0)
    parts = [site.input(0)]
    if site.has(1):
        parts += [site.input(1), site.input(2)]
    else:
        size = width // (heads + 2 * groups)
        parts = _columns(site, parts[0], [heads * size, groups * size, groups * size])
    counts = (heads, groups, groups)
    q, k, v = (
        b.reshape(x, (batch, b.shape(x)[1], n, b.shape(x)[2] // n))
        for x, n in zip(parts, counts, strict=True)
    )
    if site.has(14):
        epsilon = site.float("qk_norm_epsilon", 1e-6)
        q, k = (
            b.cast(trailing(site, x, 3, "MeanSquare", epsilon, [site.input(i)])[0], b.type(x).dtype)
            for x, i in ((q, 14), (k, 15))
        )
    return [q, k, v]


def _cache(site: Site, steps: int) -> Cache:
    """Return where the new steps go: behind as many keys as the row has had, none at the start."""
    (limit,) = site.ints_const(6, "total_sequence_length")
    held = site.shape(3)[2] if site.has(3) else 0
    length = maximum(limit, held)
    if limit == steps:
        return Cache(0, length)
    site.b.must_be_zero(maximum(0, steps - length))

    def count(last: Expr) -> Expr:
        own = call("Sub", cast(last, DType.INT64), const(steps - 1, DType.INT64))
        if unlike(limit, steps) == 1:
            return own
        at_the_start = call("Equal", const(limit, DType.INT64), const(steps, DType.INT64))
        return call("Where", at_the_start, const(0, DType.INT64), own)

    before = site.b.map(count, site.b.reshape(site.input(5), (site.shape(0)[0],)))
    return Cache(before, length)


def _totals(site: Site, batch: int) -> str:
    """Return INT64 [batch], the number of each row's keys."""
    last = site.b.reshape(site.input(5), (batch,))
    return site.b.map(lambda n: call("Add", cast(n, DType.INT64), const(1, DType.INT64)), last)


def _rotated(site: Site, q: str, k: str, cache: Cache) -> tuple[str, str]:
    b = site.b
    batch, steps = b.shape(q)[:2]
    places = site.input(9) if site.has(9) else positions(site, batch, steps, cache.before)
    cos, sin = (gather_axis(b, site.input(i), 0, places, proven=False) for i in (7, 8))
    angles = Rotary(cos, sin, bool(site.int("rotary_interleaved")))
    return rotate(site, q, angles, steps_axis=1), rotate(site, k, angles, steps_axis=1)


def _appended(site: Site, i: int, x: str, cache: Cache) -> str:
    """Return the present: the past (input i), the new steps behind each row's keys, then zeros."""
    b = site.b
    batch, groups, steps, size = b.shape(x)
    if isinstance(cache.before, int):
        return pad(b, x, [0] * 4, [0, 0, cache.length - steps, 0])
    shape = (batch, groups, cache.length, size)
    whole = b.expand(b.scalar(0.0, b.type(x).dtype), shape)
    if site.has(i):
        held = pad(b, site.input(i), [0] * 4, [0, 0, cache.length - site.shape(i)[2], 0])
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
    place = Place(loops, (cache.before,), (per_row,), (first,), address, proven=True)
    return scatter(b, whole, x, place, size)


# ---- rotary embeddings --------------------------------------------------------------------------


@lowers("RotaryEmbedding", domain=MICROSOFT)
def rotary_embedding(site: Site) -> str:
    """com.microsoft RotaryEmbedding: position_ids are one first position, or one per step."""
    b, shape = site.b, site.shape(0)
    if site.int("is_packed_batching"):
        raise site.unsupported("packed batches")
    places = site.input(1)
    if site.type(1).size == 1:
        steps = shape[2] if len(shape) == 4 else shape[1]
        places = positions(site, 1, steps, b.reshape(places, (1,)))
    cos, sin = (gather_axis(b, site.input(i), 0, places, proven=False) for i in (2, 3))
    heads = site.int("num_heads")
    if not heads and len(shape) == 3:
        heads = shape[2] // (2 * site.shape(2)[1])
    angles = Rotary(cos, sin, bool(site.int("interleaved")))
    return rotated_layout(site, site.input(0), heads, angles)
