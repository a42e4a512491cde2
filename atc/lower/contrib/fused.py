"""Lowerings of onnxruntime's own float operators: what its optimizer fuses is taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir

from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType
from atc.lower.context import Site
from atc.lower.elementwise import compute, gelu, gelu_tanh, hard_sigmoid, like, prelu, relu
from atc.lower.indexed_access import gather_axis
from atc.lower.matmul import product
from atc.lower.normalize import trailing
from atc.lower.reduce import reduction
from atc.lower.registry import LOWERINGS, lowers

MICROSOFT = "com.microsoft"


def standard(site: Site, op_type: str, *inputs: str, opset: int = 22) -> str:
    """Lower one of the standard's operators with the node's attributes, on other inputs."""
    attributes = list(site.node.attributes.values())
    node = onnx_ir.Node("", op_type, [], attributes, num_outputs=1, name=site.name)
    node.outputs[0].name = site.name
    result = LOWERINGS["", op_type](replace(site, node=node, inputs=inputs, opset=opset))
    return result if isinstance(result, str) else result[0]


# ---- activations --------------------------------------------------------------------------------


@lowers("Gelu", "BiasGelu", domain=MICROSOFT)
def lower_gelu(site: Site) -> str:
    """com.microsoft Gelu, BiasGelu: exact, of x or of x + bias."""
    return _of_sum(site, gelu)


@lowers("FastGelu", domain=MICROSOFT)
def fast_gelu(site: Site) -> str:
    """com.microsoft FastGelu: with the tanh approximation, of x or of x + bias."""
    return _of_sum(site, gelu_tanh)


def _of_sum(site: Site, function: Callable[[Expr], Expr]) -> str:
    if not site.has(1):
        return compute(site, function, site.input(0))
    return compute(site, lambda x, b: function(call("Add", x, b)), site.input(0), site.input(1))


@lowers("QuickGelu", domain=MICROSOFT)
def quick_gelu(site: Site) -> str:
    """com.microsoft QuickGelu: x * sigmoid(alpha x)."""
    alpha = site.float("alpha", 1.702)

    def body(x: Expr) -> Expr:
        return call("Mul", x, call("Sigmoid", call("Mul", like(x, alpha), x)))

    return compute(site, body, site.input(0))


@lowers("BiasAdd", domain=MICROSOFT)
def bias_add(site: Site) -> str:
    """com.microsoft BiasAdd: x + bias + skip."""
    return _sum(site, [site.input(i) for i in range(3)])


def activated(site: Site, x: str) -> str:
    """Apply the activation that a Fused operator names, if any."""
    name = site.str("activation")
    params = site.floats("activation_params") or []
    alpha, beta = site.float("activation_alpha", np.nan), site.float("activation_beta", np.nan)
    given = params or [v for v in (alpha, beta) if not np.isnan(v)]

    def at(k: int, default: float) -> float:
        return given[k] if k < len(given) else default

    match name:
        case "":
            return x
        case "Relu":
            return compute(site, relu, x)
        case "Tanh" | "Sigmoid":
            return compute(site, lambda v: call(name, v), x)
        case "LeakyRelu":
            return compute(site, lambda v: prelu(v, like(v, at(0, 0.01))), x)
        case "HardSigmoid":
            return compute(site, lambda v: hard_sigmoid(v, at(0, 0.2), at(1, 0.5)), x)
        case "Clip":
            low, high = at(0, -3.4028234663852886e38), at(1, 3.4028234663852886e38)
            clip = lambda v: call("Min", call("Max", v, like(v, low)), like(v, high))  # noqa: E731
            return compute(site, clip, x)
        case _:
            raise site.unsupported(f"the activation '{name}'")


# ---- normalization ------------------------------------------------------------------------------


@lowers("SimplifiedLayerNormalization")
@lowers("SimplifiedLayerNormalization", domain=MICROSOFT)
def simplified_layer_normalization(site: Site) -> tuple[str, ...]:
    """SimplifiedLayerNormalization of onnxruntime: x / rms(x) * scale, and 1 / rms(x)."""
    axis = site.axis(site.int("axis", -1), len(site.shape(0)))
    y, *statistics = trailing(
        site, site.input(0), axis, "MeanSquare", site.float("epsilon", 1e-5), [site.input(1)],
        statistics=site.wants(1),
    )  # fmt: skip
    return (site.b.cast(y, site.type(1).dtype), *statistics[1:])


@lowers("SkipLayerNormalization", "SkipSimplifiedLayerNormalization", domain=MICROSOFT)
def skip_layer_normalization(site: Site) -> tuple[str, ...]:
    """com.microsoft SkipLayerNormalization: of x + skip + bias, which is the fourth output."""
    simplified = site.node.op_type == "SkipSimplifiedLayerNormalization"
    bias, how = (3, "MeanSquare") if simplified else (4, "Variance")
    parts = [site.input(0), site.input(1), *([site.input(bias)] if site.has(bias) else [])]
    total = _sum(site, parts)
    affine = [site.input(i) for i in ((2,) if simplified else (2, 3)) if site.has(i)]
    y, *statistics = trailing(
        site, total, len(site.shape(0)) - 1, how, site.float("epsilon", 1e-12), affine,
        statistics=site.wants(1) or site.wants(2),
    )  # fmt: skip
    y = site.b.cast(y, site.type(0).dtype)
    return (y, *(statistics or ["", ""]), total)


def _sum(site: Site, parts: Sequence[str]) -> str:
    """Add values left to right."""

    def add(*xs: Expr) -> Expr:
        total = xs[0]
        for x in xs[1:]:
            total = call("Add", total, x)
        return total

    return compute(site, add, *parts)


@lowers("EmbedLayerNormalization", domain=MICROSOFT)
def embed_layer_normalization(site: Site) -> tuple[str, ...]:
    """com.microsoft EmbedLayerNormalization: of the sum of word, position and segment rows."""
    b = site.b
    batch, length = site.shape(0)
    parts = [gather_axis(b, site.input(2), 0, site.input(0), proven=False)]
    if site.has(8):
        parts.append(gather_axis(b, site.input(3), 0, site.input(8), proven=False))
    else:
        rows, width = site.shape(3)
        site.require(length <= rows, f"{length} positions, but {rows} rows of them")
        first = b.constant(np.arange(length, dtype=np.int64))
        table = gather_axis(b, site.input(3), 0, first, proven=True)
        parts.append(b.reshape(table, (1, length, width)))
    if site.has(4):
        segments = site.input(1) if site.has(1) else b.constant(np.zeros((1, 1), np.int64))
        parts.append(gather_axis(b, site.input(4), 0, segments, proven=False))
    total = _sum(site, parts)
    operands = [site.input(5), site.input(6)]
    (y,) = trailing(site, total, 2, "Variance", site.float("epsilon", 1e-12), operands)
    y = b.cast(y, site.type(2).dtype)
    return (y, _mask_index(site, batch) if site.wants(1) else "", total)


def _mask_index(site: Site, batch: int) -> str:
    """Return how many positions of each row the mask (input 7) leaves."""
    if not site.has(7):
        return site.b.constant(np.zeros(batch, np.int32))
    element, result = cast(Input(site.type(7).dtype, 0), DType.INT32), Input(DType.INT32, 0)
    return reduction(site, site.input(7), (1,), False, "Sum", element, result)


# ---- products -----------------------------------------------------------------------------------


@lowers("FusedConv", domain=MICROSOFT)
def fused_conv(site: Site) -> str:
    """com.microsoft FusedConv: activation(conv(x, w) + bias + z)."""
    y = standard(site, "Conv", *site.inputs[:3])
    return activated(site, _sum(site, [y, site.input(3)]) if site.has(3) else y)


@lowers("NhwcConv", "NhwcFusedConv", domain=MICROSOFT)
def nhwc_conv(site: Site) -> str:
    """com.microsoft NhwcConv, NhwcFusedConv: channels last, weights as Conv has them."""
    b, rank = site.b, len(site.shape(0))
    inward, outward = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
    y = standard(site, "Conv", b.transpose(site.input(0), inward), *site.inputs[1:3])
    y = b.transpose(y, outward)
    return activated(site, _sum(site, [y, site.input(3)]) if site.has(3) else y)


@lowers("FusedGemm", domain=MICROSOFT)
def fused_gemm(site: Site) -> str:
    """com.microsoft FusedGemm: activation(alpha A' B' + beta C)."""
    return activated(site, standard(site, "Gemm", *site.inputs))


@lowers("FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", domain=MICROSOFT)
def fused_matmul(site: Site) -> str:
    """com.microsoft FusedMatMul: activation(alpha A' B') with each operand's axes permuted."""
    a, b = (_permuted(site, i, name) for i, name in ((0, "A"), (1, "B")))
    dtype, alpha = site.type(0).dtype, site.float("alpha", 1.0)
    work = DType.FLOAT if dtype.is_half else dtype
    y = product(site, site.b.cast(a, work), site.b.cast(b, work))
    if alpha != 1.0:
        y = site.b.map(lambda v: call("Mul", v, like(v, alpha)), y)
    return site.b.cast(activated(site, y), dtype)


def _permuted(site: Site, i: int, name: str) -> str:
    """Return operand `i` with its last axes swapped, or its first moved before its last."""
    rank = len(site.shape(i))
    order = list(range(rank))
    if site.int(f"transBatch{name}") and rank > 2:
        order = [*order[1:-1], 0, rank - 1]
    if site.int(f"trans{name}") and rank > 1:
        order[-2:] = order[:-3:-1]
    return site.b.transpose(site.input(i), order)
