"""A recording: ONNX nodes in the order in which a function made them, with their types."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from atc.errors import one_line
from atc.lower.gradient.without import STOPS
from atc.tracing.errors import OperandError, place

OPSET = 21
PREVIEW = "ai.onnx.preview.training"
RANDOM = "atc.random"
"""The domain of random operators with one more operand than the standard's: a seed."""
OWN = "atc.training"
"""The domain of what only gradients ask for: StopGradient."""
_IMPORTS = [helper.make_opsetid("", OPSET), helper.make_opsetid(PREVIEW, 1)]
_SMALL = 4096
"""Most elements of constants whose values type inference gets: shapes, axes and the like."""

_REFUSALS = (onnx.shape_inference.InferenceError, onnx.checker.ValidationError)

Shape = tuple[int | None, ...]
Array = np.ndarray[Any, Any]


def type_of(dtype: np.dtype[Any], shape: Sequence[int | None]) -> onnx.TypeProto:
    """Return the ONNX type of tensors; an extent of None is known only at run time."""
    return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(dtype), [*shape])


class Recording:
    """Nodes, the inputs and constants that they read, and the type of every value."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.types: dict[str, onnx.TypeProto] = {}
        self.constants: dict[str, onnx.TensorProto] = {}
        self.inputs: list[str] = []
        self._reads: dict[str, str] = {}
        self._count = 0

    def fresh(self, kind: str = "v") -> str:
        """Return a name for a value."""
        self._count += 1
        return f"{kind}{self._count}"

    def input(self, dtype: np.dtype[Any], shape: Sequence[int], name: str = "") -> str:
        """Add an input; returns its value."""
        value = name if name and name not in self.types else self.fresh("captured_")
        self.types[value] = type_of(dtype, shape)
        self.inputs.append(value)
        return value

    def constant(self, array: Array, name: str = "") -> str:
        """Add a constant; returns its value."""
        value = name if name and name not in self.types else self.fresh("c")
        self.constants[value] = numpy_helper.from_array(np.ascontiguousarray(array).reshape(
            array.shape), value)  # fmt: skip
        self.types[value] = type_of(array.dtype, array.shape)
        return value

    def add(
        self, op: str, inputs: Sequence[str], attributes: Mapping[str, Any] | None = None,
        outputs: int = 1, domain: str = "",
    ) -> list[str]:  # fmt: skip
        """Add a node of the standard's, or of RANDOM with a seed as last operand; returns its
        results.

        Raises OperandError where the standard's type inference refuses it.
        """
        results = [self.fresh() for _ in range(outputs)]
        given = {k: v for k, v in (attributes or {}).items() if v is not None}
        node = helper.make_node(op, [*inputs[: -1 if domain else None]], results, **given)
        types = {i: self.types[i] for i in inputs if i}
        small = {i: c for i in inputs if (c := self.constants.get(i)) and _size(c) <= _SMALL}
        try:
            schema = onnx.defs.get_schema(op, OPSET)
            found = onnx.shape_inference.infer_node_outputs(
                schema, node, types, small, opset_imports=_IMPORTS, ir_version=10
            )
        except (*_REFUSALS, ValueError, RuntimeError) as error:
            shown = ", ".join(self.text(i) for i in inputs if i)
            reason = str(error).split("]")[-1].strip()
            raise OperandError(
                one_line(f"{op} doesn't take {shown}: {reason}"), where=place()
            ) from None
        node.domain = domain
        node.input[:] = inputs
        return self._added(node, [found[r] for r in results])

    def gradient(self, y: str, xs: Sequence[str]) -> list[str]:
        """Add the gradients of the sum of y with respect to the values xs."""
        others = [i for i in self.inputs if i not in xs]
        results = [self.fresh() for _ in xs]
        node = helper.make_node("Gradient", [*xs, *others], results, domain=PREVIEW, xs=[*xs],
                                zs=others or None, y=y)  # fmt: skip
        self._reads[results[0]] = y
        return self._added(node, [self.types[x] for x in xs])

    def reached(self, y: str, xs: Collection[str]) -> set[str]:
        """Return those of the values xs that gradients of y go to."""
        made = {o: n for n in self.nodes for o in n.output}
        seen: set[str] = set()
        pending = [y]
        while pending:
            value = pending.pop()
            node = made.get(value)
            if node is not None and value not in seen and value not in xs:
                stops = (node.domain, node.op_type) in STOPS
                pending += () if stops else reads(node)
            seen.add(value)
        return seen.intersection(xs)

    def stopped(self, value: str) -> str:
        """Add a value's equal through which no gradient goes; returns it."""
        node = helper.make_node("StopGradient", [value], [self.fresh()], domain=OWN)
        return self._added(node, [self.types[value]])[0]

    def _added(self, node: onnx.NodeProto, types: Sequence[onnx.TypeProto]) -> list[str]:
        self.nodes.append(node)
        self.types.update(zip(node.output, types, strict=True))
        return list(node.output)

    def dtype(self, value: str) -> np.dtype[Any]:
        """Return the type of a value's elements."""
        return np.dtype(helper.tensor_dtype_to_np_dtype(self.types[value].tensor_type.elem_type))

    def shape(self, value: str) -> Shape:
        """Return a value's shape; None for what is known only at run time."""
        dims = self.types[value].tensor_type.shape.dim
        return tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)

    def text(self, value: str) -> str:
        """Return a value's type as text."""
        return f"{self.dtype(value)} [{', '.join(str(n or '?') for n in self.shape(value))}]"

    def model(
        self, name: str, inputs: Sequence[str], outputs: Mapping[str, str]
    ) -> onnx.ModelProto:
        """Return the model of these inputs and outputs: the name of each and its value.

        Nodes that the outputs don't depend on are left out; inputs stay.
        """
        made = {o: n for n in self.nodes for o in n.output}
        needed: set[str] = set()
        pending = [*outputs.values()]
        while pending:
            value = pending.pop()
            if value in needed or not value:
                continue
            needed.add(value)
            if value in made:
                node = made[value]
                pending += reads(node)
                pending += [y for o in node.output if (y := self._reads.get(o))]
        nodes = [n for n in self.nodes if not needed.isdisjoint(n.output)]
        if not any(n.domain == PREVIEW for n in nodes):
            nodes = [_standard(n) for n in nodes]
        ends = [helper.make_node("Identity", [v], [o]) for o, v in outputs.items()]
        graph = helper.make_graph(
            [*nodes, *ends], name,
            [helper.make_value_info(i, self.types[i]) for i in inputs],
            [helper.make_value_info(o, self.types[v]) for o, v in outputs.items()],
            [c for n, c in self.constants.items() if n in needed],
        )  # fmt: skip
        domains = {n.domain for n in nodes}
        imports = [*_IMPORTS, *(helper.make_opsetid(d, 1) for d in (RANDOM, OWN) if d in domains)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def used(self, outputs: Sequence[str]) -> set[str]:
        """Return the inputs that some values depend on."""
        model = self.model("used", (), {f"_{k}": v for k, v in enumerate(outputs)})
        read = {i for n in model.graph.node for i in reads(n)}
        return read & {*self.inputs}


def reads(node: onnx.NodeProto) -> Iterator[str]:
    """Yield the names that a node, or a graph inside of it, reads; some of them may be its own."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            yield from (o.name for o in graph.output)
            yield from (name for inner in graph.node for name in reads(inner))


def _standard(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return a node as it is where no gradients are taken."""
    if node.domain != OWN:
        return node
    return helper.make_node("Identity", node.input, node.output, node.name)


def _size(tensor: onnx.TensorProto) -> int:
    return int(np.prod(tensor.dims, dtype=np.int64))
