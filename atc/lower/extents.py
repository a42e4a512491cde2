"""Evaluates ONNX nodes on extents that are known only when the network runs.

Shape arithmetic (Shape, Gather, Concat, Mul, ...) of a model whose inputs have ranges is done here,
on polynomials; what is left of it in the network are the extents themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir

from atc.dims import Dim, Undecided, equals, lower_bound, maximum, minimum, upper_bound
from atc.ir.graph import Array, DType
from atc.lower.builder import Builder, Extents
from atc.lower.fold import evaluate

MOVES: Mapping[str, tuple[int, ...]] = {
    "Gather": (0,), "Concat": tuple(range(64)), "GatherElements": (0,), "GatherND": (0,),
    "Where": (1, 2), "ScatterElements": (0, 2), "ScatterND": (0, 2),
}  # fmt: skip
"""Operators that move elements, and which inputs hold them; the others say where to. Those that
are views or reshapes need nothing here: the builder folds them."""

MAX_EXTENTS = 4096
"""Elements of a tensor of extents; larger ones are computed when the network runs."""


HIGHEST_POWER = 8
"""The highest exponent of an extent that is multiplied out."""


def evaluate_extents(
    node: onnx_ir.Node, inputs: Sequence[str], opset: int, b: Builder
) -> tuple[str, ...] | None:
    """Return the results of a node that reads extents, or None when they must be computed."""
    if not any(b.extents_of(i) is not None for i in inputs if i):
        return None
    if any(i and upper_bound(b.type(i).size) > MAX_EXTENTS for i in inputs):
        return None
    dtypes = [b.type(i).dtype for i in inputs if i]
    op = node.op_type
    if op in MOVES:
        results = _moved(node, inputs, opset, b, MOVES[op])
        dtype = dtypes[MOVES[op][0]]
        return None if results is None else tuple(b.extents(r, dtype) for r in results)
    values = [_values(b, i) for i in inputs if i]
    if any(v is None for v in values) or len(values) != len(inputs) or any(
        d.is_float for d in dtypes
    ):
        return None
    try:
        result = _computed(node, [v for v in values if v is not None])
    except (Undecided, ValueError):
        return None
    if result is None:
        return None
    return (b.extents(np.asarray(result, object), _result_type(node, dtypes[0])),)


def _result_type(node: onnx_ir.Node, operand: DType) -> DType:
    if node.op_type in _COMPARISONS or node.op_type in ("And", "Or", "Not"):
        return DType.BOOL
    if node.op_type == "Cast":
        return DType.from_onnx(int(node.attributes["to"].value))
    return operand


def _values(b: Builder, name: str) -> Extents | None:
    extents = b.extents_of(name)
    array = b.value(name)
    if extents is None and array is not None:
        return array.astype(object)
    return extents


def _moved(
    node: onnx_ir.Node, inputs: Sequence[str], opset: int, b: Builder, data: Sequence[int]
) -> list[Extents] | None:
    """Let the standard's reference move numbers that stand for the elements."""
    elements: list[object] = []
    arrays: list[Array | None] = []
    for k, name in enumerate(inputs):
        if not name or k not in data:
            arrays.append(b.value(name) if name else None)
            if name and arrays[-1] is None:
                return None
            continue
        values = _values(b, name)
        if values is None:
            return None
        numbers = np.arange(values.size, dtype=np.int64) + len(elements)
        elements += values.reshape(-1).tolist()
        arrays.append(numbers.reshape(values.shape))
    results = evaluate(node, arrays, opset)
    if results is None:
        return None
    table = np.empty(len(elements), object)
    table[:] = elements
    return [np.asarray(table[r.astype(np.int64)], object).reshape(r.shape) for r in results]


# ---- arithmetic ---------------------------------------------------------------------------------


def _computed(node: onnx_ir.Node, values: Sequence[Extents]) -> object | None:
    op = node.op_type
    if op == "Cast":
        return _cast(node, values[0])
    if op in _UNARY and len(values) == 1:
        return np.frompyfunc(_UNARY[op], 1, 1)(values[0])
    if op in _BINARY and values:
        function = np.frompyfunc(_BINARY[op], 2, 1)
        result = values[0]
        for other in values[1:]:
            result = np.asarray(function(result, other), object)
        return result
    if op in _REDUCTIONS:
        return _reduced(node, values)
    return None


def _cast(node: onnx_ir.Node, values: Extents) -> Extents | None:
    try:
        dtype = DType.from_onnx(int(node.attributes["to"].value))
    except KeyError:
        return None
    if dtype is DType.BOOL:
        return np.asarray(np.frompyfunc(lambda v: not equals(v, 0), 1, 1)(values), object)
    return values if dtype in (DType.INT64, DType.INT32) else None


def _reduced(node: onnx_ir.Node, values: Sequence[Extents]) -> object | None:
    function = np.frompyfunc(_REDUCTIONS[node.op_type], 2, 1)
    axes = node.attributes["axes"].value if "axes" in node.attributes else None
    if len(values) > 1:
        axes = values[1].reshape(-1).tolist()
    keep = int(node.attributes["keepdims"].value) if "keepdims" in node.attributes else 1
    rank = values[0].ndim
    chosen = sorted({int(a) % rank for a in axes}, reverse=True) if axes else range(rank)[::-1]
    result = values[0]
    if not result.size:
        return None
    for axis in chosen:
        result = np.asarray(function.reduce(result, axis=axis, keepdims=bool(keep)), object)
    return result


def _quotient(a: int, b: int) -> int:
    """Divide as ONNX does, towards zero; for extents that are never negative."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return int(a / b) if abs(a) < 1 << 52 else (abs(a) // abs(b)) * (1 if a * b > 0 else -1)
    if lower_bound(a) < 0 or lower_bound(b) < 1:
        raise Undecided("a quotient's sign depends on the shape")
    return a // b


def _remainder(a: int, b: int) -> int:
    if lower_bound(b) < 1:
        raise Undecided("a divisor's sign depends on the shape")
    return a % b


def _power(a: int, b: int) -> int:
    if isinstance(b, Dim) or not 0 <= b <= HIGHEST_POWER:
        raise Undecided("an exponent isn't a small number")
    power: int = a**b
    return power


_UNARY: Mapping[str, Callable[[int], object]] = {
    "Neg": lambda a: -a, "Abs": abs, "Not": lambda a: not a, "Floor": lambda a: a,
    "Ceil": lambda a: a,
}  # fmt: skip
_COMPARISONS: Mapping[str, Callable[[int, int], object]] = {
    "Equal": equals, "Less": lambda a, b: a < b, "LessOrEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b, "GreaterOrEqual": lambda a, b: a >= b,
}  # fmt: skip
_BINARY: Mapping[str, Callable[[int, int], object]] = {
    **_COMPARISONS, "Add": lambda a, b: a + b, "Sub": lambda a, b: a - b, "Sum": lambda a, b: a + b,
    "Mul": lambda a, b: a * b, "Div": _quotient, "Mod": _remainder, "Min": minimum, "Max": maximum,
    "Pow": _power,
    "And": lambda a, b: bool(a) and bool(b), "Or": lambda a, b: bool(a) or bool(b),
}  # fmt: skip
_REDUCTIONS: Mapping[str, Callable[[int, int], object]] = {
    "ReduceProd": lambda a, b: a * b, "ReduceSum": lambda a, b: a + b, "ReduceMin": minimum,
    "ReduceMax": maximum,
}  # fmt: skip
