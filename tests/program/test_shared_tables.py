"""Tables that a product reads too lie in a library once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.ir.ops.data import Gather
from atc.program.steps import calls

ROWS, DEPTH = 1003, 24
TABLE = np.random.default_rng(0).standard_normal((ROWS, DEPTH)).astype(np.float32)


def save(folder: Path, more: tuple[onnx.NodeProto, ...] = ()) -> Path:
    """Write a model that looks words up in a table, and multiplies by its transposition."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["embedded"]),
        helper.make_node("Tanh", ["embedded"], ["hidden"]),
        helper.make_node("Transpose", ["table"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["hidden", "turned"], ["scores"]),
        *more,
    ]
    inputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, "n"])]
    if more:
        inputs.append(helper.make_tensor_value_info("factor", TensorProto.FLOAT, [1]))
    results = [helper.make_tensor_value_info(o, TensorProto.FLOAT, None)
               for o in ("embedded", "scores", *(node.output[0] for node in more))]  # fmt: skip
    constants = [numpy_helper.from_array(TABLE, "table")]
    graph = helper.make_graph(nodes, "net", inputs, results, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", ["ids:1,5", "ids:1,1~7"])
@pytest.mark.parametrize("target", ["host", "c99"])
def test_it_lies_there_once(shape: str, target: str, tmp_path: Path) -> None:
    model = save(tmp_path)
    atc.compile(model, tmp_path / "net", target=target, input_shape=shape)
    size = next((tmp_path / "net").rglob("*.so")).stat().st_size
    assert TABLE.nbytes < size < 1.5 * TABLE.nbytes
    ids = np.array([[0, -1, ROWS - 1, 500, -ROWS]])
    wanted = onnxruntime.InferenceSession(str(model)).run(None, {"ids": ids})
    with atc.load(tmp_path / "net") as net:
        embedded, scores = net(ids)
        np.testing.assert_array_equal(embedded, wanted[0])
        np.testing.assert_allclose(scores, wanted[1], atol=1e-4)


def test_what_else_reads_a_table_keeps_it_as_it_is(tmp_path: Path) -> None:
    model = save(tmp_path, (helper.make_node("Mul", ["table", "factor"], ["scaled"]),))
    done = atc.compile(model, tmp_path / "net", target="c99", input_shape="ids:1,5")
    lookups = [c.node.op for c in calls(done.program.steps) if isinstance(c.node.op, Gather)]
    assert [op.run for op in lookups] == [DEPTH]
