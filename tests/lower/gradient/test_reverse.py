"""The Gradient operator against central differences of the standard's reference, in double."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import helper, parser
from onnx.reference import ReferenceEvaluator

from atc.errors import UnsupportedError
from atc.ir.graph import Array
from atc.ir.ops import MatMul
from atc.lower.gradient.derivatives import DERIVATIVES
from atc.lower.gradient.tape import EXPANSIONS
from atc.lower.gradient.without import WITHOUT
from atc.lower.model import lower_model
from atc.passes import run_passes
from support import Batch, compile_graph, run_model

POSITIVE = frozenset(["above 1", "Pow", "Div", "ReduceL2"])
"""Models whose inputs are between 1.2 and 2; those of the others are between -1 and 1."""

ROUGH = frozenset(["roughly"])
"""Models that the reference computes in float, so that the differences must be large."""


def side_by_side(*calls: str) -> str:
    """Return a model that applies functions of one operand to an input each."""
    names = [f"a{k}" for k in range(len(calls))]
    inputs = ", ".join(f"double[2,2] {a}" for a in names)
    nodes = " ".join(f"y{a} = {call}({a})" for a, call in zip(names, calls, strict=True))
    joined = ", ".join(f"y{a}" for a in names)
    return (f"({inputs}) => (double[2,{2 * len(calls)}] y) "
            f"{{ {nodes} y = Concat<axis=1>({joined}) }}")  # fmt: skip


CASES = {
    "one operand": side_by_side(
        *("Neg", "Exp", "Abs", "Tanh", "Sigmoid", "Softplus", "Relu", "Sin", "Cos", "Tan", "Asin"),
        *("Acos", "Atan", "Sinh", "Cosh", "Asinh", "Atanh", "Identity", "Floor", "Ceil", "Round"),
        *("Sign", "LeakyRelu", "Elu", "Celu<alpha=0.7>", "Selu", "HardSwish", "HardSigmoid"),
        *("Mish", "Softsign", "Softmax", "LogSoftmax<axis=0>"),
    ),
    "above 1": side_by_side("Log", "Sqrt", "Reciprocal", "Acosh"),
    "roughly": side_by_side("Erf", "Gelu"),
    **{
        op: f"(double[2,1,5] a, double[3,1] b) => (double[2,3,5] y) {{ y = {op}(a, b) }}"
        for op in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "PRelu")
    },
    "Mean": "(double[2,3,5] a, double[3,1] b) => (double[2,3,5] y) { y = Mean(a, b) }",
    "chain": "(double[3,4] a, double[4,2] b, double[2] c) => (double[3,2] y) "
             "{ m = MatMul(a, b) s = Add(m, c) t = Tanh(s) u = Mul(t, m) y = Sub(u, a0) "
             "a0 = ReduceMean<keepdims=1>(a) }",
    "Clip": "(double[2,5] a) => (double[2,5] y) <double l = {-0.5}, double h = {0.6}> "
            "{ y = Clip(a, l, h) }",
    "Where": "(double[2,5] a, double[5] b) => (double[2,5] y) "
             "{ c = Greater(a, b) y = Where(c, a, b) }",
    "Cast": "(double[2,5] a) => (double[2,5] y) { f = Cast<to=11>(a) y = Mul(f, a) }",
    "Dropout": "(double[2,5] a) => (double[2,5] y) <float r = {0.4}, bool t = {1}> "
               "{ d = Dropout<seed=3>(a, r, t) y = Mul(d, d) }",
    "moves": "(double[2,3,4] a) => (double y) <int64[2] s = {4, 6}, int64[1] x = {1}> "
             "{ t = Transpose<perm=[2,0,1]>(a) r = Reshape(t, s) q = Flatten<axis=1>(r) "
             "u = Unsqueeze(q, x) v = Squeeze(u, x) w = Mul(v, r) y = ReduceSum<keepdims=0>(w) }",
    "Expand": "(double[3,1] a) => (double[2,3,4] y) <int64[3] s = {2, 3, 4}> "
              "{ e = Expand(a, s) y = Mul(e, e) }",
    "Slice": "(double[4,5] a) => (double[2,2] y) <int64[2] s = {1, -1}, int64[2] e = {3, -9}, "
             "int64[2] x = {0, 1}, int64[2] p = {1, -3}> { t = Slice(a, s, e, x, p) "
             "y = Mul(t, t) }",
    "Concat": "(double[2,3] a, double[2,1] b) => (double[2,7] y) "
              "{ c = Concat<axis=1>(a, b, a) y = Mul(c, c) }",
    "Split": "(double[2,5] a) => (double[2,2] y) <int64[3] s = {2, 2, 1}> "
             "{ p, q, r = Split<axis=1>(a, s) t = Mul(p, q) y = Mul(t, p) }",
    "sequences": "(double[4,3] a, double[4,2] b) => (double[2,2] y) <int64 z = {0}, int64 o = {1}, "
                 "int64 m = {-1}> { s = SplitToSequence<axis=1>(a, o) p = SequenceAt(s, m) "
                 "q = SequenceAt(s, o) c = SequenceConstruct(p, q) r = SequenceInsert(c, p, o) "
                 "e = SequenceErase(r, z) v = SequenceInsert(e, q) w = SequenceErase(v) "
                 "l = ConcatFromSequence<axis=1>(w) t = SplitToSequence<keepdims=0>(b) "
                 "n = ConcatFromSequence<axis=-1, new_axis=1>(t) h = Tanh(l) y = MatMul(n, h) }",
    "Gather": "(double[4,3] a) => (double[4,5] y) <int64[5] i = {2, 0, -1, 2, 2}> "
              "{ t = Gather<axis=1>(a, i) y = Mul(t, t) }",
    "disjoint parts": "(double[7,3] a) => (double[2,3] y) <int64[2] i = {-1, 5}, int64 k = {0}, "
        "int64[1] o = {1}, int64[1] t = {3}, int64[1] z = {0}> { p = Slice(a, o, t, z) "
        "q = Gather(a, i) r = Gather(a, k) u = Mul(p, q) v = Mul(u, u) y = Mul(v, r) }",
    "parts that overlap": "(double[7] a) => (double[3] y) <int64[1] o = {1}, int64[1] z = {0}, "
        "int64[1] t = {3}, int64[1] f = {4}> { p = Slice(a, z, t) q = Slice(a, o, f) "
        "r = Slice(a, z, t) u = Mul(p, q) v = Add(u, r) y = Add(v, p) }",
    "parts of several axes": "(double[4,4] a) => (double[2,4] y) <int64[1] o = {1}, "
        "int64[1] z = {0}, int64[1] t = {2}, int64[1] f = {4}> { p = Slice(a, z, t, z) "
        "q = Slice(a, t, f, o) r = Reshape(q, s) s = Constant<value = int64[2] {2, 4}>() "
        "y = Mul(p, r) }",
    "GatherElements": "(double[4,3] a) => (double[2,3] y) <int64[2,3] i = {2, 0, 1, 2, 2, 3}> "
                      "{ t = GatherElements<axis=0>(a, i) y = Mul(t, t) }",
    **{
        op: f"(double[2,3,4] a) => (double[2,4] y) <int64[1] x = {{1}}> "
            f"{{ r = {op}<keepdims=0>(a, x) y = Mul(r, r) }}"
        for op in ("ReduceSum", "ReduceMean", "ReduceSumSquare", "ReduceL2", "ReduceMax",
                   "ReduceMin", "ReduceLogSumExp")
    },
    "ReduceLogSumExp of large ones": "(double[2,3] a) => (double[2] y) <int64[1] x = {1}, "
        "double k = {500}> { b = Mul(a, k) y = ReduceLogSumExp<keepdims=0>(b, x) }",
    "MatMul": "(double[2,1,3,4] a, double[5,4,2] b) => (double[2,5,3,2] y) { y = MatMul(a, b) }",
    "MatMul of vectors": "(double[4] a, double[2,4,3] b, double[3] c) => (double[2] y) "
                         "{ t = MatMul(a, b) y = MatMul(t, c) }",
    "Gemm": "(double[4,3] a, double[2,4] b, double[2] c) => (double[3,2] y) "
            "{ y = Gemm<transA=1, transB=1, alpha=0.5, beta=2.0>(a, b, c) }",
    "Conv": "(double[2,3,7,6] a, double[4,3,3,2] b, double[4] c) => (double[2,4,4,3] y) "
            "{ y = Conv<strides=[2,2], pads=[1,0,1,1]>(a, b, c) }",
    "Conv of groups": "(double[1,4,9] a, double[6,2,2] b) => (double[1,6,4] y) "
                      "{ y = Conv<group=2, dilations=[3], strides=[2], auto_pad=\"VALID\">(a, b) }",
    "GlobalAveragePool": "(double[2,3,4,5] a) => (double[2,3,1,1] y) { y = GlobalAveragePool(a) }",
    "AveragePool": "(double[1,2,7,6] a) => (double[1,2,4,3] y) "
                   "{ y = AveragePool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]>(a) }",
    **{
        f"AveragePool beyond the end{include}": "(double[1,2,6,7] a) => (double[1,2,3,4] y) "
            f"{{ y = AveragePool<kernel_shape=[3,2], strides=[2,2], ceil_mode=1{include}>(a) }}"
        for include in ("", ", count_include_pad=1")
    },
    "MaxPool": "(double[1,2,7,6] a) => (double[1,2,4,3] y) "
               "{ y = MaxPool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1]>(a) }",
    "BatchNormalization": "(double[2,3,4] a, double[3] s, double[3] t, double[3] m, double[3] v) "
                          "=> (double[2,3,4] y) { q = Mul(v, v) "
                          "y = BatchNormalization(a, s, t, m, q) }",
    "BatchNormalization in training": "(double[2,3,4] a, double[3] s, double[3] t, double[3] m, "
        "double[3] v) => (double[2,3,4] y) { n, p, q = BatchNormalization<training_mode=1>"
        "(a, s, t, m, v) y = Mul(n, a) }",
    "InstanceNormalization": "(double[2,3,4] a, double[3] s, double[3] t) => (double[2,3,4] y) "
                             "{ n = InstanceNormalization(a, s, t) y = Mul(n, a) }",
    **{
        f"Pad {mode}": f"(double[3,4] a) => (double[6,8] y) <int64[4] p = {{2, 1, 1, 3}}> "
                       f"{{ t = Pad<mode=\"{mode}\">(a, p) y = Mul(t, t) }}"
        for mode in ("constant", "reflect", "edge", "wrap")
    },
    "Pad with": "(double[3] a, double c) => (double[6] y) <int64[2] p = {2, 1}> "
                "{ t = Pad(a, p, c) y = Mul(t, t) }",
    "Tile": "(double[2,3] a) => (double[4,9] y) <int64[2] r = {2, 3}> "
            "{ t = Tile(a, r) y = Mul(t, t) }",
    "CumSum": "(double[2,3] a) => (double[2,3] y) <int64 x = {1}> "
              "{ t = CumSum<exclusive=1>(a, x) u = CumSum<reverse=1>(t, x) y = Mul(u, t) }",
    "CumProd": "(double[2,4] a) => (double[2,4] y) <int64 x = {-1}> "
               "{ t = CumProd<exclusive=1, reverse=1>(a, x) u = CumProd(t, x) y = Mul(u, t) }",
    "Trilu": "(double[3,3] a) => (double[3,3] y) <int64 k = {1}> "
             "{ t = Trilu<upper=0>(a, k) y = Mul(t, t) }",
    "DepthToSpace": "(double[1,8,2,3] a) => (double[1,2,4,6] y) "
                    "{ t = DepthToSpace<blocksize=2, mode=\"CRD\">(a) "
                    "u = DepthToSpace<blocksize=2>(a) y = Mul(t, u) }",
    "SpaceToDepth": "(double[1,2,4,6] a) => (double[1,8,2,3] y) "
                    "{ t = SpaceToDepth<blocksize=2>(a) y = Mul(t, t) }",
    **{
        f"Resize {mode}": f"(double[1,2,3,4] a) => (double[1,2,6,8] y) "
                          f"<float[4] s = {{1, 1, 2, 2}}> "
                          f"{{ t = Resize<mode=\"{mode}\">(a, , s) y = Mul(t, t) }}"
        for mode in ("nearest", "linear", "cubic")
    },
    "Resize to sizes": "(double[1,2,3,4] a) => (double[1,2,5,3] y) <int64[2] s = {5, 3}> "
        "{ t = Resize<mode=\"linear\", axes=[2,3], coordinate_transformation_mode="
        "\"align_corners\">(a, , , s) y = Mul(t, t) }",
    **{
        f"Resize {policy}": f"(double[1,1,4,5] a) => (double[1,1,6,{wide}] y) "
            f"<int64[2] s = {{6, 7}}> {{ y = Resize<mode=\"linear\", axes=[2,3], "
            f"keep_aspect_ratio_policy=\"{policy}\">(a, , , s) }}"
        for policy, wide in (("not_larger", 7), ("not_smaller", 8))
    },
    **{
        f"{op} before 11": "(double[1,1,2,3] a) => (double[1,1,4,6] y) <float[4] s = {1, 1, 2, 2}> "
            f"{{ t = {op}<mode=\"linear\">(a, s) y = Mul(t, t) }}"
        for op in ("Resize", "Upsample")
    },
    **{
        f"ScatterElements {how}": "(double[3,3] a, double[2,3] b) => (double[3,3] y) "
            "<int64[2,3] i = {0, 2, 1, 2, 0, 0}> "
            f"{{ t = ScatterElements<axis=0, reduction=\"{how}\">(a, i, b) y = Mul(t, t) }}"
        for how in ("none", "add", "mul", "max", "min")
    },
    "Scatter": "(double[3,3] a, double[2,3] b) => (double[3,3] y) "
               "<int64[2,3] i = {0, 2, 1, 2, 0, 0}> { t = Scatter(a, i, b) y = Mul(t, t) }",
    **{
        f"ScatterND {how}": "(double[4,2] a, double[2,2] b) => (double[4,2] y) "
            "<int64[2,1] i = {3, 1}> "
            f"{{ t = ScatterND<reduction=\"{how}\">(a, i, b) y = Mul(t, t) }}"
        for how in ("none", "add", "mul", "max")
    },
    "GatherND": "(double[3,4] a) => (double[3] y) <int64[3,2] i = {0, 3, 2, 1, 0, 3}> "
                "{ t = GatherND(a, i) y = Mul(t, t) }",
    "GatherND of batches": "(double[2,3,4] a) => (double[2,4] y) <int64[2,1] i = {1, -1}> "
                           "{ t = GatherND<batch_dims=1>(a, i) y = Mul(t, t) }",
    "TopK": "(double[2,5] a) => (double[2,3] y) <int64[1] k = {3}> "
            "{ t, i = TopK(a, k) y = Mul(t, t) }",
    "GlobalMaxPool": "(double[2,3,4,5] a) => (double[2,3,1,1] y) { t = GlobalMaxPool(a) "
                     "y = Mul(t, t) }",
    "ReduceProd": "(double[2,3,4] a) => (double[2,4] y) <int64[1] x = {1}> "
                  "{ t = ReduceProd<keepdims=0>(a, x) y = Mul(t, t) }",
    "Einsum": "(double[2,3,4] a, double[4,5] b, double[3] c) => (double[5,2] y) "
              "{ y = Einsum<equation=\"bij,jk,i->kb\">(a, b, c) }",
    "Einsum of sums": "(double[2,3] a, double[4] b) => (double[2] y) "
                      "{ t = Einsum<equation=\"ij,k->i\">(a, b) y = Mul(t, t) }",
    "Einsum of diagonals": "(double[2,3,3] a, double[1,3] b) => (double[2,3] y) "
                           "{ y = Einsum<equation=\"...ii,...i->...i\">(a, b) }",
    "Einsum of a single one": "(double[2,1] a, double[3,4] b) => (double[2,4] y) "
                              "{ y = Einsum<equation=\"ij,jk->ik\">(a, b) }",
    "ConvTranspose": "(double[2,3,4,3] a, double[3,4,3,2] b, double[4] c) => (double[2,4,8,6] y) "
        "{ t = ConvTranspose<strides=[2,2], pads=[1,0,1,1], output_padding=[1,1]>(a, b, c) "
        "y = Mul(t, t) }",
    "ConvTranspose of groups": "(double[1,4,5] a, double[4,1,2] b) => (double[1,4,7] y) "
        "{ y = ConvTranspose<group=4, dilations=[2]>(a, b) }",
    "ConvTranspose to a size": "(double[1,2,4,3] a, double[2,3,3,3] b) => (double[1,3,8,6] y) "
        "{ y = ConvTranspose<strides=[2,2], auto_pad=\"SAME_UPPER\">(a, b) }",
    "CrossEntropy": "(double[3,5] a) => (double y) <int64[3] l = {1, 4, 0}> "
                    "{ y = SoftmaxCrossEntropyLoss(a, l) }",
    "LpPool": "(double[1,2,7,6] a) => (double[1,2,4,3] y) "
              "{ y = LpPool<kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,1], p=3>(a) }",
    "GlobalLpPool": "(double[2,3,4,5] a) => (double[2,3,1,1] y) { y = GlobalLpPool<p=3>(a) }",
    "LRN": "(double[2,5,3,1] a) => (double[2,5,3,1] y) { t = LRN<size=4, alpha=0.9, bias=2.0>(a) "
           "u = LRN<size=3, beta=0.4>(a) y = Mul(t, u) }",
    "LpNormalization": "(double[2,5] a) => (double[2,5] y) { t = LpNormalization<p=1, axis=0>(a) "
                       "u = LpNormalization(a) y = Mul(t, u) }",
    "Hardmax": "(double[2,5] a) => (double[2,5] y) { t = Hardmax(a) y = Mul(t, a) }",
    "Mod": "(double[2,5] a, double[5] b) => (double[2,5] y) { c = Mul(a, n) t = Mod<fmod=1>(c, b) "
           "n = Add(a, a) y = Mul(t, b) }",
    "ReverseSequence": "(double[4,3] a) => (double[4,3] y) <int64[3] l = {4, 1, 3}> "
                       "{ t = ReverseSequence(a, l) y = Mul(t, a) }",
    "OneHot": "(double[2] a) => (double[2,3,4] y) <int64[2,3] i = {0, 3, 1, 1, 2, 0}, "
              "int64 d = {4}> { t = OneHot(i, d, a) y = Mul(t, t) }",
    "MaxUnpool": "(double[1,1,2,2] a) => (double[1,1,4,4] y) <int64[1,1,2,2] i = {5, 7, 8, 15}> "
                 "{ t = MaxUnpool<kernel_shape=[2,2], strides=[2,2]>(a, i) y = Mul(t, t) }",
    "Col2Im": "(double[2,12,25] a) => (double[2,2,5,4] y) <int64[2] s = {5, 4}, "
              "int64[2] k = {2, 3}> "
              "{ t = Col2Im<pads=[0,1,1,2], dilations=[1,1]>(a, s, k) y = Mul(t, t) }",
    "MeanVarianceNormalization": "(double[2,3,4,2] a) => (double[2,3,4,2] y) "
                                 "{ t = MeanVarianceNormalization(a) y = Mul(t, a) }",
    "LayerNormalization": "(double[2,3,4] a, double[4] s, double[4] t) => (double[2,3,4] y) "
                          "{ n = LayerNormalization<stash_type=11>(a, s, t) y = Mul(n, a) }",
    "GroupNormalization": "(double[2,4,3] a, double[4] s, double[4] t) => (double[2,4,3] y) "
        "{ n = GroupNormalization<num_groups=2, stash_type=11>(a, s, t) y = Mul(n, a) }",
    "RMSNormalization": "(double[2,3,4] a, double[4] s) => (double[2,3,4] y) "
                        "{ n = RMSNormalization<stash_type=11>(a, s) y = Mul(n, a) }",
    "Attention": "(double[1,2,3,4] a, double[1,2,5,4] b, double[1,2,5,6] c, double[3,5] d) => "
                 "(double[1,2,3,6] y) { y = Attention(a, b, c, d) }",
    "Attention of groups": "(double[1,3,8] a, double[1,3,4] b, double[1,3,4] c) => "
        "(double[1,3,8] y) { y = Attention<is_causal=1, q_num_heads=4, kv_num_heads=2, "
        "softcap=2.0>(a, b, c) }",
    "RotaryEmbedding": "(double[1,2,3,4] a, double[1,3,2] b, double[1,3,2] c) => "
                       "(double[1,2,3,4] y) { t = RotaryEmbedding(a, b, c) y = Mul(t, t) }",
    "Swish": "(double[2,5] a) => (double[2,5] y) { y = Swish<alpha=1.5>(a) }",
    "bodies": "(double[2,5] a) => (double[2,5] y) { s = Shrink<lambd=0.3, bias=0.1>(a) "
        "t = ThresholdedRelu<alpha=0.2>(a) u = ReduceL1<keepdims=1>(a, x) v = Exp(a) "
        "w = ReduceLogSum<keepdims=1>(v, x) p = Mul(s, u) q = Mul(t, w) y = Add(p, q) "
        "x = Constant<value = int64[1] {1}>() }",
    "CenterCropPad": "(double[3,4] a) => (double[5,2] y) <int64[2] s = {5, 2}> "
                     "{ t = CenterCropPad(a, s) y = Mul(t, t) }",
    "NegativeLogLikelihoodLoss": "(double[3,5] a, double[5] w) => (double y) "
        "<int64[3] l = {1, 4, 0}> { t = Mul(a, a) y = NegativeLogLikelihoodLoss(t, l, w) }",
    "If": "(double[3] a, double[3] b) => (double[3] y) { m = ReduceSum<keepdims=0>(a) "
          "n = Mul(m, m) z = Sub(m, m) c = Less(z, n) t = If<"
          "then_branch = g1 () => (double[3] p) { o = Mul(a, b) p = Exp(o) }, "
          "else_branch = g2 () => (double[3] q) { l = Neg(n) s = Log(l) q = Mul(s, b) }>(c) "
          "y = Mul(t, a) }",
    "If that is known": "(double[3] a) => (double[3] y) <bool c = {0}> { y = If<"
        "then_branch = g1 () => (double[3] p) { p = Exp(a) }, "
        "else_branch = g2 () => (double[3] q) { q = Sin(a) }>(c) }",
    "Loop": "(double[3] a, double[3] b) => (double[3] y) <int64 n = {4}, bool c = {1}> "
            "{ s, all = Loop<body = g1 (int64 i, bool k, double[3] u) => (bool go, double[3] v, "
            "double[3] w) { go = Identity(k) t = Mul(u, b) v = Sin(t) w = Mul(v, u) }>(n, c, a) "
            "m = ReduceSum<keepdims=0>(all) y = Mul(s, m) }",
    "Scan": "(double[2] a, double[2,4] b, double[2] d) => (double[2,4] y) { s, t = "
            "Scan<num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1], "
            "scan_input_directions=[1], scan_output_directions=[1], body = "
            "g1 (double[2] u, double[2] x) => (double[2] v, double[2] w) "
            "{ p = Mul(u, d) v = Add(p, x) w = Mul(v, v) }>(a, b) e = Unsqueeze(s, o) "
            "y = Mul(t, e) o = Constant<value = int64[1] {1}>() }",
    **{
        f"{op} {word}": f"(double[3,2,4] x, double[{d},{3 * g},4] w, double[{d},{3 * g},3] r, "
            f"double[{d},{6 * g}] b, double[{d},2,3] h{more}) => (double[3,{d},2,3] y) "
            f"<int32[2] l = {{3, 2}}> "
            f"{{ p, q{', s' if op == 'LSTM' else ''} = {op}<hidden_size=3, direction=\"{word}\""
            f"{extra}>(x, w, r, b, {'l' if word == 'bidirectional' else ''}, h{args}) "
            f"u = ReduceSum<keepdims=0>(q) y = Mul(p, u) }}"
        for op, g, word, d, more, args, extra in (
            ("RNN", 1, "forward", 1, "", "", ", activations=[\"ScaledTanh\"], "
             "activation_alpha=[0.9], activation_beta=[0.7]"),
            ("RNN", 1, "bidirectional", 2, "", "", ""),
            ("GRU", 3, "reverse", 1, "", "", ""),
            ("GRU", 3, "bidirectional", 2, "", "", ", linear_before_reset=1, clip=0.9"),
            ("LSTM", 4, "forward", 1, ", double[1,2,3] c, double[1,9] t", ", c, t", ""),
            ("LSTM", 4, "bidirectional", 2, ", double[2,2,3] c", ", c", ", input_forget=1"),
        )
    },
    **{
        f"GridSample {mode} {padding} {aligned}": "(double[2,2,4,5] a, double[2,3,2,2] b) => "
            "(double[2,2,3,2] y) { c = Mul(b, s) t = GridSample"
            f"<mode=\"{mode}\", padding_mode=\"{padding}\", align_corners={aligned}>(a, c) "
            "y = Mul(t, t) s = Constant<value=double {1.7}>() }"
        for mode, padding, aligned in (("linear", "zeros", 0), ("linear", "border", 1),
            ("linear", "reflection", 0), ("cubic", "zeros", 1), ("cubic", "border", 0),
            ("cubic", "reflection", 0), ("nearest", "border", 0))
    },
    "GridSample of volumes": "(double[1,2,3,2,4] a, double[1,2,2,2,3] b) => (double[1,2,2,2,2] y) "
        "{ t = GridSample(a, b) y = Mul(t, t) }",
    "AffineGrid": "(double[2,2,3] a) => (double[2,3,4,2] y) <int64[4] s = {2, 1, 3, 4}> "
                  "{ t = AffineGrid(a, s) y = Mul(t, t) }",
    "DeformConv": "(double[1,4,5,4] a, double[4,2,3,2] w, double[1,24,3,4] o, double[4] b, "
        "double[1,12,3,4] m) => (double[1,4,3,4] y) { t = DeformConv<group=2, offset_group=2, "
        "pads=[1,0,1,1], strides=[2,1]>(a, w, o, b, m) y = Mul(t, t) }",
    **{
        f"RoiAlign {mode}": "(double[2,2,5,6] a, double[3,4] r) => (double[3,2,2,3] y) "
            "<int64[3] i = {1, 0, 1}, double[4] c = {1, 0.3, 5.1, 4.2}> { s = Add(r, c) "
            "t = RoiAlign<output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.9, "
            f"coordinate_transformation_mode=\"{mode}\">(a, s, i) y = Mul(t, t) }}"
        for mode in ("half_pixel", "output_half_pixel")
    },
    "RoiAlign of maxima": "(double[2,2,5,6] a, double[3,4] r) => (double[3,2,2,3] y) "
        "<int64[3] i = {1, 0, 1}, double[4] c = {1, 0.3, 5.1, 4.2}> { s = Add(r, c) "
        "t = RoiAlign<output_height=2, output_width=3, sampling_ratio=2, spatial_scale=0.9, "
        "mode=\"max\">(a, s, i) y = Mul(t, t) }",
    "MaxRoiPool": "(double[2,2,5,6] a, double[4,5] r) => (double[4,2,3,2] y) "
        "<double[4,5] c = {1.5, 1.4, 1.4, 9.4, 6.4, 0.5, 0.4, 3.4, 7.4, 3.4, 1.5, 7.4, 5.4, 5.4, "
        "9.4, 0.5, 3.4, 2.4, 20.4, 30.4}, double s = {0.03}> { m = Mul(r, s) q = Add(m, c) "
        "t = MaxRoiPool<pooled_shape=[3,2], spatial_scale=0.5>(a, q) y = Mul(t, t) }",
    **{
        f"DFT {name}": f"(double{x} a) => (double{y} y) <int64 n = {{{n}}}, int64 d = {{{d}}}> "
            f"{{ t = DFT<{at}>(a, n, d) y = Mul(t, t) }}"
        for name, x, y, n, d, at in (
            ("of real numbers", "[2,5,1]", "[2,6,2]", 6, -2, "inverse=0"),
            ("of complex ones", "[7,2,2]", "[5,2,2]", 5, 0, "inverse=1"),
            ("one-sided", "[2,8,1]", "[2,4,2]", 7, 1, "onesided=1"),
            ("one-sided and back", "[2,4,2]", "[2,6,1]", 6, 1, "onesided=1, inverse=1"),
            ("one-sided and back, odd", "[2,3,2]", "[2,5,1]", 5, 1, "onesided=1, inverse=1"),
        )
    },
    "DFT before 20": "(double[2,3,4,1] a) => (double[2,3,4,2] y) "
                     "{ t = DFT<axis=2>(a) y = Mul(t, t) }",
    "STFT": "(double[2,11,1] a, double[4] w) => (double[2,4,3,2] y) <int64 s = {2}> "
            "{ t = STFT(a, s, w) y = Mul(t, t) }",
    "Det": "(double[2,3,3] a) => (double[2] y) { t = Det(a) y = Mul(t, t) }",
    "Det of singular matrices": "(double[2,2] a) => (double y) <double[2,2] n = {1, 0, 1, 0}> "
                                "{ s = Mul(a, n) y = Det(s) }",
    "Det of numbers": "(double[3,1,1] a) => (double[3] y) { t = Det(a) y = Mul(t, t) }",
    **{
        f"TensorScatter {mode}": "(double[2,5,3] a, double[2,3,3] b) => (double[2,5,3] y) "
            f"<int64[2] i = {{2, {last}}}> {{ t = TensorScatter<mode=\"{mode}\">(a, b, i) "
            "y = Mul(t, t) }"
        for mode, last in (("linear", 0), ("circular", 4))
    },
    "Resize of a crop": "(double[1,1,5,4] a) => (double[1,1,4,6] y) <float[8] r = "
        "{0, 0, 0.2, -0.3, 1, 1, 0.9, 1.2}, int64[4] s = {1, 1, 4, 6}> { t = Resize<mode="
        "\"linear\", coordinate_transformation_mode=\"tf_crop_and_resize\", "
        "extrapolation_value=3.5>(a, r, , s) y = Mul(t, t) }",
    "LSTM in rows": "(double[2,3,4] x, double[1,12,4] w, double[1,12,3] r) => (double[2,3,1,3] y) "
        "{ y, q = LSTM<hidden_size=3, layout=1>(x, w, r) }",
}  # fmt: skip

OPSETS = {"RMSNormalization": 23, "Attention": 24, "Attention of groups": 24,
          "RotaryEmbedding": 23, "Swish": 24, "CumProd": 26, "Scatter": 10,
          "TensorScatter linear": 24, "TensorScatter circular": 24, "DFT before 20": 19,
          "Resize before 11": 10, "Upsample before 11": 9}  # fmt: skip
"""Of models that need another than 21."""

_UNKNOWN = {"GridSample", "DeformConv", "RoiAlign", "MaxRoiPool", "DFT", "STFT", "Det",
            "TensorScatter", "Resize of a crop", "AffineGrid", "RNN", "GRU", "LSTM",
            "RMSNormalization", "MeanVarianceNormalization", "GlobalLpPool",
            "Scan", "LRN", "LpNormalization", "LayerNormalization", "Upsample", "Scatter",
            "Resize not_larger", "Resize not_smaller", "Resize before 11"}  # fmt: skip
OWN = frozenset(name for name in CASES if {name, name.split()[0]} & _UNKNOWN)
"""Models that the reference does not know in double, backwards, or with such attributes.

Differences are those of the compiled forward pass.
"""


def forward(name: str) -> onnx.ModelProto:
    graph = parser.parse_graph(f"g {CASES[name]}")
    nodes, known = [*graph.node], {v.name for v in (*graph.input, *graph.initializer)} | {""}
    del graph.node[:]
    while nodes:  # what stands too early comes later
        ready = next((n for n in nodes if known.issuperset(n.input)), nodes[0])
        nodes.remove(ready)
        known.update(ready.output)
        graph.node.append(ready)
    opset = helper.make_opsetid("", OPSETS.get(name, 21))
    return helper.make_model(graph, opset_imports=[opset], ir_version=10)


def with_gradient(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model with one more output per input: y's gradient."""
    made = onnx.ModelProto.FromString(model.SerializeToString())
    xs = [v.name for v in made.graph.input]
    made.graph.node.append(
        helper.make_node(
            "Gradient", xs, [f"d{x}" for x in xs], domain="ai.onnx.preview.training", xs=xs, y="y"
        )
    )
    for x in model.graph.input:
        made.graph.output.append(onnx.ValueInfoProto.FromString(x.SerializeToString()))
        made.graph.output[-1].name = f"d{x.name}"
    made.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    return made


MODELS = {name: with_gradient(forward(name)) for name in CASES}
COMPILED = Batch(MODELS)


def feeds(name: str, model: onnx.ModelProto) -> dict[str, Array]:
    random = np.random.default_rng(len(name))
    result = {}
    for value in model.graph.input:
        shape = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if name in POSITIVE:
            result[value.name] = random.uniform(1.2, 2, shape)
        else:
            result[value.name] = random.uniform(0.05, 0.95, shape) * random.choice([-1, 1], shape)
    return result


def differences(
    run: Callable[[dict[str, Array]], Array], values: dict[str, Array], h: float
) -> list[Array]:
    """Return the central differences of the sum of y."""

    def total(changed: dict[str, Array]) -> float:
        return float(np.sum(run(changed)))

    results = []
    for name, x in values.items():
        slope = np.zeros(x.shape)
        for at in np.ndindex(*x.shape):
            step = np.zeros(x.shape)
            step[at] = h
            slope[at] = (total({**values, name: x + step}) - total({**values, name: x - step})) / 2
        results.append(slope / h)
    return results


@pytest.mark.few(4)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_central_differences(name: str) -> None:
    model = forward(name)
    values = feeds(name, model)
    y, *got = COMPILED[name](list(values.values()))

    def run(changed: dict[str, Array]) -> Array:
        if name in OWN:
            return COMPILED[name](list(changed.values()))[0]
        return ReferenceEvaluator(model).run(None, changed)[0]

    np.testing.assert_allclose(y, run(values), rtol=1e-6)
    h, tolerance = (1e-2, 5e-4) if name in ROUGH else (1e-5, 1e-6)
    for slope, wanted in zip(got, differences(run, values, h), strict=True):
        np.testing.assert_allclose(slope, wanted, rtol=tolerance, atol=tolerance / 10)


@cache
def tried() -> frozenset[str]:
    """Return the operators of all cases."""
    return frozenset(node.op_type for name in CASES for node in forward(name).graph.node)


def test_every_rule_is_tried() -> None:
    legacy = {"CastLike"}  # the bodies of functions have it
    assert {op for domain, op in (*DERIVATIVES, *EXPANSIONS) if not domain} - legacy <= tried()


@cache
def schemas() -> dict[str, Any]:
    """Return the newest schema of each operator of the default domain that takes floats."""
    newest: dict[str, Any] = {}
    for schema in onnx.defs.get_all_schemas_with_history():
        known = newest.get(schema.name)
        if schema.domain or schema.since_version > 26:  # not in a release when this was written
            continue
        if known is None or known.since_version < schema.since_version:
            newest[schema.name] = schema
    floats = {"tensor(float)", "tensor(double)", "seq(tensor(float))", "optional(tensor(float))"}
    return {n: s for n, s in newest.items() if any(floats & {*i.types} for i in s.inputs)}


def test_every_float_operator_has_a_derivative_or_a_reason() -> None:
    for op, schema in schemas().items():
        has_body = schema.has_function or schema.has_context_dependent_function
        ways = [("", op) in DERIVATIVES, ("", op) in EXPANSIONS, ("", op) in WITHOUT]
        if any(ways):
            assert sum(ways) == 1, op
        else:
            assert has_body, f"{op} has neither derivative nor reason"
            assert op in tried(), f"nobody has tried the standard's body of {op}"


def gradient_model(nodes: list[Any], xs: list[str], y: str = "y", zs: tuple[str, ...] = ()) -> Any:
    node = helper.make_node(
        "Gradient", [*xs, *zs], [f"d{x}" for x in xs], domain="ai.onnx.preview.training",
        xs=xs, y=y, **({"zs": list(zs)} if zs else {}),
    )  # fmt: skip
    declare = helper.make_tensor_value_info
    graph = helper.make_graph(
        [*nodes, node], "g", [declare(n, 1, [3]) for n in ("a", "b")],
        [declare(f"d{x}", 1, [3]) for x in xs],
    )  # fmt: skip
    versions = (("", 21), ("ai.onnx.preview.training", 1))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid(*v) for v in versions])


A, B = np.array([1, -2, 3], np.float32), np.array([4, 5, -6], np.float32)


def test_a_gradient_may_be_taken_at_a_value_inside() -> None:
    nodes = [helper.make_node("Mul", ["a", "b"], ["h"]), helper.make_node("Exp", ["h"], ["e"]),
             helper.make_node("Mul", ["h", "h"], ["y"])]  # fmt: skip
    got = run_model(gradient_model(nodes, ["h"]), [A, B])
    np.testing.assert_allclose(got[0], 2 * A * B)


def test_what_y_does_not_depend_on_has_the_gradient_0() -> None:
    model = gradient_model([helper.make_node("Mul", ["a", "a"], ["y"])], ["a", "b"])
    got = run_model(model, [A, B])
    np.testing.assert_allclose(got, [2 * A, 0 * B])


def test_no_gradient_goes_through_what_is_stopped() -> None:
    nodes = [helper.make_node("StopGradient", ["a"], ["h"], domain="atc.training"),
             helper.make_node("Mul", ["h", "a"], ["m"]), helper.make_node("Mul", ["m", "b"], ["y"])]
    model = gradient_model(nodes, ["a", "b"])
    model.opset_import.append(helper.make_opsetid("atc.training", 1))
    got = run_model(model, [A, B])
    np.testing.assert_allclose(got, [A * B, A * A])


def test_other_variables_are_held() -> None:
    model = gradient_model([helper.make_node("Mul", ["a", "b"], ["y"])], ["a"], zs=("b",))
    np.testing.assert_allclose(run_model(model, [A, B])[0], B)


@pytest.mark.parametrize(
    ("nodes", "y", "message"),
    [
        ([helper.make_node("Mul", ["a", "b"], ["y"])], "y", "y depends on 'b'"),
        ([helper.make_node("Unique", ["a"], ["u"], name="kinds"),
          helper.make_node("ReduceSum", ["u"], ["y"])], "y",
         r"the gradient of Unique is not covered: the shape of its result .*'kinds' \(Unique\)"),
        ([helper.make_node("Unique", ["a"], ["u"]), helper.make_node("ReduceSum", ["u"], ["y"])],
         "y", r"the gradient of Unique .*'u' \(Unique\)"),
        ([helper.make_node("Cast", ["a"], ["q"], to=onnx.TensorProto.FLOAT16),
          helper.make_node("DynamicQuantizeLinear", ["a"], ["i", "s", "z"]),
          helper.make_node("DequantizeLinear", ["i", "s", "z"], ["y"])], "y",
         "the gradient of DequantizeLinear is not covered: it rounds to integers"),
    ],
)  # fmt: skip
def test_limits_are_named(nodes: list[Any], y: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        compile_graph(gradient_model(nodes, ["a"], y))


def test_zeros_that_gradients_are_added_to_are_not_stored() -> None:
    """A table's gradient begins with zeros of its shape, an image's where maxima were as well."""
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        g (float[30000,8] table, float[1,1,512,512] image, int64[3] words)
        => (float[30000,8] by_table, float[1,1,512,512] by_image)
        { taken = Gather(table, words) most = MaxPool<kernel_shape=[2,2], strides=[2,2]>(image)
          sums = ReduceSum<keepdims=0>(taken) others = ReduceSum<keepdims=0>(most)
          y = Add(sums, others)
          by_table, by_image = ai.onnx.preview.training.Gradient
              <xs=["table", "image"], zs=["words"], y="y">(table, image, words) }""")
    graph = lower_model(onnx_ir.from_proto(model), "test")
    assert sum(array.nbytes for array in graph.constants.values()) < 1 << 16


@pytest.mark.parametrize(
    "node",
    ["LayerNormalization<axis=1>(x, s, s)", "Gelu(x)", "RMSNormalization<axis=1>(x, s)",
     "GatherElements<axis=0>(x, places)"],
)  # fmt: skip
def test_what_the_network_computes_is_not_computed_again(node: str) -> None:
    """Behind operators without derivatives of their own, too, and behind equal constants."""
    model = parser.parse_model(f"""
        <ir_version: 12, opset_import: ["": 23, "ai.onnx.preview.training": 1]>
        g (float[4,4] x, float[4] s, float[4,5] w) => (float[4,5] y, float[4,5] by_w)
        <int64[1,4] places = {{3, 1, 0, 2}}>
        {{ h = {node} m = MatMul(h, w) y = Tanh(m)
          by_w = ai.onnx.preview.training.Gradient<xs=["w"], zs=["x", "s"], y="y">(w, x, s) }}""")
    graph = run_passes(lower_model(onnx_ir.from_proto(model), "test"))
    assert sum(isinstance(node.op, MatMul) for node in graph.nodes) == 2


STEPS = 4
RECURRENT = {
    "LSTM": ("y, q = LSTM<hidden_size=8>(x, w, r)", 32, 2 * STEPS + 2),
    "GRU": ("y, q = GRU<hidden_size=8, linear_before_reset=1>(x, w, r)", 24, 2 * STEPS + 2),
    "RNN": ("y, q = RNN<hidden_size=8>(x, w, r)", 8, 2 * STEPS + 2),
    "Loop": ("t = Transpose<perm = [0, 2, 1]>(r) m = Squeeze(t, o) e = Squeeze(w, o) "
             "h = ReduceSum<keepdims=0>(x, o) u = MatMul(h, e) y = Loop<body = g1 (int64 i, "
             "bool k, float[2,8] a) => (bool z, float[2,8] c) { z = Identity(k) b = MatMul(a, m) "
             "c = Tanh(b) }>(n, go, u)", 8, 2 * STEPS + 3),
    "If": ("s = ReduceSum<keepdims=0>(x) z = Squeeze(r, o) c = Less(s, l) e = Squeeze(w, o) "
           "y = If<then_branch = g1 () => (float[8,8] t) { t = MatMul(z, z) }, "
           "else_branch = g2 () => (float[8,8] u) { v = MatMul(z, z) u = Tanh(v) }>(c)", 8, 6),
}  # fmt: skip
"""A node between others, the rows of its weights, and the products of the two passes."""


@pytest.mark.parametrize("kind", RECURRENT)
def test_steps_are_computed_once_and_weights_get_one_product(kind: str) -> None:
    nodes, rows, products = RECURRENT[kind]
    columns = 8 if kind in ("Loop", "If") else 5
    shape = "1,8,8" if kind == "Loop" else f"1,{rows},{columns}"
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        g (float[{STEPS},2,{columns}] x, float[{shape}] w, float[1,{rows},8] r)
        => (float[1,{rows},8] by_r, float[{shape}] by_w)
        <int64 n = {{{STEPS}}}, bool go = {{1}}, int64[1] o = {{0}}, float l = {{0}}>
        {{ {nodes}
          by_r, by_w = ai.onnx.preview.training.Gradient<xs=["r", "w"], zs=["x"], y="y">(r, w, x) }}
        """)
    graph = run_passes(lower_model(onnx_ir.from_proto(model), "test", ["y", "by_r", "by_w"]))
    kinds = [node.op.kind for node in graph.nodes]
    assert not {"Recurrent", "If", "Loop", "Scatter"} & {*kinds}
    assert kinds.count("MatMul") == products


def test_a_batch_that_meets_one_matrix_is_the_depth_of_its_gradient() -> None:
    model = parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21, "ai.onnx.preview.training": 1]>
        g (float[3,4,5] x, float[5,6] w) => (float[5,6] by_w)
        { y = MatMul(x, w) by_w = ai.onnx.preview.training.Gradient
              <xs=["w"], zs=["x"], y="y">(w, x) }""")
    graph = lower_model(onnx_ir.from_proto(model), "test")
    assert 3 * 4 in [node.op.k for node in graph.nodes if isinstance(node.op, MatMul)]
    x = np.random.default_rng(0).normal(size=(3, 4, 5)).astype(np.float32)
    got = run_model(model, [x, np.zeros((5, 6), np.float32)])
    want = np.broadcast_to(x.sum((0, 1))[:, None], (5, 6))
    np.testing.assert_allclose(got[0], want, rtol=1e-5)
