"""Graphs as files: what is read is what was written; damaged and hostile files are errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from networks import conv_net
from onnx import TensorProto, helper

from atc.errors import ModelError
from atc.importers import load_model
from atc.importers.optimised_graph import MAGIC
from atc.ir.expr import Expr, Input, call
from atc.ir.graph import DType, Graph, Node, TensorType
from atc.ir.ops import Map
from atc.ir.text import dump
from atc.ir.view import View
from atc.passes import run_passes
from atc.pipeline.graph_file import stored_graph, write_graph
from support import compile_graph, node_model

SAMPLES = Path(__file__).parents[2] / "samples"


def looping() -> onnx.ModelProto:
    """Return a model with a loop whose body has nodes of its own."""
    info = helper.make_tensor_value_info
    nodes = [helper.make_node("Identity", ["c"], ["d"]), helper.make_node("Exp", ["s"], ["t"])]
    body = helper.make_graph(
        nodes, "body", [info("i", TensorProto.INT64, ()), info("c", TensorProto.BOOL, ()),
                        info("s", TensorProto.FLOAT, (4,))],
        [info("d", TensorProto.BOOL, ()), info("t", TensorProto.FLOAT, (4,))],
    )  # fmt: skip
    n = onnx.numpy_helper.from_array(np.array(3), "n")
    loop = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    sides = [[info(name, TensorProto.FLOAT, (4,))] for name in "xy"]
    graph = helper.make_graph([loop], "loop", *sides, [n])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])


def read(data: bytes, path: Path, target: str = "t") -> Graph | None:
    path.write_bytes(data)
    return stored_graph(load_model(path, "", {}, None), target)


def models(path: Path) -> list[onnx.ModelProto]:
    x = np.ones((2, 3, 4), np.float32)
    return [
        onnx.load(conv_net(path / "conv.onnx")), looping(),
        *(onnx.load(SAMPLES / f"{name}.onnx") for name in ("digits", "keywords")),
        node_model("LayerNormalization", [x, x[0, 0]], axis=-1), node_model("Erf", [x]),
        node_model("Clip", [x, np.float32(-np.inf), np.float32(2)], constant=[1, 2]),
    ]  # fmt: skip


def test_what_is_read_is_what_was_written(tmp_path: Path) -> None:
    for model in models(tmp_path):
        graph = run_passes(compile_graph(model), width=8)
        found = read(write_graph(graph, "t"), tmp_path / "g.graph")
        assert found is not None
        assert dump(found) == dump(graph)
        assert (found.nodes, found.types) == (graph.nodes, dict(graph.types))
        for name, array in graph.constants.items():
            np.testing.assert_array_equal(found.constants[name], array)
            assert found.constants[name].dtype == array.dtype


def doubled(times: int) -> Graph:
    """Return a graph of one Map whose expression reads each of its calls twice."""
    x: Expr = Input(DType.FLOAT, 0)
    for _ in range(times):
        x = call("Add", x, x)
    node = Node(Map((2,), x, (View((1,)),)), ("x",), ("y",), ("sums",))
    type_ = TensorType(DType.FLOAT, (2,))
    return Graph("doubled", ("x",), ("y",), (node,), {"x": type_, "y": type_})


def test_what_expressions_share_is_written_once(tmp_path: Path) -> None:
    """As a tree, the expression has 2^100 leaves."""
    graph = doubled(100)
    data = write_graph(graph, "t")
    assert len(data) < 20_000
    found = read(data, tmp_path / "g.graph")
    assert found is not None
    assert found.nodes == graph.nodes


@pytest.mark.parametrize("number", [-1, 98, 99, 1000])
def test_shared_calls_that_come_later_are_an_error(number: int, tmp_path: Path) -> None:
    content = json.loads(write_graph(doubled(100), "t").removeprefix(MAGIC))
    content["graph"]["nodes"][0]["op"]["expr"]["shared"][98]["args"][0] = {"shared": number}
    with pytest.raises(ModelError, match="the graph is damaged"):
        read(MAGIC + json.dumps(content).encode(), tmp_path / "g.graph")


def test_only_calls_are_shared(tmp_path: Path) -> None:
    content = json.loads(write_graph(doubled(100), "t").removeprefix(MAGIC))
    content["graph"]["nodes"][0]["op"]["expr"]["shared"][5] = [1, 2]
    with pytest.raises(ModelError, match="what is shared is no call"):
        read(MAGIC + json.dumps(content).encode(), tmp_path / "g.graph")


def test_texts_in_shared_calls_are_checked(tmp_path: Path) -> None:
    content = json.loads(write_graph(doubled(100), "t").removeprefix(MAGIC))
    content["graph"]["nodes"][0]["op"]["expr"]["shared"][5]["fn"] = "Add; system(0)"
    with pytest.raises(ModelError):
        read(MAGIC + json.dumps(content).encode(), tmp_path / "g.graph")


def test_passes_of_another_target_are_an_error(tmp_path: Path) -> None:
    data = write_graph(compile_graph(node_model("Erf", [np.ones(2, np.float32)])), "one")
    with pytest.raises(ModelError, match="made for the target one, not for two"):
        read(data, tmp_path / "g.graph", "two")


def _node(content: Any) -> Any:
    return content["graph"]["nodes"][0]


def _set(place: Callable[[Any], Any], key: object, value: object) -> Callable[[Any], None]:
    def change(content: Any) -> None:
        place(content)[key] = value

    return change


DAMAGE: list[Callable[[Any], None]] = [
    _set(lambda c: c, "graph", []),
    _set(lambda c: c["graph"], "nodes", [1]),
    _set(lambda c: c["graph"], "types", {"map": []}),
    _set(lambda c: c["graph"], "outputs", ["absent"]),
    _set(lambda c: c["graph"], "inputs", [["x"]]),
    _set(_node, "op", {"is": "Path"}),
    _set(_node, "op", {"is": "External", "symbol": "system", "attributes": "x"}),
    _set(lambda c: _node(c)["op"], "how", "Max; system(0)"),
    _set(lambda c: _node(c)["op"], "extra", 1),
    _set(lambda c: _node(c)["op"], "window", {"float": "many"}),
    _set(lambda c: c["graph"]["types"]["map"][0][1], "shape", [-1]),
    _set(lambda c: c["graph"]["types"]["map"][0][1], "dtype", {"type": 99}),
]


@pytest.mark.parametrize("change", DAMAGE)
def test_damaged_files_are_errors(change: Callable[[Any], None], tmp_path: Path) -> None:
    pool = node_model("MaxPool", [np.ones((1, 1, 4, 4), np.float32)], kernel_shape=[2, 2])
    content = json.loads(write_graph(compile_graph(pool), "t").removeprefix(MAGIC))
    assert read(MAGIC + json.dumps(content).encode(), tmp_path / "g.graph") is not None
    change(content)
    with pytest.raises(ModelError):
        read(MAGIC + json.dumps(content).encode(), tmp_path / "g.graph")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"graph": {}}', b"[" * 100000])
def test_what_is_no_graph_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        read(MAGIC + data, tmp_path / "g.graph")
