"""Operators that make tensors from numbers: ranges, constants, diagonals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator
from atc.importers.megengine.encoding import plain_dtype
from atc.importers.megengine.translation import Rule
from atc.importers.megengine.types import FLOAT32, DType

_LARGEST_DIAGONAL = 1 << 20


def linspace(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Linspace: inputs start, stop, count; float32."""
    start, stop, count = (b.reshape(x.value, ()) for x in xs)
    start, stop = (b.cast(v, ir.DataType.FLOAT) for v in (start, stop))
    steps = b.cast(count, ir.DataType.INT64)
    intervals = steps
    if op.params("Linspace").flag("endpoint"):
        intervals = b.op("Sub", [steps, b.number(1, steps)])
    intervals = b.cast(b.op("Max", [intervals, b.number(1, steps)]), ir.DataType.FLOAT)
    step = b.op("Div", [b.op("Sub", [stop, start]), intervals])
    places = b.op("Range", [b.number(0, steps), steps, b.number(1, steps)])
    moved = b.op("Mul", [b.cast(places, ir.DataType.FLOAT), step])
    return [Var(b.op("Add", [moved, start]), FLOAT32)]


def eye(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Eye: the input is the shape (rows, columns)."""
    params = op.params("Eye")
    dtype = plain_dtype(params.integer("dtype"), op.where)
    zeros = _filled(b, xs[0].value, 0.0, dtype)
    attributes = {"k": params.integer("k"), "dtype": dtype.storage.value}
    return [Var(b.op("EyeLike", [zeros], attributes), dtype)]


def alloc(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Alloc: a tensor of undefined content, here zeros, of the given shape."""
    if op.has_params("DType"):
        dtype = op.params("DType").dtype()
    else:
        dtype = plain_dtype(op.params("DType(param)").integer("dtype"), op.where)
    return [Var(_filled(b, xs[0].value, 0.0, dtype), dtype)]


def fill(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Fill: one number everywhere, of the shape that the input holds."""
    dtype = op.output_dtype or FLOAT32
    value = op.params("Fill").real("value")
    return [Var(_filled(b, xs[0].value, value, dtype), dtype)]


def _filled(b: Builder, shape: ir.Value, value: float, dtype: DType) -> ir.Value:
    number = np.array([value]).astype(dtype.numpy)
    tensor = onnx.helper.make_tensor("value", dtype.storage.value, [1], number.tobytes(), raw=True)
    return b.op("ConstantOfShape", [b.cast(shape, ir.DataType.INT64)], {"value": tensor})


def diagonal(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Diag: a vector into the k-th diagonal of a square, or that diagonal of a matrix."""
    k, x = op.params("Diag").integer("k"), xs[0]
    shape = b.extents(x.value)
    if abs(k) > _LARGEST_DIAGONAL or max(shape, default=0) > _LARGEST_DIAGONAL:
        raise b.unsupported(f"diagonal {k} of shape {list(shape)} is too large")
    row, column = max(-k, 0), max(k, 0)
    if len(shape) == 1:
        size = shape[0] + abs(k)
        places = (np.arange(shape[0]) + row) * size + np.arange(shape[0]) + column
        zeros = _filled(b, b.integers([size * size]), 0.0, x.dtype)
        index = b.constant(places.astype(np.int64))
        flat = b.op("ScatterElements", [zeros, index, x.value], {"axis": 0})
        return [Var(b.reshape(flat, (size, size)), x.dtype)]
    if len(shape) != 2:
        raise b.error(f"Diag takes a vector or a matrix, not shape {list(shape)}")
    count = min(shape[0] - row, shape[1] - column)
    if count < 1:
        raise b.error(f"a matrix of shape {list(shape)} has no diagonal {k}")
    places = (np.arange(count) + row) * shape[1] + np.arange(count) + column
    flat = b.reshape(x.value, (math.prod(shape),))
    index = b.constant(places.astype(np.int64))
    return [Var(b.op("Gather", [flat, index], {"axis": 0}), x.dtype)]


RULES: Mapping[str, Rule] = {
    "Alloc": Rule(alloc, 1),
    "Diag": Rule(diagonal, 1),
    "Eye": Rule(eye, 1),
    "Fill": Rule(fill, 1),
    "Linspace": Rule(linspace, 3),
}
