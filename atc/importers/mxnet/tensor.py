"""A typed value of the ONNX graph under construction, and ONNX's own type inference for a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from atc.importers.mxnet.params import Array
from atc.importers.onnx_nodes import evaluate, infer_outputs

Type = tuple[np.dtype[Any], tuple[int, ...]]
"""An element type and a static shape."""

SHAPE_DATA = 64
"""Constants of integers up to this length are shown to ONNX's shape inference."""

SMALL = 4096
"""A folded constant has at most this many elements, or as many as its operands."""

FOLDED = frozenset({
    "Abs", "Add", "Cast", "Concat", "Div", "Exp", "Expand", "Gather", "Identity", "Max", "Min",
    "Mul", "Neg", "Reciprocal", "ReduceMax", "ReduceMin", "Reshape", "Slice", "Sqrt", "Squeeze",
    "Sub", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Operators evaluated at once when all their inputs are constants."""


@dataclass(frozen=True, eq=False)
class Tensor:
    """A value of the graph: its static type and, where it is a constant, its elements.

    `real` is the float32 tensor that a quantised int32 value stands for, where one is known.
    """

    value: ir.Value
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    array: Array | None = None
    real: Tensor | None = None

    @property
    def name(self) -> str:
        """The value's name."""
        return self.value.name or ""

    @property
    def rank(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return prod(self.shape)


def infer_types(node: ir.Node, inputs: Sequence[Tensor | None]) -> list[Type]:
    """Return the types of a node's outputs; ValueError where its inputs don't fit."""
    types = {t.name: _type_proto(t) for t in inputs if t is not None}
    constants = {t.name: t.array for t in inputs if t and t.array is not None and _is_shape(t)}
    found = infer_outputs(ir.to_proto(node), types, constants)
    return [_known(found.get(v.name or "")) for v in node.outputs]


def _known(type_: onnx.TypeProto | None) -> Type:
    if type_ is None or not type_.tensor_type.HasField("shape"):
        raise ValueError("no shape follows from them")
    dims = type_.tensor_type.shape.dim
    if any(not d.HasField("dim_value") for d in dims):
        raise ValueError("no static shape follows from them")
    shape = tuple(d.dim_value for d in dims)
    if any(d < 0 for d in shape):
        raise ValueError(f"the shape would be {list(shape)}")
    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(type_.tensor_type.elem_type)), shape


def folded(node: ir.Node, inputs: Sequence[Tensor | None], type_: Type) -> Array | None:
    """Return a node's result where it can be had at once, else None."""
    arrays = {t.name: t.array for t in inputs if t is not None and t.array is not None}
    whole = bool(inputs) and all(t is None or t.array is not None for t in inputs)
    dtype, shape = type_
    if node.op_type not in FOLDED or not whole:
        return None
    if prod(shape) > max(SMALL, sum(a.size for a in arrays.values())):
        return None
    array = evaluate(ir.to_proto(node), arrays)[0]
    return array.astype(dtype, copy=False).reshape(shape)


def onnx_type(dtype: np.dtype[Any]) -> int:
    """Return ONNX's number of an element type."""
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _is_shape(tensor: Tensor) -> bool:
    integer = tensor.dtype in (np.int64, np.int32)
    return integer and tensor.rank <= 1 and tensor.size <= SHAPE_DATA


def _type_proto(tensor: Tensor) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(onnx_type(tensor.dtype), tensor.shape)
