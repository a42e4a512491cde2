"""Operands that lie transposed are moved before what computes with them."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.dims import max_value
from atc.importers.onnx import pin_inputs
from atc.ir.graph import Graph
from atc.ir.ops import Map, MatMul
from atc.lower import lower_model
from atc.options.shapes import shapes
from atc.passes import run_passes
from support import assert_close, compile_graph, run_models, runnable


def model(known: bool) -> onnx.ModelProto:
    """Return a product plus a transposed residual, a constant or not, and a transposed sum."""
    rng = np.random.default_rng(3)

    def tensor(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Transpose", ["r"], ["t"], perm=[0, 2, 1]),
        helper.make_node("Add", ["p", "t"], ["y"]),
        helper.make_node("Sigmoid", ["x"], ["s"]),
        helper.make_node("Transpose", ["s"], ["q"], perm=[0, 2, 1]),
        helper.make_node("Tanh", ["u"], ["v"]),
        helper.make_node("Mul", ["v", "q"], ["z"]),
        helper.make_node("DepthToSpace", ["d"], ["e"], blocksize=2, mode="CRD"),
        helper.make_node("Add", ["e", "c"], ["f"]),
        helper.make_node("Tanh", ["f"], ["h"]),
    ]
    shapes = {"x": [2, 37, 24], "u": [2, 24, 37], "d": [1, 12, 6, 7], "c": [3, 1, 1]}
    tensors = [tensor("w", 24, 20)]
    if known:
        tensors.append(tensor("r", 2, 20, 37))
    else:
        shapes["r"] = [2, 20, 37]
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info(k, TensorProto.FLOAT, n) for k, n in shapes.items()],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 37, 20]),
         helper.make_tensor_value_info("z", TensorProto.FLOAT, [2, 24, 37]),
         helper.make_tensor_value_info("h", TensorProto.FLOAT, [1, 3, 12, 14])],
        tensors,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("target", ["x86-64-avx512"])
def test_results_are_the_same(target: str) -> None:
    if not runnable(target):
        pytest.skip(f"{target} doesn't run here")
    models = [model(known) for known in (False, True)]
    rng = np.random.default_rng(4)
    inputs = [
        [rng.standard_normal([d.dim_value for d in i.type.tensor_type.shape.dim]).astype(np.float32)
         for i in m.graph.input] for m in models
    ]  # fmt: skip
    for made, given, found in zip(models, inputs, run_models(models, inputs, target), strict=True):
        assert not isinstance(found, Exception), found
        names = [i.name for i in made.graph.input]
        want = ReferenceEvaluator(made).run(None, dict(zip(names, given, strict=True)))
        assert_close(found, want, atol=2e-5)


def of_ranges(made: onnx.ModelProto) -> Graph:
    """Return a lowered model of 20 to 37 rows, and of images of a range."""
    for value in made.graph.input:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_value in (37, 6, 7):
                axis.dim_param = f"n{axis.dim_value}"
    for value in made.graph.output:
        value.type.tensor_type.ClearField("shape")
    given = shapes("x:2,n37=20~37,24;u:2,24,n37;d:1,12,n6=4~6,n7=4~7;r:2,20,n37")
    return lower_model(pin_inputs(onnx_ir.from_proto(made), given, "test.onnx"), "test.onnx")


@pytest.mark.parametrize(("known", "ranged"), [(False, False), (True, False), (False, True)])
def test_all_operands_follow_the_last_loop(known: bool, ranged: bool) -> None:
    made = model(known)
    graph = run_passes(of_ranges(made) if ranged else compile_graph(made), width=16)
    moves = [n for n in graph.nodes if isinstance(n.op, Map) and n.op.is_movement]
    assert len(moves) == (2 if known else 3)
    for node in graph.nodes:
        if isinstance(node.op, MatMul):
            assert all(v.strides[-1] in (0, 1) for v in node.op.epilogue.views)
        elif isinstance(node.op, Map) and not node.op.is_movement:
            assert all(v.strides[-1] in (0, 1) for v in node.op.views)
            assert max_value(node.op.shape[-1]) >= 16 or ranged


def test_scalars_have_no_last_loop() -> None:
    scalar = [helper.make_tensor_value_info(n, TensorProto.FLOAT, []) for n in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", scalar[:1], scalar[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    assert len(run_passes(compile_graph(made), width=16).nodes) == 1
