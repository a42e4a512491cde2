"""Models that no exporter would write: the right result, or one line that names node and value."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from fuzz.mutants import outcome
from onnx import NodeProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.cli.main import main
from atc.options.options import Options
from atc.pipeline.request import resolve_request
from atc.tools.check import check_model
from support import compile_models

F32 = TensorProto.FLOAT
N = helper.make_node


def model(
    nodes: list[NodeProto], shape: tuple[int, ...] = (2, 3), opset: int = 21, dtype: int = F32,
    output: str = "y", **constants: object,
) -> onnx.ModelProto:  # fmt: skip
    known = [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    given = [helper.make_tensor_value_info("x", dtype, shape)]
    graph = helper.make_graph(nodes, "odd", given, [onnx.ValueInfoProto(name=output)], known)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])


def nested(levels: int) -> onnx.ModelProto:
    """Return If nodes inside If nodes; the innermost negates x."""
    inner = N("Neg", ["x"], ["r0"], "deepest")
    for k in range(levels):
        branches = {}
        for key in ("then_branch", "else_branch"):
            op = inner if key == "then_branch" else N("Identity", ["x"], [f"r{k}"])
            branches[key] = helper.make_graph([op], key, [], [onnx.ValueInfoProto(name=f"r{k}")])
        inner = N("If", ["c"], [f"r{k + 1}"], f"if {k}", **branches)
    proto = model([inner], output=f"r{levels}")
    proto.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    return proto


def field(number: int, data: bytes) -> bytes:
    """Return a field of a message as protobuf writes it."""
    key, size, length = number << 3 | 2, len(data), b""
    while size > 127:
        length, size = length + bytes([size & 127 | 128]), size >> 7
    first = bytes([key]) if key < 128 else bytes([key & 127 | 128, key >> 7])
    return first + length + bytes([size]) + data


def deep(levels: int) -> bytes:
    """Return a file with so many graphs inside graphs, which onnx's own functions don't write."""
    graph = field(1, N("Neg", ["x"], ["y"]).SerializeToString())
    for _ in range(levels):
        kind = bytes([20 << 3 & 127 | 128, 1, 5])
        then = field(5, field(1, b"then_branch") + field(6, graph) + kind)
        graph = field(1, field(1, b"c") + field(2, b"y") + field(4, b"If") + then)
    whole = model([])
    del whole.graph.node[:]
    head = whole.SerializeToString()
    return head + field(7, graph)


def attribute(node: NodeProto, name: str, value: object) -> NodeProto:
    """Return the node with an attribute in the place of one of the same name."""
    kept = [a for a in node.attribute if a.name != name]
    del node.attribute[:]
    node.attribute.extend([*kept, helper.make_attribute(name, value)])
    return node


def conv(**attributes: object) -> NodeProto:
    return N("Conv", ["x", "w"], ["y"], "conv", **attributes)


W = np.ones((4, 3, 3, 3), np.float32)
IMAGE = (1, 3, 8, 8)
REFUSED = {
    "cycle": (model([N("Add", ["x", "b"], ["a"], "first"), N("Neg", ["a"], ["b"], "second"),
                     N("Neg", ["b"], ["y"])]), r"'b'.*'first'"),
    "own input": (model([N("Add", ["x", "y"], ["y"], "self")]), r"'y'.*'self'"),
    "computed twice": (model([N("Neg", ["x"], ["y"], "first"), N("Exp", ["x"], ["y"], "second")]),
                       "'y' is computed twice.*'second'"),
    "dangling": (model([N("Add", ["x", "nowhere"], ["y"], "lost")]), r"'nowhere'.*'lost'"),
    "output nobody computes": (model([N("Neg", ["x"], ["z"])]), "output 'y'"),
    "no nodes": (model([]), "output 'y'"),
    "missing attribute": (model([N("Concat", ["x", "x"], ["y"], "join")]), "join"),
    "missing kernel": (model([N("MaxPool", ["x"], ["y"], "pool")], IMAGE), "pool"),
    "scale of a wrong size": (model([N("LayerNormalization", ["x", "w"], ["y"], "norm")],
                                    w=np.ones(2, np.float32)), "don't fit.*norm"),
    "bias of a wrong size": (model([N("ConvTranspose", ["x", "w", "b"], ["y"], "up")], IMAGE,
                                   w=np.ones((3, 4, 2, 2), np.float32), b=np.ones(3, np.float32)),
                             "'up'"),
    "text for ints": (model([attribute(conv(), "strides", "two")], IMAGE, w=W), "strides.*conv"),
    "float for int": (model([attribute(conv(), "group", 1.5)], IMAGE, w=W), "group.*conv"),
    "ints for int": (model([N("Softmax", ["x"], ["y"], "soft", axis=[1, 2])]), "axis.*soft"),
    "text for a graph": (model([N("If", ["x"], ["y"], "if", then_branch="a", else_branch="b")]),
                         "'if'"),
    "zero stride": (model([conv(strides=[0, 1])], IMAGE, w=W), "positive.*conv"),
    "negative dilation": (model([conv(dilations=[1, -1])], IMAGE, w=W), "positive.*conv"),
    "huge pads": (model([conv(pads=[2**40] * 4)], IMAGE, w=W), "too large|conv"),
    "huge kernel": (model([N("MaxPool", ["x"], ["y"], "pool", kernel_shape=[2**62, 2])], IMAGE),
                    "pool"),
    "axis outside": (model([N("Softmax", ["x"], ["y"], "soft", axis=9)]), "axis 9.*soft"),
    "negative dim": (model([N("Neg", ["x"], ["y"])], (-3, 2)), "-3"),
    "overflowing dims": (model([N("Neg", ["x"], ["y"])], (2**40, 2**40)), "too large"),
    "10^12 elements": (model([N("ConstantOfShape", ["s"], ["y"], "fill")], s=np.array([10**12])),
                       "1000000000000"),
    "negative size": (model([N("ConstantOfShape", ["s"], ["y"], "fill")], s=np.array([-5])),
                      "fill"),
    "10^12 times": (model([N("Tile", ["x", "s"], ["y"], "tile")], s=np.array([10**6, 10**6])),
                    "too large|tile"),
    "endless range": (model([N("Range", ["a", "b", "d"], ["y"], "range")], a=np.int64(0),
                            b=np.int64(2**62), d=np.int64(1)), "too large|range"),
    "reshape of a wrong size": (model([N("Reshape", ["x", "s"], ["y"], "shape")],
                                      s=np.array([4, 4])), "shape"),
    "indices outside": (model([N("Gather", ["x", "i"], ["y"], "gather")], i=np.array([99])),
                        "99.*gather|gather.*99"),
    "opset of the future": (model([N("Neg", ["x"], ["y"])], opset=2**40), "opset 1099511627776"),
    "opset 0": (model([N("Neg", ["x"], ["y"])], opset=0), "opset 0"),
    "opset -1": (model([N("Neg", ["x"], ["y"])], opset=-1), "opset -1"),
    "unknown type": (model([N("Neg", ["x"], ["y"])], dtype=99), "99|type|readable"),
}  # fmt: skip


def one_error(proto: onnx.ModelProto, folder: Path) -> str:
    path = folder / "odd.onnx"
    path.write_bytes(proto.SerializeToString())
    errors = check_model(resolve_request(Options(path, folder / "net", target="c99"))).errors
    assert errors, "it was taken"
    return str(errors[0])


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    proto, words = REFUSED[name]
    assert outcome(proto.SerializeToString(), "c99") == ""
    text = one_error(proto, tmp_path)
    assert re.search(words, text), text
    assert "\n" not in text
    assert not text.startswith("E19999")


def test_graphs_100_levels_deep_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "deep.onnx"
    path.write_bytes(deep(100))
    assert outcome(path.read_bytes(), "c99") == ""
    (error,) = check_model(resolve_request(Options(path, tmp_path / "net", target="c99"))).errors
    assert "deep.onnx" in str(error)


def test_refusing_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "odd.onnx"
    path.write_bytes(REFUSED["dangling"][0].SerializeToString())
    assert main([f"--model={path}", f"--output={tmp_path / 'out/net'}", "--target=c99"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert [p.name for p in tmp_path.iterdir()] == ["odd.onnx"]


BAD = np.array([[np.nan, np.inf, -np.inf], [0.0, -0.0, 1e-45]], np.float32)
TAKEN = {
    "NaN and infinite weights": model([N("Add", ["x", "w"], ["t"]), N("Relu", ["t"], ["y"])],
                                      w=BAD),
    "NaN in a product": model([N("MatMul", ["x", "w"], ["y"])], w=BAD.T.copy()),
    "no rows": model([N("MatMul", ["x", "w"], ["y"])], (0, 3), w=np.ones((3, 2), np.float32)),
    "nothing to sum": model([N("MatMul", ["x", "w"], ["y"])], (2, 0),
                            w=np.ones((0, 4), np.float32)),
    "sum of nothing": model([N("ReduceSum", ["x", "a"], ["y"])], (2, 0), a=np.array([1])),
    "zero in the middle": model([N("Transpose", ["x"], ["t"]), N("Exp", ["t"], ["y"])], (2, 0, 3)),
    "nothing joined": model([N("Concat", ["x", "x"], ["y"], axis=0)], (0, 3)),
    "scalars": model([N("Mul", ["x", "x"], ["t"]), N("Unsqueeze", ["t", "a"], ["y"])], (),
                     a=np.array([0])),
    "scalar reduced": model([N("ReduceMax", ["x"], ["y"], keepdims=1)], ()),
    "duplicate node names": model([N("Neg", ["x"], ["t"], "n"), N("Exp", ["t"], ["y"], "n")]),
    "unused nodes": model([N("Neg", ["x"], ["y"]), N("Exp", ["x"], ["unused"])]),
    "20 levels": nested(20),
}  # fmt: skip


def test_what_is_odd_but_legal_gives_the_right_result() -> None:
    for (name, proto), run in zip(TAKEN.items(), compile_models([*TAKEN.values()]), strict=True):
        assert not isinstance(run, Exception), f"{name}: {run}"
        rng = np.random.default_rng(0)
        arrays = {
            v.name: np.array(True) if v.name == "c"
            else rng.standard_normal([d.dim_value for d in v.type.tensor_type.shape.dim]).astype(
                np.float32
            )
            for v in proto.graph.input
        }  # fmt: skip
        with np.errstate(all="ignore"):
            if name == "20 levels":
                expected = [-arrays["x"]]
            else:
                expected = ReferenceEvaluator(proto).run(None, arrays)
        np.testing.assert_allclose(run(list(arrays.values()))[0], expected[0], 1e-6, err_msg=name)
