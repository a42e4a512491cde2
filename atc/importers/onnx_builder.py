"""ONNX graphs under construction: what the builders of other formats share.

The standard's own shape functions run on each node as it is added, so every translation sees the
types of its inputs; a node of constants may be evaluated at once, by the standard's reference
implementation, and leaves no trace.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
from onnx import checker, defs, helper, numpy_helper, shape_inference

from atc.errors import ModelError, UnsupportedError

OPSET = 21
IR_VERSION = 10
"""The standard's versions that other formats become."""

MAX_ELEMENTS = 1 << 40
"""A tensor larger than this is refused: no memory plan could hold it."""

MAX_RANK = 32

SMALL = 4096
"""The elements of a constant up to which shape functions see it."""

Array = npt.NDArray[Any]
Attributes = Mapping[str, Any]
Shape = tuple[int | None, ...]


class Type(NamedTuple):
    """The type of a value: None for an extent, and for a whole shape, that depends on data."""

    dtype: ir.DataType
    shape: Shape | None

    @property
    def size(self) -> int | None:
        """The number of elements, None where it depends on data."""
        known = self.shape is not None and None not in self.shape
        return prod(n or 0 for n in self.shape or ()) if known else None


class GraphBuilder(ABC):
    """Collects nodes. `place` names the operator that is being translated, in errors."""

    static: ClassVar[bool] = False
    """Whether no shape may depend on data."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.nodes: list[ir.Node] = []

    @abstractmethod
    def name_node(self, node: ir.Node) -> None:
        """Give a node's outputs names that no other value has."""

    @abstractmethod
    def folds(self, node: ir.Node, types: Sequence[Type]) -> bool:
        """Return whether a node of constants, with results of these types, is evaluated at once."""

    # ---- errors -------------------------------------------------------------------------------

    def error(self, message: str, hint: str = "") -> ModelError:
        """Return the error for a rule that the operator breaks."""
        return ModelError(message, where=self.place, hint=hint)

    def unsupported(self, message: str, hint: str = "") -> UnsupportedError:
        """Return the error for a legal use that isn't covered."""
        return UnsupportedError(message, where=self.place, hint=hint)

    # ---- values -------------------------------------------------------------------------------

    def value(self, name: str, type_: Type) -> ir.Value:
        """Return a value that no node computes."""
        return self._typed(ir.Value(name=name), type_)

    def literal(self, array: Array, name: str) -> ir.Value:
        """Return a constant; it becomes an initializer once a node reads it."""
        whole = np.ascontiguousarray(array).reshape(array.shape)  # the former makes 0-D ones 1-D
        tensor = ir.Tensor(whole, name=name)
        value = self.value(name, Type(tensor.dtype, array.shape))
        value.const_value = tensor
        return value

    def _typed(self, value: ir.Value, type_: Type) -> ir.Value:
        self._check_size(type_)
        value.type = ir.TensorType(type_.dtype)
        value.shape = None if type_.shape is None else ir.Shape(type_.shape)
        return value

    def _check_size(self, type_: Type) -> None:
        shape = [*(type_.shape or ())]
        extents = [n for n in shape if n is not None]
        if any(n < 0 for n in extents):
            raise self.error(f"a tensor of shape {shape} has a negative extent")
        if prod(extents) > MAX_ELEMENTS or len(shape) > MAX_RANK:
            raise self.error(f"a tensor of shape {shape} is too large")

    # ---- nodes --------------------------------------------------------------------------------

    def add(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None,
        outputs: int = 1, types: Sequence[Type] | None = None, fold: bool = True,
    ) -> tuple[ir.Value, ...]:  # fmt: skip
        """Add a node and return its results; their types are inferred unless given."""
        node = ir.node(op_type, inputs, dict(attributes or {}), num_outputs=outputs)
        self.name_node(node)
        found = types if types is not None else self._inferred(node)
        for type_ in found:
            self._check_size(type_)
        constant = all(v is None or v.const_value is not None for v in inputs)
        if fold and constant and self.folds(node, found):
            arrays = self._evaluated(node, found)
            node.resize_inputs(0)  # nothing reads what it read
            return tuple(
                self.literal(array, value.name or "")
                for array, value in zip(arrays, node.outputs, strict=True)
            )
        self.nodes.append(node)
        return tuple(map(self._typed, node.outputs, found))

    def _inferred(self, node: ir.Node) -> list[Type]:
        """Return what the standard's shape function says of a node's results."""
        present = [v for v in node.inputs if v is not None]
        if any(v.dtype is None for v in present):
            raise self.error(f"{node.op_type} reads a variable that nothing computes")
        types = {v.name or "": _proto_of(type_of(v)) for v in present}
        try:
            kinds = infer_outputs(ir.to_proto(node), types, arrays_of(present, SMALL))
            found = [_type_in(kinds.get(v.name or "")) for v in node.outputs]
            if self.static and any(type_.size is None for type_ in found):
                raise ValueError("no static shape follows from them")
        except ValueError as error:
            shown = ", ".join(map(describe, present))
            raise self.error(f"inputs {shown} don't fit {node.op_type}: {error}") from error
        return found

    def _evaluated(self, node: ir.Node, types: Sequence[Type]) -> list[Array]:
        """Return the results of a node of constants."""
        try:
            results = evaluate(ir.to_proto(node), arrays_of(node.inputs))
        except Exception as error:  # whatever numpy or the reference finds wrong with the values
            reason = first_line(error)
            raise self.error(f"{node.op_type} cannot be evaluated: {reason}") from error
        return [r.astype(t.dtype.numpy(), copy=False) for r, t in zip(results, types, strict=True)]


def describe(value: ir.Value) -> str:
    """Return a value's type for messages: `FLOAT[2,?]`."""
    dtype = value.dtype.name if value.dtype else "?"
    dims = (None,) if value.shape is None else type_of(value).shape or ()
    return f"{dtype}[{','.join('?' if d is None else str(d) for d in dims)}]"


def arrays_of(values: Iterable[ir.Value | None], most: int | None = None) -> dict[str, Array]:
    """Return the constants among values, by name; those of up to `most` elements, if given."""
    constants = ((v.name or "", v.const_value) for v in values if v is not None)
    return {
        name: tensor.numpy() for name, tensor in constants
        if tensor is not None and (most is None or tensor.size <= most)
    }  # fmt: skip


def type_of(value: ir.Value) -> Type:
    """Return the type of a value that has one."""
    shape = None
    if value.shape is not None:
        shape = tuple(d if isinstance(d, int) else None for d in value.shape)
    return Type(value.dtype or ir.DataType.UNDEFINED, shape)


def _proto_of(type_: Type) -> onnx.TypeProto:
    return helper.make_tensor_type_proto(type_.dtype.value, type_.shape)


def _type_in(proto: onnx.TypeProto | None) -> Type:
    if proto is None:
        raise ValueError("no type follows from them")
    tensor, shape = proto.tensor_type, None
    if tensor.HasField("shape"):
        dims = tensor.shape.dim
        shape = tuple(d.dim_value if d.HasField("dim_value") else None for d in dims)
    return Type(ir.DataType(tensor.elem_type), shape)


def infer_outputs(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], constants: Mapping[str, Array]
) -> Mapping[str, onnx.TypeProto]:
    """Return the types of a node's outputs, by the standard's own shape function.

    `types` are those of its inputs, `constants` the inputs that are known. Raises ValueError where
    inputs break the operator's rules.
    """
    try:
        return shape_inference.infer_node_outputs(
            defs.get_schema(node.op_type, OPSET, ""), node, dict(types),
            {name: numpy_helper.from_array(array) for name, array in constants.items()},
            opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION,
        )  # fmt: skip
    except (
        checker.ValidationError, shape_inference.InferenceError, RuntimeError, ValueError
    ) as error:  # fmt: skip
        raise ValueError(first_line(error)) from error


def evaluate(node: onnx.NodeProto, inputs: Mapping[str, Array]) -> list[Array]:
    """Return a node's results, by the standard's reference implementation."""
    from onnx.reference import ReferenceEvaluator  # late: its import takes a while

    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(node, opsets={"": OPSET}).run(None, dict(inputs))
    return [np.asarray(result) for result in results]


def first_line(error: BaseException) -> str:
    """Return the first line of an error's text, its type where there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def initializers(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """Return the constants that nodes read, in order of first use."""
    return [value for value in dict.fromkeys(_reads(nodes)) if value.const_value is not None]


def _reads(nodes: Sequence[ir.Node]) -> Iterator[ir.Value]:
    """Yield the values that nodes read, those that their subgraphs capture too."""
    for node in nodes:
        yield from (v for v in node.inputs if v is not None)
        for attribute in node.attributes.values():
            if attribute.type is ir.AttributeType.GRAPH:
                graph = attribute.as_graph()
                yield from _reads(list(graph))
                yield from graph.outputs
