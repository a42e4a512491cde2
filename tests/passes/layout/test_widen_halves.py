"""Values and constants of 16 bits that are computed with as floats."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import atc
from atc.ir.expr import Input, call, cast
from atc.ir.graph import DType, Graph, Node, TensorType, type_of
from atc.ir.ops import Map
from atc.ir.ops.sampling import Resample
from atc.ir.verify import verify
from atc.ir.view import View
from atc.passes.layout.widen_halves import widen_halves

F = DType.FLOAT
HALVES = pytest.mark.parametrize(
    "half", [DType.FLOAT16, DType.BFLOAT16], ids=lambda half: half.label
)


def added(constant: NDArray[Any], half: DType) -> Graph:
    """Return the sum of x, [2, 3], and a constant that its rows or numbers share."""
    total = call("Add", cast(Input(half, 0), F), cast(Input(half, 1), F))
    own = View((3, 1)) if constant.size == 6 else View((0, 1))
    op = Map((2, 3), cast(total, half), (View((3, 1)), own))
    types = {name: TensorType(half, (2, 3)) for name in ("x", "y")} | {"c": type_of(constant)}
    return Graph("g", ("x",), ("y",), (Node(op, ("x", "c"), ("y",), ("n",)),), types,
                 {"c": constant})  # fmt: skip


@HALVES
@pytest.mark.parametrize(("shape", "shared"), [((3,), True), ((2, 3), False)])
def test_constants_that_larger_results_share_become_floats(
    shape: tuple[int, ...], shared: bool, half: DType
) -> None:
    constant = np.random.default_rng(0).standard_normal(shape).astype(half.numpy)
    found = widen_halves(added(constant, half), {})
    assert found.types["c"].dtype is (F if shared else half)
    np.testing.assert_array_equal(found.constants["c"].astype(half.numpy), constant)
    assert found.types["y"].dtype is half


@HALVES
def test_what_is_interpolated_becomes_floats_before(half: DType) -> None:
    index, weight = np.arange(16).reshape(8, 2) % 4, np.full((8, 2), 0.5, np.float32)
    types = {"x": TensorType(half, (2, 4)), "y": TensorType(F, (2, 8)),
             "i": type_of(index), "w": type_of(weight)}  # fmt: skip
    node = Node(Resample(2, 4, 1, 8, 2), ("x", "i", "w"), ("y",), ("n",))
    graph = Graph("g", ("x",), ("y",), (node,), types, {"i": index, "w": weight})
    widening, interpolating = widen_halves(graph, {}).nodes
    assert widening.op == Map((8,), cast(Input(half, 0), F), (View((1,)),))
    assert widening.inputs == ("x",)
    assert interpolating.inputs[0] == widening.outputs[0]


@HALVES
@pytest.mark.parametrize("to", [DType.FLOAT, DType.INT32, DType.BOOL], ids=lambda d: d.label)
def test_what_is_exact_is_not_rounded_where_it_is_cast(to: DType, half: DType) -> None:
    """A mask that is 1 - mask, then truth values, as decoders of float16 have it."""
    flip = call("Sub", cast(Input(half, 0), F), cast(Input(half, 0), F))
    nodes = (
        Node(Map((3,), cast(Input(DType.INT64, 0), half), (View((1,)),)), ("x",), ("a",), ("n",)),
        Node(Map((3,), cast(flip, half), (View((1,)),)), ("a",), ("b",), ("n",)),
        Node(Map((3,), cast(Input(half, 0), to), (View((1,)),)), ("b",), ("y",), ("n",)),
    )
    types = {"x": TensorType(DType.INT64, (3,)), "a": TensorType(half, (3,)),
             "b": TensorType(half, (3,)), "y": TensorType(to, (3,))}  # fmt: skip
    graph = widen_halves(Graph("g", ("x",), ("y",), nodes, types, {}), {})
    verify(graph, "widen_halves")
    assert graph.types["b"].dtype is F


@HALVES
def test_doubles_of_exact_halves_stay_doubles(half: DType) -> None:
    constant = np.arange(3).astype(half.numpy)
    op = Map((2, 3), cast(Input(half, 0), DType.DOUBLE), (View((0, 1)),))
    types = {"c": type_of(constant), "y": TensorType(DType.DOUBLE, (2, 3))}
    nodes = (Node(op, ("c",), ("y",), ("n",)),)
    found = widen_halves(Graph("g", (), ("y",), nodes, types, {"c": constant}), {})
    assert found.types["c"].dtype is F
    assert found.nodes[-1].op == replace(op, expr=cast(Input(F, 0), DType.DOUBLE))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
def test_products_with_a_bias_are_tiles_of_vectors(dtype: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)

    def constant(name: str, *shape: int) -> onnx.TensorProto:
        scale = shape[0] ** -0.5 if len(shape) > 1 else 1.0
        array = scale * random.standard_normal(shape)
        return helper.make_tensor(name, dtype, shape, array.ravel())

    weights = [constant("w", 48, 80), constant("b", 80), constant("v", 80, 48), constant("a", 48)]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["b", "p"], ["q"]),
        helper.make_node("Relu", ["q"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["s"]),
        helper.make_node("Add", ["s", "a"], ["t"]),
        helper.make_node("Sigmoid", ["x"], ["z"]),
        helper.make_node("Add", ["t", "z"], ["u"]),
        helper.make_node("Softmax", ["u"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, dtype, [1, 40, 48]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="host")
    report = json.loads((tmp_path / "net" / "net.report.json").read_text())
    kernels = {n["kernel"] for n in report["nodes"] if n["op"] == "MatMul"}
    assert kernels
    assert not any(k.startswith("matmul_rows") for k in kernels)
    given = random.standard_normal((1, 40, 48)).astype(helper.tensor_dtype_to_np_dtype(dtype))
    reference = onnx.reference.ReferenceEvaluator(str(tmp_path / "m.onnx"))
    with atc.load(tmp_path / "net") as net:
        got, want = net(given), reference.run(None, {"x": given})[0]
    np.testing.assert_allclose(got.astype(float), np.asarray(want, float), rtol=6e-2, atol=1e-3)
