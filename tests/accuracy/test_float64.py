"""The float64 evaluation of models, against numpy and the standard's own test data."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.accuracy import float64_ops
from atc.accuracy.float64 import run_in_double
from atc.lower.context import node_name
from support import node_cases, node_model


def evaluate(model: onnx.ModelProto, *inputs: np.ndarray) -> list[np.ndarray]:
    known = {t.name for t in model.graph.initializer}
    names = [v.name for v in model.graph.input if v.name not in known]
    outputs = [v.name for v in model.graph.output]
    feeds = dict(zip(names, inputs, strict=True))
    return run_in_double(onnx_ir.from_proto(model), outputs, feeds)[1]


def test_floats_are_not_rounded() -> None:
    third = numpy_helper.from_array(np.array([1 / 3], np.float32))
    nodes = [
        helper.make_node("Constant", [], ["c"], value=third),
        helper.make_node("Constant", [], ["d"], value_float=0.5),
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["h"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["w", "c"], ["m"]),
        helper.make_node("Add", ["m", "d"], ["y"]),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    x = np.array([1.0009765 + 1e-6], np.float32)
    (y,) = evaluate(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), x)
    assert y.dtype == np.float64
    assert y[0] == float(x[0]) * float(np.float32(1 / 3)) + 0.5


def test_zeros_whose_type_is_left_out_are_float64() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("ConstantOfShape", ["s"], ["z"]),
        helper.make_node("Equal", ["x", "z"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, t, [2]) for n, t in (("x", 1), ("y", 9)))
    model = helper.make_model(helper.make_graph(nodes, "g", [x], [y]))
    (got,) = evaluate(model, np.array([0, 1e-30], np.float32))
    np.testing.assert_array_equal(got, [True, False])


@pytest.mark.parametrize(
    "operator",
    ["AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DeformConv", "GatherElements",
     "Gemm", "GridSample", "MaxPool", "NonMaxSuppression", "QuantizeLinear", "RoiAlign"],
)  # fmt: skip
def test_the_standard_agrees(operator: str) -> None:
    compared = 0
    for name, model, runs in node_cases([operator]):
        if "training" in name or "float8" in name or "4" in name or "blocked" in name:
            continue
        for inputs, expected in runs:
            got = evaluate(model, *inputs)
            for a, b in zip(got, expected, strict=True):
                np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5, err_msg=name)
                compared += 1
    assert compared > 0


def test_fewer_elements_are_gathered_than_there_are() -> None:
    x = np.arange(24, dtype=np.float32).reshape(3, 8)
    at = np.array([[7, -2, 0], [1, 1, 5]])
    (y,) = evaluate(node_model("GatherElements", [x, at], constant=[], axis=1), x, at)
    np.testing.assert_array_equal(y, np.take_along_axis(x[:2], at, 1))


@pytest.mark.parametrize("groups", [1, 2])
def test_convolutions_with_all_attributes(groups: int) -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((2, 4, 9, 8)).astype(np.float32)
    w = random.standard_normal((6, 4 // groups, 3, 2)).astype(np.float32)
    model = node_model("Conv", [x, w], constant=[], group=groups, strides=[2, 1], dilations=[2, 3],
                       pads=[1, 2, 3, 0])  # fmt: skip
    (y,) = evaluate(model, x, w)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (1, 3), (2, 0)])
    for n, m, i, j in np.ndindex(y.shape):
        first = m // (6 // groups) * (4 // groups)
        total = sum(
            padded[n, first + c, 2 * i + 2 * k, j + 3 * q] * float(w[m, c, k, q])
            for c, k, q in np.ndindex(w.shape[1:])
        )
        assert y[n, m, i, j] == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_batches_are_normalized_by_stored_statistics() -> None:
    x = np.array([[[[1.0, 2.0]], [[3.0, 4.0]]]], np.float32)
    parts = [np.array(v, np.float32) for v in ([1, 2], [0, 1], [1, 3], [4, 16])]
    model = node_model("BatchNormalization", [x, *parts], opset=9, constant=[], epsilon=0.0)
    (y,) = evaluate(model, x, *parts)
    np.testing.assert_allclose(y.ravel(), [0.0, 0.5, 1.0, 1.5])


def test_listed_statistics_are_those_of_the_batch() -> None:
    x = np.array([[[1.0, 3.0]], [[5.0, 7.0]]], np.float32)
    parts = [np.array([v], np.float32) for v in (2, 1, 0, 1)]
    model = node_model(
        "BatchNormalization", [x, *parts], 3, opset=9, constant=[], epsilon=0.0, momentum=0.75
    )
    y, mean, variance = evaluate(model, x, *parts)
    np.testing.assert_allclose(y.ravel(), (x.ravel() - 4) / np.sqrt(5) * 2 + 1)
    np.testing.assert_allclose([*mean, *variance], [0.75 * 0 + 0.25 * 4, 0.75 * 1 + 0.25 * 5])


@pytest.mark.parametrize("copied", [1, 1 << 22])
def test_convolutions_in_bands_of_rows(copied: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(float64_ops, "COPIED", copied)
    random = np.random.default_rng(3)
    x = random.standard_normal((2, 4, 9, 7)).astype(np.float32)
    w = random.standard_normal((6, 2, 3, 2)).astype(np.float32)
    model = node_model("Conv", [x, w], constant=[1], group=2, strides=[2, 1], pads=[1, 0, 1, 1])
    (y,) = evaluate(model, x)
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), (1, 1), (0, 1)])
    expected = np.zeros((2, 6, 5, 7))
    for n, o, r, c in np.ndindex(expected.shape):
        window = padded[n, o // 3 * 2 : o // 3 * 2 + 2, 2 * r : 2 * r + 3, c : c + 2]
        expected[n, o, r, c] = (window * w[o]).sum()
    np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_values_are_forgotten_once_nothing_reads_them() -> None:
    count, size = 40, 1 << 17
    nodes = [helper.make_node("Neg", [f"v{k}"], [f"v{k + 1}"]) for k in range(count)]
    nodes.append(helper.make_node("Add", ["v2", f"v{count}"], ["y"]))  # the last to read it
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [size]) for n in ("v0", "y")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    x = np.arange(size, dtype=np.float32)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    evaluate(model, x)  # imports what it needs
    tracemalloc.start()
    (y,) = evaluate(model, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (y == 2.0 * x).all()
    assert peak < 8 * 8 * size


def test_weights_are_read_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody copies them all: they may be gigabytes of a mapped file."""
    w = np.random.default_rng(0).standard_normal((300, 200)).astype(np.float32)
    x = np.linspace(-1, 1, 300, dtype=np.float32).reshape(1, 300)
    model = onnx_ir.from_proto(node_model("MatMul", [x, w], constant=[1]))
    (value,) = model.graph.initializers.values()
    value.const_value = onnx_ir.Tensor(w, name=value.name)
    found: list[object] = []
    real = float64_ops.Evaluator.run

    def run(self: float64_ops.Evaluator, *arguments: Any) -> Any:
        found.extend(np.shares_memory(w, array) for array in self.rt_inits_.values())
        return real(self, *arguments)

    monkeypatch.setattr(float64_ops.Evaluator, "run", run)
    (given,), (made,) = model.graph.inputs, model.graph.outputs
    (y,) = run_in_double(model, [str(made.name)], {str(given.name): x})[1]
    assert found == [True]
    np.testing.assert_allclose(y, x.astype(np.float64) @ w.astype(np.float64), rtol=1e-13)


@pytest.mark.parametrize("inner", [False, True], ids=["alone", "in a branch"])
def test_what_is_left_out_is_not_read_from_an_output_without_a_name(inner: bool) -> None:
    nodes = [
        helper.make_node("GRU", ["x", "w", "w"], ["", "h"], hidden_size=1),
        helper.make_node("Clip", ["x", "", "most"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, 1]) for n in "xy")
    arrays = {"w": np.ones((1, 3, 1)), "most": np.array(2.5), "yes": np.array(True)}
    types = {"w": np.float32, "most": np.float32, "yes": np.bool_}
    constants = [numpy_helper.from_array(a.astype(types[n]), n) for n, a in arrays.items()]
    if inner:
        branch = helper.make_graph(nodes, "branch", [], [y])
        nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=branch, else_branch=branch)]
    graph = helper.make_graph(nodes, "g", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    (found,) = evaluate(model, np.full((1, 1, 1), -3, np.float32))
    assert found.ravel() == [-3]


def test_a_node_without_any_name_is_rounded_by_its_operators() -> None:
    nodes = [helper.make_node("GRU", ["x", "w", "w"], ["", "y"], hidden_size=1)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1, 1]) for n in "xy")
    w = numpy_helper.from_array(np.full((1, 3, 1), 1.001, np.float32), "w")
    graph = helper.make_graph(nodes, "g", [x], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    feeds = {"x": np.full((1, 1, 1), 0.7, np.float32)}
    name = node_name(onnx_ir.from_proto(model).graph[0])
    exact, rounded = (
        run_in_double(onnx_ir.from_proto(model), ["y"], feeds, rounded=names)[1][0]
        for names in ((), (name,))
    )
    assert 1e-5 < abs(exact - rounded).max() < 1e-2
