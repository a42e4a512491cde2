"""Writes a model with an operator that no compiler knows; leaky_clip.c computes it.

    python make_model.py leaky_clip.onnx
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper


def leaky_clip_model() -> onnx.ModelProto:
    """Return y = 2 * LeakyClip(x + 1) for three numbers."""
    nodes = [
        helper.make_node("Add", ["x", "one"], ["shifted"], name="shift"),
        helper.make_node(
            "LeakyClip", ["shifted"], ["clipped"], name="clip", domain="my.ops", low=-1.0,
            high=4.0, slope=0.25,
        ),
        helper.make_node("Mul", ["clipped", "two"], ["y"], name="double"),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "leaky_clip",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 3))],
        [helper.make_tensor("one", TensorProto.FLOAT, (), [1.0]),
         helper.make_tensor("two", TensorProto.FLOAT, (), [2.0])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("my.ops", 1)]
    return helper.make_model(graph, opset_imports=opsets)


if __name__ == "__main__":
    onnx.save(leaky_clip_model(), Path(sys.argv[1]))
