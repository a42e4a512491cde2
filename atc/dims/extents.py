"""Functions of shapes whose extents may vary: broadcasting, largest values, values at a point."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from itertools import combinations
from math import prod
from typing import Any, TypeVar, cast

from atc.dims.bounds import atom_bounds, lower_bound, upper_bound, without_quotients
from atc.dims.dim import (
    Dim,
    applied,
    atom_of,
    dim,
    made,
    maximum,
    minimum,
    not_equal,
    without_atom,
)
from atc.dims.polynomial import Atom, Function, Symbol
from atc.dims.text import plain

T = TypeVar("T")


def broadcast_extents(a: int, b: int) -> int:
    """Return the extent of two axes broadcast to each other (numpy's rules); ValueError if never.

    Where they may turn out to be 1 or the same, `broadcast_guard` decides when the network runs.
    """
    if a == b or b == 1:
        return a
    if a == 1:
        return b
    if 0 in (a, b):
        return 0
    if broadcast_guard(a, b) == 1:
        raise ValueError(f"extents {plain(a)} and {plain(b)} don't broadcast")
    if lower_bound(a) > 1 < lower_bound(b):
        return minimum(a, b)  # both, unless the guard ends the run
    if lower_bound(a) > 1:
        return a
    if lower_bound(b) > 1:
        return b
    if lower_bound(a) > 0 < lower_bound(b):
        return maximum(a, b)
    return applied("broadcast", *sorted((a, b), key=str))  # 0 is less than 1


def broadcast_guard(a: int, b: int) -> int:
    """Return 1 where two extents can't be broadcast to each other, else 0."""
    return not_equal(a, b) * not_equal(a, 1) * not_equal(b, 1)


def reach(stride: int, extent: int) -> int:
    """Return how far an axis of this stride goes over this extent.

    A stride of k * ne(n, 1) is that of a broadcast axis of n elements: unless n is 1, the
    extent is n, or `broadcast_guard` would have stopped the network.
    """
    if isinstance(stride, Dim):
        for atom in dict.fromkeys(a for a, _ in stride.terms[0][0]):
            if isinstance(atom, Function) and atom.fn == "ne" and atom.args[1] == 1:
                rest = without_atom(stride, atom)
                if rest is not None:
                    return rest * (atom.args[0] - 1)
    return stride * (extent - 1)


def broadcast_guards(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return extents that are 0 where all shapes broadcast to each other, as they must be."""
    guards: dict[int, None] = {}
    for one, other in combinations(shapes, 2):
        pairs = zip(reversed(one), reversed(other), strict=False)
        guards.update(dict.fromkeys(broadcast_guard(a, b) for a, b in pairs))
    return tuple(f for f in guards if isinstance(f, Dim))


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """Return the shape to which all broadcast (numpy's rules); ValueError if there is none."""
    rank = max((len(s) for s in shapes), default=0)
    result = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            result[d] = broadcast_extents(result[d], n)
    return tuple(result)


def ceiling(value: int) -> int:
    """Return an extent over the inputs' symbols alone that is never smaller."""
    if not isinstance(value, Dim) or all(s.given for s in symbols_of(value)):
        return value
    shorter = without_quotients(dict(value.terms))
    if shorter is not None:
        return ceiling(made(shorter))
    total = 0
    for monomial, factor in value.terms:
        atoms = [_atom_limit(a, factor > 0) ** power for a, power in monomial]
        total = total + prod(atoms, start=factor)
    return total


def max_value(value: int) -> int:
    """Return the largest value of an extent, whatever the kernels write."""
    return upper_bound(ceiling(value))


def same_unrounded(a: int, b: int) -> bool:
    """Return whether two extents are the same wherever no quotient in them is rounded.

    That is found out at multiples of many numbers; what kernels write has none.
    """
    symbols = sorted(symbols_of((a, b)), key=lambda s: s.index)
    if not all(s.given for s in symbols):
        return False
    points = [{s: _ROUND * (k + 3 * i) for i, s in enumerate(symbols)} for k in (1, 2, 5)]
    return all(evaluate(a, at) == evaluate(b, at) for at in points)


_ROUND = 2**12 * 3**3 * 5 * 7


def concrete(value: T) -> T:
    """Return a value with each extent in it at its largest: in tuples and fields of dataclasses."""
    done: dict[int, Any] = {}  # expressions share parts

    def largest(value: Any) -> Any:
        if id(value) not in done:
            done[id(value)] = of_parts(value)
        return done[id(value)]

    def of_parts(value: Any) -> Any:
        match value:
            case Dim():
                return max_value(value)
            case tuple():
                return tuple(map(largest, value))
        if is_dataclass(value) and not isinstance(value, type) and is_dynamic(value):
            own = {f.name: largest(getattr(value, f.name)) for f in fields(value)}
            return replace(value, **own)
        return value

    return cast(T, largest(value))


def symbols_of(value: object) -> frozenset[Symbol]:
    """Return the symbols on which an extent, an atom, or what is in a tuple depends."""
    match value:
        case Dim() | Symbol() | Function():
            return value.symbols
        case tuple():
            return frozenset().union(*map(symbols_of, value))
        case _:
            return frozenset()


def evaluate(value: int, at: Mapping[Symbol, int]) -> int:
    """Return the value of an extent where its symbols have these values."""
    if not isinstance(value, Dim):
        return value
    return sum(
        factor * prod(_evaluate_atom(a, at) ** power for a, power in monomial)
        for monomial, factor in value.terms
    )


def _evaluate_atom(atom: Atom, at: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        return at[atom]
    a, b = (evaluate(v, at) for v in (atom.args[0], atom.args[-1]))
    match atom.fn:
        case "div":
            return a // b
        case "mod":
            return a % b
        case "ne":
            return int(a != b)
        case "broadcast":
            return b if a == 1 else a
        case "min":
            return min(evaluate(v, at) for v in atom.args)
        case "max":
            return max(evaluate(v, at) for v in atom.args)


def _atom_limit(atom: Atom, up: bool) -> int:
    """Return an extent over the inputs' symbols on the far side of an atom."""
    if isinstance(atom, Symbol):
        if atom.given:
            return dim(atom)
        return ceiling(atom.high) if up else atom.low
    if all(s.given for s in symbols_of(atom)):
        return atom_of(atom)
    if not up:
        return atom_bounds(atom)[0]
    match atom.fn:
        case "min":
            return minimum(*map(ceiling, atom.args))
        case "max" | "broadcast":
            return maximum(*map(ceiling, atom.args))
        case "div" if not isinstance(atom.args[1], Dim):
            return ceiling(atom.args[0]) // atom.args[1]
        case _:
            return atom_bounds(atom)[1]


def is_data_dependent(value: object) -> bool:
    """Return whether an extent, or one of a tuple, depends on numbers that only kernels know."""
    return any(not s.given for s in symbols_of(value))


def is_dynamic(value: object) -> bool:
    """Find out if there is a `Dim` anywhere in a value: in tuples, and in fields of dataclasses.

    Values whose parts are shared, so that looking at all would take long, have it as `varies`.
    """
    if type(value) in _PLAIN:
        return False
    if isinstance(value, tuple):
        return any(type(each) not in _PLAIN and is_dynamic(each) for each in value)
    if isinstance(value, Dim):
        return True
    if hasattr(value, "varies"):
        return bool(value.varies)
    names, remembers = _field_names(cast(Hashable, type(value)))
    if not remembers:
        return any(is_dynamic(getattr(value, name)) for name in names)
    known = vars(value)
    if _FOUND not in known:
        known[_FOUND] = any(is_dynamic(getattr(value, name)) for name in names)
    return bool(known[_FOUND])


_FOUND = "_is_dynamic"
"""Under which a value that never changes keeps what was found out of it, beside its fields."""


_PLAIN = frozenset({int, str, bool, float, bytes, type(None)})
"""Types of which most fields are, and that hold no extents."""


@cache
def _field_names(kind: Hashable) -> tuple[tuple[str, ...], bool]:
    """Return the fields of a dataclass, and whether its values are frozen and take notes."""
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return (), False
    names = tuple(f.name for f in fields(kind))
    frozen: bool = vars(kind)["__dataclass_params__"].frozen
    return names, frozen and kind.__dictoffset__ != 0
