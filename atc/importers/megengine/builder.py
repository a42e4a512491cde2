"""Build the ONNX graph node by node, with shape arithmetic folded on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.types import DType
from atc.importers.onnx_builder import (
    SMALL,
    Array,
    Attributes,
    GraphBuilder,
    Shape,
    Type,
    describe,
    type_of,
)


@dataclass(frozen=True)
class Var:
    """A variable of the dump: its ONNX value, and the element type with scale and zero point."""

    value: ir.Value
    dtype: DType


class Builder(GraphBuilder):
    """Collects nodes. `place` and `scope` name the operator that is being translated.

    Values are born with names that hold a tab and a number, which no final name does, so that they
    cannot clash; `translate` renames them.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.scope = ""
        self.warnings: list[str] = []
        self._count = 0

    def name_node(self, node: ir.Node) -> None:
        """Give a node's outputs names after the operator."""
        for value in node.outputs:
            value.name = self.temporary(f"{self.scope}/{node.op_type}")

    def folds(self, node: ir.Node, types: Sequence[Type]) -> bool:
        """Return whether a node of constants is evaluated at once: where all are small."""
        read = (v.const_value for v in node.inputs if v is not None)
        small = all(tensor is not None and tensor.size <= SMALL for tensor in read)
        return small and all(t.size is not None and t.size <= SMALL for t in types)

    def input(self, name: str, dtype: DType, shape: Sequence[int]) -> ir.Value:
        """Add a graph input."""
        return self.value(name, Type(dtype.storage, tuple(shape)))

    def constant(self, array: Array, label: str = "") -> ir.Value:
        """Return a constant; it becomes an initializer, named `label`, once a node uses it."""
        return self.literal(array, self.temporary(label or f"{self.scope}/constant"))

    def integers(self, numbers: Sequence[int]) -> ir.Value:
        """Return a 1-D int64 constant."""
        return self.constant(np.array(numbers, np.int64))

    def number(self, number: float, like: ir.Value) -> ir.Value:
        """Return a scalar constant of the type of `like`."""
        return self.constant(np.array(number).astype(like.dtype.numpy() if like.dtype else None))

    def array(self, value: ir.Value) -> Array | None:
        """Return the elements of a constant, None for anything computed at run time."""
        return value.const_value.numpy() if value.const_value is not None else None

    def known(self, value: ir.Value) -> list[int] | None:
        """Return the integers of a constant vector, None for one that is computed.

        MegEngine computes image sizes in floating point, so whole floats are integers too.
        """
        array = self.array(value)
        if array is None:
            return None
        whole = array.size <= SMALL and array.dtype.kind in "iuf"
        if not whole or not np.isfinite(array).all() or (np.trunc(array) != array).any():
            raise self.error(f"integers are expected, not {describe(value)}")
        return [int(n) for n in array.ravel()]

    def shape(self, value: ir.Value) -> Shape:
        """Return the shape with None for unknown extents; raises where the rank is unknown."""
        if value.shape is None:
            raise self.unsupported("the rank of an input depends on data")
        return type_of(value).shape or ()

    def extents(self, value: ir.Value) -> tuple[int, ...]:
        """Return the shape; raises `UnsupportedError` where it depends on data."""
        shape = self.shape(value)
        extents = tuple(d for d in shape if d is not None)
        if len(extents) != len(shape):
            raise self.unsupported("the shape of an input depends on data")
        return extents

    def rank(self, value: ir.Value) -> int:
        """Return the rank."""
        return len(self.shape(value))

    def ranked(self, value: ir.Value, rank: int) -> tuple[int, ...]:
        """Return the shape of a tensor that must have this rank."""
        extents = self.extents(value)
        if len(extents) != rank:
            raise self.error(f"an input of shape {list(extents)} where rank {rank} is expected")
        return extents

    def axis(self, axis: int, rank: int) -> int:
        """Return an axis counted from the front; raises where it lies outside the rank."""
        if not -rank <= axis < rank:
            raise self.error(f"axis {axis} lies outside rank {rank}")
        return axis % rank

    def op(
        self, op_type: str, inputs: Sequence[ir.Value | None], attributes: Attributes | None = None
    ) -> ir.Value:
        """Add a node with one output and return it."""
        return self.add(op_type, inputs, attributes)[0]

    def copy(self, value: ir.Value) -> ir.Value:
        """Add a node that passes a value on, even a constant."""
        return self.add("Identity", [value], fold=False)[0]

    def temporary(self, label: str) -> str:
        """Return a name that is unique until the final ones are given."""
        self._count += 1
        return f"{label}\t{self._count}"

    def label(self, value: ir.Value) -> str:
        """Return what a value is called before it has a final name, without its number."""
        return (value.name or "").partition("\t")[0]

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
