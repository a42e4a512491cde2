"""Lowerings of onnxruntime's own float operators: decompose what its optimizer has fused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType
from atc.lower.context import LoweringContext
from atc.lower.elementwise import compute, gelu, gelu_tanh, hard_sigmoid, like, prelu, relu
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.reduce import reduction
from atc.lower.registry import LOWERINGS, lowers

MICROSOFT = "com.microsoft"


def standard(
    ctx: LoweringContext, op_type: str, *inputs: str, opset: int = 22, **changed: Any
) -> str:
    """Lower one of the standard's operators with the node's attributes, on other inputs."""
    own = {k: onnx_ir.convenience.convert_attribute(k, v) for k, v in changed.items()}
    attributes = list({**ctx.node.attributes, **own}.values())
    node = onnx_ir.Node("", op_type, [], attributes, num_outputs=1, name=ctx.name)
    node.outputs[0].name = ctx.name
    result = LOWERINGS["", op_type](replace(ctx, node=node, inputs=inputs, opset=opset))
    return result if isinstance(result, str) else result[0]


# ---- activations --------------------------------------------------------------------------------


@lowers("Gelu", "BiasGelu", domain=MICROSOFT)
def lower_gelu(ctx: LoweringContext) -> str:
    """com.microsoft Gelu, BiasGelu: exact, of x or of x + bias."""
    return _of_sum(ctx, gelu)


@lowers("FastGelu", domain=MICROSOFT)
def fast_gelu(ctx: LoweringContext) -> str:
    """com.microsoft FastGelu: with the tanh approximation, of x or of x + bias."""
    return _of_sum(ctx, gelu_tanh)


def _of_sum(ctx: LoweringContext, function: Callable[[Expr], Expr]) -> str:
    if not ctx.has(1):
        return compute(ctx, function, ctx.input(0))
    return compute(ctx, lambda x, b: function(call("Add", x, b)), ctx.input(0), ctx.input(1))


@lowers("QuickGelu", domain=MICROSOFT)
def quick_gelu(ctx: LoweringContext) -> str:
    """com.microsoft QuickGelu: x * sigmoid(alpha x)."""
    alpha = ctx.float("alpha", 1.702)

    def body(x: Expr) -> Expr:
        return call("Mul", x, call("Sigmoid", call("Mul", like(x, alpha), x)))

    return compute(ctx, body, ctx.input(0))


@lowers("BiasAdd", domain=MICROSOFT)
def bias_add(ctx: LoweringContext) -> str:
    """com.microsoft BiasAdd: x + bias + skip."""
    return _sum(ctx, [ctx.input(i) for i in range(3)])


def activated(ctx: LoweringContext, x: str) -> str:
    """Apply the activation that a Fused operator names, if any."""
    name = ctx.str("activation")
    params = ctx.floats("activation_params") or []
    alpha, beta = ctx.float("activation_alpha", np.nan), ctx.float("activation_beta", np.nan)
    given = params or [v for v in (alpha, beta) if not np.isnan(v)]

    def at(k: int, default: float) -> float:
        return given[k] if k < len(given) else default

    match name:
        case "":
            return x
        case "Relu":
            return compute(ctx, relu, x)
        case "Tanh" | "Sigmoid":
            return compute(ctx, lambda v: call(name, v), x)
        case "LeakyRelu":
            return compute(ctx, lambda v: prelu(v, like(v, at(0, 0.01))), x)
        case "HardSigmoid":
            return compute(ctx, lambda v: hard_sigmoid(v, at(0, 0.2), at(1, 0.5)), x)
        case "HardSwish":
            slope, offset = at(0, 1 / 6), at(1, 0.5)
            return compute(ctx, lambda v: call("Mul", v, hard_sigmoid(v, slope, offset)), x)
        case "Clip":
            low, high = at(0, -3.4028234663852886e38), at(1, 3.4028234663852886e38)
            clip = lambda v: call("Min", call("Max", v, like(v, low)), like(v, high))  # noqa: E731
            return compute(ctx, clip, x)
        case _:
            raise ctx.unsupported(f"the activation '{name}'")


# ---- normalization ------------------------------------------------------------------------------


@lowers("SimplifiedLayerNormalization")
@lowers("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(ctx: LoweringContext) -> tuple[str, ...]:
    """SimplifiedLayerNormalization of onnxruntime: x / rms(x) * scale, and 1 / rms(x)."""
    axis = ctx.axis(ctx.int("axis", -1), len(ctx.shape(0)))
    y, *statistics = trailing(
        ctx, ctx.input(0), axis, "MeanSquare", ctx.float("epsilon", 1e-5), [ctx.input(1)],
        statistics=ctx.wants(1),
    )  # fmt: skip
    return (ctx.b.cast(y, ctx.type(1).dtype), *statistics[1:])


@lowers("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft SkipLayerNormalization: of x + skip + bias, which is the fourth output."""
    simplified = ctx.node.op_type == "SkipSimplifiedLayerNormalization"
    bias, how = (3, "MeanSquare") if simplified else (4, "Variance")
    parts = [ctx.input(0), ctx.input(1), *([ctx.input(bias)] if ctx.has(bias) else [])]
    total = _sum(ctx, parts)
    affine = [ctx.input(i) for i in ((2,) if simplified else (2, 3)) if ctx.has(i)]
    y, *statistics = trailing(
        ctx, total, len(ctx.shape(0)) - 1, how, ctx.float("epsilon", 1e-12), affine,
        statistics=ctx.wants(1) or ctx.wants(2),
    )  # fmt: skip
    y = ctx.b.cast(y, ctx.type(0).dtype)
    return (y, *(statistics or ["", ""]), total)


def _sum(ctx: LoweringContext, parts: Sequence[str]) -> str:
    """Add values left to right."""

    def add(*xs: Expr) -> Expr:
        total = xs[0]
        for x in xs[1:]:
            total = call("Add", total, x)
        return total

    return compute(ctx, add, *parts)


@lowers("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(ctx: LoweringContext) -> tuple[str, ...]:
    """com.microsoft EmbedLayerNormalization: of the sum of word, position and segment rows."""
    b = ctx.b
    batch, length = ctx.shape(0)
    parts = [gather_axis(b, ctx.input(2), 0, ctx.input(0), proven=False)]
    if ctx.has(8):
        parts.append(gather_axis(b, ctx.input(3), 0, ctx.input(8), proven=False))
    else:
        rows, width = ctx.shape(3)
        ctx.require(length <= rows, f"{length} positions, but {rows} rows of them")
        first = b.constant(np.arange(length, dtype=np.int64))
        table = gather_axis(b, ctx.input(3), 0, first, proven=True)
        parts.append(b.reshape(table, (1, length, width)))
    if ctx.has(4):
        segments = ctx.input(1) if ctx.has(1) else b.constant(np.zeros((1, 1), np.int64))
        parts.append(gather_axis(b, ctx.input(4), 0, segments, proven=False))
    total = _sum(ctx, parts)
    operands = [ctx.input(5), ctx.input(6)]
    (y,) = trailing(ctx, total, 2, "Variance", ctx.float("epsilon", 1e-12), operands)
    y = b.cast(y, ctx.type(2).dtype)
    return (y, _mask_index(ctx, batch) if ctx.wants(1) else "", total)


def _mask_index(ctx: LoweringContext, batch: int) -> str:
    """Return how many positions of each row the mask (input 7) leaves."""
    if not ctx.has(7):
        return ctx.b.constant(np.zeros(batch, np.int32))
    element, result = cast(Input(ctx.type(7).dtype, 0), DType.INT32), Input(DType.INT32, 0)
    return reduction(ctx, ctx.input(7), (1,), False, "Sum", element, result)


# ---- products -----------------------------------------------------------------------------------


@lowers("FusedConv", domain=MICROSOFT)
def fused_conv(ctx: LoweringContext) -> str:
    """com.microsoft FusedConv: activation(conv(x, w) + bias + z)."""
    y = standard(ctx, "Conv", *ctx.inputs[:3])
    return activated(ctx, _sum(ctx, [y, ctx.input(3)]) if ctx.has(3) else y)


@lowers("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(ctx: LoweringContext) -> str:
    """com.microsoft NhwcConv, NhwcFusedConv: channels last.

    Weights are as Conv has them, or have their channels last, too, as onnxruntime's optimizer of
    transformers writes those of NhwcConv; what fits both ways is taken for that.
    """
    b, rank = ctx.b, len(ctx.shape(0))
    inward, outward = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    w, shape = ctx.input(1), ctx.shape(1)
    kernel = tuple(ctx.ints("kernel_shape") or shape[1:-1])
    last = shape[-1] * ctx.int("group", 1) == ctx.shape(0)[-1] and kernel == tuple(shape[1:-1])
    if ctx.node.op_type == "NhwcConv" and last:
        w = b.transpose(w, inward)
    y = standard(ctx, "Conv", b.transpose(ctx.input(0), inward), w, *ctx.inputs[2:3])
    y = b.transpose(y, outward)
    return activated(ctx, _sum(ctx, [y, ctx.input(3)]) if ctx.has(3) else y)


@lowers("FusedGemm", domain=MICROSOFT)
def fused_gemm(ctx: LoweringContext) -> str:
    """com.microsoft FusedGemm: activation(alpha A' B' + beta C)."""
    return activated(ctx, standard(ctx, "Gemm", *ctx.inputs))


@lowers("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(ctx: LoweringContext) -> str:
    """com.microsoft FusedMatMul: activation(alpha A' B') with each operand's axes permuted."""
    a, b = (_permuted(ctx, i, name) for i, name in ((0, "A"), (1, "B")))
    dtype, alpha = ctx.type(0).dtype, ctx.float("alpha", 1.0)
    work = DType.FLOAT if dtype.is_half else dtype
    y = product(ctx, ctx.b.cast(a, work), ctx.b.cast(b, work))
    if alpha != 1.0:
        y = ctx.b.map(lambda v: call("Mul", v, like(v, alpha)), y)
    return ctx.b.cast(activated(ctx, y), dtype)


def _permuted(ctx: LoweringContext, i: int, name: str) -> str:
    """Return operand `i` with its last axes swapped, or its first moved before its last."""
    rank = len(ctx.shape(i))
    order = list(range(rank))
    if ctx.int(f"transBatch{name}") and rank > 2:
        order = [*order[1:-1], 0, rank - 1]
    if ctx.int(f"trans{name}") and rank > 1:
        order[-2:] = order[:-3:-1]
    return ctx.b.transpose(ctx.input(i), order)
