"""Text graphs become JSON with all that the text says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from atc.errors import ModelError
from atc.ir.graph import Graph
from atc.ir.text import dump, op_text
from atc.lower import lower_model
from atc.tools.export_json import Json, text_graph


def branches() -> Graph:
    """Return a graph with an If, whose branches add or multiply x and w."""
    info = helper.make_tensor_value_info
    x, flag = info("x", TensorProto.FLOAT, [2, 3]), info("flag", TensorProto.BOOL, [])
    y = info("y", TensorProto.FLOAT, [2, 3])
    bodies = {
        f"{which}_branch": helper.make_graph(
            [helper.make_node(op, ["x", "w"], ["r"], f"{op} it")], which, [],
            [info("r", TensorProto.FLOAT, [2, 3])],
        )
        for which, op in (("then", "Add"), ("else", "Mul"))
    }  # fmt: skip
    nodes = [
        helper.make_node("If", ["flag"], ["a"], "choice", **bodies),
        helper.make_node("Relu", ["a"], ["y"], "end"),
    ]
    w = numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w")
    graph = helper.make_graph(nodes, "net", [x, flag], [y], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    return lower_model(onnx_ir.from_proto(model), "t.onnx")


def says(json: Json, graph: Graph) -> None:
    """Check that a JSON graph is the graph, inner ones too."""
    assert [i["type"] for i in json["inputs"]] == [str(graph.types[i]) for i in graph.inputs]
    assert len(json["outputs"]) == len(graph.outputs)
    assert [c["bytes"] for c in json["constants"]] == [a.nbytes for a in graph.constants.values()]
    assert len(json["nodes"]) == len(graph.nodes)
    for made, node in zip(json["nodes"], graph.nodes, strict=True):
        assert f"{made['op']}({made['attributes']})" == op_text(node.op)
        assert len(made["inputs"]) == len(node.inputs)
        assert [o["type"] for o in made["outputs"]] == [str(graph.types[o]) for o in node.outputs]
        assert len(made["origin"]) == len(node.origin)
        inner = node.op.subgraphs()
        for part, subgraph in zip(made.get("graphs", []), inner, strict=True):
            says(part, subgraph)


def test_a_dump_is_exported_whole(tmp_path: Path) -> None:
    graph = branches()
    path = tmp_path / "net.graph.txt"
    last = replace(graph.nodes[-1], origin=())  # as a node of the compiler's own
    graph = replace(graph, nodes=(*graph.nodes[:-1], last))
    path.write_text(dump(graph))
    says(text_graph(path), graph)


def test_onnx_text_is_a_model(tmp_path: Path) -> None:
    path = tmp_path / "net.onnxtxt"
    path.write_text('<ir_version: 8, opset_import: ["": 17]> agraph (float[2] x) => (float[2] y)'
                    "{ y = Relu(x) }")  # fmt: skip
    made = text_graph(path)
    assert made["graph"]["node"][0]["opType"] == "Relu"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "neither"),
        ("graph net(x: f32[2])\n  x ! y\n  return y\n", "line 2"),
        ("graph net(x: f32[2])\n  const w: f32[2] = (0.5, nan)\n", "no end"),
        ("graph net(x: f32[2])\n  const w f32\n  return x\n", "line 2"),
    ],
)
def test_what_is_no_graph(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "g.txt"
    path.write_text(text)
    with pytest.raises(ModelError, match=words):
        text_graph(path)


def test_what_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="can't be read"):
        text_graph(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelError, match="is not text"):
        text_graph(tmp_path / "bytes")
