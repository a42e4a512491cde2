"""Arithmetic of extents: exact integer polynomials in canonical form."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Literal

from atc.dims.bounds import atom_bounds, bounds_of, rough_bounds
from atc.dims.dim import (
    NARROWER,
    Atom,
    Dim,
    Function,
    Monomial,
    Terms,
    Undecided,
    as_int,
    high,
    low,
)
from atc.dims.text import plain


def minimum(*values: int) -> int:
    """Return the least of several extents."""
    return _extreme("min", values)


def maximum(*values: int) -> int:
    """Return the largest of several extents."""
    return _extreme("max", values)


def not_equal(a: int, b: int) -> int:
    """Return 1 where two extents differ, else 0."""
    if a == b:
        return 0
    difference = a - b
    if low(difference) > 0 or high(difference) < 0:
        return 1
    return atom_of(Function("unlike", (a, b)))


def equals(a: int, b: int) -> bool:
    """Return whether two extents are always the same.

    Raises Undecided where they are sometimes.
    """
    difference = not_equal(a, b)
    if isinstance(difference, Dim):
        raise Undecided(
            f"whether {plain(a)} equals {plain(b)} depends on the shape", hint=NARROWER
        )
    return not difference


def terms_of(value: int) -> dict[Monomial, int]:
    """Return the terms of an extent."""
    if isinstance(value, Dim):
        return dict(value.terms)
    return {(): value} if value else {}


def made(terms: Terms) -> int:
    """Return the extent of a polynomial."""
    kept = {m: c for m, c in terms.items() if c}
    if not any(kept):
        return kept.get((), 0)
    ordered = sorted(kept.items(), key=lambda t: (not t[0], [(a.text, p) for a, p in t[0]]))
    return as_int(Dim(tuple(ordered)))


def atom_of(atom: Atom) -> int:
    """Return the extent of an atom."""
    lowest, highest = atom_bounds(atom)
    return lowest if lowest == highest else as_int(Dim(((((atom, 1),), 1),)))


def added(a: int, b: int) -> int:
    """Return a + b."""
    total = terms_of(a)
    for monomial, factor in terms_of(b).items():
        total[monomial] = total.get(monomial, 0) + factor
    return made(total)


def multiplied(a: int, b: int) -> int:
    """Return a * b."""
    total: dict[Monomial, int] = {}
    for m, c in terms_of(a).items():
        for n, d in terms_of(b).items():
            both = join(m, n)
            total[both] = total.get(both, 0) + c * d
    return made(total)


def join(m: Monomial, n: Monomial) -> Monomial:
    """Return the product of two monomials."""
    if not m or not n:
        return m or n
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda p: p[0].text))


def divided(a: int, b: int) -> tuple[int, int]:
    """Return the floored quotient and the remainder of two extents; b is positive."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return divmod(a, b)
    if not b:
        raise ZeroDivisionError("an extent is divided by 0")
    shared, factor = _common([*terms_of(a).items(), *terms_of(b).items()])
    if shared or factor > 1:
        quotient, rest = divided(_over(a, shared, factor), _over(b, shared, factor))
        return quotient, multiplied(rest, made({shared: factor}))
    quotient, rest = _long_division(a, b)
    if rest == 0 or (low(rest) >= 0 and low(b - rest) > 0):
        return quotient, rest
    if not isinstance(b, Dim):
        return _by_constant(quotient, rest, b)
    return atom_of(Function("div", (a, b))), atom_of(Function("mod", (a, b)))


def _common(terms: Sequence[tuple[Monomial, int]]) -> tuple[Monomial, int]:
    """Return the largest monomial of positive atoms that divides all terms, and its factor."""
    shared = {a: p for a, p in terms[0][0] if atom_bounds(a)[0] > 0}
    for monomial, _ in terms:
        powers = dict(monomial)
        shared = {a: min(p, powers[a]) for a, p in shared.items() if a in powers}
    return tuple(shared.items()), gcd(*(c for _, c in terms))


def _over(value: int, shared: Monomial, factor: int) -> int:
    terms = {without(m, shared): c // factor for m, c in terms_of(value).items()}
    return made({m: c for m, c in terms.items() if m is not None})


def _by_constant(quotient: int, rest: int, b: int) -> tuple[int, int]:
    """Return quotient + rest / b and the remainder, in lowest terms."""
    terms = terms_of(rest)
    atom = _only_atom(rest - terms.get((), 0))
    if isinstance(atom, Function) and atom.fn == "div" and not isinstance(atom.args[1], Dim):
        n, p = atom.args  # (n / p + c) / q is (n + c p) / (p q)
        inner = (n + terms.get((), 0) * p) // (p * b)
        return quotient + inner, rest - inner * b
    common = gcd(b, *terms.values())
    shorter = made({m: c // common for m, c in terms.items()})
    if b == common:
        return quotient + shorter, 0
    below_zero = high(shorter) <= 0 and isinstance(shorter, Dim)
    if below_zero:  # floor(n / q) is -floor((-n + q - 1) / q)
        whole = -divided(b // common - 1 - shorter, b // common)[0]
    else:
        whole = atom_of(Function("div", (shorter, b // common)))
    return quotient + whole, rest - whole * b


def _long_division(a: int, b: int) -> tuple[int, int]:
    """Return q and r with a = q * b + r, by the first term of b."""
    divisor = terms_of(b)
    head = next(iter(sorted(divisor, key=_degree)))
    left, quotient, rest = terms_of(a), 0, 0
    while left:
        monomial = min(left, key=_degree)
        factor = left.pop(monomial)
        shared = without(monomial, head)
        times = factor // divisor[head] if shared is not None else 0
        if shared is None or not times or (factor % divisor[head] and monomial):
            rest = added(rest, made({monomial: factor}))
            continue
        step = made({shared: times})
        quotient = added(quotient, step)
        taken = terms_of(multiplied(step, b))
        left[monomial] = factor
        for m, c in taken.items():
            left[m] = left.get(m, 0) - c
        left = {m: c for m, c in left.items() if c}
        if monomial in left:  # the constant's own remainder
            rest = added(rest, made({monomial: left.pop(monomial)}))
    return quotient, rest


def _degree(monomial: Monomial) -> tuple[object, ...]:
    """Order monomials from the highest down: by total degree, then by text."""
    return (-sum(p for _, p in monomial), [(a.text, -p) for a, p in monomial])


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Return a monomial divided by another, None where it isn't divisible."""
    powers = dict(monomial)
    for atom, power in divisor:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((a, p) for a, p in powers.items() if p)


def without_atom(value: Dim, atom: Atom) -> int | None:
    """Return an extent divided by an atom, None where that isn't a factor of every term."""
    terms = {without(m, ((atom, 1),)): c for m, c in value.terms}
    return None if None in terms else made({m: c for m, c in terms.items() if m is not None})


def _extreme(fn: Literal["min", "max"], values: Sequence[int]) -> int:
    if not any(isinstance(value, Dim) for value in values):
        return min(values) if fn == "min" else max(values)
    flat: list[int] = []
    for value in values:
        atom = _only_atom(value)
        flat += atom.args if isinstance(atom, Function) and atom.fn == fn else (value,)
    kept: list[int] = []
    for value in dict.fromkeys(flat):
        kept = [k for k in kept if not _dominates(fn, value, k)]
        if not any(_dominates(fn, k, value) for k in kept):
            kept.append(value)
    if len(kept) == 1:
        return kept[0]
    return atom_of(Function(fn, tuple(sorted(kept, key=str))))


def _dominates(fn: str, a: int, b: int) -> bool:
    """Return whether `a` makes `b` superfluous."""
    return low(b - a if fn == "min" else a - b) >= 0


def _only_atom(value: int) -> Atom | None:
    if isinstance(value, Dim) and len(value.terms) == 1:
        monomial, factor = value.terms[0]
        if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    return None


def below(a: int, b: int) -> bool:
    """Return whether a < b; raises Undecided where the range holds both answers."""
    difference = a - b
    for bounds in (rough_bounds, bounds_of):
        lowest, highest = bounds(tuple(terms_of(difference).items()))
        if highest < 0:
            return True
        if lowest >= 0:
            return False
    raise Undecided(
        f"whether {plain(a)} is less than {plain(b)} depends on the shape",
        hint=NARROWER,
    )
