"""Draws attention, and what transformers have around it, with inputs that are rarely given."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz.draw import Draw, Made, Value
from fuzz.elementwise import Template


def attention(d: Draw) -> Made:
    d.opset = 23
    batch, kv = d.int(1, 2), d.int(1, 3)
    heads, rows, keys = kv * d.int(1, 3), d.int(1, 7), d.int(1, 9)
    size, width = d.pick((4, 8, 17)), d.pick((4, 8, 5))
    past = d.int(0, 5) if d.chance(0.4) else 0
    three = d.chance(0.4)
    attributes: dict[str, Any] = {}
    if three:
        q, k = d.like((batch, rows, heads * size)), d.like((batch, keys, kv * size))
        v = d.like((batch, keys, kv * width))
        attributes |= {"q_num_heads": heads, "kv_num_heads": kv}
    else:
        q, k = d.like((batch, heads, rows, size)), d.like((batch, kv, keys, size))
        v = d.like((batch, kv, keys, width))
    total = keys + past
    mask = None
    if d.chance(0.6):
        shape = d.pick(
            (
                (rows, total),
                (1, 1, rows, total),
                (batch, 1, rows, total),
                (batch, heads, rows, total),
            )
        )
        if d.chance(0.4):
            m = d.rng.random(shape) < 0.7
            m[..., 0] = True
            mask = d.new(m)
        else:
            mask = d.like(shape)
    inputs = [q, k, v, mask]
    if past:
        inputs += [d.like((batch, kv, past, size)), d.like((batch, kv, past, width))]
    attributes |= d.some(scale=0.3, is_causal=d.int(0, 1), softcap=d.pick((0.0, 2.0)))
    outputs = d.pick((1, 3, 4)) if past else d.pick((1, 1, 4))
    if outputs == 4:
        attributes["qk_matmul_output_mode"] = d.int(0, 3)
    return Made("Attention", inputs, attributes, outputs)


def attention24(d: Draw) -> Made:
    d.opset = 24
    batch, kv = d.int(1, 3), d.int(1, 3)
    heads, rows, keys, size = kv * d.int(1, 2), d.int(1, 5), d.int(2, 9), d.pick((4, 8))
    q, k = d.like((batch, heads, rows, size)), d.like((batch, kv, keys, size))
    lengths = d.new(d.rng.integers(1, keys + 1, batch).astype(np.int64))
    mask = d.like((rows, keys)) if d.chance(0.3) else None
    return Made(
        "Attention",
        [q, k, d.like(k.array.shape), mask, None, None, lengths],
        d.some(is_causal=d.int(0, 1), softcap=2.0),
    )


def rotary23(d: Draw) -> Made:
    d.opset = 23
    batch, rows, heads, half = d.int(1, 3), d.int(1, 5), d.int(1, 3), d.pick((2, 4, 8))
    part = d.pick((0, 0, 1))
    size = 2 * half + (d.pick((2, 4)) if part else 0)
    four = d.chance()
    x = d.like((batch, heads, rows, size) if four else (batch, rows, heads * size))
    attributes: dict[str, Any] = d.some(interleaved=d.int(0, 1))
    if not four:
        attributes["num_heads"] = heads
    if part:
        attributes["rotary_embedding_dim"] = 2 * half
    if d.chance():
        most = rows + 3
        ids = d.new(d.rng.integers(0, most, (batch, rows)).astype(np.int64))
        return Made(
            "RotaryEmbedding", [x, d.like((most, half)), d.like((most, half)), ids], attributes
        )
    caches = [d.like((batch, rows, half)), d.like((batch, rows, half))]
    return Made("RotaryEmbedding", [x, *caches], attributes)


def group_query(d: Draw) -> Made:
    batch, kv, size = d.int(1, 2), d.int(1, 2), d.pick((8, 16))
    heads = kv * d.int(1, 3)
    first = d.chance()
    rows = d.int(1, 6) if first else 1
    most = d.int(rows + 1, 12)
    packed = d.chance(0.3)
    if packed:
        q, k, v = d.like((batch, rows, (heads + 2 * kv) * size)), None, None
    else:
        q, k, v = (
            d.like((batch, rows, heads * size)),
            *(d.like((batch, rows, kv * size)) for _ in "kv"),
        )
    if first:
        pasts: list[Value | None] = (
            [None, None]
            if d.chance()
            else [d.like((batch, kv, most, size), constant=False) for _ in "kv"]
        )
        lengths = np.full(batch, rows - 1)
        total = rows
    else:
        pasts = [d.like((batch, kv, most, size), constant=False) for _ in "kv"]
        lengths = d.rng.integers(0, most, batch)
        total = int(lengths.max()) + 1
    attributes: dict[str, Any] = {"num_heads": heads, "kv_num_heads": kv}
    attributes |= d.some(scale=0.3, softcap=2.0, local_window_size=d.int(1, 4))
    inputs = [
        q,
        k,
        v,
        *pasts,
        d.new(lengths.astype(np.int32), True),
        d.new(np.array(total, np.int32), True),
    ]
    if d.chance(0.4):
        attributes |= {"do_rotary": 1} | d.some(rotary_interleaved=d.int(0, 1))
        inputs += [d.like((16, size // 2), constant=True), d.like((16, size // 2), constant=True)]
    return Made("GroupQueryAttention", inputs, attributes, 3, "com.microsoft")


def mha_past(d: Draw) -> Made:
    batch, heads, size = d.int(1, 2), d.int(1, 3), d.pick((4, 8))
    rows, past = d.int(1, 5), d.int(1, 5)
    width = heads * size
    keys = rows
    form = d.pick(("past", "past", "packed qkv", "packed kv", "cross4"))
    q = d.like((batch, rows, width))
    inputs: list[Value | None]
    outputs = 1
    bias = d.like((3 * width,)) if d.chance(0.4) else None
    total = keys
    match form:
        case "past":
            total = keys + past
            pasts = [d.like((batch, heads, past, size)) for _ in "kv"]
            inputs = [
                q,
                d.like((batch, keys, width)),
                d.like((batch, keys, width)),
                bias,
                None,
                None,
                *pasts,
            ]
            outputs = 3
        case "packed qkv":
            inputs = [d.like((batch, rows, heads, 3, size)), None, None, None, None, None]
        case "packed kv":
            inputs = [q, d.like((batch, keys, heads, 2, size)), None, None, None, None]
        case _:
            keys = total = d.int(1, 6)
            inputs = [q, *(d.like((batch, heads, keys, size)) for _ in "kv"), None, None, None]
    if d.chance(0.4):
        inputs[5] = d.like((d.pick((1, batch)), d.pick((1, heads)), rows, total))
    if d.chance(0.3):
        inputs[4] = d.new((d.rng.random((batch, total)) < 0.7).astype(np.int32))
    more = d.some(scale=0.3)
    if form != "cross4" and d.chance():  # elsewhere onnxruntime lets the last row see all
        more["unidirectional"] = 1
    return Made(
        "MultiHeadAttention", inputs, {"num_heads": heads, **more}, outputs, "com.microsoft"
    )


def attention_past(d: Draw) -> Made:
    batch, rows, heads, inner, past = (
        d.int(1, 2),
        d.int(1, 4),
        d.int(1, 3),
        d.pick((4, 8)),
        d.int(1, 4),
    )
    size = d.pick((4, 8))
    width = heads * size
    x = d.like((batch, rows, inner))
    w, bias = d.like((inner, 3 * width), constant=True), d.like((3 * width,), constant=True)
    mask = None
    if d.chance(0.4):
        mask = d.new((d.rng.random((batch, past + rows)) < 0.8).astype(np.int32))
    extra = d.like((batch, heads, rows, rows + past)) if d.chance(0.3) else None
    return Made(
        "Attention",
        [x, w, bias, mask, d.like((2, batch, heads, past, size)), extra],
        {"num_heads": heads, **d.some(unidirectional=d.int(0, 1))},
        2,
        "com.microsoft",
    )


def skip_simplified(d: Draw) -> Made:
    x = d.tensor("f", low=3, high=3, zero=False)
    n = x.array.shape[-1:]
    bias = d.like(n) if d.chance() else None
    return Made(
        "SkipSimplifiedLayerNormalization",
        [x, d.like(x.array.shape), d.like(n), bias],
        d.some(epsilon=0.01),
        4 if d.chance(0.5) else 1,
        "com.microsoft",
    )


def skip_layer(d: Draw) -> Made:
    x = d.tensor("f", low=3, high=3, zero=False)
    n = x.array.shape[-1:]
    skip = d.pick((x.array.shape, (1, *x.array.shape[1:]), x.array.shape[1:]))
    beta = d.like(n) if d.chance() else None
    bias = d.like(n) if d.chance() else None
    return Made(
        "SkipLayerNormalization",
        [x, d.like(skip), d.like(n), beta, bias],
        d.some(epsilon=0.01),
        4 if d.chance(0.5) else 1,
        "com.microsoft",
    )


def embed_layer(d: Draw) -> Made:
    batch, rows, width, words = d.int(1, 3), d.int(1, 5), d.pick((4, 8, 9)), 11
    ids = d.new(d.rng.integers(0, words, (batch, rows)).astype(np.int32), False)
    seg = d.new(d.rng.integers(0, 2, (batch, rows)).astype(np.int32), False) if d.chance() else None
    mask = (
        d.new((d.rng.random((batch, rows)) < 0.7).astype(np.int32), False) if d.chance() else None
    )
    tables = [d.like((words, width)), d.like((9, width)), d.like((2, width)) if seg else None]
    return Made(
        "EmbedLayerNormalization",
        [ids, seg, *tables, d.like((width,)), d.like((width,)), mask],
        d.some(epsilon=0.01),
        2,
        "com.microsoft",
    )


TEMPLATES: dict[str, Template] = {
    "Attention": attention,
    "Attention of lengths": attention24,
    "RotaryEmbedding": rotary23,
    "GroupQueryAttention": group_query,
    "MultiHeadAttention": mha_past,
    "Attention with a past": attention_past,
    "SkipSimplifiedLayerNormalization": skip_simplified,
    "SkipLayerNormalization": skip_layer,
    "EmbedLayerNormalization": embed_layer,
}
