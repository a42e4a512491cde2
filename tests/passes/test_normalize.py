"""Normalisations take what follows them into their epilogues, and lie as their neighbours do."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.ir.graph import Graph
from atc.ir.ops import Map, Normalize, Reshape
from atc.passes import run_passes
from support import assert_close, compile_graph, run_model


def group_norm(groups: int, channels: int) -> onnx.ModelProto:
    """GroupNorm with SiLU as PyTorch exports it for opset 17: InstanceNormalization of reshapes."""
    rng = np.random.default_rng(0)
    constants = {
        "ones": np.ones(groups, np.float32), "zeros": np.zeros(groups, np.float32),
        "split": np.array([0, groups, -1]), "back": np.array([2, channels, 5, 6]),
        "scale": rng.standard_normal((channels, 1, 1)).astype(np.float32),
        "bias": rng.standard_normal((channels, 1, 1)).astype(np.float32),
    }  # fmt: skip
    nodes = [
        helper.make_node("Reshape", ["x", "split"], ["a"]),
        helper.make_node("InstanceNormalization", ["a", "ones", "zeros"], ["b"], epsilon=1e-5),
        helper.make_node("Reshape", ["b", "back"], ["c"]),
        helper.make_node("Mul", ["c", "scale"], ["d"]),
        helper.make_node("Add", ["d", "bias"], ["e"]),
        helper.make_node("Sigmoid", ["e"], ["f"]),
        helper.make_node("Mul", ["e", "f"], ["y"]),
    ]
    shape = [2, channels, 5, 6]
    return model(nodes, constants, shape, shape)


def model(
    nodes: list[onnx.NodeProto], constants: dict[str, np.ndarray], x: list[int], y: list[int]
) -> onnx.ModelProto:
    """Return a model from x to y."""
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(a, name) for name, a in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def heavy(graph: Graph) -> list[str]:
    """Return the names of the ops that compute something."""
    return [type(n.op).__name__ for n in graph.nodes if not isinstance(n.op, Reshape)]


@pytest.mark.parametrize(("groups", "channels"), [(1, 6), (3, 12), (8, 8)])
def test_a_group_norm_with_its_activation_is_one_node(groups: int, channels: int) -> None:
    source = group_norm(groups, channels)
    assert heavy(run_passes(compile_graph(source))) == ["Normalize"]
    x = np.random.default_rng(1).standard_normal((2, channels, 5, 6)).astype(np.float32)
    wide = x.astype(np.float64).reshape(2, groups, -1)
    wide = (wide - wide.mean(2, keepdims=True)) / np.sqrt(wide.var(2, keepdims=True) + 1e-5)
    named = {t.name: numpy_helper.to_array(t) for t in source.graph.initializer}
    y = wide.reshape(x.shape) * named["scale"] + named["bias"]
    (got,) = run_model(source, [x])
    assert_close([got], [(y / (1 + np.exp(-y))).astype(np.float32)], rtol=1e-5, atol=1e-5)


def layer_norm(channels: int) -> onnx.ModelProto:
    """A convolution, and LayerNormalization of its channels, transposed to the end and back."""
    rng = np.random.default_rng(0)
    constants = {
        "w": rng.standard_normal((channels, 3, 1, 1)).astype(np.float32),
        "scale": rng.standard_normal(channels).astype(np.float32),
        "bias": rng.standard_normal(channels).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Transpose", ["a"], ["b"], perm=[0, 2, 3, 1]),
        helper.make_node("LayerNormalization", ["b", "scale", "bias"], ["c"], axis=-1),
        helper.make_node("Transpose", ["c"], ["y"], perm=[0, 3, 1, 2]),
    ]
    return model(nodes, constants, [2, 3, 5, 7], [2, channels, 5, 7])


@pytest.mark.parametrize("channels", [16, 24])
def test_channels_are_normalised_without_transposes(channels: int) -> None:
    graph = run_passes(compile_graph(layer_norm(channels)), width=8)
    assert not [n for n in graph.nodes if isinstance(n.op, Map | Normalize)]
