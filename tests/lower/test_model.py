"""Names and types of values, and of the outputs above all, are those that the model says."""

from __future__ import annotations

import numpy as np
import onnx_ir
import pytest
from onnx import ModelProto, TensorProto, helper
from projects import F32, make_model

from atc.errors import ModelError
from atc.lower import lower_model
from support import compile_graph

I64 = TensorProto.INT64


def test_values_have_the_models_names() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"]),
        helper.make_node("Identity", ["product"], ["same"]),
        helper.make_node("Sigmoid", ["same"], ["a#b"]),
        helper.make_node("Softmax", ["a#b"], ["y"]),
    ]
    weights = {"w": np.ones((3, 3), np.float32)}
    graph = compile_graph(make_model(nodes, [("x", F32, (2, 3))], [("y", F32, (2, 3))], weights))
    made = [o for node in graph.nodes for o in node.outputs]
    assert "product" in made
    assert made[-1] == "y"
    assert "a#b" not in made  # the mark of the compiler's own names
    assert len(set(made)) == len(made)


def test_layers_that_share_a_weight_by_identities_have_one_constant() -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Identity", ["w"], ["w1"]),
        helper.make_node("MatMul", ["a", "w1"], ["b"]),
        helper.make_node("Identity", ["w1"], ["w2"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    weights = {"w": np.eye(3, dtype=np.float32)}
    model = make_model(nodes, [("x", F32, (2, 3))], [("y", F32, (2, 3))], weights)
    graph = lower_model(onnx_ir.from_proto(model), "test.onnx")
    assert sum(array.shape == (3, 3) for array in graph.constants.values()) == 1


@pytest.mark.parametrize("op", ["Neg", "Transpose", "DequantizeLinear"])
def test_nodes_of_constants_whose_results_nobody_asks_for_go(op: str) -> None:
    operands = ["bytes", "scale"] if op == "DequantizeLinear" else ["scale"]
    nodes = [helper.make_node(op, operands, []), helper.make_node("Neg", ["x"], ["y"])]
    constants = {"bytes": np.ones(3, np.int8), "scale": np.float32(2)}
    model = make_model(nodes, [("x", F32, (2, 3))], [("y", F32, (2, 3))], constants)
    assert len(lower_model(onnx_ir.from_proto(model), "test.onnx").nodes) == 1


@pytest.mark.parametrize(
    ("type_", "shape", "error", "warned"),
    [
        (F32, (2, 3), "", False),
        (F32, ("rows", 3), "", False),
        (F32, None, "", False),
        (F32, (4, 3), "", True),
        (F32, (6,), "", True),
        (I64, (2, 3), r"output 'y' is declared as i64\[2,3\], but f32\[2,3\] is computed", False),
        (TensorProto.DOUBLE, None, r"declared as f64, but f32\[2,3\]", False),
    ],
)
def test_outputs_are_of_the_type_that_the_model_declares(
    type_: int, shape: tuple[int | str, ...] | None, error: str, warned: bool
) -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [("x", F32, (2, 3))], [], {})
    model.graph.output.append(helper.make_tensor_value_info("y", type_, shape))
    if error:
        with pytest.raises(ModelError, match=error):
            compile_graph(model)
    else:
        warnings = compile_graph(model).warnings
        assert any("output 'y' is declared" in text for text in warnings) is warned


def test_an_output_that_is_declared_a_sequence_must_be_one() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [("x", F32, (2, 3))], [], {})
    model.graph.output.append(helper.make_tensor_sequence_value_info("y", F32, (2, 3)))
    with pytest.raises(ModelError, match=r"declared as a sequence of f32\[2,3\], but f32\[2,3\]"):
        compile_graph(model)


def with_inner_type(dtype: int, shape: tuple[int, ...] | None = (2, 3)) -> ModelProto:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    model = make_model(nodes, [("x", F32, (2, 3))], [("y", F32, (2, 3))], {})
    model.graph.value_info.append(helper.make_tensor_value_info("h", dtype, shape))
    return model


def with_branch_type(dtype: int, condition: str = "c") -> ModelProto:
    """An If whose first branch declares its output so."""
    branches = [
        helper.make_graph(
            [helper.make_node(op, ["x"], [out])], out, [],
            [helper.make_tensor_value_info(out, declared, None)],
        )
        for op, out, declared in (("Relu", "then", dtype), ("Neg", "else", F32))
    ]  # fmt: skip
    node = helper.make_node("If", [condition], ["y"], then_branch=branches[0],
                            else_branch=branches[1])  # fmt: skip
    given = [("x", F32, (2, 3)), ("c", TensorProto.BOOL, (1,))]
    weights = {} if condition == "c" else {condition: np.array([True])}
    return make_model([node], given, [("y", F32, (2, 3))], weights)


def with_body_type(given: int = F32, made: int = F32, trips: int = 3) -> ModelProto:
    """A Loop whose body declares its state so where it enters, and where it leaves."""
    body = helper.make_graph(
        [helper.make_node("Relu", ["s"], ["t"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [helper.make_tensor_value_info("i", I64, ()),
         helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("s", given, None)],
        [helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("t", made, None)],
    )  # fmt: skip
    node = helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body)
    weights = {"trips": np.array(trips)}
    return make_model([node], [("x", F32, (2, 3))], [("y", F32, (2, 3))], weights)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (with_inner_type(I64), r"value 'h' is declared as i64\[2,3\].*node 'h' \(Relu\)"),
        (with_branch_type(I64), r"output 'then' is declared as i64, but f32\[2,3\].*\(Relu\)"),
        (with_branch_type(I64, "known"), "output 'then' is declared as i64"),
        (with_body_type(made=I64), "output 't' is declared as i64"),
        (with_body_type(made=I64, trips=100), "output 't' is declared as i64"),
        (with_body_type(given=TensorProto.DOUBLE), "value 's' is declared as f64, but f32"),
    ],
    ids=["inner", "branch", "branch known", "body", "body kept", "body's input"],
)
def test_values_in_the_model_are_of_the_type_that_it_declares(
    model: ModelProto, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        compile_graph(model)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (with_inner_type(F32), ""),
        (with_inner_type(F32, None), ""),
        (with_inner_type(F32, (0, 3)), ""),  # as exporters write what they don't know
        (with_inner_type(F32, (7, 7)), "f32[7,7]"),
        (with_inner_type(F32, (6,)), "f32[6]"),
        (with_branch_type(F32), ""),
        (with_body_type(), ""),
        (with_body_type(trips=100), ""),
    ],
)  # fmt: skip
def test_wrong_shapes_that_a_model_declares_inside_are_reported(
    model: ModelProto, shape: str
) -> None:
    warnings = compile_graph(model).warnings  # and no error: onnxruntime runs such models, too
    text = f"value 'h' is declared as {shape}, but f32[2,3] is computed"
    assert [w.partition(" [test")[0] for w in warnings if "declared" in w] == [text] * bool(shape)
    assert all("node 'h' (Relu)]" in w for w in warnings if "declared" in w)


@pytest.mark.parametrize("shape", [(), (1,), (1, 1, 1)])
def test_axes_of_a_number_inside_are_not_reported(shape: tuple[int, ...]) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    model = make_model(nodes, [("x", F32, (1, 1))], [("y", F32, (1, 1))], {})
    model.graph.value_info.append(helper.make_tensor_value_info("h", F32, shape))
    assert not [text for text in compile_graph(model).warnings if "is declared" in text]


def test_many_wrong_shapes_are_one_warning() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["h0"]),
             *(helper.make_node("Neg", [f"h{k}"], [f"h{k + 1}"]) for k in range(3)),
             helper.make_node("Abs", ["h3"], ["y"])]  # fmt: skip
    model = make_model(nodes, [("x", F32, (2, 3))], [("y", F32, (2, 3))], {})
    for k in range(4):
        model.graph.value_info.append(helper.make_tensor_value_info(f"h{k}", F32, (1, 2 + k)))
    declared = [text for text in compile_graph(model).warnings if "is declared" in text]
    assert len(declared) == 1
    assert declared[0].startswith("value 'h0' is declared as f32[1,2], but f32[2,3] is computed [")
    assert declared[0].endswith("], and 3 more of this kind")
