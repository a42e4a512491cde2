"""Integers of 16 bits are moved as they are, not as the floats that they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from atc.ir.graph import DType
from atc.passes import run_passes
from support import compile_graph, run_model

INDICES = {"i": np.array([2, 0, 3])}
PADS = {"p": np.array([0, 0, 1, 0, 0, 0, 0, 2])}
MOVES: dict[str, tuple[list[str], dict[str, Any], dict[str, Any]]] = {
    "Transpose": (["a"], {}, {"perm": [0, 2, 3, 1]}),
    "DepthToSpace": (["a"], {}, {"blocksize": 2}),
    "Concat": (["a", "a"], {}, {"axis": 1}),
    "Gather": (["a", "i"], INDICES, {"axis": 1}),
    "Pad": (["a", "p"], PADS, {}),
}


def model(kind: str, dtype: Any, same: bool = True) -> onnx.ModelProto:
    """Return a movement of dequantized integers, quantized by the same scale if `same`."""
    inputs, constants, attributes = MOVES[kind]
    constants = {
        **constants, "s": np.float32(0.0002), "t": np.float32(0.0002 if same else 0.0003),
        "z": np.array(np.iinfo(dtype).max // 2, dtype),
    }  # fmt: skip
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node(kind, inputs, ["b"], **attributes),
        helper.make_node("QuantizeLinear", ["b", "t", "z"], ["y"]),
    ]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    graph = helper.make_graph(
        nodes, "moved", [helper.make_tensor_value_info("x", code, (1, 8, 4, 6))],
        [helper.make_tensor_value_info("y", code, None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


@pytest.mark.parametrize("dtype", [np.uint16, np.int16])
@pytest.mark.parametrize("kind", MOVES)
def test_what_only_moves_stays_in_integers(kind: str, dtype: Any) -> None:
    made = model(kind, dtype)
    graph = run_passes(compile_graph(made))
    computed = [graph.types[name].dtype for n in graph.nodes for name in n.outputs]
    assert DType.FLOAT not in computed
    x = np.random.default_rng(1).integers(0, 1 << 16, (1, 8, 4, 6)).astype(np.uint16).view(dtype)
    (want,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    np.testing.assert_array_equal(run_model(made, [x])[0], want)


@pytest.mark.parametrize("kind", ["Transpose", "Pad"])
def test_another_scale_is_met_behind_the_movement(kind: str) -> None:
    made = model(kind, np.uint16, same=False)
    x = np.random.default_rng(2).integers(0, 1 << 16, (1, 8, 4, 6)).astype(np.uint16)
    (want,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    (got,) = run_model(made, [x])
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1
