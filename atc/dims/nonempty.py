"""Facts about the extents of a loop nest, or of a tensor, that has any elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from atc.dims.bounds import lower_bound
from atc.dims.dim import Dim, applied, dim, maximum, minimum, not_equal
from atc.dims.polynomial import Atom, Function, Symbol


def at_least_one(extents: Sequence[int]) -> dict[Symbol, Symbol]:
    """Return, for symbols that are 0 only where an extent is, the same from 1 on.

    An extent that is a sum, or a function of others, says nothing of a symbol by itself.
    """
    found: dict[Symbol, Symbol] = {}
    for extent in extents:
        if isinstance(extent, Dim) and len(extent.terms) == 1:
            for atom, _ in extent.terms[0][0]:
                if isinstance(atom, Symbol) and atom.low == 0:
                    found[atom] = replace(atom, low=1)
    return found


def substituted(value: int, by: Mapping[Symbol, Symbol]) -> int:
    """Return an extent with symbols in the place of others, simplified by their bounds."""
    if not isinstance(value, Dim) or not by:
        return value
    terms = (
        prod([_atom(a, by) ** power for a, power in monomial], start=factor)
        for monomial, factor in value.terms
    )
    return sum(terms)


def divides_by_zero(value: int) -> bool:
    """Return whether an extent has a quotient whose divisor may be 0."""
    if not isinstance(value, Dim):
        return False
    calls = [a for monomial, _ in value.terms for a, _ in monomial if isinstance(a, Function)]
    return any(
        (call.fn in ("div", "mod") and lower_bound(call.args[1]) <= 0)
        or any(map(divides_by_zero, call.args))
        for call in calls
    )


def _atom(atom: Atom, by: Mapping[Symbol, Symbol]) -> int:
    if isinstance(atom, Symbol):
        return dim(by.get(atom, atom))
    args = [substituted(a, by) for a in atom.args]
    match atom.fn:
        case "div":
            return args[0] // args[1]
        case "mod":
            return args[0] % args[1]
        case "min":
            return minimum(*args)
        case "max":
            return maximum(*args)
        case "ne":
            return not_equal(*args)
        case "broadcast":
            return applied("broadcast", *sorted(args, key=str))
