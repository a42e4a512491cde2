"""Transposed convolutions of bytes against exact sums and one scaling in float, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from transposed_convs import Transposed

from atc.backends.targets import get_target
from atc.ir.graph import DType
from atc.ir.ops import Conv, ConvTranspose
from atc.onnx_backend import AtcBackendRep, compile_networks
from atc.passes import run_passes
from support import compile_graph, run_models, runnable

Array = NDArray[Any]
f32 = np.float32
TARGETS = ("c99", "x86-64-sse2", "x86-64-avx2", "x86-64-avx512", "x86-64-avx512-vnni")


@dataclass(frozen=True)
class Case(Transposed):
    size: tuple[int, ...] = (5, 6)
    x: Any = np.uint8
    zero: int = 131
    w: Any = np.int8
    per: bool = True
    relu: bool = False
    skip: bool = False
    """Whether a float is added before the result is quantized."""

    @property
    def out(self) -> tuple[int, ...]:
        reach = (self.kernel - 1) * self.dilation + 1
        return tuple((n - 1) * self.stride + reach - 2 * self.pad + self.more for n in self.size)


CASES = {
    "2x2": Case(2, 2, channels=32, relu=True),
    "4x4": Case(4, 2, 1, channels=19, filters=24, per=False),
    "3x3": Case(3, 2, 1, 1, filters=33, zero=0),
    "odd result": Case(3, 2, 1, x=np.int8, zero=-5),
    "larger result": Case(3, 2, channels=8, filters=5, zero=255),
    "no stride": Case(3, 1, 1, x=np.int8, zero=-128, relu=True),
    "gaps between windows": Case(2, 3),
    "weights of 9 bits": Case(2, 2, w=np.uint8),
    "grouped": Case(4, 2, 1, channels=32, filters=32, group=2),
    "depthwise": Case(4, 2, 1, group=16, zero=7),
    "dilated": Case(3, 1, 2, dilation=2),
    "dilated and strided": Case(2, 2, dilation=3, per=False),
    "skip": Case(2, 2, skip=True, relu=True),
    "row": Case(4, 2, 1, size=(13,)),
    "volume": Case(2, 2, size=(3, 4, 5)),
    "mostly zeros": Case(1, 4, zero=7),
    "mostly zeros, grouped": Case(6, 3, group=16, x=np.int8, zero=9),
}
FEW_TAPS = frozenset(name for name in CASES if name.startswith("mostly zeros"))


def parts(case: Case) -> dict[str, Array]:
    rng = np.random.default_rng(len(repr(case)))
    each = case.filters // case.group
    w_info, x_info = np.iinfo(case.w), np.iinfo(case.x)
    w_scale = rng.uniform(0.005, 0.01, each if case.per else 1).astype(f32)
    taps = max(1, case.kernel**len(case.size) // case.stride ** len(case.size))
    w_shape = (case.channels, each, *[case.kernel] * len(case.size))
    x_shape = (1, case.channels, *case.size)
    return {
        "x": rng.integers(x_info.min, x_info.max + 1, x_shape).astype(case.x),
        "w": rng.integers(w_info.min, w_info.max + 1, w_shape).astype(case.w),
        "ws": w_scale if case.per else w_scale[0],
        "wz": np.full(w_scale.shape if case.per else (), 119 if w_info.min == 0 else 0, case.w),
        "xs": f32(0.02), "xz": np.array(case.zero, case.x),
        "b": rng.integers(-3000, 3000, case.filters).astype(np.int32),
        "ys": f32(0.02 * 0.0075 * 74 * 74 * (case.channels // case.group * taps) ** 0.5 / 40),
        "yz": np.array(x_info.min + 100, case.x),
        "skip": rng.uniform(-4, 4, (1, case.filters, *case.out)).astype(f32),
    }  # fmt: skip


def model(case: Case) -> onnx.ModelProto:
    p, rank = parts(case), len(case.size)
    bias_scale = p["xs"] * np.tile(p["ws"], case.group) if case.per else p["xs"] * p["ws"]
    constants = {k: p[k] for k in ("w", "ws", "wz", "xs", "xz", "b", "ys", "yz")}
    constants["bs"] = np.asarray(bias_scale)
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=1),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["bf"], axis=0),
        helper.make_node(
            "ConvTranspose", ["xf", "wf", "bf"], ["t"], group=case.group,
            strides=[case.stride] * rank, pads=[case.pad] * 2 * rank,
            output_padding=[case.more] * rank, dilations=[case.dilation] * rank,
        ),
    ]  # fmt: skip
    result = "t"
    if case.skip:
        nodes.append(helper.make_node("Add", [result, "skip"], ["added"]))
        result = "added"
    if case.relu:
        nodes.append(helper.make_node("Relu", [result], ["r"]))
        result = "r"
    nodes.append(helper.make_node("QuantizeLinear", [result, "ys", "yz"], ["y"]))
    code = helper.np_dtype_to_tensor_dtype
    names = ("x", "skip") if case.skip else ("x",)
    graph = helper.make_graph(
        nodes, "transposed",
        [helper.make_tensor_value_info(n, code(p[n].dtype), p[n].shape) for n in names],
        [helper.make_tensor_value_info("y", code(np.dtype(case.x)), None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def given(case: Case) -> list[Array]:
    p = parts(case)
    return [p["x"], p["skip"]] if case.skip else [p["x"]]


def sums(case: Case) -> Array:
    """Return the exact sums: each pixel adds its products where the filter's taps land."""
    p, rank = parts(case), len(case.size)
    group, each = case.group, case.filters // case.group
    x = p["x"].astype(np.int64) - case.zero
    w = p["w"].astype(np.int64) - p["wz"].reshape(-1)[0]
    x = x.reshape(group, case.channels // group, *case.size)
    w = w.reshape(group, case.channels // group, each, *[case.kernel] * rank)
    reach = [(n - 1) * case.stride + (case.kernel - 1) * case.dilation + 1 for n in case.size]
    full = np.zeros((group, each, *(n + case.more for n in reach)), np.int64)
    for taps in product(range(case.kernel), repeat=rank):
        at = tuple(
            slice(t * case.dilation, t * case.dilation + (n - 1) * case.stride + 1, case.stride)
            for t, n in zip(taps, case.size, strict=True)
        )
        full[:, :, *at] += np.einsum("gc...,gcf->gf...", x, w[:, :, :, *taps])
    kept = tuple(slice(case.pad, case.pad + n) for n in case.out)
    return full[:, :, *kept].reshape(1, case.filters, *case.out)


def expected(case: Case) -> Array:
    """The definition: exact sums, each float operation rounded once, half to even, saturated."""
    p = parts(case)
    channel = (1, -1, *[1] * len(case.size))
    w_scale = p["ws"].reshape(-1).astype(np.float64)
    scales = np.tile(w_scale, case.filters // w_scale.size).reshape(channel)
    factor = p["xs"].astype(np.float64) * scales
    total = (sums(case) + p["b"].reshape(channel)).astype(f32)
    scale = np.float64(p["ys"])
    value = total * (factor.astype(f32).astype(np.float64) / scale).astype(f32)
    if case.skip:  # in steps, as nothing constant is divided beforehand
        value = total * factor.astype(f32) + p["skip"]
    value = np.maximum(value, f32(0)) if case.relu else value
    value = value / p["ys"] if case.skip else value
    info = np.iinfo(case.x)
    return np.clip(np.rint(value) + f32(p["yz"]), info.min, info.max).astype(case.x)


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_exact_and_results_rounded_once(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    models = [model(case) for case in CASES.values()]
    results = run_models(models, [given(case) for case in CASES.values()], target)
    for (name, case), found in zip(CASES.items(), results, strict=True):
        assert not isinstance(found, Exception), found
        np.testing.assert_array_equal(found[0], expected(case), err_msg=name)


@pytest.mark.parametrize("name", [k for k in CASES if k not in FEW_TAPS])
def test_they_are_convolutions_of_integers(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])))
    sums_of = [n.op.accumulator for n in graph.nodes if isinstance(n.op, Conv | ConvTranspose)]
    assert sums_of == [DType.INT32]
    assert not any(isinstance(n.op, ConvTranspose) for n in graph.nodes)


@pytest.mark.parametrize("name", [k for k, case in CASES.items() if not case.skip])
def test_results_are_within_one_step_of_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    case = CASES[name]
    session = ort.InferenceSession(model(case).SerializeToString())
    (want,) = session.run(None, {"x": parts(case)["x"]})
    assert np.abs(want.astype(int) - expected(case).astype(int)).max() <= 1


def test_one_of_few_taps_is_summed_in_integers_by_a_gpu() -> None:
    case = CASES["mostly zeros"]
    feeds = {"x": parts(case)["x"]}
    graph = AtcBackendRep(model(case), "cuda-emulated").lower(feeds)
    (network,) = compile_networks([graph], get_target("cuda-emulated"), "O1")
    np.testing.assert_array_equal(network.run(feeds)["y"], expected(case))


def test_scales_of_channels_of_the_operand_stay_in_floats() -> None:
    case = Case(2, 2, channels=4, filters=4)
    made = model(case)
    made.graph.node[1].attribute[0].i = 0  # a scale for each channel of x
    graph = run_passes(compile_graph(made))
    assert not any(
        getattr(n.op, "accumulator", DType.FLOAT) is DType.INT32 for n in graph.nodes
    )
