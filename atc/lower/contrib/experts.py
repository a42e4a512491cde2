"""Lowerings of onnxruntime's mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import LoweringContext
from atc.lower.contrib.blocks import unpacked
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.contrib.tensor import delegate
from atc.lower.elementwise import gelu_tanh, like, relu
from atc.lower.indexed_access import take
from atc.lower.matmul import product
from atc.lower.normalize import softmax
from atc.lower.quantize import dequantized
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers


@lowers("MoE", domain=MICROSOFT)
def mixture_of_experts(ctx: LoweringContext) -> str:
    """com.microsoft MoE: all experts are computed and weighed; a row's weights are mostly zero."""
    layers = [_Layer(ctx.input(i), ctx.optional(i + 1)) for i in (2, 4)]
    gate = _Layer(ctx.input(6), ctx.optional(7)) if ctx.has(6) else None
    return _mixture(ctx, layers[0], layers[1], gate)


@lowers("QMoE", domain=MICROSOFT)
def quantized_mixture(ctx: LoweringContext) -> str:
    """com.microsoft QMoE of weights of 4 or 8 bits, which are dequantized."""
    if ctx.str("quant_type", "int") != "int":
        raise ctx.unsupported(f"quant_type '{ctx.str('quant_type')}'")
    if ctx.has(14) or ctx.int("weights_prepacked", -1) > 0:
        raise ctx.unsupported("router weights, or weights prepacked for a GPU")
    bits = ctx.int("expert_weight_bits", 4)
    each = {ctx.int(f"fc{k}_expert_weight_bits") or bits for k in (1, 2, 3)}
    if each != {bits}:
        raise ctx.unsupported(f"layers of {sorted(each)} bits")
    ctx.require(bits in (4, 8), f"{bits} bits")
    layers = [
        _Layer(_dequantized(ctx, i, zero, bits), ctx.optional(i + 2))
        for i, zero in ((2, 11), (5, 12), (8, 13)) if ctx.has(i)
    ]  # fmt: skip
    return _mixture(ctx, layers[0], layers[1], layers[2] if len(layers) > 2 else None)


def _dequantized(ctx: LoweringContext, i: int, zero: int, bits: int) -> str:
    """Return weights [experts, rows, columns]; scales are [experts, rows], with blocks one more."""
    b = ctx.b
    columns = ctx.shape(i)[2] * (8 // bits)
    codes = unpacked(ctx, ctx.input(i), bits, columns) if bits < 8 else ctx.input(i)
    scales, given = ctx.input(i + 1), ctx.shape(i + 1)
    whole = len(given) == 2
    size = columns if whole else ctx.int("block_size")
    blocks = np.arange(columns) // max(size, 1)
    shape = (*given, 1) if whole else given
    operands = [codes, take(b, b.cast(b.reshape(scales, shape), DType.FLOAT), 2, blocks)]
    if ctx.has(zero):
        points = ctx.input(zero)
        if bits < 8:
            points = unpacked(ctx, points, bits, given[1] if whole else given[2])
        operands.append(take(b, b.reshape(points, shape), 2, blocks))

    def real(x: Expr, scale: Expr, *point: Expr) -> Expr:
        return dequantized(x, scale, point[0] if point else like(x, 1 << (bits - 1)))

    return b.map(real, *operands)


class _Layer:
    """Weights [experts, out, in] and a bias [experts, out] or ''."""

    def __init__(self, weights: str, bias: str) -> None:
        self.weights = weights
        self.bias = bias

    def applied(self, ctx: LoweringContext, x: str) -> str:
        """Return x [experts or 1, rows, in] through each expert: [experts, rows, out]."""
        b = ctx.b
        w = b.transpose(b.cast(self.weights, DType.FLOAT), (0, 2, 1))
        y = product(ctx, x, w)
        if not self.bias:
            return y
        experts, width = b.shape(self.bias)
        bias = b.reshape(b.cast(self.bias, DType.FLOAT), (experts, 1, width))
        return b.map(lambda v, c: call("Add", v, c), y, bias)


def _mixture(ctx: LoweringContext, first: _Layer, second: _Layer, gate: _Layer | None) -> str:
    b, x = ctx.b, ctx.type(0)
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if ctx.int(name):
            raise ctx.unsupported(f"MoE with {name}")
    rows, width = x.size // x.shape[-1], x.shape[-1]
    tokens = b.reshape(b.cast(ctx.input(0), DType.FLOAT), (1, rows, width))
    hidden = first.applied(ctx, tokens)
    kind = ctx.str("activation_type", "relu")
    if kind == "swiglu":
        hidden = _swiglu(ctx, hidden)
    elif kind in _ACTIVATIONS:
        hidden = b.map(_ACTIVATIONS[kind], hidden)
    else:
        raise ctx.unsupported(f"activation_type '{kind}'")
    if gate is not None:
        other = gate.applied(ctx, tokens)
        hidden = b.map(lambda v, g: call("Mul", v, g), hidden, other)
    results = second.applied(ctx, hidden)  # [experts, rows, width]
    weights = _routing(ctx, rows)
    weighed = b.map(lambda v, w: call("Mul", v, w), results, weights)
    return b.cast(b.reshape(reduce_axes(ctx, weighed, (0,), False, "Sum"), x.shape), x.dtype)


_ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "gelu": gelu_tanh,
    "silu": lambda x: call("Mul", x, call("Sigmoid", x)),
    "identity": lambda x: x,
}


def _swiglu(ctx: LoweringContext, hidden: str) -> str:
    """Return g sigmoid(alpha g) (l + beta) of a linear part l and a gate g, next to each other."""
    b, shape = ctx.b, ctx.b.shape(hidden)
    if ctx.int("swiglu_fusion") not in (0, 1, 2):
        raise ctx.unsupported(f"swiglu_fusion {ctx.int('swiglu_fusion')}")
    half, together = shape[-1] // 2, ctx.int("swiglu_fusion") == 1
    alpha, beta = ctx.float("activation_alpha", 1.0), ctx.float("activation_beta", 0.0)
    limit = ctx.attribute("swiglu_limit")
    strides = row_major(shape)
    step = View((*strides[:-1], 2)) if together else View(strides)
    other = View(step.strides, 1 if together else half)
    out = (*shape[:-1], half)
    gate, linear = b.view(hidden, out, step), b.view(hidden, out, other)

    def body(g: Expr, v: Expr) -> Expr:
        if limit is not None:
            g = call("Min", g, like(g, ctx.float("swiglu_limit")))
            bound = ctx.float("swiglu_limit")
            v = call("Max", call("Min", v, like(v, bound)), like(v, -bound))
        z = call("Sigmoid", call("Mul", g, like(g, alpha)))
        return call("Mul", call("Mul", g, z), call("Add", v, like(v, beta)))

    return b.map(body, gate, linear)


def _routing(ctx: LoweringContext, rows: int) -> str:
    """Return [experts, rows, 1], a row's weights of its k best experts and zeros."""
    b, k = ctx.b, ctx.int("k", 1)
    experts = ctx.shape(1)[1]
    ctx.require(0 < k <= experts, f"k is {k}, there are {experts} experts")
    logits = b.cast(ctx.input(1), DType.FLOAT)
    shares = softmax(ctx, logits, 1)
    best, which = delegate(
        ctx, "TopK", [shares, b.constant(np.asarray([k], np.int64))],
        [onnx_ir.AttrInt64("axis", 1)], opset=11, outputs=2,
    )  # fmt: skip
    if ctx.int("normalize_routing_weights"):
        sums = reduce_axes(ctx, best, (1,), True, "Sum")
        best = b.map(lambda v, t: call("Div", v, t), best, sums)

    def share(v: Expr, i: Expr, expert: Expr) -> Expr:
        return call("Mul", v, cast(call("Equal", i, expert), v.dtype))

    views = [View((0, k, 1))] * 2
    spread = b.map(share, best, which, shape=(experts, rows, k), views=views,
                   coordinates=[View((1, 0, 0))])  # fmt: skip
    return reduce_axes(ctx, spread, (2,), True, "Sum")
