"""Value-range analysis: the least and the largest that a graph's values can be proven to be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import inf, isfinite, isnan, prod, trunc

import numpy as np

from atc.dims import lower_bound, upper_bound
from atc.ir.expr import Call, Const, Expr, Extent, Input, walk
from atc.ir.graph import Array, DType, Node
from atc.ir.ops import Map, Reduce, Reshape
from atc.ir.ops.data import Concat, Gather, TopK, WriteExtents
from atc.ir.ops.data_dependent import NonZero, ReadExtents
from atc.ir.ops.elementwise import ArgReduce
from atc.lower.builder import Builder

Interval = tuple[float, float]
"""The least and the largest number, both possible ends included."""

UNKNOWN: Interval = (-inf, inf)
DEEPEST = 64
"""Nodes in a row through which a value is followed."""

BOOLEAN = (0.0, 1.0)
MONOTONE: Mapping[str, Callable[[float], float]] = {
    "Floor": lambda x: float(np.floor(x)), "Ceil": lambda x: float(np.ceil(x)),
    "Round": lambda x: float(np.round(x)), "Trunc": lambda x: float(np.trunc(x)),
    "Sqrt": lambda x: float(np.sqrt(max(x, 0.0))),
}  # fmt: skip
"""Functions that never fall."""
RESULTS: Mapping[str, Interval] = {
    "Sigmoid": BOOLEAN, "Tanh": (-1.0, 1.0), "Sin": (-1.0, 1.0), "Cos": (-1.0, 1.0),
    "Erf": (-1.0, 1.0), "Sign": (-1.0, 1.0),
}  # fmt: skip


Seen = dict[str, tuple[int, Interval]]
"""The bounds of the values met so far, and how many nodes in a row lead to each."""


def interval_of(b: Builder, name: str) -> Interval:
    """Return bounds of all elements of a value; those of its type where nothing else is known."""
    return _bounds(b, name, 0, {})


def _bounds(b: Builder, name: str, depth: int, seen: Seen) -> Interval:
    """Return the bounds of a value: once for all paths to it, unless a shorter one sees farther."""
    if name in seen and seen[name][0] <= depth:
        return seen[name][1]
    found = _found(b, name, depth, seen)
    seen[name] = depth, found
    return found


def _found(b: Builder, name: str, depth: int, seen: Seen) -> Interval:
    own = type_interval(b.type(name).dtype)
    array = b.value(name)
    if array is not None:
        return _of_array(array)
    extents = b.extents_of(name)
    if extents is not None:
        every = extents.reshape(-1).tolist()
        return _hull([(float(lower_bound(n)), float(upper_bound(n))) for n in every])
    node = b.maker(name)
    if node is None or depth > DEEPEST:
        return own
    found = _of_node(b, node, name, depth + 1, seen)
    return max(found[0], own[0]), min(found[1], own[1])


def type_interval(dtype: DType) -> Interval:
    """Return what every number of a type keeps to."""
    if dtype is DType.BOOL:
        return BOOLEAN
    if dtype.is_float or dtype is DType.STRING:
        return UNKNOWN
    bits = 8 * dtype.itemsize
    return (-float(1 << bits - 1), float((1 << bits - 1) - 1)) if dtype.is_signed else (
        0.0, float((1 << bits) - 1)
    )  # fmt: skip


def _of_array(array: Array) -> Interval:
    if not array.size or array.dtype.kind not in "biuf" or (
        array.dtype.kind == "f" and np.isnan(array).any()
    ):
        return UNKNOWN
    return float(array.min()), float(array.max())


def _of_node(b: Builder, node: Node, name: str, depth: int, seen: Seen) -> Interval:
    def operand(k: int) -> Interval:
        return _bounds(b, node.inputs[k], depth, seen)

    match node.op:
        case Map():
            return _of_expr(node.op.expr, operand, len(node.inputs))
        case Reduce(how="Sum" | "Max" | "Min") as op:
            inner = _of_expr(op.expr, operand, len(op.views))
            return _of_reduction(op, inner, operand)
        case Reshape() | ReadExtents():
            return operand(0)
        case Gather():
            return operand(0)
        case Concat():
            return _hull([operand(k) for k in range(len(node.inputs))])
        case WriteExtents() as write:
            return _hull([(float(lower_bound(n)), float(upper_bound(n))) for n in write.values])
        case ArgReduce() as best:
            return 0.0, float(max(upper_bound(best.axis) - 1, 0))
        case TopK() as top:
            last = upper_bound(top.axis) - 1
            return operand(0) if name == node.outputs[0] else (0.0, float(last))
        case NonZero() as found:
            return 0.0, float(max(0, *(upper_bound(n) - 1 for n in found.shape), 0))
        case _:
            return UNKNOWN


def _of_reduction(op: Reduce, inner: Interval, operand: Callable[[int], Interval]) -> Interval:
    if op.how == "Sum":
        most = upper_bound(prod(op.reduced))
        least = lower_bound(prod(op.reduced))
        inner = (
            min(_product(inner[0], least), _product(inner[0], most)),
            max(_product(inner[1], least), _product(inner[1], most)),
        )
    elif not lower_bound(prod(op.reduced)):
        return UNKNOWN
    first = len(op.views)

    def read(k: int) -> Interval:
        return inner if k == 0 else operand(first + k - 1)

    return _of_expr(op.epilogue.expr, read, 1 << 30)


def _hull(parts: Sequence[Interval]) -> Interval:
    if not parts:
        return UNKNOWN
    return min(p[0] for p in parts), max(p[1] for p in parts)


def _product(a: float, b: float) -> float:
    return 0.0 if a == 0 or b == 0 else a * b


# ---- expressions ---------------------------------------------------------------------------------


def _of_expr(expr: Expr, operand: Callable[[int], Interval], operands: int) -> Interval:
    """Return the bounds of an expression; inputs beyond the operands are coordinates."""
    known: dict[Expr, Interval] = {}
    for e in walk(expr):
        match e:
            case Input():
                known[e] = operand(e.index) if e.index < operands else UNKNOWN
            case Const():
                value = float(e.value)
                known[e] = UNKNOWN if isnan(value) else _outward((value, value), e.dtype)
            case Extent():
                known[e] = float(lower_bound(e.extent)), float(upper_bound(e.extent))
            case Call():
                found = _outward(_of_call(e, [known[a] for a in e.args]), e.dtype)
                own = type_interval(e.dtype)
                inside = own[0] <= found[0] and found[1] <= own[1]
                known[e] = found if inside else own  # what may wrap is anything
            case _:
                known[e] = UNKNOWN
    return known[expr]


def _of_call(expr: Call, args: Sequence[Interval]) -> Interval:
    if expr.fn in MONOTONE and args[0] != UNKNOWN:
        step = MONOTONE[expr.fn]
        low_, high_ = (x if abs(x) == inf else step(x) for x in args[0])
        return low_, high_
    match expr.fn, args:
        case "Add", [a, b]:
            return a[0] + b[0], a[1] + b[1]
        case "Sub", [a, b]:
            return a[0] - b[1], a[1] - b[0]
        case "Mul", [a, b]:
            corners = [_product(x, y) for x in a for y in b]
            return min(corners), max(corners)
        case "Reciprocal", [a] if a[0] > 0:
            return 1 / a[1], 1 / a[0]
        case "Div", [a, b] if b[0] > 0:
            corners = [x / y if y != inf else 0.0 for x in a for y in b]
            whole = trunc if not expr.dtype.is_float else float
            ends = [x if abs(x) == inf else float(whole(x)) for x in corners]
            return min(ends), max(ends)
        case ("Mod" | "FMod"), [a, b] if b[0] > 0 and a[0] >= 0 and not expr.dtype.is_float:
            return 0.0, min(a[1], b[1] - 1)
        case "Mod", [a, b] if b[0] > 0 and not expr.dtype.is_float:
            return 0.0, b[1] - 1
        case "Min", [a, b]:
            return min(a[0], b[0]), min(a[1], b[1])
        case "Max", [a, b]:
            return max(a[0], b[0]), max(a[1], b[1])
        case "Neg", [a]:
            return -a[1], -a[0]
        case "Abs", [a]:
            return max(a[0], -a[1], 0.0), max(-a[0], a[1])
        case "Where", [_, a, b]:
            return _hull([a, b])
        case ("Cast" | "CastSaturate"), [a]:
            return _of_cast(expr, a)
        case _:
            return RESULTS.get(expr.fn, type_interval(expr.dtype))


def _outward(bounds: Interval, dtype: DType) -> Interval:
    """Return bounds rounded away from each other to numbers that a float type has."""
    if dtype not in (DType.FLOAT, DType.FLOAT16) or not all(map(isfinite, bounds)):
        return bounds
    with np.errstate(over="ignore"):
        low, high = (np.asarray(x).astype(dtype.numpy)[()] for x in bounds)
        low = np.nextafter(low, -np.inf, dtype=dtype.numpy) if low > bounds[0] else low
        high = np.nextafter(high, np.inf, dtype=dtype.numpy) if high < bounds[1] else high
    return float(low), float(high)


def _of_cast(expr: Call, a: Interval) -> Interval:
    if expr.dtype is DType.BOOL:
        return BOOLEAN
    if expr.dtype.is_float:
        return a
    return tuple(x if abs(x) == inf else float(trunc(x)) for x in a)  # type: ignore[return-value]
