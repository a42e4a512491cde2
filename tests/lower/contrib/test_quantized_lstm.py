"""DynamicQuantizeLSTM with a scale for each column of its weights multiplies bytes."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.ir.graph import DType
from atc.ir.ops import Recurrent
from support import compile_graph, run_model

STEPS, INPUTS, UNITS = 6, 20, 24
F32 = np.float32


def model(directions: int, peepholes: bool, signed: bool = True) -> onnx.ModelProto:
    """Return a layer of one row: onnxruntime has one range for the states of all rows."""
    rng = np.random.default_rng(directions)
    constants = {"b": (0.1 * rng.standard_normal((directions, 8 * UNITS))).astype(F32)}
    for name, depth in (("w", INPUTS), ("r", UNITS)):
        zero = np.zeros(4 * UNITS, np.int8) if signed else np.full(4 * UNITS, 128, np.uint8)
        q = rng.integers(-127, 128, (directions, depth, 4 * UNITS)) + zero.astype(int)
        constants |= {
            name: q.astype(zero.dtype), f"{name}z": np.stack([zero] * directions),
            f"{name}s": rng.uniform(0.001, 0.004, (directions, 4 * UNITS)).astype(F32),
        }  # fmt: skip
    if peepholes:
        constants["p"] = (0.1 * rng.standard_normal((directions, 3 * UNITS))).astype(F32)
    layer = helper.make_node(
        "DynamicQuantizeLSTM",
        ["x", "w", "r", "b", "", "", "", "p" if peepholes else "", "ws", "wz", "rs", "rz"], ["y"],
        domain="com.microsoft", hidden_size=UNITS,
        direction="bidirectional" if directions == 2 else "forward",
    )  # fmt: skip
    x, y = (STEPS, 1, INPUTS), (STEPS, directions, 1, UNITS)
    graph = helper.make_graph(
        [layer], "lstm", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(v, k) for k, v in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 19), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize("peepholes", [False, True])
@pytest.mark.parametrize(("directions", "signed"), [(1, True), (2, True), (2, False)])
def test_weights_of_any_scales_are_multiplied_as_bytes(
    directions: int, signed: bool, peepholes: bool
) -> None:
    made = model(directions, peepholes, signed)
    graph = compile_graph(made)
    (layer,) = (n for n in graph.nodes if isinstance(n.op, Recurrent))
    assert graph.types[layer.inputs[1]].dtype is DType.INT8
    x = np.random.default_rng(7).standard_normal((STEPS, 1, INPUTS)).astype(F32)
    (want,) = onnxruntime.InferenceSession(made.SerializeToString()).run(None, {"x": x})
    (got,) = run_model(made, [x])
    np.testing.assert_allclose(got, want, atol=2e-6)
