"""The context of a lowering: one ONNX node, its typed inputs, attributes and opset."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import onnx_ir

from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import Array, DType, TensorType
from atc.lower.builder import Builder
from atc.lower.strings import cells, is_text
from atc.lower.value_bounds import RunTimeOperand, bounded_integers, unbounded

T = TypeVar("T")


def node_name(node: onnx_ir.Node) -> str:
    """Return the user's node name; the first output's where the node has none."""
    first = node.outputs[0].name if node.outputs else ""
    return node.name or first or node.op_type


def node_label(file: str, node: onnx_ir.Node) -> str:
    """Return how errors name a node: file, the user's node name and operator."""
    return f"{file}, node '{node_name(node)}' ({node.op_type})"


@dataclass(frozen=True)
class LoweringContext:
    """An ONNX node to be lowered into `b`; `inputs` name values of the builder ('' = absent)."""

    node: onnx_ir.Node
    inputs: tuple[str, ...]
    opset: int
    opsets: Mapping[str, int]
    """Those of all domains."""
    b: Builder
    file: str
    lower_subgraph: Callable[[onnx_ir.Graph, Builder], tuple[str, ...]]
    """Lower a subgraph's nodes into a builder; returns its outputs' names there."""
    try_lower: Callable[[onnx_ir.Graph], tuple[Builder, tuple[str, ...]] | ModelError]
    """Lower a subgraph into a builder of its own, or return why it doesn't fit its operands."""
    bind: Callable[[Builder, onnx_ir.Value, str], None]
    """Say which builder value a value of a subgraph (its input) is."""
    bound: Callable[[onnx_ir.Value], str]
    """Return which builder value a value is that was computed before, '' for others."""

    @property
    def label(self) -> str:
        """The node as errors name it: file, operator and the user's node name."""
        return node_label(self.file, self.node)

    @property
    def name(self) -> str:
        """The user's node name; the first output's where the node has none."""
        return node_name(self.node)

    @property
    def output_count(self) -> int:
        """Number of outputs that the node lists; trailing unused ones may be unnamed."""
        return len(self.node.outputs)

    def wants(self, i: int) -> bool:
        """Return whether output `i` is listed and named."""
        return i < len(self.node.outputs) and bool(self.node.outputs[i].name)

    def is_read(self, i: int) -> bool:
        """Return whether a node or the model's outputs take output `i`."""
        if i >= len(self.node.outputs):
            return False
        value = self.node.outputs[i]
        return value.is_graph_output() or bool(value.uses())

    # ---- inputs -------------------------------------------------------------------------------

    def has(self, i: int) -> bool:
        """Return whether input `i` is given."""
        return i < len(self.inputs) and self.inputs[i] != ""

    def input(self, i: int) -> str:
        """Return a required input's value name."""
        if not self.has(i):
            raise ModelError(f"input {i} is missing", where=self.label)
        return self.inputs[i]

    def optional(self, i: int) -> str:
        """Return an input's value name, '' where it is absent."""
        return self.inputs[i] if i < len(self.inputs) else ""

    def type(self, i: int) -> TensorType:
        """Return a required input's type."""
        return self.b.type(self.input(i))

    def shape(self, i: int) -> tuple[int, ...]:
        """Return a required input's shape."""
        return self.type(i).shape

    def const(self, i: int) -> Array | None:
        """Return the array of a constant input, None when absent or not constant."""
        return self.b.value(self.inputs[i]) if self.has(i) else None

    def extents(self, i: int) -> list[builtins.int] | None:
        """Return the integers of an input that are known, or are extents; else None."""
        values: Any = self.b.extents_of(self.inputs[i]) if self.has(i) else None
        if values is None:
            values = self.const(i)
        return None if values is None else np.asarray(values).reshape(-1).tolist()

    def required_const(self, i: int, what: str) -> Array:
        """Return the array of an input that must be known when compiling."""
        self.input(i)
        array = self.const(i)
        if array is None:
            raise RunTimeOperand(
                f"{what} is computed at run time",
                where=self.label,
                hint="pin the shapes it depends on with --input_shape",
            )
        return array

    def ints_const(self, i: int, what: str, least: int | None = None) -> list[int]:
        """Return an input of integers as a list; they are constants or run-time extents.

        With `least`, numbers known only at run time are taken too where something bounds them;
        one below it ends the run.
        """
        extents = self.extents(i)
        if extents is not None and self.b.value(self.inputs[i]) is None:
            return extents
        if least is not None and self.has(i) and self.const(i) is None:
            found = bounded_integers(self.b, self.inputs[i], least, f"{what} of {self.name}")
            if found is None:
                value = self.node.inputs[i]
                name = (value.name if value else "") or ""
                raise unbounded(what, name, self.label, self.inputs[i])
            return found
        return [int(v) for v in np.asarray(self.required_const(i, what)).reshape(-1)]

    # ---- attributes ---------------------------------------------------------------------------

    def attribute(self, name: builtins.str) -> Any:
        """Return an attribute's value, None when absent."""
        attr = self.node.attributes.get(name)
        return None if attr is None else attr.value

    def _typed(
        self, name: builtins.str, default: T, convert: Callable[[Any], T], what: builtins.str
    ) -> T:
        value = self.attribute(name)
        if value is None:
            return default
        try:
            return convert(value)
        except (TypeError, ValueError, AttributeError, AssertionError, OverflowError) as error:
            raise ModelError(f"attribute '{name}' is not {what}", where=self.label) from error

    def int(self, name: builtins.str, default: builtins.int = 0) -> builtins.int:
        """Return an integer attribute."""
        return self._typed(name, default, lambda v: v.__index__(), "an integer")

    def dtype(self, name: builtins.str, default: DType | None = None) -> DType:
        """Return the element type that an attribute names; UnsupportedError for no number's."""
        code = self.int(name, default.code if default else 0)
        try:
            return DType.from_onnx(code)
        except KeyError:
            raise self.unsupported(f"ONNX type {code} in '{name}' is not covered") from None

    def float(self, name: builtins.str, default: builtins.float = 0.0) -> builtins.float:
        """Return a float attribute (rounded to float32, as it is stored)."""
        return self._typed(name, default, lambda v: float(np.float32(v)), "a number")

    def str(self, name: builtins.str, default: builtins.str = "") -> builtins.str:
        """Return a string attribute."""
        return self._typed(name, default, _text, "a string")

    def ints(
        self, name: builtins.str, default: Sequence[builtins.int] | None = None
    ) -> list[builtins.int] | None:
        """Return an integer list attribute, `default` when absent."""
        fallback = None if default is None else list(default)
        return self._typed(
            name, fallback, lambda v: [i.__index__() for i in v], "a list of integers"
        )

    def floats(self, name: builtins.str) -> list[builtins.float] | None:
        """Return a float list attribute, None when absent."""
        return self._typed(name, None, lambda v: [float(i) for i in v], "a list of numbers")

    def strs(self, name: builtins.str) -> list[builtins.str] | None:
        """Return a string list attribute, None when absent."""
        return self._typed(name, None, lambda v: [_text(i) for i in v], "a list of strings")

    def tensor(self, name: builtins.str) -> Array | None:
        """Return a tensor attribute as numpy, None when absent."""
        return self._typed(name, None, _array, "a tensor")

    def subgraph(self, name: builtins.str) -> onnx_ir.Graph:
        """Return a required graph attribute."""
        graph = self.attribute(name)
        if not isinstance(graph, onnx_ir.Graph):
            raise ModelError(f"attribute '{name}' is not a graph", where=self.label)
        return graph

    # ---- helpers ------------------------------------------------------------------------------

    def axis(self, value: builtins.int, rank: builtins.int) -> builtins.int:
        """Return a non-negative axis, or raise a ModelError naming the node."""
        if not -rank <= value < max(rank, 1):
            raise ModelError(f"axis {value} is outside rank {rank}", where=self.label)
        return value % rank if rank else 0

    def axes(self, values: Sequence[builtins.int], rank: builtins.int) -> tuple[builtins.int, ...]:
        """Return sorted distinct non-negative axes."""
        axes = sorted(self.axis(v, rank) for v in values)
        if len(set(axes)) != len(axes):
            raise ModelError(f"axes {list(values)} repeat", where=self.label)
        return tuple(axes)

    def require(self, condition: bool, message: builtins.str) -> None:
        """Raise a ModelError naming the node unless the model keeps the rule."""
        if not condition:
            raise ModelError(message, where=self.label)

    def unsupported(self, what: builtins.str, hint: builtins.str = "") -> UnsupportedError:
        """Return the error for a legal use that isn't covered."""
        return UnsupportedError(what, where=self.label, hint=hint)


def _array(value: Any) -> Array:
    if not isinstance(value, onnx_ir.TensorProtocol):
        raise TypeError(value)
    array = np.asarray(value.numpy())
    return cells(array) if is_text(array) else array


def _text(value: Any) -> str:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if not isinstance(value, str):
        raise TypeError(value)
    return value
