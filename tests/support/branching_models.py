"""Models of convolutions with branches, written down line by line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Sketch:
    """A model of 1x1 and 3x3 convolutions, pools, sums and joins, built up line by line."""

    def __init__(self, seed: int = 0, size: int = 6) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.channels = {"x": 4}
        self.size = size

    def node(self, kind: str, inputs: Sequence[str], channels: int, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        origin = f"n{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], origin, **attributes))
        self.channels[name] = channels
        return name

    def conv(self, x: str, filters: int = 4, kernel: int = 1) -> str:
        shape = (filters, self.channels[x], kernel, kernel)
        w = self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(w.astype(np.float32), name))
        return self.node("Conv", [x, self.weights[-1].name], filters, pads=[kernel // 2] * 4)

    def relu(self, x: str) -> str:
        return self.node("Relu", [x], self.channels[x])

    def pool(self, x: str) -> str:
        return self.node("MaxPool", [x], self.channels[x], kernel_shape=[3, 3], pads=[1] * 4)

    def join(self, *values: str) -> str:
        return self.node("Concat", values, sum(self.channels[v] for v in values), axis=1)

    def add(self, a: str, b: str) -> str:
        return self.node("Add", [a, b], self.channels[a])

    def model(self, *outputs: str) -> onnx.ModelProto:
        def info(name: str) -> onnx.ValueInfoProto:
            shape = [1, self.channels[name], self.size, self.size]
            return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

        graph = helper.make_graph(
            self.nodes, "g", [info("x")], [info(o) for o in outputs], self.weights
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def drawn(seed: int) -> onnx.ModelProto:
    """Return a random graph."""
    s = Sketch(seed, 3)
    values = ["x"]
    for _ in range(int(s.rng.integers(6, 18))):
        recent = values[-6:]
        a, b = (recent[int(k)] for k in s.rng.integers(0, len(recent), 2))
        kind = int(s.rng.integers(0, 6))
        if kind < 2:
            values.append(s.conv(a, int(s.rng.integers(1, 5)), 3 if kind else 1))
        elif kind == 2:
            values.append(s.relu(a))
        elif kind == 3:
            values.append(s.pool(a))
        elif kind == 4 and a != b:
            values.append(s.join(a, b))
        elif s.channels[a] == s.channels[b]:
            values.append(s.add(a, b))
    read = {v for n in s.nodes for v in n.input}
    ends = [v for v in values[1:] if v not in read] + values[-1:]
    return s.model(*dict.fromkeys(ends))
