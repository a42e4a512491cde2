"""Tensors and functions of odd and hostile ONNX files: the right result, or one line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from joined_sources import compile_joined
from onnx import AttributeProto, TensorProto, helper, numpy_helper

from atc.errors import AtcError
from atc.importers.onnx import load_onnx
from atc.lower import lower_model
from atc.onnx_backend import compile_networks, get_target

N, F32 = helper.make_node, TensorProto.FLOAT


def model(
    nodes: Sequence[onnx.NodeProto], tensors: Sequence[TensorProto] = (),
    functions: Sequence[onnx.FunctionProto] = (), opset: int = 21,
) -> onnx.ModelProto:  # fmt: skip
    """Return a model from x [2, 3] to y."""
    x = helper.make_tensor_value_info("x", F32, (2, 3))
    graph = helper.make_graph(nodes, "g", [x], [onnx.ValueInfoProto(name="y")], list(tensors))
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def tensor(
    raw: bytes, dims: Sequence[int] = (2, 3), kind: int = F32, **external: str
) -> TensorProto:
    """Return a tensor "w" of these bytes, or of those of a file."""
    made = TensorProto(name="w", data_type=kind, dims=dims)
    if external:
        made.data_location = TensorProto.EXTERNAL
        made.external_data.extend(
            onnx.StringStringEntryProto(key=k, value=v) for k, v in external.items()
        )
    else:
        made.raw_data = raw
    return made


def sparse(
    values: Sequence[float], places: object, dims: Sequence[int] = (2, 3)
) -> onnx.SparseTensorProto:
    """Return a sparse tensor "w"."""
    data, where = np.array(values, np.float32), np.array(places, np.int64)
    parts = numpy_helper.from_array(data, "w"), numpy_helper.from_array(where, "places")
    return onnx.SparseTensorProto(values=parts[0], indices=parts[1], dims=dims)


ADD = [N("Add", ["x", "w"], ["y"])]


def with_sparse(given: onnx.SparseTensorProto) -> onnx.ModelProto:
    """Return x + w."""
    proto = model(ADD)
    proto.graph.sparse_initializer.append(given)
    return proto


def with_constant(given: onnx.SparseTensorProto) -> onnx.ModelProto:
    """Return x + w, a constant of a node."""
    return model([N("Constant", [], ["w"], sparse_value=given), *ADD])


def function(name: str, *calls: str) -> onnx.FunctionProto:
    """Return a function that calls others one after the other."""
    names = ["a", *(f"t{k}" for k in range(len(calls) - 1)), "b"]
    nodes = [
        N(op, [names[k]], [names[k + 1]], domain="" if op == "Neg" else "own")
        for k, op in enumerate(calls)
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_function("own", name, ["a"], ["b"], nodes, opsets)


def call(*functions: onnx.FunctionProto) -> onnx.ModelProto:
    """Return a model that calls the first function."""
    return model([N(functions[0].name, ["x"], ["y"], domain="own")], (), functions)


def twice(what: str) -> onnx.ModelProto:
    """Return a model in which something is listed twice."""
    proto = model([N("Softmax", ["x"], ["y"], axis=0)], [tensor(b"\0" * 24)])
    graph = proto.graph
    lists = {"input": graph.input, "initializer": graph.initializer,
             "attribute": graph.node[0].attribute}  # fmt: skip
    lists[what].append(lists[what][0])
    return proto


DOUBLING = [function(f"f{k}", f"f{k + 1}", f"f{k + 1}") for k in range(40)]
NIBBLES = [N("DequantizeLinear", ["w", "s"], ["y"])], numpy_helper.from_array(np.float32(2), "s")


def _referring() -> onnx.ModelProto:
    """Return a node outside of functions whose attribute refers to a function's."""
    proto = model([N("LeakyRelu", ["x"], ["y"])])
    proto.graph.node[0].attribute.append(
        AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="no")
    )
    return proto


REFUSED = {
    "an attribute of no function": (_referring(), "'alpha'.*none is around it"),
    "too few bytes": (model(ADD, [tensor(b"\0" * 20)]), "20 bytes of data, not 24.*'w'"),
    "too many bytes": (model(ADD, [tensor(b"\0" * 28)]), "28 bytes of data, not 24"),
    "half the nibbles": (
        model(NIBBLES[0], [tensor(b"\x21", (3,), TensorProto.INT4), NIBBLES[1]]), "1 bytes.*not 2"),
    "a negative extent": (model(ADD, [tensor(b"\0" * 24, (-2, 3))]), r"\[-2, 3\].*negative"),
    "overflowing extents": (model(ADD, [tensor(b"\0" * 24, (2**32, 2**32))]), "24 bytes of data"),
    "part of a file": (
        model(ADD, [tensor(b"", location="w.bin", length="4")]), "4 bytes at offset 0 are given"),
    "an offset in words": (
        model(ADD, [tensor(b"", location="w.bin", offset="two")]), "the offset in .* is 'two'"),
    "a name that ends early": (model(ADD, [tensor(b"", location="w.bin\0x")]), "null byte"),
    "a place outside": (with_sparse(sparse([1, 2], [1, 6])), r"a place outside \[2, 3\].*'w'"),
    "a place before": (with_sparse(sparse([1], [-1])), "a place outside"),
    "too few places": (with_sparse(sparse([1, 2], [1])), "2 values at 1 places"),
    "huge and sparse": (with_sparse(sparse([1], [1], (2**40, 2**20))), "elements are possible"),
    "two inputs": (twice("input"), "the input 'x' is listed 2 times"),
    "two initializers": (twice("initializer"), "the initializer 'w' is listed 2 times"),
    "two attributes": (twice("attribute"), "the attribute 'axis' is listed 2 times.*Softmax"),
    "1000 inputs": (model([N("Neg", ["x"] * 1000, ["y"])]), "1000 inputs.* takes 1"),
    "2^40 calls": (call(*DOUBLING, function("f40", "Neg")), "expand to 1099511627776 nodes"),
    "calls itself": (call(function("f", "f", "f")), "Cyclic"),
    "call each other": (call(function("f", "g"), function("g", "f", "f")), "Cyclic"),
    "no such result": (call(helper.make_function(
        "own", "f", ["a"], ["lost"], [N("Neg", ["a"], ["b"])], [helper.make_opsetid("", 21)])),
        "lost"),
    "a picture of 4 TB": (model([N("Unsqueeze", ["x", "a"], ["z"]),
                                 N("Resize", ["z", "", "s"], ["y"], "grow")],
                                [numpy_helper.from_array(np.array([0, 1]), "a"),
                                 numpy_helper.from_array(np.array([1, 1, 1e6, 1e6], np.float32),
                                                         "s")]), "too large.*grow"),
    "a huge tensor inside": (model([N("Tile", ["x", "n"], ["t"], "many"), N("Neg", ["t"], ["y"])],
                                   [numpy_helper.from_array(np.array([10**9, 10**9]), "n")]),
                             "too large.*many"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    proto, words = REFUSED[name]
    (tmp_path / "w.bin").write_bytes(bytes(64))
    (tmp_path / "m.onnx").write_bytes(proto.SerializeToString())
    with pytest.raises(AtcError, match=words) as caught:
        lower_model(load_onnx(tmp_path / "m.onnx"), "m.onnx")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    assert "m.onnx" in str(caught.value)


def _many() -> onnx.ModelProto:
    """Return a sum of 400 operands, which no single expression holds."""
    return model([N("Sum", ["x"] * 400, ["y"])])


def _default() -> onnx.ModelProto:
    """Return a function whose attribute refers to one that the call doesn't give."""
    node = N("LeakyRelu", ["a"], ["b"])
    node.attribute.append(
        AttributeProto(name="alpha", type=AttributeProto.FLOAT, ref_attr_name="no")
    )
    opsets = [helper.make_opsetid("", 21)]
    return call(helper.make_function("own", "f", ["a"], ["b"], [node], opsets, ["no"]))


DENSE = np.array([[0, 1, 0], [0, 0, 2]], np.float32)
X = np.linspace(-2, 2, 6, dtype=np.float32).reshape(2, 3)
TAKEN = {
    "sparse": (with_sparse(sparse([1, 2], [1, 5])), X + DENSE),
    "sparse by tuples": (with_sparse(sparse([1, 2], [[0, 1], [1, 2]])), X + DENSE),
    "sparse constant": (with_constant(sparse([1, 2], [1, 5])), X + DENSE),
    "400 functions deep": (
        call(*(function(f"f{k}", f"f{k + 1}") for k in range(400)), function("f400", "Neg")), -X),
    "the default of a function's attribute": (_default(), np.where(X < 0, np.float32(0.01) * X, X)),
    "400 operands": (_many(), 400 * X),
    "booleans that aren't 0 or 1": (
        model([N("Where", ["w", "x", "z"], ["y"])],
              [tensor(b"\x02\xff\x00", (3,), TensorProto.BOOL),
               numpy_helper.from_array(np.float32(7), "z")]),
        np.where([True, True, False], X, np.float32(7))),
}  # fmt: skip


def test_what_is_odd_but_legal_gives_the_right_result(tmp_path: Path) -> None:
    graphs = []
    for proto, _ in TAKEN.values():
        onnx.save(proto, tmp_path / "m.onnx")
        graphs.append(lower_model(load_onnx(tmp_path / "m.onnx"), "m.onnx"))
    networks = compile_networks(graphs, get_target("c99"), "O0", compile_all=compile_joined)
    for (name, (_, expected)), network in zip(TAKEN.items(), networks, strict=True):
        np.testing.assert_allclose(network(X), expected, rtol=1e-5, err_msg=name)
