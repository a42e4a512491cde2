"""The types of a model's values, against those that onnx's own inference finds."""

from __future__ import annotations

import onnx
import onnx_ir
import pytest
import suite
from onnx import TensorProto, helper, shape_inference

from atc.lower.value_types import value_types


def inferred(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the types of tensors by onnx's inference."""
    graph = shape_inference.infer_shapes(proto).graph
    values = (*graph.input, *graph.value_info, *graph.output)
    found = {v.name: v.type.tensor_type.elem_type for v in values if v.type.HasField("tensor_type")}
    return {name: dtype for name, dtype in found.items() if dtype}


def found(proto: onnx.ModelProto) -> dict[str, int]:
    """Return the types that ours finds where the model declares none of results."""
    bare = onnx.ModelProto.FromString(proto.SerializeToString())
    del bare.graph.value_info[:]
    outputs = [value.name for value in bare.graph.output]
    model = onnx_ir.from_proto(bare)
    for value in model.graph.outputs:
        value.type = None
    types = {value.name: dtype.value for value, dtype in value_types(model).items()}
    return {name: types.get(name, 0) for name in (*outputs, *types)}


@pytest.mark.parametrize(
    "name",
    ["add", "cast_FLOAT_to_BFLOAT16", "argmax_default_axis_example", "shape", "if", "constant",
     "layer_normalization_2d_axis_negative_1", "lstm_defaults", "concat_2d_axis_0", "top_k",
     "split_equal_parts_1d_opset18", "quantizelinear", "eyelike_with_dtype"],
)  # fmt: skip
def test_types_are_those_of_the_standards_inference(name: str) -> None:
    (case,) = suite.load_cases([f"node/test_{name}"])
    proto = case.model
    wanted, got = inferred(proto), found(proto)
    first = proto.graph.output[0].name
    assert got[first] == wanted[first]


@pytest.mark.slow
def test_a_type_is_never_wrong() -> None:
    known = 0
    for case in suite.load_cases(suite.case_names("node")):
        wanted, got = inferred(case.model), found(case.model)
        for output in case.model.graph.output:
            own = got[output.name]
            assert own in (0, wanted.get(output.name, own)), case.name
            known += own != 0
    assert known > 1000


def test_types_go_through_operators_of_other_domains() -> None:
    nodes = [
        helper.make_node("FusedMatMul", ["x", "x"], ["p"], domain="com.microsoft"),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [4, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 4])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    got = found(helper.make_model(graph, opset_imports=opsets))
    half = TensorProto.BFLOAT16
    assert (got["p"], got["r"], got["y"]) == (half, half, TensorProto.FLOAT)


def test_a_code_of_no_type_says_nothing() -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=2**31)
    x = helper.make_tensor_value_info("x", TensorProto.INT32, (2,))
    graph = helper.make_graph([node], "g", [x], [onnx.ValueInfoProto(name="y")])
    assert found(helper.make_model(graph))["y"] == 0
