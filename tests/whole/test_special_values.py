"""Each sentence of atc/docs/numerics.md on denormals, NaN, infinities and saturation, as a test."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.parser
import pytest
from kernel_program import Call, run_calls, vector_target
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.backends.cpu.amx.matmul import MatMulAmx, MatMulAmxSplit, MatMulAmxWhole
from atc.backends.cpu.matmul.bf16 import MatMulBf16
from atc.backends.cpu.matmul.packed_int8 import MatMulFixedPointTile
from atc.backends.cpu.matmul.winograd import (
    BlockParams,
    GroupParams,
    MatMulWinograd,
    MatMulWinogradLeft,
)
from atc.backends.kernel import AnyKernel, Workload
from atc.backends.machines import MACHINES
from atc.backends.target import host_features
from atc.backends.targets import get_target
from atc.ir.graph import Array, DType, TensorType, type_of
from atc.ir.ops import MatMul, identity_epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from support import CONSTANT_INPUTS, compile_models, node_model

PAGE = Path(__file__).parents[2] / "atc/docs/numerics.md"
TIERS = ("c99", "host")
OTHERS = ("x86-64-sse2", "x86-64-avx2", "x86-64-avx512")

NAN, INF = float("nan"), float("inf")
Case = tuple[str, Sequence[Array], Mapping[str, Any], Array]
"""An operator, its inputs, its attributes (and which inputs are `constant`), and the result to the
last bit."""


def floats(*values: float, dtype: object = np.float32) -> Array:
    """Return values often enough that vector kernels take them: 64 elements."""
    return np.resize(np.array(values, dtype), 64)  # type: ignore[call-overload]


def case(op: str, inputs: Sequence[Array], result: Array, **attributes: object) -> Case:
    return op, inputs, attributes, result


DENORMAL = floats(1e-45, -1e-40, 1.1e-38, 3e-39)
SPECIAL = floats(NAN, INF, -INF, 1)
ONE = floats(1)
F16, BF16 = np.float16, ml_dtypes.bfloat16
LOWEST = -(2**31)

FACTS: Mapping[str, Sequence[Case]] = {
    "Denormals are kept, as operands and as results; no kernel changes the processor's mode.": [
        case("Add", [DENORMAL, DENORMAL], DENORMAL + DENORMAL),
        case("Mul", [DENORMAL, floats(0.5)], DENORMAL * np.float32(0.5)),
        case("Mul", [floats(1e-20), floats(1e-20)], floats(1e-20) * floats(1e-20)),
        case("MatMul", [floats(2**-140).reshape(8, 8), floats(1).reshape(8, 8)],
             floats(2**-137).reshape(8, 8)),
    ],
    "Zeros keep their signs, and what is too small for a type's denormals is a zero of its sign.": [
        case("Add", [floats(-0.0, 0.0), floats(-0.0)], floats(-0.0, 0.0)),
        case("Mul", [floats(-1, 1, -1e-30), floats(0.0, -0.0, 1e-30)], floats(-0.0)),
        case("Div", [floats(-0.0, 1e-30, -1), floats(2, -1e30, INF)], floats(-0.0)),
        case("Cast", [floats(-0.0, -(2**-26))], floats(-0.0, dtype=F16), to=10),
        case("Cast", [floats(-0.0, -(2**-140))], floats(-0.0, dtype=BF16), to=16),
    ],
    "An overflow is an infinity of its sign, and so is a division by zero; 0 / 0 is NaN.": [
        case("Mul", [floats(3e38, -3e38), floats(3e38)], floats(INF, -INF)),
        case("Exp", [floats(100)], floats(INF)),
        case("Div", [floats(1, -1, 0, INF), floats(0)], floats(INF, -INF, NAN, INF)),
        case("Log", [floats(0, -0.0, -1, INF)], floats(-INF, -INF, NAN, INF)),
    ],
    "`Pow` by a constant 0.5 is a square root, as in PyTorch: of minus infinity NaN, of -0 -0.": [
        case("Pow", [floats(-INF, -0.0, 4, INF), np.float32(0.5)], floats(NAN, -0.0, 2, INF),
             constant=(1,)),
    ],
    "NaN is passed on by arithmetic, functions, activations, `Max`, `Min`, pooling and "
    "reductions.": [
        case("Max", [SPECIAL, ONE], floats(NAN, INF, 1, 1)),
        case("Min", [ONE, SPECIAL], floats(NAN, 1, -INF, 1)),
        case("Relu", [SPECIAL], floats(NAN, INF, 0, 1)),
        case("Tanh", [floats(NAN, INF, -INF, 0)], floats(NAN, 1, -1, 0)),
        case("Sigmoid", [floats(NAN, INF, -INF, 0)], floats(NAN, 1, 0, 0.5)),
        case("Exp", [floats(NAN, INF, -INF, 0)], floats(NAN, INF, 0, 1)),
        case("ReduceMax", [SPECIAL.reshape(1, 64), np.array([1])],
             np.array([[NAN]], np.float32)),
        case("MaxPool", [SPECIAL.reshape(1, 1, 8, 8)],
             np.resize(np.array([NAN, 1], np.float32), (1, 1, 4, 4)),
             kernel_shape=[2, 2], strides=[2, 2]),
    ],
    "A softmax is NaN in a row with NaN or plus infinity; minus infinity gives 0 beside "
    "finite values.": [
        case("Softmax", [np.array([[NAN, 1], [INF, 1], [-INF, 1]], np.float32)],
             np.array([[NAN, NAN], [NAN, NAN], [0, 1]], np.float32)),
    ],
    "float16: rounded to nearest, ties to even; from 65520 on it is an infinity, below "
    "2^-25 it is 0, and the type's denormals are kept.": [
        case("Cast", [floats(65519, 65520, -7e4, 2**-24, 2**-25, 2**-26, 3 * 2**-25, 2049)],
             floats(65504, INF, -INF, 2**-24, 0, 0, 2**-23, 2048, dtype=F16), to=10),
        case("Add", [floats(65504, 2**-24, dtype=F16)] * 2, floats(INF, 2**-23, dtype=F16)),
    ],
    "bfloat16: rounded likewise; what rounds past 3.3895e38 is an infinity, and denormals "
    "are kept; vectors of AVX512_BF16 store zero for them.": [
        case("Cast", [floats(3.39e38, 3.4e38, -3.4e38, 2**-133, 257)],
             floats(3.3895e38, INF, -INF, 2**-133, 256, dtype=BF16), to=16),
        case("Add", [floats(3.3e38, 2**-133, dtype=BF16)] * 2, floats(INF, 2**-132, dtype=BF16)),
    ],
    "NaN stays NaN and an infinity an infinity in both, also when they are widened back.": [
        case("Cast", [SPECIAL], SPECIAL.astype(F16), to=10),
        case("Cast", [SPECIAL], SPECIAL.astype(BF16), to=16),
        case("Cast", [SPECIAL.astype(F16)], SPECIAL, to=1),
        case("Cast", [SPECIAL.astype(BF16)], SPECIAL, to=1),
    ],
    "`QuantizeLinear` rounds ties to even and saturates, infinities too; NaN becomes 0, "
    "whatever the zero point is.": [
        case("QuantizeLinear",
             [floats(NAN, INF, -INF, 1000, -1000, 0.5, 1.5, 2.5), np.float32(1), zero],
             floats(0, info.max, info.min, info.max, info.min, 3, 5, 5, dtype=zero.dtype))
        for zero in (np.array(3, np.uint8), np.array(3, np.int8))
        for info in (np.iinfo(zero.dtype),)
    ],
    "Integer sums and products wrap; `MatMulInteger` sums in 32 bits.": [
        case("Add", [floats(127, -128, dtype=np.int8), floats(1, -1, dtype=np.int8)],
             floats(-128, 127, dtype=np.int8)),
        case("Add", [floats(2**31 - 1, dtype=np.int32), floats(1, dtype=np.int32)],
             floats(LOWEST, dtype=np.int32)),
        case("MatMulInteger", [np.full((1, 64), -128, np.int8), np.full((64, 2), 127, np.int8)],
             np.full((1, 2), -128 * 127 * 64, np.int32)),
    ],
    "Division by zero gives 0, and the lowest integer divided by -1 itself.": [
        case("Div", [floats(5, LOWEST, dtype=np.int32), floats(0, -1, dtype=np.int32)],
             floats(0, LOWEST, dtype=np.int32)),
    ],
    "`Cast` from a float cuts the fraction off; NaN and what 32 bits can't hold become the "
    "lowest integer, and narrower types keep the low bits of that.": [
        case("Cast", [floats(NAN, INF, -INF, 3e9, -3e9, 300, 2.9, -2.9)],
             floats(LOWEST, LOWEST, LOWEST, LOWEST, LOWEST, 300, 2, -2, dtype=np.int32), to=6),
        case("Cast", [floats(NAN, INF, -INF, 3e9, -3e9, 300, 2.9, -2.9)],
             floats(0, 0, 0, 0, 0, 44, 2, -2, dtype=np.int8), to=3),
    ],
}  # fmt: skip

WINOGRAD = (
    "A convolution spreads NaN and infinities over the windows that hold them; Winograd kernels, "
    "which subtract inputs, make NaN of whole tiles, up to 7 elements away."
)
TRANSPOSED = (
    "A transposed convolution with strides, which multiplies by zeros where the filter has no tap, "
    "makes NaN of results up to a stride away."
)
INNER_PRODUCT = (
    "Winograd's inner product makes NaN of all results of a row with an infinity (a column, where "
    "rows are constant), and loses digits of rows below 2^-126."
)
FIXED_POINT = (
    "Products in fixed point make NaN of all results of a row with an infinity; those of packed "
    "weights in AMX's tiles NaN or infinities, where they round to bfloat16 also of a row with a "
    "number above 3.3895e38."
)
MODES = (
    "A precision mode rounds values between operators so: 300 * 300 is an infinity in float16 and "
    "90112 in bfloat16."
)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "tier", [*TIERS, *(pytest.param(t, marks=pytest.mark.slow) for t in OTHERS)]
)
def test_the_sentences(tier: str) -> None:
    if not get_target(tier).features <= host_features():
        pytest.skip(f"this CPU can't run {tier}")
    cases = [(fact, *each) for fact, some in FACTS.items() for each in some]
    models = [node_model(op, inputs, **attributes) for _, op, inputs, attributes, _ in cases]
    runs = compile_models(models, tier)
    for (fact, op, inputs, attributes, expected), run in zip(cases, runs, strict=True):
        assert not isinstance(run, Exception), run
        known = attributes.get("constant", CONSTANT_INPUTS.get(op, ()))
        (got,) = run([np.asarray(x) for k, x in enumerate(inputs) if k not in known])
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape), fact
        wide = [a.astype(np.float64) for a in (got, expected)]
        if "AVX512_BF16" in fact and "avx512_bf16" in get_target(tier).features:
            wide[1] *= np.abs(wide[1]) >= 2.0**-126
        np.testing.assert_array_equal(*wide, err_msg=f"{op}: {fact}")
        signs = [np.signbit(a[wide[1] == 0]) for a in wide]
        np.testing.assert_array_equal(*signs, err_msg=f"{op}: {fact}")


def conv_model(path: Path) -> Path:
    random = np.random.default_rng(0)
    weights = numpy_helper.from_array(
        random.uniform(0.1, 1, (64, 64, 3, 3)).astype(np.float32) / 64, "w"
    )
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64, 56, 56]) for n in "xy")
    node = helper.make_node("Conv", ["x", "w"], ["y"], "conv", pads=[1] * 4)
    graph = helper.make_graph([node], "g", [x], [y], [weights])
    opset = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), path)
    return path


@pytest.mark.few(1)
@pytest.mark.parametrize("kernels", ["portable", "all"])
def test_what_a_convolution_makes_of_infinities(kernels: str, tmp_path: Path) -> None:
    """The sentence WINOGRAD."""
    model = conv_model(tmp_path / "m.onnx")
    done = atc.compile(model, tmp_path / "net", kernels=kernels)
    sources = [p.read_text("utf-8") for p in done.folder.rglob("*.[ch]")]
    assert sources
    assert not [s for s in sources if re.search("setcsr|fesetenv|fesetround|ldmxcsr|fpcr", s)]
    labels = [c.candidate.kernel.name for c in done.selection.values()]
    x = np.ones((1, 64, 56, 56), np.float32)
    x[0, 5, 20, 31] = INF
    y = atc.load(done.folder)(x)[0]
    rows, columns = (np.abs(np.arange(56) - at) for at in (20, 31))
    distance = np.maximum(rows[:, None], columns[None, :])
    reach = 7 if "conv_winograd" in labels else 1
    assert not np.isfinite(y[:, distance <= 1]).any()
    assert np.isfinite(y[:, distance > reach]).all()
    if reach == 1:
        assert (y[:, distance <= 1] == INF).all()


@pytest.mark.few(1)
@pytest.mark.parametrize("kernel", [2, 3, 5])
@pytest.mark.parametrize("tier", TIERS)
def test_what_a_transposed_convolution_makes_of_infinities(tier: str, kernel: int) -> None:
    """The sentence TRANSPOSED."""
    if not get_target(tier).features <= host_features():
        pytest.skip(f"this CPU can't run {tier}")
    x, stride = np.ones((1, 4, 12, 12), np.float32), 2
    w = np.random.default_rng(kernel).uniform(0.1, 1, (4, 8, kernel, kernel)).astype(np.float32)
    x[0, 1, 5, 6] = INF
    model = node_model("ConvTranspose", [x, w], constant=[1], strides=[stride, stride])
    (run,) = compile_models([model], tier)
    (y,) = run([x])
    at = np.arange(11 * stride + kernel)
    away = [np.maximum(first - at, at - (first + kernel - 1)) for first in (5 * stride, 6 * stride)]
    distance = np.maximum(away[0][:, None], away[1][None, :])
    assert (y[0][:, distance <= 0] == INF).all()
    assert np.isfinite(y[0][:, distance > stride]).all()


def test_what_an_inner_product_makes_of_infinities() -> None:
    """The sentence INNER_PRODUCT."""
    target = replace(vector_target("x86-64-avx512"), machine=MACHINES["zen4"])
    epilogue = identity_epilogue(DType.FLOAT)
    op = MatMul((), 16, 16, 48, View((48, 1)), View((16, 1)), epilogue)
    a_type, b_type, y_type = (TensorType(DType.FLOAT, s) for s in ((16, 48), (48, 16), (16, 16)))
    w = Workload(op, (a_type, b_type), (y_type,), (False, True))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(t.shape).astype(np.float32) for t in (a_type, b_type))
    a[3, 7] = INF
    a[5] *= np.float32(2**-140)
    turned = replace(op, a_view=View((1, 16)))
    left = Workload(turned, (b_type, b_type), (y_type,), (True, False))
    columns = np.ascontiguousarray(a.T)
    calls = [
        Call(MatMulWinograd(), BlockParams(kb=48), w, [a, b]),
        Call(MatMulWinogradLeft(), GroupParams(panels=1), left, [b, columns]),
    ]
    (straight,), (transposed,) = run_calls(calls, target)
    want = np.delete(a, 3, 0).astype(np.float64) @ b.astype(np.float64)
    for got in (straight, transposed.T):
        assert np.isnan(got[3]).all()
        others = np.delete(got, 3, 0)
        np.testing.assert_allclose(others, want, rtol=1e-4, atol=1e-4)
        low = np.abs(others[4] - want[4]).max() / np.abs(want[4]).max()
        assert 1e-6 < low < 1e-2


def test_fixed_point() -> None:
    """The sentence FIXED_POINT."""
    target, rng = vector_target("x86-64-avx512-vnni"), np.random.default_rng(0)
    op = MatMulPacked(2, 16, 64, 32, 4, identity_epilogue(DType.FLOAT))
    x = rng.standard_normal((2, 64)).astype(np.float32)
    q = rng.integers(0, 256, (16, 2, 16)).astype(np.uint8)
    scales = np.ones((16, 2), np.float32)
    types = tuple(type_of(a) for a in (x, q, scales))
    w = Workload(op, (*types, None), (TensorType(DType.FLOAT, (2, 16)),), (False, True, True, True))
    kernel = MatMulFixedPointTile()
    params = kernel.parameters(w, target)[0]
    (plain,) = run_calls([Call(kernel, params, w, [x, q, scales, None])], target)[0]
    x[1, 40] = INF
    (got,) = run_calls([Call(kernel, params, w, [x, q, scales, None])], target)[0]
    assert np.isnan(got[1]).all()
    np.testing.assert_array_equal(got[0], plain[0])


@pytest.mark.parametrize(
    ("mode", "expected"), [("allow_fp32_to_fp16", INF), ("allow_fp32_to_bf16", 90112)]
)
def test_what_precision_modes_make_of_large_values(
    mode: str, expected: float, tmp_path: Path
) -> None:
    """The sentence MODES."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [8]) for n in "xy")
    nodes = [helper.make_node("Mul", ["x", "x"], ["m"]), helper.make_node("Abs", ["m"], ["y"])]
    opset = [helper.make_opsetid("", 17)]
    graph = helper.make_graph(nodes, "g", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=8), tmp_path / "m.onnx")
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99", precision_mode=mode)
    result = atc.load(done.folder)(np.full(8, 300, np.float32))
    assert result.astype(np.float64).tolist() == [expected] * 8


PRODUCTS = {
    "flushed": "Denormal operands, products and sums count as zero, whatever the processor's mode "
    "is.",
    "small": "In bf16x3 numbers below 2^-110 lose bits, as their lower halves are denormals, in "
    "bf16x6 those below 2^-103.",
    "special": "NaN stays NaN and an infinity an infinity; in bf16x3 and bf16x6 what overflows "
    "only when it is rounded stays finite, too: rows of results with NaN or an infinity are summed "
    "once more in float32.",
    "large": "In bf16 an operand that rounds past 3.3895e38 is an infinity.",
}


def products(kernel: AnyKernel, a: Array, factor: float) -> Array:
    """Return what each number of a, times a factor, is as the only product of a sum."""
    m, k = a.size, 40
    rows, column = np.zeros((m, k), np.float32), np.full((k, 3), 1, np.float32)
    rows[np.arange(m), np.arange(m) % k], column[:, 1] = a, factor
    views = View((k, 1)), View((3, 1))
    op = MatMul((), m, 3, k, *views, identity_epilogue(DType.FLOAT))
    types = tuple(TensorType(DType.FLOAT, x.shape) for x in (rows, column))
    w = Workload(op, types, (TensorType(DType.FLOAT, (m, 3)),), (False, True))
    target = vector_target("x86-64-amx")
    params = kernel.parameters(w, target)[0]
    ((result,),) = run_calls([Call(kernel, params, w, [rows, column])], target)
    found: Array = result[:, 1]
    return found


@pytest.mark.few(1)
@pytest.mark.parametrize("kernel", [MatMulAmxSplit(), MatMulAmxWhole(), MatMulAmx(), MatMulBf16()],
                         ids=lambda k: k.name)  # fmt: skip
def test_products_of_bfloat16(kernel: AnyKernel) -> None:
    """The sentences PRODUCTS."""
    a = np.array([2**-130, -(2**-127), 2**-80, 1, INF, -INF, NAN, 3.399e38], np.float32)
    got = products(kernel, a, 2**-60)
    np.testing.assert_array_equal(got[:4], [0, 0, 0, 2**-60])
    np.testing.assert_array_equal(got[4:7], [INF, -INF, NAN])
    split = kernel.precision != "bf16"
    np.testing.assert_allclose(got[7], 3.399e38 * 2**-60 if split else INF, rtol=2**-16)
    if split:
        known = {"bf16x3": (2**-12, [-100, -118]), "bf16x6": (2**-23, [-90, -110])}
        bit, exponents = known[kernel.precision]
        powers = np.float32(2) ** np.array(exponents, np.float32)
        more = products(kernel, powers * np.float32(1 + bit), 1)
        np.testing.assert_array_equal(more, powers * np.array([1 + bit, 1], np.float32))


HALVES = (
    "Sums, differences, products and quotients of two numbers in float16 are rounded to the "
    "nearest float16, whether an instruction computes them in float16 (AVX512_FP16, FEAT_FP16) or "
    "they are rounded from float32, which has more than twice as many bits. A quotient by a "
    "constant is a product where that has been found to give the same for all 65,536 numbers."
)


@pytest.mark.few(5)
@pytest.mark.parametrize("tier", ["c99", "host"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul", "Div"])
def test_arithmetic_of_float16_is_rounded_once(op: str, tier: str) -> None:
    """The sentence HALVES: against float64, which rounds no sum or product of two float16."""
    a = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    b = np.random.default_rng(0).permutation(a)
    function = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}[op]
    divisors = [np.float16(c) for c in (3, 1.4140625, -8)] if op == "Div" else []
    models = [node_model(op, [a, b]), *(node_model(op, [a, c], constant=[1]) for c in divisors)]
    runs = compile_models(models, tier)
    for run, given, second in zip(runs, ([a, b], *[[a]] * 3), (b, *divisors), strict=False):
        (y,) = run(given)
        with np.errstate(all="ignore"):
            exact = function(a.astype(np.float64), np.float64(second)).astype(np.float16)
        np.testing.assert_array_equal(y, exact)


ONCE = (
    "An activation that one kernel computes is rounded once, neither its steps nor what it is "
    "taken of before: Sigmoid, Tanh, Erf, Softplus, clamps, and what these and sums and products "
    "make of one tensor, such as x * sigmoid(x). What is added to a product of matrices or a "
    "convolution, a bias and a residual, likewise."
)
ERF = np.vectorize(math.erf)
ACTIVATIONS: Mapping[str, tuple[str, Callable[[Array], Array]]] = {
    "none": ("y = Identity (s)", lambda x: x),
    "residual": ("y = Add (s, six)", lambda x: x + 6),
    "clamp": ("y = Clip (s, low, high)", lambda x: np.clip(x, -1, 6)),
    "sigmoid": ("y = Sigmoid (s)", lambda x: 1 / (1 + np.exp(-x))),
    "silu": ("t = Sigmoid (s) y = Mul (s, t)", lambda x: x / (1 + np.exp(-x))),
    "quick gelu": ("q = Mul (s, quick) t = Sigmoid (q) y = Mul (s, t)",
                   lambda x: x / (1 + np.exp(-1.703125 * x))),
    "mish": ("p = Softplus (s) t = Tanh (p) y = Mul (t, s)",
             lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "gelu": ("d = Div (s, root) e = Erf (d) f = Add (e, one) g = Mul (s, f) y = Mul (g, half)",
             lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2),
    "hard swish": ("u = Add (s, three) v = Clip (u, zero, six) w = Mul (s, v) y = Div (w, six)",
                   lambda x: x * np.clip(x + 3, 0, 6) / 6),
}  # fmt: skip
NUMBERS = {"low": -1, "high": 6, "quick": 1.703125, "root": 1.4142135, "one": 1, "half": 0.5,
           "three": 3, "zero": 0, "six": 6}  # fmt: skip


def activation_model(nodes: str, b: Array, bias: Array) -> onnx.ModelProto:
    """Return a model of a product with a bias and what is computed of it, in the type of `b`."""
    dtype = DType.from_numpy(b.dtype).code
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 21]>
        activation (float16[64, 8] a) => (float16[64, 48] y) {{
            h = MatMul (a, b) s = Add (h, bias) {nodes} }}""")
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = dtype
    given = {"b": b, "bias": bias, **{k: np.array(v, b.dtype) for k, v in NUMBERS.items()}}
    read = {name for node in model.graph.node for name in node.input}
    known = [numpy_helper.from_array(v, k) for k, v in given.items() if k in read]
    model.graph.initializer.extend(known)
    return model


@pytest.mark.few(4)
@pytest.mark.parametrize("tier", ["c99", "host"])
@pytest.mark.parametrize("dtype", [F16, BF16], ids=["float16", "bfloat16"])
def test_activations_are_rounded_once(dtype: type[np.generic], tier: str) -> None:
    """The sentence ONCE, of products whose sums float32 holds, against float64."""
    rng = np.random.default_rng(0)
    a, b = ((rng.integers(-40, 40, s) / 32).astype(dtype) for s in ((64, 8), (8, 48)))
    bias = (rng.integers(-64, 64, 48) / 32).astype(dtype)
    models = [activation_model(nodes, b, bias) for nodes, _ in ACTIVATIONS.values()]
    sums = a.astype(np.float64) @ b.astype(np.float64) + bias.astype(np.float64)
    for run, name in zip(compile_models(models, tier), ACTIVATIONS, strict=True):
        got = run([a])[0].astype(np.float64)
        nearest = ACTIVATIONS[name][1](sums).astype(dtype).astype(np.float64)
        assert (got != nearest).mean() < 0.02, name  # float32 may end on a middle's other side
        np.testing.assert_allclose(got, nearest, 2**-7, 2**-20, err_msg=name)


FACTOR = (
    "A constant factor of an operand that only a product of matrices reads, such as that of scaled "
    "keys, is its results' instead, before these are rounded."
)


@pytest.mark.parametrize("tier", ["c99", "host"])
def test_a_factor_of_an_operand_is_the_results(tier: str) -> None:
    """60000 times 2 would be infinite in float16, rounded before the product."""
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        scaled (float16[3, 2] a, float16[2, 5] b) => (float16[3, 5] y)
        { s = Mul (a, two) y = MatMul (s, b) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.array(2, F16), "two"))
    (run,) = compile_models([model], tier)
    (got,) = run([np.full((3, 2), 60000, F16), np.full((2, 5), 0.125, F16)])
    np.testing.assert_array_equal(got, np.full((3, 5), 30000, F16))


def test_the_page_says_just_that() -> None:
    if not PAGE.exists():
        pytest.skip("the checkout's documentation isn't here")
    section = PAGE.read_text("utf-8").partition("## Special values by precision")[2]
    section = section.partition("\n## ")[0]
    bullets = re.findall(r"^- (.*?)(?=\n- |\n\n|\n?\Z)", section, re.S | re.M)
    assert {" ".join(b.split()) for b in bullets} == {
        *FACTS, WINOGRAD, TRANSPOSED, INNER_PRODUCT, FIXED_POINT, MODES, HALVES, ONCE,
        FACTOR, *PRODUCTS.values(),
    }  # fmt: skip
