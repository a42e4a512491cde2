"""Three-dimensional convolutions through the two-dimensional kernels."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.ops import Conv
from atc.passes import run_passes
from support import assert_close, compile_graph, run_models, runnable

CASES: dict[str, dict[str, object]] = {
    "same": {"pads": [1] * 6},
    "valid": {},
    "strided": {"pads": [1] * 6, "strides": [2, 2, 1]},
    "dilated": {"dilations": [2, 1, 1], "pads": [2, 0, 1, 1, 2, 0]},
    "one-sided": {"pads": [2, 0, 0, 0, 0, 0]},
    "depthwise": {"pads": [1] * 6, "group": 20},
    "grouped": {"pads": [1] * 6, "group": 2},
    "a filter each": {"pads": [1] * 6, "group": 40},
    "a filter each, strided": {"pads": [1, 0, 1, 0, 1, 1], "strides": [2, 1, 2], "group": 40},
    "far apart": {"pads": [1] * 6, "strides": [3, 1, 1]},
}


def model(name: str, batch: int = 1) -> onnx.ModelProto:
    rng = np.random.default_rng(2)
    group = int(str(CASES[name].get("group", 1)))
    channels = max(20, group)
    weights = rng.standard_normal((40, channels // group, 3, 3, 3)) / 20
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], **CASES[name]),
        helper.make_node("LeakyRelu", ["c"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, channels, 6, 7, 9])
    graph = helper.make_graph(
        nodes, "g", [x],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(weights.astype(np.float32), "w"),
         numpy_helper.from_array(rng.standard_normal(40).astype(np.float32), "b")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def model_of_bytes(name: str, batch: int = 1) -> onnx.ModelProto:
    """Return a convolution of bytes with a bias, a residual operand and an activation."""
    rng = np.random.default_rng(2)
    group = int(str(CASES[name].get("group", 1)))
    channels = max(20, group)
    shape = [batch, channels, 6, 7, 9]
    stored = {
        "w": rng.integers(-128, 128, (40, channels // group, 3, 3, 3)).astype(np.int8),
        "zero": np.array(120, np.uint8),
        "scale": rng.uniform(1e-4, 2e-4, (40, 1, 1, 1)).astype(np.float32),
        "b": rng.standard_normal((40, 1, 1, 1)).astype(np.float32),
    }
    nodes = [
        helper.make_node("ConvInteger", ["x", "w", "zero"], ["s"], **CASES[name]),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["c"]),
        helper.make_node("Add", ["c", "r"], ["d"]),
        helper.make_node("LeakyRelu", ["d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.UINT8, shape)
    operands = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    made = helper.make_model(
        helper.make_graph(nodes[:1], "g", [x], [helper.make_empty_tensor_value_info("s")], operands)
    )
    (sums,) = ReferenceEvaluator(made).run(None, {"x": np.zeros(shape, np.uint8)})
    graph = helper.make_graph(
        nodes, "g", [x, helper.make_tensor_value_info("r", TensorProto.FLOAT, sums.shape)],
        [helper.make_empty_tensor_value_info("y")], operands,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


BYTES = ("same", "strided", "dilated", "one-sided", "grouped")
ALONE = ("a filter each", "a filter each, strided")


@pytest.mark.parametrize(
    "target",
    ["x86-64-avx2", *(pytest.param(t, marks=pytest.mark.slow)
                      for t in ("x86-64-avx512-vnni", "x86-64-sse2"))],
)  # fmt: skip
def test_sums_of_bytes_are_exact(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"{target} doesn't run here")
    some = ("same", "grouped", *ALONE)
    names = some if target == "x86-64-avx2" else (*BYTES, *ALONE, "depthwise")
    models = [model_of_bytes(name, batch) for name in names for batch in (1, 2)]
    rng = np.random.default_rng(3)
    inputs = []
    for made in models:
        shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in made.graph.input]
        inputs.append([rng.integers(0, 256, shapes[0]).astype(np.uint8),
                       rng.standard_normal(shapes[1]).astype(np.float32)])  # fmt: skip
    for made, given, found in zip(models, inputs, run_models(models, inputs, target), strict=True):
        assert not isinstance(found, Exception), found
        want = ReferenceEvaluator(made).run(None, dict(zip(("x", "r"), given, strict=True)))
        assert_close(found, want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", BYTES)
def test_convolutions_of_bytes_become_blocked_ones_of_planes(name: str) -> None:
    graph = run_passes(compile_graph(model_of_bytes(name)), width=8)
    (conv,) = (n for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked"))
    assert conv.op.kind == "ConvBlocked"


@pytest.mark.parametrize("name", ALONE)
def test_depthwise_ones_of_bytes_are_one_of_planes_for_each_tap(name: str) -> None:
    graph = run_passes(compile_graph(model_of_bytes(name)), width=8)
    convs = [n.op.kind for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked")]
    assert convs == ["ConvBlocked"] * 3


def test_depthwise_sums_that_no_float_holds_stay_in_integers() -> None:
    made = model_of_bytes(ALONE[0])
    wide = helper.make_node("Add", ["s", "much"], ["t"])
    made.graph.node[1].input[0] = "t"
    made.graph.node.insert(1, wide)
    made.graph.initializer.append(
        numpy_helper.from_array(np.full((40, 1, 1, 1), 1 << 24, np.int32), "much")
    )
    graph = run_passes(compile_graph(made), width=8)
    assert [n.op.window.rank for n in graph.nodes if isinstance(n.op, Conv)] == [3]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["x86-64-avx2", "x86-64-avx512"])
def test_results_are_those_of_the_definition(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"{target} doesn't run here")
    models = [model(name, batch) for name in CASES for batch in (1, 2)]
    rng = np.random.default_rng(3)
    inputs = [
        [rng.standard_normal(
            [d.dim_value for d in m.graph.input[0].type.tensor_type.shape.dim]
        ).astype(np.float32)] for m in models
    ]  # fmt: skip
    for made, given, found in zip(models, inputs, run_models(models, inputs, target), strict=True):
        assert not isinstance(found, Exception), found
        want = ReferenceEvaluator(made).run(None, {"x": given[0]})
        assert_close(found, want, atol=2e-5)


@pytest.mark.parametrize("name", CASES)
def test_no_convolution_over_three_axes_is_left(name: str) -> None:
    graph = run_passes(compile_graph(model(name)), width=8)
    assert all(n.op.window.rank == 2 for n in graph.nodes if isinstance(n.op, Conv))
