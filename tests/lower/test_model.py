"""Names and types of values, and of the outputs above all, are those that the model says."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from projects import F32, make_model

from atc.errors import ModelError
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
