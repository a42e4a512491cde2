"""Values of the compiler's graph are called as in the model wherever that is possible."""

from __future__ import annotations

import numpy as np
from onnx import helper
from projects import F32, make_model

from support import compile_graph


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
