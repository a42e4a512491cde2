"""Graphs as files: what is read is what was written; damaged and hostile files are errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import conv_net
from onnx import TensorProto, helper
from same_graph import assert_same_graph

from atc.errors import ModelError, UnsupportedError
from atc.importers import load_model
from atc.importers.optimised_graph import MAGIC
from atc.ir.expr import Expr, Input, call
from atc.ir.graph import DType, Graph, Node, TensorType
from atc.ir.ops import Map
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
        assert_same_graph(found, graph)


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
    assert len(data) < 200_000
    found = read(data, tmp_path / "g.graph")
    assert found is not None
    assert found.nodes == graph.nodes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"v1 = Add(", b"v1 = Sub; system(0)("),
        (b"v1 = Add(", b"v1 = system("),
        (b"v1 = Add(", b"v1 = Exp("),
        (b"Add(v1, v1)", b"Add(v1, v2)"),
        (b"Add(v1, v1)", b"Add(v1, v1000)"),
        (b"Add(v1, v1)", b"Add(v1, 1 + system(0))"),
    ],
)
def test_damaged_expressions_are_errors(old: bytes, new: bytes, tmp_path: Path) -> None:
    data = write_graph(doubled(100), "t")
    assert old in data
    with pytest.raises(ModelError, match="the graph is damaged: line 2"):
        read(data.replace(old, new, 1), tmp_path / "g.graph")


def test_passes_of_another_target_are_an_error(tmp_path: Path) -> None:
    data = write_graph(compile_graph(node_model("Erf", [np.ones(2, np.float32)])), "one")
    with pytest.raises(ModelError, match="made for the target one, not for two"):
        read(data, tmp_path / "g.graph", "two")


POOL = b"Pool(how=Max, "
DAMAGE: list[tuple[bytes, bytes]] = [
    (b"graph ", b"grapf "),
    (b"\n  return ", b"\n  "),
    (b"return y", b"return absent"),
    (b": f32[1,1,4,4])", b": f32[1,1,4,4], 1)"),
    (b": f32[1,1,4,4])", b": f32[1,1,4,-4])"),
    (b": f32[1,1,4,4])", b": f99[1,1,4,4])"),
    (b": f32[1,1,4,4])", b": f32[1,1,4,d[0]])"),
    (POOL, b"Path(how=Max, "),
    (POOL, b"External(symbol=system, attributes=x, "),
    (POOL, b'Pool(how="Max; system(0)", '),
    (POOL, b"Pool(how=Max, extra=1, "),
    (b"window=Window", b"window=many"),
    (b"kernel=(2, 2)", b"kernel=(2, two)"),
    (b"\n  return ", b'\n  dim Symbol(index=0, label=n, low=1, high=8)\n  return '),
    (b'"inputs": ', b'"inputs": 1, "i": '),
]


@pytest.mark.parametrize(("old", "new"), DAMAGE)
def test_damaged_files_are_errors(old: bytes, new: bytes, tmp_path: Path) -> None:
    pool = node_model("MaxPool", [np.ones((1, 1, 4, 4), np.float32)], kernel_shape=[2, 2])
    data = write_graph(compile_graph(pool), "t")
    assert read(data, tmp_path / "g.graph") is not None
    assert old in data
    with pytest.raises(ModelError):
        read(data.replace(old, new, 1), tmp_path / "g.graph")


@pytest.mark.parametrize(
    "change",
    [
        lambda lines: lines[:-1],
        lambda lines: [*lines[:-1], lines[-1][:20] + b"AAAA" + lines[-1][24:]],
        lambda lines: [*lines[:-1], lines[-1][:20]],
    ],
)
def test_damaged_constants_are_errors(
    change: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    graph = compile_graph(onnx.load(conv_net(tmp_path / "conv.onnx")))
    lines = write_graph(graph, "t").rstrip(b"\n").split(b"\n")
    assert read(b"\n".join(lines), tmp_path / "g.graph") is not None
    with pytest.raises(ModelError, match="constant|damaged"):
        read(b"\n".join(change(lines)), tmp_path / "g.graph")


def test_extents_of_run_time_are_refused() -> None:
    found = node_model("NonZero", [np.ones((2, 2), np.float32)])
    with pytest.raises(UnsupportedError, match="known only at run time"):
        write_graph(compile_graph(found), "t")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b'{"target": 1}', b"[" * 100000])
def test_what_is_no_graph_is_an_error(data: bytes, tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        read(MAGIC + data, tmp_path / "g.graph")
