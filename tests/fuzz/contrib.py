"""Draws nodes of onnxruntime's own operators; it is their only reference."""

from __future__ import annotations

from typing import Any

import numpy as np
from fuzz.draw import Draw, Made, Unsuitable, Value
from fuzz.elementwise import Template

DOMAIN = "com.microsoft"


def _made(op: str, inputs: list[Value | None], outputs: int = 1, **attributes: Any) -> Made:
    while inputs and inputs[-1] is None:
        inputs.pop()
    return Made(op, inputs, attributes, outputs, DOMAIN)


def biased(op: str) -> Template:
    def draw(d: Draw) -> Made:
        x = d.tensor("f", low=1, zero=False)
        bias = d.like(x.array.shape[-1:]) if op == "BiasGelu" or d.chance() else None
        return _made(op, [x, bias])

    return draw


def simple(op: str) -> Template:
    def draw(d: Draw) -> Made:
        return _made(op, [d.tensor("f", low=1, zero=False)])

    return draw


def skip_layer_normalization(d: Draw) -> Made:
    x = d.tensor("f", low=3, high=3, zero=False)
    n = x.array.shape[-1:]
    beta = d.like(n) if d.chance() else None
    bias = d.like(n) if d.chance() else None
    return _made("SkipLayerNormalization", [x, d.like(x.array.shape), d.like(n), beta, bias],
                 **d.some(epsilon=0.01))  # fmt: skip


def fused_matmul(d: Draw) -> Made:
    rank = d.int(2, 4)
    batch = d.ints(rank - 2, 1, 3)
    m, k, n = d.int(1, 9), d.int(1, 9), d.pick((1, 5, 8, 17))
    ta, tb = d.int(0, 1), d.int(0, 1)
    a = d.like((*batch, *((k, m) if ta else (m, k))))
    b = d.like((*batch, *((n, k) if tb else (k, n))))
    return _made("FusedMatMul", [a, b], transA=ta, transB=tb, **d.some(alpha=0.3))


def _scale(d: Draw) -> Value:
    return d.new(np.float32(d.rng.uniform(0.02, 0.2)), d.chance(0.8))


def _zero(d: Draw, kind: str) -> Value:
    return d.new(d.array((), kind), True)


def qlinear_binary(op: str) -> Template:
    def draw(d: Draw) -> Made:
        kind = d.pick("bB")
        a = d.tensor(kind, low=1, zero=False)
        b = d.partner(a.array.shape, kind)
        parts = [p for v in (a, b) for p in (v, _scale(d), _zero(d, kind))]
        return _made(op, [*parts, _scale(d), _zero(d, kind)])

    return draw


def qlinear_unary(op: str) -> Template:
    def draw(d: Draw) -> Made:
        kind = d.pick("bB")
        x = d.tensor(kind, low=1, zero=False)
        more: dict[str, Any] = d.some(alpha=0.1) if op == "QLinearLeakyRelu" else {}
        scales = [_scale(d), _zero(d, kind), _scale(d), _zero(d, kind)]
        return _made(op, [x, *scales], **more)

    return draw


def qlinear_softmax(d: Draw) -> Made:
    kind = d.pick("bB")
    x = d.tensor(kind, low=1, zero=False)
    y_scale = d.new(np.float32(1 / 255), True)
    zero = d.new(np.array(0 if kind == "B" else -128, np.uint8 if kind == "B" else np.int8), True)
    scale = d.new(np.float32(d.rng.uniform(0.02, 0.2)), True)
    return _made("QLinearSoftmax", [x, scale, _zero(d, kind), y_scale, zero],
                 axis=d.axis(x.array.ndim), opset=13)  # fmt: skip


def qlinear_concat(d: Draw) -> Made:
    kind = d.pick("bB")
    x = d.tensor(kind, low=1, zero=False)
    axis = d.axis(x.array.ndim)
    inputs: list[Value | None] = [_scale(d), _zero(d, kind), x, _scale(d), _zero(d, kind)]
    for _ in range(d.int(0, 2)):
        shape = list(x.array.shape)
        shape[axis] = d.int(1, 4)
        inputs += [d.like(shape, kind), _scale(d), _zero(d, kind)]
    return _made("QLinearConcat", inputs, axis=axis)


def qlinear_pool(op: str) -> Template:
    def draw(d: Draw) -> Made:
        kind = d.pick("bB")
        x = d.tensor(kind, low=3 if "Global" in op else 4, high=4, zero=False)
        more: dict[str, Any] = {}
        if "Global" not in op:
            kernel = d.ints(2, 1, 3)
            if any(k > n for k, n in zip(kernel, x.array.shape[2:], strict=True)):
                raise Unsuitable
            more = {"kernel_shape": kernel, **d.some(strides=d.ints(2, 1, 2))}
            more |= d.some(**{d.pick(("ceil_mode", "count_include_pad")): 1})
            if d.chance():
                more["pads"] = [k // 2 for k in kernel] * 2
        return _made(op, [x, _scale(d), _zero(d, kind), _scale(d), _zero(d, kind)], **more)

    return draw


def qgemm(d: Draw) -> Made:
    ka, kb = d.pick(("BB", "Bb", "bb"))
    m, k, n = d.int(1, 7), d.int(1, 20), d.int(1, 17)
    ta, tb = d.int(0, 1), d.int(0, 1)
    a = d.like((k, m) if ta else (m, k), ka)
    b = d.like((n, k) if tb else (k, n), kb, True)
    c = d.like(d.pick(((n,), (m, n), (1, n))), "i") if d.chance() else None
    out = [_scale(d), _zero(d, ka)] if d.chance() else []
    return _made("QGemm", [a, _scale(d), _zero(d, ka), b, _scale(d), _zero(d, kb), c, *out],
                 transA=ta, transB=tb, **d.some(alpha=0.5))  # fmt: skip


def dynamic_quantize_matmul(d: Draw) -> Made:
    kind = d.pick("bB")
    a = d.tensor("f", low=2, high=3, zero=False)
    k, n = a.array.shape[-1], d.int(1, 17)
    per_column = d.chance()
    scale = d.new(d.rng.uniform(0.02, 0.2, n).astype(np.float32)) if per_column else _scale(d)
    zero = d.like((n,), kind, True) if per_column else _zero(d, kind)
    bias = d.like((n,)) if d.chance() else None
    inputs = [a, d.like((k, n), kind, True), scale, zero if d.chance() or bias else None, bias]
    return _made("DynamicQuantizeMatMul", inputs)


def matmul_nbits(d: Draw) -> Made:
    block, n, blocks = d.pick((16, 32)), d.int(1, 9), d.int(1, 3)
    k = block * blocks - (d.int(0, block - 1) if d.chance(0.3) else 0)
    a = d.like((d.int(1, 5), k))
    b = d.new(d.rng.integers(0, 256, (n, blocks, block // 2)).astype(np.uint8), True)
    scales = d.new(d.rng.uniform(0.01, 0.2, n * blocks).astype(np.float32), True)
    zeros = d.new(d.rng.integers(0, 256, n * -(-blocks // 2)).astype(np.uint8), True)
    return _made("MatMulNBits", [a, b, scales, zeros if d.chance() else None],
                 K=k, N=n, bits=4, block_size=block)  # fmt: skip


def rotary_embedding(d: Draw) -> Made:
    batch, rows, heads, half = d.int(1, 3), d.int(1, 5), d.int(1, 3), d.pick((2, 4, 8))
    x = d.like((batch, rows, heads * half * 2))
    most = rows + d.int(0, 4)
    if d.chance():
        ids = d.new(np.array([d.int(0, most - rows)]))
    else:
        ids = d.new(d.rng.integers(0, most, (batch, rows)))
    caches = [d.like((most, half)), d.like((most, half))]
    return _made("RotaryEmbedding", [x, ids, *caches], num_heads=heads,
                 **d.some(interleaved=d.int(0, 1)))  # fmt: skip


def multi_head_attention(d: Draw) -> Made:
    batch, rows, keys, heads = d.int(1, 3), d.int(1, 9), d.int(1, 17), d.int(1, 4)
    size, width = heads * d.pick((4, 8, 16)), heads * d.pick((4, 8, 12))
    q, k = d.like((batch, rows, size)), d.like((batch, keys, size))
    v = d.like((batch, keys, width))
    bias = d.like((2 * size + width,)) if d.chance() else None
    mask = None
    if d.chance():
        if d.chance():
            mask = d.new(d.rng.integers(1, keys + 1, batch).astype(np.int32))
        else:
            mask = d.new((d.rng.random((batch, keys)) < 0.7).astype(np.int32))
    extra = d.like((batch, heads, rows, keys)) if d.chance(0.3) else None
    return _made("MultiHeadAttention", [q, k, v, bias, mask, extra], num_heads=heads,
                 **d.some(scale=0.3, mask_filter_value=-1000.0))  # fmt: skip


def attention(d: Draw) -> Made:
    batch, rows, heads, inner = d.int(1, 3), d.int(1, 9), d.int(1, 4), d.pick((4, 8, 17))
    size = heads * d.pick((4, 8, 16))
    x = d.like((batch, rows, inner))
    w, bias = d.like((inner, 3 * size), constant=True), d.like((3 * size,), constant=True)
    mask = None
    match d.int(0, 3):
        case 1:
            mask = d.new((d.rng.random((batch, rows)) < 0.7).astype(np.int32))
        case 2:
            mask = d.new(d.rng.integers(1, rows + 1, batch).astype(np.int32))
        case 3:
            mask = d.new((d.rng.random((batch, rows, rows)) < 0.7).astype(np.int32))
    return _made("Attention", [x, w, bias, mask], num_heads=heads,
                 **d.some(unidirectional=d.int(0, 1), scale=0.3))  # fmt: skip


def trilu(d: Draw) -> Made:
    x = d.tensor("fl", low=2, zero=False)
    k = d.new(np.asarray(d.int(-6, 6)), True) if d.chance(0.7) else None
    return _made("Trilu", [x, k], **d.some(upper=d.int(0, 1)))


def inverse(d: Draw) -> Made:
    n = d.int(1, 6)
    return _made("Inverse", [d.new((d.array((d.int(1, 3), n, n)) + 4 * np.eye(n)).astype("f"))])


def expand_dims(d: Draw) -> Made:
    x = d.tensor("f")
    axis = np.array(d.int(-x.array.ndim - 1, x.array.ndim), np.int32)
    return _made("ExpandDims", [x, d.new(axis, True)])


def distances(d: Draw) -> Made:
    width = d.int(1, 9)
    rows = [d.like((d.int(1, 7), width)) for _ in range(2)]
    return _made("CDist", [*rows], metric=d.pick(("euclidean", "sqeuclidean")))


def unfold(d: Draw) -> Made:
    x = d.tensor("f", low=1, zero=False)
    axis = d.axis(x.array.ndim)
    return _made("UnfoldTensor", [x], dim=axis, size=d.int(1, x.array.shape[axis]),
                 step=d.int(1, 3))  # fmt: skip


def ngram_repeat_block(d: Draw) -> Made:
    batch, words = d.int(1, 3), d.int(2, 9)
    ids = d.rng.integers(0, min(words, 4), (batch, d.int(1, 9))).astype(np.int64)
    return _made("NGramRepeatBlock", [d.new(ids, False), d.like((batch, words))],
                 ngram_size=d.int(1, 4))  # fmt: skip


def murmur_hash(d: Draw) -> Made:
    return _made("MurmurHash3", [d.tensor(d.pick("fil"))], positive=1, **d.some(seed=d.int(0, 99)))


def crop_and_resize(d: Draw) -> Made:
    images, boxes = d.int(1, 3), d.int(1, 4)
    x = d.like((images, d.int(1, 3), d.int(1, 7), d.int(1, 7)))
    corners = d.rng.uniform(-0.2, 1.2, (boxes, 4)).astype(np.float32)
    which = d.rng.integers(0, images, boxes).astype(np.int32)
    size = np.array(d.ints(2, 1, 5), np.int32)
    return _made("CropAndResize", [x, d.new(corners, False), d.new(which, False),
                                   d.new(size, True)],
                 extrapolation_value=0.5)  # fmt: skip


def experts(d: Draw) -> Made:
    rows, width, inner, count = d.int(1, 6), d.int(1, 9), d.int(1, 9), d.int(1, 5)
    first = [d.like((count, inner, width)), d.like((count, inner)) if d.chance() else None]
    second = [d.like((count, width, inner)), d.like((count, width)) if d.chance() else None]
    return _made("MoE", [d.like((rows, width)), d.like((rows, count)), *first, *second],
                 k=d.int(1, count), activation_type=d.pick(("relu", "gelu", "silu", "identity")),
                 normalize_routing_weights=d.int(0, 1))  # fmt: skip


def quantized_experts(d: Draw) -> Made:
    """QMoE of blocks; onnxruntime rounds rows for weights of 8 bits, and normalizes always."""
    rows, count, bits = d.int(1, 9), d.int(1, 5), d.pick((2, 4))
    width, inner = 16 * d.int(1, 3), 16 * d.int(1, 3)
    inputs = [d.like((rows, width)), d.like((rows, count))]
    for n, k in ((inner, width), (width, inner)):
        inputs += [
            d.new(d.rng.integers(0, 256, (count, n, k * bits // 8)).astype(np.uint8), True),
            d.new(d.rng.uniform(0.02, 0.2, (count, n, k // 16)).astype(np.float32), True),
            d.like((count, n)) if d.chance() else None,
        ]
    return _made("QMoE", inputs, k=d.int(1, count), expert_weight_bits=bits, block_size=16,
                 activation_type=d.pick(("relu", "gelu", "silu", "identity")),
                 normalize_routing_weights=1)  # fmt: skip


def linear_attention(d: Draw) -> Made:
    batch, steps, heads, k, v = (d.int(1, n) for n in (3, 6, 3, 9, 9))
    shared, rule = d.int(1, 3), d.pick(("linear", "gated", "delta", "gated_delta"))
    q_heads, heads = d.pick(((heads * shared, heads), (heads, heads * shared)))
    small = [d.new(d.array((batch, steps, n), "f") * np.float32(0.3), False)
             for n in (q_heads * k, heads * k, heads * v)]  # fmt: skip
    past = d.like((batch, heads, k, v)) if d.chance() else None
    each = d.pick((1, k))
    decay = d.new(-np.abs(d.array((batch, steps, heads * each), "f")), False)
    rate = d.new(d.rng.uniform(0, 1, (batch, steps, heads)).astype(np.float32), False)
    optional = [decay if "gated" in rule else None, rate if "delta" in rule else None]
    return _made("LinearAttention", [*small, past, *optional], 2, q_num_heads=q_heads,
                 kv_num_heads=heads, update_rule=rule)  # fmt: skip


def gather_block_quantized(d: Draw) -> Made:
    rows, blocks, bits = d.int(1, 9), d.int(1, 3), d.pick((4, 8))
    table = d.new(d.rng.integers(0, 256, (rows, 16 * blocks * bits // 8)).astype(np.uint8), True)
    ids = d.new(d.rng.integers(-rows, rows, d.ints(2, 1, 3)).astype(np.int64), False)
    scale = d.new(d.rng.uniform(0.02, 0.2, (rows, blocks)).astype(np.float32), True)
    return _made("GatherBlockQuantized", [table, ids, scale], bits=bits, block_size=16,
                 quantize_axis=1, gather_axis=0)  # fmt: skip


def quantized_attention(d: Draw) -> Made:
    heads, size, batch, steps = d.int(1, 3), d.int(1, 5), d.int(1, 3), d.int(1, 5)
    width, inner, kind = heads * size, d.int(1, 9), d.pick("bB")
    x, w = (d.new(d.array(s, k), False) for s, k in (((batch, steps, inner), "B"),
                                                    ((inner, 3 * width), kind)))  # fmt: skip
    small = [d.new(np.float32(v), True) for v in (0.02, 0.01)]
    mask = d.new(np.array(d.ints(batch, 1, steps), np.int32), False) if d.chance() else None
    return _made("QAttention", [x, w, d.like((3 * width,)), *small, mask, _zero(d, "B"),
                                _zero(d, kind)],
                 num_heads=heads, unidirectional=d.int(0, 1))  # fmt: skip


TEMPLATES: dict[str, Template] = {
    **{op: biased(op) for op in ("BiasGelu", "FastGelu")},
    **{op: simple(op) for op in ("Gelu", "QuickGelu")},
    **{op: qlinear_binary(op) for op in ("QLinearAdd", "QLinearMul")},
    **{op: qlinear_unary(op) for op in ("QLinearSigmoid", "QLinearLeakyRelu")},
    **{op: qlinear_pool(op) for op in ("QLinearAveragePool", "QLinearGlobalAveragePool")},
    "QLinearSoftmax": qlinear_softmax, "QLinearConcat": qlinear_concat, "QGemm": qgemm,
    "SkipLayerNormalization": skip_layer_normalization, "FusedMatMul": fused_matmul,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul, "MatMulNBits": matmul_nbits,
    "RotaryEmbedding": rotary_embedding, "MultiHeadAttention": multi_head_attention,
    "Attention": attention, "Trilu": trilu, "Inverse": inverse,
    "ExpandDims": expand_dims, "CDist": distances, "UnfoldTensor": unfold,
    "NGramRepeatBlock": ngram_repeat_block, "MurmurHash3": murmur_hash,
    "CropAndResize": crop_and_resize, "MoE": experts, "QMoE": quantized_experts,
    "LinearAttention": linear_attention,
    "GatherBlockQuantized": gather_block_quantized, "QAttention": quantized_attention,
}  # fmt: skip
