"""Build the ONNX graph node by node, with shapes inferred and shape arithmetic folded on the way.

The standard's own shape functions run on each node as it is added, so every translation sees the
shapes of its inputs; a node whose inputs are all small constants is evaluated at once, by the
standard's reference implementation, and leaves no trace.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from atc.errors import ModelError, UnsupportedError
from atc.importers.megengine.types import DType
from atc.importers.onnx_nodes import evaluate, first_line, infer_outputs

_FOLDED = 4096  # elements of the largest tensor that is folded
_MAX_ELEMENTS = 1 << 32

Attributes = Mapping[str, Any]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Var:
    """A variable of the dump: its ONNX value, and the element type with scale and zero point."""

    value: ir.Value
    dtype: DType


@dataclass
class Builder:
    """Collects nodes. `where` and `scope` name the operator that is being translated.

    Values are born with names that hold a tab and a number, which no final name does, so that they
    cannot clash; `translate` renames them.
    """

    where: str = ""
    scope: str = ""
    nodes: list[ir.Node] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _types: dict[ir.Value, onnx.TypeProto] = field(default_factory=dict)
    _count: int = 0

    def input(self, name: str, dtype: DType, shape: Sequence[int]) -> ir.Value:
        """Add a graph input."""
        self._check_size(shape)
        kind = helper.make_tensor_type_proto(dtype.storage.value, list(shape))
        return self._value(name, kind)

    def constant(self, array: np.ndarray, label: str = "") -> ir.Value:
        """Return a constant; it becomes an initializer, named `label`, once a node uses it."""
        name = self.temporary(label or f"{self.scope}/constant")
        tensor = ir.Tensor(array, name=name)
        kind = helper.make_tensor_type_proto(tensor.dtype.value, array.shape)
        value = self._value(name, kind)
        value.const_value = tensor
        return value

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        """Return a 1-D int64 constant."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """Return a scalar constant of the type of `like`."""
        return self.constant(np.array(number).astype(like.dtype.numpy() if like.dtype else None))

    def array(self, value: ir.Value) -> np.ndarray | None:
        """Return the elements of a constant, None for anything computed at run time."""
        return value.const_value.numpy() if value.const_value is not None else None

    def known(self, value: ir.Value) -> list[int] | None:
        """Return the integers of a constant vector, None for one that is computed.

        MegEngine computes image sizes in floating point, so whole floats are integers too.
        """
        array = self.array(value)
        if array is None:
            return None
        whole = array.size <= _FOLDED and array.dtype.kind in "iuf"
        if not whole or not np.isfinite(array).all() or (np.trunc(array) != array).any():
            raise self.fail(f"integers are expected, not {_describe(value)}")
        return [int(n) for n in array.ravel()]

    def shape(self, value: ir.Value) -> Shape:
        """Return the shape with None for unknown extents; raises where the rank is unknown."""
        if value.shape is None:
            raise UnsupportedError("the rank of an input depends on data", where=self.where)
        return tuple(d if isinstance(d, int) else None for d in value.shape)

    def extents(self, value: ir.Value) -> tuple[int, ...]:
        """Return the shape; raises `UnsupportedError` where it depends on data."""
        shape = self.shape(value)
        extents = tuple(d for d in shape if d is not None)
        if len(extents) != len(shape):
            raise UnsupportedError("the shape of an input depends on data", where=self.where)
        return extents

    def rank(self, value: ir.Value) -> int:
        """Return the rank."""
        return len(self.shape(value))

    def ranked(self, value: ir.Value, rank: int) -> tuple[int, ...]:
        """Return the shape of a tensor that must have this rank."""
        extents = self.extents(value)
        if len(extents) != rank:
            raise self.fail(f"an input of shape {list(extents)} where rank {rank} is expected")
        return extents

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front; raises where it lies outside the rank."""
        if not -rank <= axis < rank:
            raise ModelError(f"axis {axis} lies outside rank {rank}", where=self.where)
        return axis % rank

    def op(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None
    ) -> ir.Value:
        """Add a node with one output and return it."""
        return self.ops(op_type, inputs, attributes)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        attributes: Attributes | None = None,
        outputs: int = 1,
    ) -> tuple[ir.Value, ...]:
        """Add a node with several outputs and return them."""
        attributes = dict(attributes or {})
        names = [self.temporary(f"{self.scope}/{op_type}") for _ in range(outputs)]
        proto = helper.make_node(op_type, _proto_names(inputs), names, **attributes)
        kinds = self._infer(proto, inputs)
        folded = self._fold(proto, inputs, kinds)
        if folded is not None:
            return tuple(self.constant(array, f"{self.scope}/{op_type}") for array in folded)
        values = tuple(self._value(name, kinds[name]) for name in names)
        self.nodes.append(ir.node(op_type, inputs, attributes, outputs=values))
        return values

    def copy(self, value: ir.Value) -> ir.Value:
        """Add a node that passes a value on, even a constant."""
        result = self._value(self.temporary(self.scope), self._types[value])
        self.nodes.append(ir.node("Identity", [value], outputs=[result]))
        return result

    def temporary(self, label: str) -> str:
        """Return a name that is unique until the final ones are given."""
        self._count += 1
        return f"{label}\t{self._count}"

    def label(self, value: ir.Value) -> str:
        """Return what a value is called before it has a final name, without its number."""
        return (value.name or "").partition("\t")[0]

    def shaped(self, value: ir.Value, like: ir.Value) -> ir.Value:
        """Give a value the shape of another, for operators that have no shape function."""
        value.shape = like.shape
        self._types[value] = self._types[like]
        return value

    def cast(self, value: ir.Value, to: ir.DataType) -> ir.Value:
        """Convert the element type, where it differs."""
        return value if value.dtype == to else self.op("Cast", [value], {"to": to.value})

    def reshape(self, value: ir.Value, shape: Sequence[int]) -> ir.Value:
        """Reshape to a known shape, where it differs."""
        if value.shape is not None and self.shape(value) == tuple(shape):
            return value
        return self.op("Reshape", [value, self.integers(shape)], {"allowzero": 1})

    def transpose(self, value: ir.Value, order: Sequence[int]) -> ir.Value:
        """Permute the axes, where that changes anything."""
        if list(order) == sorted(order):
            return value
        return self.op("Transpose", [value], {"perm": list(order)})

    def rearranged(
        self, value: ir.Value, shape: Sequence[int] | None, order: Sequence[int] | None = None
    ) -> ir.Value:
        """Permute the axes, then reshape; a constant, however large, is rewritten at once."""
        array = self.array(value)
        if array is None:
            moved = value if order is None else self.transpose(value, order)
            return moved if shape is None else self.reshape(moved, shape)
        moved_array = array if order is None else array.transpose(order)
        if shape is not None:
            moved_array = moved_array.reshape(shape)
        if moved_array.shape == array.shape and order is None:
            return value
        return self.constant(np.ascontiguousarray(moved_array), self.label(value))

    def flipped(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Reverse some axes."""
        array = self.array(value)
        if array is not None:
            flipped = np.ascontiguousarray(np.flip(array, tuple(axes)))
            return self.constant(flipped, self.label(value))
        count, lowest = len(axes), np.iinfo(np.int64).min
        bounds = [[-1] * count, [lowest] * count, list(axes), [-1] * count]
        return self.op("Slice", [value, *map(self.integers, bounds)])

    def shape_of(self, value: ir.Value) -> ir.Value:
        """Return the shape as a 1-D int64 value, a constant wherever it is known."""
        if value.shape is not None and None not in self.shape(value):
            return self.integers(self.extents(value))
        return self.op("Shape", [value])

    def fail(self, message: str, hint: str = "") -> ModelError:
        """Return an error about the dump that names the operator."""
        return ModelError(message, where=self.where, hint=hint)

    def refuse(self, message: str, hint: str = "") -> UnsupportedError:
        """Return an error about what isn't covered that names the operator."""
        return UnsupportedError(message, where=self.where, hint=hint)

    def _value(self, name: str, kind: onnx.TypeProto) -> ir.Value:
        tensor = kind.tensor_type
        shape = None
        if tensor.HasField("shape"):
            shape = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
        value = ir.Value(
            name=name,
            shape=None if shape is None else ir.Shape(shape),
            type=ir.TensorType(ir.DataType(tensor.elem_type)),
        )
        self._types[value] = kind
        return value

    def _infer(
        self, proto: onnx.NodeProto, inputs: Sequence[ir.Value | None]
    ) -> Mapping[str, onnx.TypeProto]:
        """Run the standard's shape function of one node and check what it says."""
        present = [v for v in inputs if v is not None]
        for value in present:
            if (value.dtype is None) or value not in self._types:
                raise self.fail(f"{proto.op_type} reads a variable that nothing computes")
        types = {v.name or "": self._types[v] for v in present}
        try:
            kinds = infer_outputs(proto, types, self._arrays(filter(_is_small_constant, present)))
        except ValueError as error:
            shapes = ", ".join(_describe(v) for v in present)
            raise self.fail(f"{proto.op_type} of {shapes} breaks its rules: {error}") from error
        for kind in kinds.values():
            dims = kind.tensor_type.shape.dim
            self._check_size([d.dim_value for d in dims if d.HasField("dim_value")])
        return kinds

    def _arrays(self, values: Iterable[ir.Value]) -> dict[str, np.ndarray]:
        """Return constants by name."""
        found = ((v.name or "", self.array(v)) for v in values)
        return {name: array for name, array in found if array is not None}

    def _check_size(self, shape: Sequence[int]) -> None:
        if any(extent < 0 for extent in shape):
            raise self.fail(f"a tensor of shape {list(shape)} has a negative extent")
        if math.prod(shape) > _MAX_ELEMENTS:
            raise self.fail(f"a tensor of shape {list(shape)} is too large")

    def _fold(
        self,
        proto: onnx.NodeProto,
        inputs: Sequence[ir.Value | None],
        kinds: Mapping[str, onnx.TypeProto],
    ) -> list[np.ndarray] | None:
        """Evaluate a node of small constants; None where it must stay."""
        present = [v for v in inputs if v is not None]
        if not all(map(_is_small_constant, present)) or not all(map(_small, kinds.values())):
            return None
        try:
            results = evaluate(proto, self._arrays(present))
        except Exception as error:  # whatever numpy or the reference finds wrong with the values
            raise self.fail(f"{proto.op_type} cannot be evaluated: {first_line(error)}") from error
        wanted = [ir.DataType(kinds[name].tensor_type.elem_type) for name in proto.output]
        pairs = zip(results, wanted, strict=True)
        return [r.astype(w.numpy(), copy=False) for r, w in pairs]


def _is_small_constant(value: ir.Value) -> bool:
    return value.const_value is not None and value.const_value.size <= _FOLDED


def _small(kind: onnx.TypeProto) -> bool:
    """Say whether a type has a known shape of few elements."""
    tensor = kind.tensor_type
    dims = tensor.shape.dim
    known = tensor.HasField("shape") and all(d.HasField("dim_value") for d in dims)
    return known and math.prod(d.dim_value for d in dims) <= _FOLDED


def _proto_names(values: Sequence[ir.Value | None]) -> list[str]:
    return [v.name or "" if v is not None else "" for v in values]


def _describe(value: ir.Value) -> str:
    dtype = value.dtype.name if value.dtype else "?"
    shape = "?" if value.shape is None else ",".join(str(d) for d in value.shape)
    return f"{dtype}[{shape}]"
