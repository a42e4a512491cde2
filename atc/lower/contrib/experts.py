"""Lowerings of onnxruntime's mixtures of experts.

Pairs of a row and one of its experts are sorted by expert, so that a grouped product reads the
weights of an expert once, and those of experts that no row has never.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from atc.ir.expr import Expr, call
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul, identity_epilogue
from atc.ir.ops.data import Concat, TopK, ascending
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.lower.builder import Builder
from atc.lower.context import LoweringContext
from atc.lower.contrib.blocks import unpacked
from atc.lower.contrib.fused import MICROSOFT
from atc.lower.elementwise import gelu_tanh, like, relu
from atc.lower.indexed_access import IndexedAccess, gather, gather_axis, index, total
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

    return _mixture(ctx, [layer(i) for i in (2, 6) if ctx.has(i)], layer(4))


@lowers("QMoE", domain=MICROSOFT)
def quantized_mixture(ctx: LoweringContext) -> str:
    """com.microsoft QMoE of weights of 2, 4 or 8 bits."""
    if ctx.str("quant_type", "int") != "int":
        raise ctx.unsupported(f"quant_type '{ctx.str('quant_type')}'")
    if ctx.int("weights_prepacked", -1) > 0:
        raise ctx.unsupported("weights prepacked for a GPU")

    def layer(k: int) -> Layer:
        i, bits = 3 * k - 1, ctx.int(f"fc{k}_expert_weight_bits")
        return Layer(_packed(ctx, i, 10 + k, bits), ctx.optional(i + 2))

    return _mixture(ctx, [layer(k) for k in (1, 3) if ctx.has(3 * k - 1)], layer(2))


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


def _mixture(ctx: LoweringContext, first: Sequence[Layer], second: Layer) -> str:
    b, x, k = ctx.b, ctx.type(0), ctx.int("k", 1)
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
    hidden = _activated(ctx, [each.applied(b, tokens, chosen) for each in first])
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
    values, order = b.emit(ascending(type_.size), [numbers], type_, type_)
    return values, order


_ACTIVATIONS: dict[str, Callable[[Expr], Expr]] = {
    "relu": relu,
    "gelu": gelu_tanh,
    "silu": lambda x: call("Mul", x, call("Sigmoid", x)),
    "identity": lambda x: x,
}


def _activated(ctx: LoweringContext, parts: Sequence[str]) -> str:
    """Return the hidden values of the first layer, or of it and of the one that it gates."""
    b, kind = ctx.b, ctx.str("activation_type", "relu")
    if kind == "swiglu":
        return b.map(_swiglu(ctx), *_gate_and_linear(ctx, parts))
    if kind not in _ACTIVATIONS:
        raise ctx.unsupported(f"activation_type '{kind}'")

    def body(x: Expr, *gated: Expr) -> Expr:
        y = _ACTIVATIONS[kind](x)
        return call("Mul", y, gated[0]) if gated else y

    return b.map(body, *parts)


def _gate_and_linear(ctx: LoweringContext, parts: Sequence[str]) -> Sequence[str]:
    """Return gate and linear part: results of two layers, or of one next to each other."""
    b, fusion = ctx.b, ctx.int("swiglu_fusion")
    ctx.require(len(parts) == (2 if fusion == 0 else 1) and fusion in (0, 1, 2),
                f"swiglu_fusion is {fusion}, of {len(parts)} layers")  # fmt: skip
    if fusion == 0:
        return parts
    rows, width = b.shape(parts[0])
    half, together = width // 2, fusion == 1
    step, other = (2, 1) if together else (1, half)
    views = (View((width, step), begin) for begin in (0, other))
    return [b.view(parts[0], (rows, half), view) for view in views]


def _swiglu(ctx: LoweringContext) -> Callable[[Expr, Expr], Expr]:
    """Return g sigmoid(alpha g) (l + beta) of a gate g and a linear part l, both clamped before."""
    alpha, beta = ctx.float("activation_alpha", 1.0), ctx.float("activation_beta", 0.0)
    limit = ctx.float("swiglu_limit") if ctx.attribute("swiglu_limit") is not None else None
    if ctx.int("swiglu_limit_after_activation"):
        raise ctx.unsupported(f"{ctx.node.op_type} with swiglu_limit_after_activation")

    def body(g: Expr, v: Expr) -> Expr:
        if limit is not None:
            g = call("Min", g, like(g, limit))
            v = call("Max", call("Min", v, like(v, limit)), like(v, -limit))
        z = call("Sigmoid", call("Mul", g, like(g, alpha)))
        return call("Mul", call("Mul", g, z), call("Add", v, like(v, beta)))

    return body


def _routing(ctx: LoweringContext) -> tuple[str, str]:
    """Return the shares of each row's k best experts, and which these are: [rows, k] both.

    Input 14 of QMoE has the experts' weights where those of input 1 only order them.
    """
    b, k = ctx.b, ctx.int("k", 1)
    rows, experts = ctx.shape(1)
    ctx.require(0 < k <= experts, f"k is {k}, there are {experts} experts")
    logits = b.cast(ctx.input(1), DType.FLOAT)
    if ctx.int("use_sparse_mixer"):
        return _sparse_mixer(ctx, logits)
    best, which = _largest(ctx, softmax(ctx, logits, 1), k)
    if ctx.has(14):
        best = _elements(b, b.cast(ctx.input(14), DType.FLOAT), which)
    if ctx.int("normalize_routing_weights"):
        sums = reduce_axes(ctx, best, (1,), True, "Sum")
        best = b.map(lambda v, t: call("Div", v, t), best, sums)
    return best, which


def _largest(ctx: LoweringContext, x: str, k: int) -> tuple[str, str]:
    """Return the k largest of each row, and where they are."""
    rows, width = ctx.b.shape(x)
    types = (TensorType(DType.FLOAT, (rows, k)), TensorType(DType.INT64, (rows, k)))
    values, which = ctx.b.emit(TopK(rows, width, 1, k, True), [x], *types)
    return values, which


def _elements(b: Builder, x: str, which: str) -> str:
    """Return the elements of each row at the places [rows, k]."""
    (rows, width), (_, k) = b.shape(x), b.shape(which)
    place = IndexedAccess(
        (rows, k), (which,), (View((k, 1)),), (View((width, 0)),), lambda i, row: total(row, i),
        proven=True,
    )  # fmt: skip
    return gather(b, x, place, 1, (rows, k))


SPREAD = 0.02
"""How far below the best expert, relative to the larger magnitude, others share with it."""


def _sparse_mixer(ctx: LoweringContext, logits: str) -> tuple[str, str]:
    """Return the shares of the best expert and of the second, each among those near to it.

    Liu et al., "GRIN: GRadient-INformed MoE", 2024, as Phi-3.5-MoE has it.
    """
    b = ctx.b
    ctx.require(ctx.int("k", 1) == 2, f"use_sparse_mixer with k = {ctx.int('k', 1)}")
    best, which = _largest(ctx, logits, 2)
    rows, experts = b.shape(logits)
    shape, each, column = (rows, experts), View((experts, 1)), View((0, 1))

    def share(k: int) -> str:
        def near(x: Expr, most: Expr, first: Expr, i: Expr) -> Expr:
            far = call("Sub", most, x)
            far = call("Div", far, call("Max", call("Abs", x), most))
            out = call("Less", like(x, SPREAD), far)
            if k:
                out = call("Or", out, call("Equal", i, first))
            return call("Where", out, like(x, -np.inf), x)

        views = [each, View((2, 0), k), View((2, 0))]
        masked = b.map(near, logits, best, which, shape=shape, views=views, coordinates=[column])
        shares = softmax(ctx, masked, 1)
        return _elements(b, shares, b.view(which, (rows, 1), View((2, 0), k)))

    parts = [share(k) for k in range(2)]
    both = b.emit1(Concat(rows, (1, 1)), parts, TensorType(DType.FLOAT, (rows, 2)))
    return both, which
