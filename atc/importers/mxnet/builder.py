"""Builds an ONNX graph node by node, each with its static type."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedNodesPass

from atc.importers.mxnet.tensor import Tensor, onnx_type
from atc.importers.onnx_builder import (
    IR_VERSION,
    OPSET,
    SMALL,
    Array,
    GraphBuilder,
    Type,
    initializers,
    type_of,
)

MAX_CONSTANT = 1 << 22
"""The most elements of a constant that a translation may make up."""

BUDGET = 1 << 28
"""The most bytes of all constants that are not in the file, besides four times the file's own."""

FOLDED = frozenset({
    "Abs", "Add", "Cast", "Concat", "Div", "Exp", "Expand", "Gather", "Identity", "Max", "Min",
    "Mul", "Neg", "Reciprocal", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Sqrt", "Squeeze",
    "Sub", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators evaluated at once when all their inputs are constants.

Their results have at most SMALL elements, or as many as the operands.
"""

Operand = Tensor | float | int | Sequence[int] | None
"""An input of a node; numbers become constants of the type that fits the first tensor."""


class Builder(GraphBuilder):
    """An ONNX graph under construction; values are named after the MXNet nodes they come from."""

    static = True

    def __init__(self, file: str, parent: Builder | None = None) -> None:
        super().__init__(parent.place if parent else file)
        self.file = file
        self._origin: str = parent._origin if parent else "graph"
        self._taken: set[str] = parent._taken if parent else set()
        self._parent = parent
        self._root: Builder = parent._root if parent else self
        self._budget = BUDGET

    # ---- names and places ---------------------------------------------------------------------

    @contextmanager
    def origin(self, name: str, op: str) -> Iterator[None]:
        """Mark the nodes emitted inside as the translation of one MXNet node."""
        previous = self._origin, self.place
        self._origin = name
        self.place = f"{self.file}, node '{name}' ({op})"
        try:
            yield
        finally:
            self._origin, self.place = previous

    def unique(self, name: str) -> str:
        """Return `name`, with a number behind it where it is taken."""
        candidate, count = name, len(self._taken)
        while candidate in self._taken:
            candidate = f"{name}_{count}"
            count += 1
        self._taken.add(candidate)
        return candidate

    def name_node(self, node: ir.Node) -> None:
        """Name a node and its outputs after the current MXNet node."""
        node.name = self.unique(f"{self._origin}.{node.op_type}")
        for value in node.outputs:
            value.name = self.unique(f"{self._origin}.{node.op_type.lower()}")

    # ---- values -------------------------------------------------------------------------------

    def input(self, name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> Tensor:
        """Add a graph input."""
        type_ = Type(ir.DataType.from_numpy(dtype), tuple(shape))
        return Tensor(self.value(self.unique(name), type_))

    def parameter(self, array: Array, name: str) -> Tensor:
        """Add a constant of the file."""
        self._root._budget += 5 * array.nbytes
        return self.constant(array, name)

    def constant(self, array: Array, name: str = "") -> Tensor:
        """Add a constant; it gets a name of its own or one from the current node."""
        return Tensor(self.literal(array, self.unique(name or f"{self._origin}.constant")))

    def literal(self, array: Array, name: str) -> ir.Value:
        """Return a constant, which is counted."""
        self._root._budget -= array.nbytes
        if self._root._budget < 0:
            raise self.error("the constants that the symbol makes up are too large together")
        return super().literal(array, name)

    def ints(self, *values: int) -> Tensor:
        """Add a 1-D int64 constant."""
        return self.constant(np.asarray(values, np.int64).reshape(len(values)))

    def scalar(self, value: float, dtype: np.dtype[Any]) -> Tensor:
        """Add a 0-D constant, converted as C does."""
        with np.errstate(all="ignore"):
            return self.constant(np.asarray(value).astype(dtype))

    # ---- nodes --------------------------------------------------------------------------------

    def op(self, op_type: str, *inputs: Operand, **attributes: Any) -> Tensor:
        """Emit a node with one output and return it."""
        return self.emit(op_type, inputs, attributes)[0]

    def emit(
        self,
        op_type: str,
        inputs: Sequence[Operand],
        attributes: Mapping[str, Any] | None = None,
        outputs: int = 1,
        types: Sequence[Type] | None = None,
        fold: bool = True,
    ) -> tuple[Tensor, ...]:
        """Emit a node; its output types are ONNX's own inference's unless given as `types`."""
        values = [None if t is None else t.value for t in self._operands(inputs)]
        return tuple(map(Tensor, self.add(op_type, values, attributes, outputs, types, fold)))

    def folds(self, node: ir.Node, types: Sequence[Type]) -> bool:
        """Return whether a node of constants is evaluated at once: those of FOLDED."""
        read = (v.const_value for v in node.inputs if v is not None)
        size, given = types[0].size or 0, sum(tensor.size for tensor in read if tensor is not None)
        fits = size * types[0].dtype.itemsize <= self._root._budget
        return node.op_type in FOLDED and size <= max(SMALL, given) and fits

    def _operands(self, inputs: Sequence[Operand]) -> list[Tensor | None]:
        first = next((i for i in inputs if isinstance(i, Tensor)), None)
        result: list[Tensor | None] = []
        for item in inputs:
            match item:
                case Tensor() | None:
                    result.append(item)
                case int() | float():
                    result.append(self.scalar(item, first.dtype if first else np.dtype("f4")))
                case _:
                    result.append(self.ints(*item))
        return result

    # ---- the usual words ----------------------------------------------------------------------

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        """Convert the element type (toward zero for floats to integers)."""
        dtype = np.dtype(dtype)
        return x if x.dtype == dtype else self.op("Cast", x, to=onnx_type(dtype))

    def reshape(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Give the same elements another, fully known shape."""
        if prod(shape) != x.size or any(d < 0 for d in shape):
            raise self.error(f"{list(x.shape)} cannot take the shape {list(shape)}")
        if tuple(shape) == x.shape:
            return x
        return self.op("Reshape", x, self.ints(*shape), allowzero=int(0 in shape))

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        """Permute the axes."""
        if sorted(perm) != list(range(x.rank)):
            raise self.error(f"axes {list(perm)} don't permute rank {x.rank}")
        return x if list(perm) == sorted(perm) else self.op("Transpose", x, perm=list(perm))

    def expand(self, x: Tensor, shape: Sequence[int]) -> Tensor:
        """Broadcast to a shape."""
        return x if x.shape == tuple(shape) else self.op("Expand", x, self.ints(*shape))

    def unsqueeze(self, x: Tensor, *axes: int) -> Tensor:
        """Insert axes of length one."""
        return self.op("Unsqueeze", x, self.ints(*axes))

    def squeeze(self, x: Tensor, *axes: int) -> Tensor:
        """Remove axes of length one."""
        return self.op("Squeeze", x, self.ints(*axes))

    def slice(self, x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
        """Take a range of one axis; a whole axis is left alone."""
        if (start, step) == (0, 1) and stop >= x.shape[axis]:
            return x
        return self.op("Slice", x, [start], [stop], [axis], [step])

    def split(self, x: Tensor, axis: int, sizes: Sequence[int]) -> tuple[Tensor, ...]:
        """Cut one axis into slices."""
        if len(sizes) == 1:
            return (x,)
        return self.emit("Split", [x, self.ints(*sizes)], {"axis": axis}, len(sizes))

    def concat(self, tensors: Sequence[Tensor], axis: int) -> Tensor:
        """Join along one axis."""
        return tensors[0] if len(tensors) == 1 else self.op("Concat", *tensors, axis=axis)

    def loop(
        self,
        trips: int,
        state: Tensor,
        body: Callable[[Builder, Tensor, Tensor], Tensor],
    ) -> Tensor:
        """Emit a Loop that carries one value: state = body(builder, i, state), `trips` times."""
        inner = Builder(self.file, self)
        index = inner.input(f"{self._origin}.i", np.dtype(np.int64), ())
        going = inner.input(f"{self._origin}.going", np.dtype(np.bool_), ())
        before = inner.input(f"{self._origin}.before", state.dtype, state.shape)
        after = body(inner, index, before)
        still = inner.op("Identity", going)
        graph = inner.graph("body", [index, going, before], [still, after])
        inputs: list[Operand] = [
            self.constant(np.asarray(trips, np.int64)), self.constant(np.asarray(True)), state,
        ]  # fmt: skip
        return self.emit("Loop", inputs, {"body": graph}, 1, [type_of(state.value)])[0]

    # ---- result -------------------------------------------------------------------------------

    def graph(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ir.Graph:
        """Return the finished graph."""
        free = {id(v) for node in self.nodes for v in node.outputs}
        results: list[ir.Value] = []
        for tensor in outputs:
            value = tensor.value
            if id(value) not in free:  # it is an input, a constant or an output already
                value = self.emit("Identity", [tensor], fold=False)[0].value
            free.discard(id(value))
            results.append(value)
        return ir.Graph(
            [i.value for i in inputs], results, nodes=self.nodes,
            initializers=[] if self._parent else initializers(self.nodes),
            opset_imports={"": OPSET}, name=name,
        )  # fmt: skip

    def model(self, name: str, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> ir.Model:
        """Return the finished model: what its outputs don't need is left out."""
        graph = self.graph(name, inputs, outputs)
        model = ir.Model(graph, ir_version=IR_VERSION, producer_name="atc")
        RemoveUnusedNodesPass()(model)
        return model


def safe_name(name: str) -> str:
    """Return a name without control characters, for ONNX's node and value names."""
    return re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "_", name)[:256] or "_"
