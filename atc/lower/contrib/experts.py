"""Lowerings of onnxruntime's mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, call, cast
from atc.ir.graph import DType, row_major
from atc.ir.view import View
from atc.lower.context import Site
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
def mixture_of_experts(site: Site) -> str:
    """com.microsoft MoE: all experts are computed and weighed; a row's weights are mostly zero."""
    layers = [_Layer(site.input(i), site.optional(i + 1)) for i in (2, 4)]
    gate = _Layer(site.input(6), site.optional(7)) if site.has(6) else None
    return _mixture(site, layers[0], layers[1], gate)


@lowers("QMoE", domain=MICROSOFT)
def quantized_mixture(site: Site) -> str:
    """com.microsoft QMoE of weights of 4 or 8 bits, which are dequantized."""
    if site.str("quant_type", "int") != "int":
        raise site.unsupported(f"quant_type '{site.str('quant_type')}'")
    if site.has(14) or site.int("weights_prepacked", -1) > 0:
        raise site.unsupported("router weights, or weights prepacked for a GPU")
    bits = site.int("expert_weight_bits", 4)
    site.require(bits in (4, 8), f"{bits} bits")
    layers = [
        _Layer(_dequantized(site, i, zero, bits), site.optional(i + 2))
        for i, zero in ((2, 11), (5, 12), (8, 13)) if site.has(i)
    ]  # fmt: skip
    return _mixture(site, layers[0], layers[1], layers[2] if len(layers) > 2 else None)


def _dequantized(site: Site, i: int, zero: int, bits: int) -> str:
    """Return weights [experts, rows, columns]; scales are [experts, rows], with blocks one more."""
    b = site.b
    columns = site.shape(i)[2] * (8 // bits)
    codes = unpacked(site, site.input(i), bits, columns) if bits < 8 else site.input(i)
    scales, given = site.input(i + 1), site.shape(i + 1)
    whole = len(given) == 2
    size = columns if whole else site.int("block_size")
    blocks = np.arange(columns) // max(size, 1)
    shape = (*given, 1) if whole else given
    operands = [codes, take(b, b.cast(b.reshape(scales, shape), DType.FLOAT), 2, blocks)]
    if site.has(zero):
        points = site.input(zero)
        if bits < 8:
            points = unpacked(site, points, bits, given[1] if whole else given[2])
        operands.append(take(b, b.reshape(points, shape), 2, blocks))

    def real(x: Expr, scale: Expr, *point: Expr) -> Expr:
        return dequantized(x, scale, point[0] if point else like(x, 1 << (bits - 1)))

    return b.map(real, *operands)


class _Layer:
    """Weights [experts, out, in] and a bias [experts, out] or ''."""

    def __init__(self, weights: str, bias: str) -> None:
        self.weights = weights
        self.bias = bias

    def applied(self, site: Site, x: str) -> str:
        """Return x [experts or 1, rows, in] through each expert: [experts, rows, out]."""
        b = site.b
        w = b.transpose(b.cast(self.weights, DType.FLOAT), (0, 2, 1))
        y = product(site, x, w)
        if not self.bias:
            return y
        experts, width = b.shape(self.bias)
        bias = b.reshape(b.cast(self.bias, DType.FLOAT), (experts, 1, width))
        return b.map(lambda v, c: call("Add", v, c), y, bias)


def _mixture(site: Site, first: _Layer, second: _Layer, gate: _Layer | None) -> str:
    b, x = site.b, site.type(0)
    if site.int("use_sparse_mixer"):
        raise site.unsupported("MoE with use_sparse_mixer")
    rows, width = x.size // x.shape[-1], x.shape[-1]
    tokens = b.reshape(b.cast(site.input(0), DType.FLOAT), (1, rows, width))
    hidden = first.applied(site, tokens)
    kind = site.str("activation_type", "relu")
    if kind == "swiglu":
        hidden = _swiglu(site, hidden)
    elif kind in _ACTIVATIONS:
        hidden = b.map(_ACTIVATIONS[kind], hidden)
    else:
        raise site.unsupported(f"activation_type '{kind}'")
    if gate is not None:
        other = gate.applied(site, tokens)
        hidden = b.map(lambda v, g: call("Mul", v, g), hidden, other)
    results = second.applied(site, hidden)  # [experts, rows, width]
    weights = _routing(site, rows)
    weighed = b.map(lambda v, w: call("Mul", v, w), results, weights)
    return b.cast(b.reshape(reduce_axes(site, weighed, (0,), False, "Sum"), x.shape), x.dtype)


_ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "gelu": gelu_tanh,
    "silu": lambda x: call("Mul", x, call("Sigmoid", x)),
    "identity": lambda x: x,
}


def _swiglu(site: Site, hidden: str) -> str:
    """Return g sigmoid(alpha g) (l + beta) of a linear part l and a gate g, next to each other."""
    b, shape = site.b, site.b.shape(hidden)
    if site.int("swiglu_fusion") not in (0, 1, 2):
        raise site.unsupported(f"swiglu_fusion {site.int('swiglu_fusion')}")
    half, together = shape[-1] // 2, site.int("swiglu_fusion") == 1
    alpha, beta = site.float("activation_alpha", 1.0), site.float("activation_beta", 0.0)
    limit = site.attribute("swiglu_limit")
    strides = row_major(shape)
    step = View((*strides[:-1], 2)) if together else View(strides)
    other = View(step.strides, 1 if together else half)
    out = (*shape[:-1], half)
    gate, linear = b.view(hidden, out, step), b.view(hidden, out, other)

    def body(g: Expr, v: Expr) -> Expr:
        if limit is not None:
            g = call("Min", g, like(g, site.float("swiglu_limit")))
            bound = site.float("swiglu_limit")
            v = call("Max", call("Min", v, like(v, bound)), like(v, -bound))
        z = call("Sigmoid", call("Mul", g, like(g, alpha)))
        return call("Mul", call("Mul", g, z), call("Add", v, like(v, beta)))

    return b.map(body, gate, linear)


def _routing(site: Site, rows: int) -> str:
    """Return [experts, rows, 1], a row's weights of its k best experts and zeros."""
    b, k = site.b, site.int("k", 1)
    experts = site.shape(1)[1]
    site.require(0 < k <= experts, f"k is {k}, there are {experts} experts")
    logits = b.cast(site.input(1), DType.FLOAT)
    shares = softmax(site, logits, 1)
    best, which = delegate(
        site, "TopK", [shares, b.constant(np.asarray([k], np.int64))],
        [onnx_ir.AttrInt64("axis", 1)], opset=11, outputs=2,
    )  # fmt: skip
    if site.int("normalize_routing_weights"):
        sums = reduce_axes(site, best, (1,), True, "Sum")
        best = b.map(lambda v, t: call("Div", v, t), best, sums)

    def share(v: Expr, i: Expr, expert: Expr) -> Expr:
        return call("Mul", v, cast(call("Equal", i, expert), v.dtype))

    views = [View((0, k, 1))] * 2
    spread = b.map(share, best, which, shape=(experts, rows, k), views=views,
                   coordinates=[View((1, 0, 0))])  # fmt: skip
    return reduce_axes(site, spread, (2,), True, "Sum")
