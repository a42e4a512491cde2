"""Shape arithmetic that a model does in floating point, as extents, where no step of it rounds.

Exporters write an extent that is rounded up to a multiple of 32 as a cast to float, a division, a
Ceil, a product and a cast back. Every number on that way is an integer over a power of two; as long
as the type holds all of its bits, the result is an extent like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite, prod

import numpy as np

from atc.dims import lower_bound, maximum, minimum, upper_bound
from atc.ir.expr import Call, Const, Expr, Extent, Input, walk
from atc.ir.graph import DType
from atc.ir.ops import Map, Reduce, Reshape
from atc.ir.ops.data import WriteExtents
from atc.lower.builder import Builder, Extents
from atc.lower.extents import HIGHEST_POWER
from atc.lower.value_bounds import elements

Exact = tuple[int, int]
"""An integer or extent, and by which power of two it is divided."""

BITS: Mapping[DType, int] = {DType.FLOAT: 24, DType.DOUBLE: 53}
"""Integers of so many bits are exact in a type."""
DEEPEST = 64
"""Nodes in a row through which a value is followed."""


def truncated(b: Builder, name: str) -> Extents | None:
    """Return the whole parts of computed floats as extents; None where they aren't exact."""
    type_ = b.type(name)
    if type_.dtype not in BITS or b.value(name) is not None:
        return None
    found = []
    for source, _ in elements(b, name):
        exact = _of_value(b, source, 0) if b.type(source).size == 1 else None
        whole = None if exact is None else _truncated(exact)
        if whole is None:
            return None
        found.append(whole)
    return np.array(found, object).reshape(type_.shape)


def steps_between(b: Builder, start: str, limit: str, step: str) -> int | None:
    """Return how many numbers lie from one float to another as an extent; None if that rounds."""
    dtype = b.type(start).dtype
    first, last, width = (_of_value(b, name, 0) for name in (start, limit, step))
    inverse = None if width is None else _signed_inverse(width)
    if dtype not in BITS or first is None or last is None or inverse is None:
        return None
    bits = max(first[1], last[1])
    room = (last[0] * (1 << bits - last[1]) - first[0] * (1 << bits - first[1]), bits)
    if not all(_fits(a, dtype) for a in (first, last, room)):
        return None
    return maximum(0, -(-room[0] * inverse[0] // (1 << bits + inverse[1])))


def _of_value(b: Builder, name: str, depth: int) -> Exact | None:
    """Return the one number of a value."""
    array, extents, maker = b.value(name), b.extents_of(name), b.maker(name)
    if b.type(name).size != 1 or depth > DEEPEST:
        return None
    if array is not None:
        return _of_number(array.reshape(-1)[0].item())
    if extents is not None:
        return extents.reshape(-1)[0], 0

    def operand(k: int) -> Exact | None:
        assert maker is not None
        return _of_value(b, maker.inputs[k], depth + 1)

    match maker and maker.op:
        case Reshape():
            return operand(0)
        case WriteExtents() as write:
            return write.values[0], 0
        case Map() as op:
            return _of_expr(op.expr, operand)
        case Reduce(how="Sum" | "Max" | "Min") as op if prod(op.reduced) == 1:
            inner, first = _of_expr(op.expr, operand), len(op.views)
            return _of_expr(op.epilogue.expr, lambda k: operand(first + k - 1) if k else inner)
        case _:
            return None


def _of_number(value: object) -> Exact | None:
    if not isinstance(value, int | float) or not isfinite(value):
        return None
    numerator, denominator = value.as_integer_ratio()
    return numerator, denominator.bit_length() - 1


def _of_expr(expr: Expr, operand: Callable[[int], Exact | None]) -> Exact | None:
    known: dict[Expr, Exact | None] = {}
    for e in walk(expr):
        match e:
            case Input():
                known[e] = operand(e.index)
            case Const():
                known[e] = _of_number(e.value)
            case Extent():
                known[e] = e.extent, 0
            case Call():
                args = [known[a] for a in e.args]
                given = [a for a in args if a is not None]
                made = _of_call(e, given) if len(given) == len(args) else None
                known[e] = made if made is not None and _fits(made, e.dtype) else None
    return known.get(expr)


def _of_call(e: Call, args: list[Exact]) -> Exact | None:
    """Return a function of exact numbers; None where it rounds, or isn't known here."""
    bits = max(k for _, k in args)
    same = [n * (1 << bits - k) for n, k in args]
    match e.fn, args:
        case "Cast", [a] if e.dtype.is_float:
            return a
        case "Cast", [a] if e.dtype in (DType.INT32, DType.INT64):
            whole = _truncated(a)
            return None if whole is None else (whole, 0)
        case "Floor", [(n, k)]:
            return n // (1 << k), 0
        case "Ceil", [(n, k)]:
            return -(-n // (1 << k)), 0
        case "Neg", [(n, k)]:
            return -n, k
        case "Add", _:
            return same[0] + same[1], bits
        case "Sub", _:
            return same[0] - same[1], bits
        case "Mul", [(n, k), (m, j)]:
            return n * m, k + j
        case "Div", [(n, k), divisor] if e.dtype.is_float:
            inverse = _inverse(divisor)
            return None if inverse is None else (n * inverse[0], k + inverse[1])
        case "Pow", [(n, k), (m, 0)] if isinstance(m, int) and 0 <= m <= HIGHEST_POWER:
            return n**m, k * m
        case "Reciprocal", [divisor]:
            return _inverse(divisor)
        case "Min", _:
            return minimum(*same), bits
        case "Max", _:
            return maximum(*same), bits
        case _:
            return None


def _inverse(a: Exact) -> Exact | None:
    """Return 1 / a where a is a power of two."""
    n, k = a
    if not isinstance(n, int) or n <= 0 or n & (n - 1):
        return None
    shift = n.bit_length() - 1 - k
    return (1, shift) if shift >= 0 else (1 << -shift, 0)


def _signed_inverse(a: Exact) -> Exact | None:
    """Return 1 / a where a is a power of two, or one's negative."""
    n, k = a
    if isinstance(n, int) and n < 0:
        inverse = _inverse((-n, k))
        return inverse and (-inverse[0], inverse[1])
    return _inverse(a)


def _truncated(a: Exact) -> int | None:
    n, k = a
    return n // (1 << k) if not k or lower_bound(n) >= 0 else None


def _fits(a: Exact, dtype: DType) -> bool:
    """Return whether a type holds a number exactly."""
    if not dtype.is_float:
        return a[1] == 0
    most = 1 << BITS.get(dtype, 0)
    return -most <= lower_bound(a[0]) and upper_bound(a[0]) <= most
