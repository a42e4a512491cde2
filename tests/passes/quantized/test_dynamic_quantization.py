"""Convolutions of what is quantized when the network runs: in vectors, with exact sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.expr import Input, cast
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Conv, Epilogue, Window
from atc.passes import run_passes
from atc.passes.quantized.blocking import integer_zero
from support import compile_graph, run_model, runnable

Array = NDArray[Any]
FILTERS = 20
"""No whole number of blocks of any target."""


def quantized_layer(group: int = 1, activation: str = "") -> onnx.ModelProto:
    """Return a layer as onnxruntime's dynamic quantizer writes it: its bias is computed, too.

    It ends with an operator that is an activation, or with `x * sigmoid(x)`.
    """
    rng = np.random.default_rng(3)
    stored = {
        "w": rng.integers(0, 256, (FILTERS, 8 // group, 3, 3)).astype(np.uint8),
        "wz": np.array(121, np.uint8), "ws": np.array(0.01, np.float32),
        "bias": rng.standard_normal(FILTERS).astype(np.float32),
        "to": np.array([1, FILTERS, 1, 1]),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("DynamicQuantizeLinear", ["x"], ["q", "xs", "xz"]),
        node("Mul", ["xs", "ws"], ["scale"]),
        node("Div", ["bias", "scale"], ["steps"]),
        node("Floor", ["steps"], ["whole"]),
        node("Cast", ["whole"], ["counts"], to=TensorProto.INT32),
        node("Reshape", ["counts", "to"], ["start"]),
        node("ConvInteger", ["q", "w", "xz", "wz"], ["sums"], pads=[1, 0, 1, 2],
             strides=[2, 1], group=group),
        node("Add", ["sums", "start"], ["total"]),
        node("Cast", ["total"], ["real"], to=TensorProto.FLOAT),
        node("Mul", ["real", "scale"], ["scaled"]),
    ]  # fmt: skip
    if activation == "PRelu":
        stored["slope"] = rng.uniform(-1, 1, (FILTERS, 1, 1)).astype(np.float32)
        nodes.append(node("PRelu", ["scaled", "slope"], ["y"]))
    elif activation:
        nodes.append(node(activation, ["scaled"], ["y"]))
    else:
        nodes += [node("Sigmoid", ["scaled"], ["gate"]), node("Mul", ["scaled", "gate"], ["y"])]
    graph = helper.make_graph(
        nodes, "layer", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 9, 11))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("target", "group"),
    [
        pytest.param(t, g, marks=[] if (t, g) == ("x86-64-avx2", 1) else pytest.mark.slow)
        for t in ("c99", "x86-64-avx2", "x86-64-avx512-vnni") for g in (1, 2)
    ],
)  # fmt: skip
def test_a_zero_point_of_the_run_comes_off_the_sums(target: str, group: int) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    x = np.random.default_rng(5).uniform(-1, 2, (1, 8, 9, 11)).astype(np.float32)
    model = quantized_layer(group)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = run_model(model, [x], target)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_it_is_computed_in_blocks() -> None:
    graph = run_passes(compile_graph(quantized_layer()), width=16)
    (conv,) = (n for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked"))
    assert conv.op.kind == "ConvBlocked"
    widths = {graph.types[name].shape[-1:] for name in conv.inputs if graph.types[name].size == 32}
    assert (32,) in widths


@pytest.mark.parametrize(
    "activation",
    [
        "PRelu", "Elu",
        *(pytest.param(a, marks=pytest.mark.slow)
          for a in ("LeakyRelu", "Selu", "Celu", "Softplus", "Softsign", "ThresholdedRelu")),
    ],
)  # fmt: skip
def test_activations_with_conditions_are_computed_with_the_sums(activation: str) -> None:
    model = quantized_layer(activation=activation)
    graph = run_passes(compile_graph(model), width=16)
    (conv,) = (n for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked"))
    assert conv.op.kind == "ConvBlocked"
    (back,) = (n for n in graph.nodes if n.inputs[0] == conv.outputs[0])
    assert back.outputs == graph.outputs  # nothing but the layout is left to do
    if not runnable("x86-64-avx2"):
        pytest.skip("this CPU can't run x86-64-avx2")
    x = np.random.default_rng(5).uniform(-1, 2, (1, 8, 9, 11)).astype(np.float32)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = run_model(model, [x], "x86-64-avx2")
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def mobile_layers(channels: int) -> onnx.ModelProto:
    """Return a pointwise and a depthwise layer, each quantized by the extremes of its operand."""
    rng = np.random.default_rng(7)
    kinds = [(channels, 8, 1, 1), (channels, 1, 3, channels), (8, channels, 1, 1)]
    nodes, stored, x = [], {}, "x"
    node = helper.make_node
    for k, (filters, each, size, group) in enumerate(kinds):
        stored[f"w{k}"] = rng.integers(0, 256, (filters, each, size, size)).astype(np.uint8)
        stored[f"w{k}"].reshape(-1)[:2] = 0, 255
        stored[f"z{k}"] = np.array(125, np.uint8)
        stored[f"s{k}"] = np.array(0.01, np.float32)
        nodes += [
            node("DynamicQuantizeLinear", [x], [f"q{k}", f"xs{k}", f"xz{k}"]),
            node("Mul", [f"xs{k}", f"s{k}"], [f"scale{k}"]),
            node("ConvInteger", [f"q{k}", f"w{k}", f"xz{k}", f"z{k}"], [f"sums{k}"],
                 pads=[size // 2] * 4, group=group),
            node("Cast", [f"sums{k}"], [f"real{k}"], to=TensorProto.FLOAT),
            node("Mul", [f"real{k}", f"scale{k}"], [f"y{k}"]),
        ]  # fmt: skip
        x = f"y{k}"
    graph = helper.make_graph(
        nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 8, 9, 11))],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize(
    ("channels", "target"),
    [
        (32, "x86-64-avx2"),
        pytest.param(20, "x86-64-avx2", marks=pytest.mark.slow),
        pytest.param(32, "x86-64-avx512-vnni", marks=pytest.mark.slow),
        pytest.param(32, "c99", marks=pytest.mark.slow),
    ],
)
def test_depthwise_weights_of_9_bits_are_summed_exactly(channels: int, target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    x = np.random.default_rng(5).uniform(-1, 2, (1, 8, 9, 11)).astype(np.float32)
    model = mobile_layers(channels)
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    (got,) = run_model(model, [x], target)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())


def test_between_layers_nothing_leaves_its_blocks() -> None:
    graph = run_passes(compile_graph(mobile_layers(32)), width=16)
    assert [n.op.kind for n in graph.nodes if n.op.kind.startswith("Conv")] == ["ConvBlocked"] * 3
    (back,) = (n for n in graph.nodes if n.op.kind == "Unblock")
    assert back.outputs == graph.outputs


@pytest.mark.parametrize(("largest", "zero"), [(255, 3), (-255, 3), (256, None), (-256, None)])
def test_wider_weights_stay_out_of_blocks(largest: int, zero: int | None) -> None:
    x, y = TensorType(DType.UINT8, (1, 16, 5, 5)), TensorType(DType.FLOAT, (1, 16, 3, 3))
    w = np.full((16, 1, 3, 3), largest, np.int16)
    window = Window((3, 3), (1, 1), (1, 1), (0, 0))
    scaled = Epilogue(cast(Input(DType.INT32, 0), DType.FLOAT), ())
    conv = Conv(window, 16, scaled, DType.INT32)
    assert integer_zero(conv, x, w, y, np.array(3, np.uint8), 16) == zero
