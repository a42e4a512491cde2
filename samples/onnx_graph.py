"""ONNX graphs written node by node, for the programs here that write networks of random weights."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from numpy.typing import ArrayLike, DTypeLike
from onnx import helper, numpy_helper

CONTRIB = "com.microsoft"
"""The domain of onnxruntime's own operators."""


class OnnxGraph:
    """A graph under construction."""

    def __init__(self, seed: int = 0) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def constant(self, array: ArrayLike, dtype: DTypeLike = np.float32) -> str:
        """Add a constant."""
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(array, dtype), name))
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        """Add random weights [from, to] whose products keep their operands' size."""
        array = self.random.standard_normal(shape, np.float32) * np.float32(scale / shape[0] ** 0.5)
        return self.constant(array)

    def add(self, op: str, inputs: Sequence[str], outputs: Sequence[str] = (), domain: str = "",
            **attributes: object) -> str:  # fmt: skip
        """Add a node; return its first result."""
        outputs = outputs or [f"t{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def finish(
        self, name: str, given: Sequence[onnx.ValueInfoProto], made: Sequence[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """Return the graph as a model with these inputs and outputs."""
        graph = helper.make_graph(self.nodes, name, given, made, self.weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid(CONTRIB, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)
