"""Reductions, searches and sorting along an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator
from atc.importers.megengine.quantize import as_real, convert, restore
from atc.importers.megengine.translation import Rule, Translation
from atc.importers.megengine.types import FLOAT32, INT32, DType

_NO_AXIS = 2**31 - 1
_OP_TYPES = {
    "SUM": "ReduceSum",
    "SUM_SQR": "ReduceSumSquare",
    "PRODUCT": "ReduceProd",
    "MIN": "ReduceMin",
    "MAX": "ReduceMax",
    "MEAN": "ReduceMean",
}


def reduce(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Reduce: along one axis, which stays with size 1, or to a target shape."""
    params = op.params("Reduce")
    x, axis = xs[0], params.integer("axis")
    mode, data_type = params.word("mode"), params.word("data_type")
    extents: tuple[int, ...] | None = None
    if axis == _NO_AXIS:
        axes, extents = _axes_to(b, x.value, xs[1:])
    else:
        axes = [b.axis(axis, b.rank(x.value))]
    if data_type == "FLOAT_O32xC32":
        x = convert(b, x, FLOAT32)
    result = _reduce(b, mode, x, axes, data_type.endswith("I8xO32"))
    if data_type == "FLOAT_O16xC32":
        result = convert(b, result, DType("Float16"))
    if extents is not None:
        result = Var(b.reshape(result.value, extents), result.dtype)
    return [result]


def _axes_to(b: Builder, x: ir.Value, given: Sequence[Var]) -> tuple[list[int], tuple[int, ...]]:
    """Return the axes that a target shape reduces, and the target shape."""
    target = b.known(given[0].value) if given else None
    if target is None:
        raise b.unsupported("a reduction to a shape that depends on data is not covered")
    wanted = tuple(target)
    rank = b.rank(x)
    if wanted == (1,):
        return list(range(rank)), wanted
    extents = b.extents(x)
    aligned = (1,) * (rank - len(wanted)) + wanted
    pairs = list(zip(extents, aligned, strict=False))
    if len(aligned) != rank or any(t not in (1, n) for n, t in pairs):
        raise b.error(f"cannot reduce {list(extents)} to {list(wanted)}")
    return [i for i, (n, t) in enumerate(pairs) if t == 1 and n != 1], wanted


def _reduce(b: Builder, mode: str, x: Var, axes: Sequence[int], widen: bool) -> Var:
    """Reduce; sums of quantised values saturate in their own type, or in 32 bits with `widen`."""
    if not axes:
        return x
    if x.dtype.quantized and mode not in ("MIN", "MAX"):
        total = _node(b, mode, as_real(b, x), axes)
        return restore(b, total, DType("QuantizedS32", x.dtype.scale) if widen else x.dtype)
    if x.dtype.floating or x.dtype == INT32:
        return Var(_node(b, mode, x.value, axes), x.dtype)
    wide = b.cast(x.value, ir.DataType.INT32)
    return Var(b.cast(_node(b, mode, wide, axes), x.dtype.storage), x.dtype)


def _node(b: Builder, mode: str, x: ir.Value, axes: Sequence[int]) -> ir.Value:
    return b.op(_OP_TYPES[mode], [x, b.integers(axes)], {"keepdims": 1})


def _extreme(op_type: str) -> Translation:
    def translate(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
        x = xs[0].value
        axis = b.axis(op.params("Axis").integer("axis"), b.rank(x))
        found = b.op(op_type, [x], {"axis": axis, "keepdims": 1})
        return [Var(b.cast(found, ir.DataType.INT32), INT32)]

    return translate


def argsort(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Argsort along the last axis: values and indices."""
    largest = op.params("Argsort").word("order") == "DESCENDING"
    x = xs[0]
    count = b.extents(x.value)[b.axis(-1, b.rank(x.value))]
    return list(_sorted(b, x, count, largest))


def top_k(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate TopK: k < 0 asks for the largest -k, k > 0 for the smallest k."""
    mode = op.params("TopK").word("mode")
    x, k = xs
    wanted = b.known(k.value)
    if wanted is None or len(wanted) != 1:
        raise b.unsupported("a k of TopK that depends on data is not covered")
    count = wanted[0]
    extent = b.extents(x.value)[b.axis(-1, b.rank(x.value))]
    if not 0 < abs(count) <= extent:
        raise b.error(f"cannot take {count} of {extent} elements")
    values, indices = _sorted(b, x, abs(count), count < 0)
    if mode != "KTH_ONLY":
        return [values, indices]
    last = b.op("Gather", [values.value, b.integers([-1])], {"axis": -1})
    rank = b.rank(last)
    return [Var(b.op("Squeeze", [last, b.integers([-1])]) if rank > 1 else last, x.dtype)]


def _sorted(b: Builder, x: Var, count: int, largest: bool) -> tuple[Var, Var]:
    attributes = {"axis": -1, "largest": int(largest), "sorted": 1}
    values, indices = b.add("TopK", [x.value, b.integers([count])], attributes, 2)
    return Var(values, x.dtype), Var(b.cast(indices, ir.DataType.INT32), INT32)


def cumsum(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate Cumsum."""
    params = op.params("Cumsum")
    x = xs[0]
    axis = b.axis(params.integer("axis"), b.rank(x.value))
    attributes = {
        "exclusive": int(params.flag("exclusive")),
        "reverse": int(params.flag("reverse")),
    }
    narrow = not (x.dtype.floating or x.dtype == INT32)
    value = b.cast(x.value, ir.DataType.INT32) if narrow else x.value
    total = b.op("CumSum", [value, b.constant(np.array(axis, np.int64))], attributes)
    return [Var(b.cast(total, x.dtype.storage), x.dtype)]


RULES: Mapping[str, Rule] = {
    "Argmax": Rule(_extreme("ArgMax"), 1),
    "Argmin": Rule(_extreme("ArgMin"), 1),
    "Argsort": Rule(argsort, 1),
    "Cumsum": Rule(cumsum, 1),
    "Reduce": Rule(reduce, 1, 2),
    "TopK": Rule(top_k, 2),
}
