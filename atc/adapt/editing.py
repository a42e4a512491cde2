"""Adding nodes to an `onnx_ir` graph: the vocabulary that the changes of a model are written in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

OPSET = 18
"""What the added nodes' attributes and inputs mean, whatever the rest of the model says."""

Attribute = int | float | str | Sequence[int]


class Editor:
    """Collects nodes for one place of a graph; names are ones that the graph doesn't have."""

    def __init__(self, graph: ir.Graph, origin: str) -> None:
        self.graph = graph
        self.origin = origin
        self.nodes: list[ir.Node] = []
        self._taken = {v.name for node in graph for v in node.outputs}
        self._taken |= {v.name for v in graph.inputs} | set(graph.initializers)
        self._count = 0

    def fresh(self, stem: str) -> str:
        """Return a value's name that is still free."""
        while True:
            name = f"{stem}.{self._count}"
            self._count += 1
            if name not in self._taken:
                self._taken.add(name)
                return name

    def constant(self, array: npt.ArrayLike, dtype: npt.DTypeLike = np.float32) -> ir.Value:
        """Add an initializer."""
        name = self.fresh(self.origin)
        tensor = ir.Tensor(np.asarray(array, dtype), name=name)
        value = ir.Value(
            name=name, shape=ir.Shape(tensor.shape), type=ir.TensorType(tensor.dtype),
            const_value=tensor,
        )  # fmt: skip
        self.graph.register_initializer(value)
        return value

    def add(self, op_type: str, *inputs: ir.Value | None, **attributes: Attribute) -> ir.Value:
        """Add a node with one output and return that."""
        node = ir.node(
            op_type, inputs, {k: v for k, v in attributes.items()}, version=OPSET,
            name=self.fresh(f"{self.origin}.{op_type}"),
        )  # fmt: skip
        node.outputs[0].name = self.fresh(self.origin)
        self.nodes.append(node)
        return node.outputs[0]

    def cast(self, x: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Convert the element type."""
        result = self.add("Cast", x, to=int(dtype))
        result.dtype = dtype
        return result

    def slice(
        self, x: ir.Value, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
        steps: Sequence[int] | None = None,
    ) -> ir.Value:  # fmt: skip
        """Take a part of the elements along axes."""
        lists = [starts, ends, axes, steps or [1] * len(axes)]
        return self.add("Slice", x, *(self.constant(v, np.int64) for v in lists))

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Give the same elements another shape; 0 keeps an axis."""
        return self.add("Reshape", x, self.constant(shape, np.int64))

    def put_first(self) -> None:
        """Put the nodes before all others of the graph."""
        first = next(iter(self.graph), None)
        if first is None:
            self.graph.extend(self.nodes)
        else:
            self.graph.insert_before(first, self.nodes)

    def put_last(self) -> None:
        """Put the nodes after all others of the graph."""
        self.graph.extend(self.nodes)


def feed(value: ir.Value, readers: Iterable[tuple[ir.Node, int]], instead: ir.Value) -> None:
    """Make these readers of `value` read another value."""
    for node, index in readers:
        if node.inputs[index] is value:
            node.replace_input_with(index, instead)
