"""Lowerings of onnxruntime's mixtures of experts.

Pairs of a row and one of its experts are sorted by expert, so that a grouped product reads the
weights of an expert once, and those of experts that no row has never.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, call
from atc.ir.graph import DType, TensorType, row_major
from atc.ir.ops import MatMul, identity_epilogue
from atc.ir.ops.data import TopK
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.contrib.blocks import unpacked
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.contrib.tensor import delegate
from atc.lower.elementwise import gelu_tanh, like, relu
from atc.lower.indexed_access import gather_axis, index
from atc.lower.normalize import softmax
from atc.lower.reduce import reduce_axes
from atc.lower.registry import lowers


class Weights(Protocol):
    """The matrices [experts, out, in] of a layer."""

    def times(self, b: Builder, x: str, experts: str) -> str:
        """Return rows x [rows, in], each times the matrix of its expert: [rows, out]."""


@dataclass(frozen=True)
class RealWeights:
    """Floats."""

    values: str

    def times(self, b: Builder, x: str, experts: str) -> str:
        """Return the grouped product."""
        (count, n, k), rows = b.shape(self.values), b.shape(x)[0]
        real = identity_epilogue(DType.FLOAT)
        op = GroupedMatMul(MatMul((), rows, n, k, View((k, 1)), View((1, k)), real), count)
        return b.emit1(op, [x, self.values, experts], TensorType(DType.FLOAT, (rows, n)))


@dataclass(frozen=True)
class PackedWeights:
    """Integers of few bits [experts, out, blocks, bytes], scales and zero points of blocks."""

    codes: str
    scales: str
    zeros: str
    bits: int
    rounds: bool

    def times(self, b: Builder, x: str, experts: str) -> str:
        """Return the grouped product."""
        (count, n, _, size), (rows, k) = b.shape(self.codes), b.shape(x)
        real = identity_epilogue(DType.FLOAT)
        one = MatMulPacked(rows, n, k, size * 8 // self.bits, self.bits, real, self.rounds)
        operands = [x, self.codes, self.scales, self.zeros, experts]
        return b.emit1(GroupedMatMul(one, count), operands, TensorType(DType.FLOAT, (rows, n)))


@dataclass(frozen=True)
class Layer:
    """Weights and a bias [experts, out] or ''."""

    weights: Weights
    bias: str

    def applied(self, b: Builder, x: str, experts: str) -> str:
        """Return rows through each one's expert."""
        y = self.weights.times(b, x, experts)
        if not self.bias:
            return y
        bias = gather_axis(b, b.cast(self.bias, DType.FLOAT), 0, experts, proven=True)
        return b.map(lambda v, c: call("Add", v, c), y, bias)


@lowers("MoE", domain=MICROSOFT)
def mixture_of_experts(ctx: LoweringContext) -> str:
    """com.microsoft MoE."""

    def layer(i: int) -> Layer:
        return Layer(RealWeights(ctx.b.cast(ctx.input(i), DType.FLOAT)), ctx.optional(i + 1))

    return _mixture(ctx, layer(2), layer(4), layer(6) if ctx.has(6) else None)


@lowers("QMoE", domain=MICROSOFT)
def quantized_mixture(ctx: LoweringContext) -> str:
    """com.microsoft QMoE of weights of 2, 4 or 8 bits."""
    if ctx.str("quant_type", "int") != "int":
        raise ctx.unsupported(f"quant_type '{ctx.str('quant_type')}'")
    if ctx.int("weights_prepacked", -1) > 0:
        raise ctx.unsupported("weights prepacked for a GPU")
    layers = [
        Layer(_packed(ctx, i, 10 + k, ctx.int(f"fc{k}_expert_weight_bits")), ctx.optional(i + 2))
        for k, i in ((1, 2), (2, 5), (3, 8)) if ctx.has(i)
    ]  # fmt: skip
    return _mixture(ctx, layers[0], layers[1], layers[2] if len(layers) > 2 else None)


_IN_BYTES = 4
"""The accuracy_level that lets rows be rounded to INT8."""


def _packed(ctx: LoweringContext, i: int, zero: int, bits: int) -> PackedWeights:
    """Return weights [experts, out, in / block] that share scales, or the scale of a whole row."""
    b = ctx.b
    bits = bits or ctx.int("expert_weight_bits", 4)
    ctx.require(bits in (2, 4, 8), f"{bits} bits")
    experts, n, size = ctx.shape(i)
    k, given = size * 8 // bits, ctx.shape(i + 1)
    blocks = given[2] if len(given) == 3 else 1
    ctx.require(given[:2] == (experts, n) and k % blocks == 0, f"scales {list(given)} of {k}")
    zeros = ctx.optional(zero)
    if zeros and bits < 8:
        last = n if len(given) == 2 else blocks
        zeros = unpacked(ctx, zeros, bits, last)
    scales = b.cast(ctx.input(i + 1), DType.FLOAT)
    return PackedWeights(
        b.reshape(ctx.input(i), (experts, n, blocks, size // blocks)),
        b.reshape(scales, (experts, n, blocks)),
        zeros and b.reshape(zeros, (experts, n, blocks)),
        bits, ctx.int("accuracy_level") == _IN_BYTES,
    )  # fmt: skip


def _mixture(ctx: LoweringContext, first: Layer, second: Layer, gate: Layer | None) -> str:
    b, x, k = ctx.b, ctx.type(0), ctx.int("k", 1)
    for name in ("use_sparse_mixer", "swiglu_limit_after_activation"):
        if ctx.int(name):
            raise ctx.unsupported(f"{ctx.node.op_type} with {name}")
    rows, width = x.size // x.shape[-1], x.shape[-1]
    shares, which = _routing(ctx)
    tokens = b.reshape(b.cast(ctx.input(0), DType.FLOAT), (rows, width))
    chosen, pairs = b.reshape(which, (rows * k,)), rows * k
    order = ""
    if rows == 1:
        tokens = b.expand(tokens, (pairs, width))
    else:
        chosen, order = _sorted(b, chosen)
        token = b.map(lambda i: call("Div", i, index(k)), order)
        tokens = gather_axis(b, tokens, 0, token, proven=True)
    hidden = first.applied(b, tokens, chosen)
    kind = ctx.str("activation_type", "relu")
    if kind == "swiglu":
        hidden = _swiglu(ctx, hidden)
    elif kind in _ACTIVATIONS:
        hidden = b.map(_ACTIVATIONS[kind], hidden)
    else:
        raise ctx.unsupported(f"activation_type '{kind}'")
    if gate is not None:
        other = gate.applied(b, tokens, chosen)
        hidden = b.map(lambda v, g: call("Mul", v, g), hidden, other)
    results = second.applied(b, hidden, chosen)
    if order:
        results = gather_axis(b, results, 0, _sorted(b, order)[1], proven=True)
    weighed = b.map(
        lambda v, w: call("Mul", v, w),
        b.reshape(results, (rows, k, width)), b.reshape(shares, (rows, k, 1)),
    )  # fmt: skip
    return b.cast(b.reshape(reduce_axes(ctx, weighed, (1,), False, "Sum"), x.shape), x.dtype)


def _sorted(b: Builder, numbers: str) -> tuple[str, str]:
    """Return numbers in their order, and where they were."""
    type_ = b.type(numbers)
    values, order = b.emit(TopK(1, type_.size, 1, type_.size, False), [numbers], type_, type_)
    return values, order


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


def _routing(ctx: LoweringContext) -> tuple[str, str]:
    """Return the shares of each row's k best experts, and which these are: [rows, k] both."""
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
    return best, which
