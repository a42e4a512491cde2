"""Value-range analysis: provable bounds of extents."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import product
from math import gcd, prod

from atc.dims.polynomial import (
    Atom,
    Function,
    Monomial,
    Polynomial,
    Symbol,
    Terms,
    added,
    canonical,
    join,
    multiplied,
    replaced,
    split,
    terms_of,
    without,
)

_DEPTHS = ((8, 3), (24, 2), (96, 1))
"""How many relaxations are tried one inside the other for a bound of up to so many atoms."""
_FEW = 24  # atoms that are all relaxed
_CORNERS = 3  # atoms of a polynomial whose corners are all tried
_ONE_OF_THEM = ("min", "max", "broadcast")  # functions whose value is one of their arguments
_TERMS = 64  # a polynomial with more terms isn't expanded for a bound


def lower_bound(value: int) -> int:
    """Return the lowest value of an extent."""
    return bounds_of(value)[0] if isinstance(value, Polynomial) else value


def upper_bound(value: int) -> int:
    """Return the highest value of an extent."""
    return bounds_of(value)[1] if isinstance(value, Polynomial) else value


@lru_cache(1 << 16)
def bounds_of(value: Polynomial) -> tuple[int, int]:
    """Return the lowest and highest value that can be proven of a polynomial."""
    return -_highest({m: -c for m, c in value.terms}), _highest(dict(value.terms))


@lru_cache(1 << 16)
def rough_bounds(value: Polynomial) -> tuple[int, int]:
    """Return bounds that are found at once, and hold."""
    terms = dict(value.terms)
    lows = dict.fromkeys((a for m in terms for a, _ in m), False)
    return -_highest_from({m: -c for m, c in terms.items()}, lows), _highest_from(terms, lows)


def atom_bounds(atom: Atom) -> tuple[int, int]:
    """Return the lowest and highest value of an atom."""
    if isinstance(atom, Symbol):
        return atom.low, upper_bound(atom.high)
    lows, highs = [lower_bound(a) for a in atom.args], [upper_bound(a) for a in atom.args]
    match atom.fn:
        case "min":
            return min(lows), min(highs)
        case "max":
            return max(lows), max(highs)
        case "broadcast":
            return min(lows), max(highs)
        case "ne":
            return 0, 1
        case "mod":
            return 0, max(highs[1] - 1, 0)
        case "div":
            divisors = (max(lows[1], 1), max(highs[1], 1))
            values = [n // d for n in (lows[0], highs[0]) for d in divisors]
            return min(values), max(values)


def _highest(terms: Terms, depth: int = _DEPTHS[0][1]) -> int:
    """Return an upper bound of a polynomial, with at most `depth` relaxations in one another."""
    return sum(_highest_of(part, min(depth, _depth(part))) for part in _independent(terms))


def _independent(terms: Terms) -> list[Terms]:
    """Return sums of which no two depend on one symbol: each has its bound by itself."""
    found: list[tuple[set[Symbol], dict[Monomial, int]]] = []
    for monomial, factor in terms.items():
        symbols, own = {s for atom, _ in monomial for s in atom.symbols}, {monomial: factor}
        apart = []
        for others, part in found:
            if symbols.isdisjoint(others):
                apart.append((others, part))
            else:
                symbols, own = symbols | others, part | own
        found = [*apart, (symbols, own)]
    return [part for _, part in found]


def _depth(terms: Terms) -> int:
    """Return how many relaxations are tried one inside the other."""
    atoms = len({atom for monomial in terms for atom, _ in monomial})
    return next((depth for most, depth in _DEPTHS if atoms <= most), 0)


def _highest_of(terms: Terms, depth: int) -> int:
    """Return an upper bound of a polynomial of which no part is independent of the rest."""
    best = min(_highest_by_intervals(terms), _highest_from_corners(terms))
    if depth:
        best = min(best, _highest_of_product(terms, depth, best))
        shorter = without_quotients(terms)
        if shorter is not None:
            best = min(best, _highest(shorter, depth - 1))
        for atom in _binding(terms):
            for relaxed, divisor in _relaxed(terms, atom):
                best = min(best, _highest(relaxed, depth - 1) // divisor)
            if isinstance(atom, Function) and atom.fn in _ONE_OF_THEM:
                cases = [_highest(replaced(terms, atom, terms_of(a)), depth - 1) for a in atom.args]
                best = min(best, max(cases))
    return best


def _highest_of_product(terms: Terms, depth: int, known: int) -> int:
    """Bound the factors of all terms and what they are multiplied by; `known` if there are none.

    That h * w isn't less than h * v is seen by w and v alone.
    """
    first, *others = (dict(m) for m in terms)
    shared = {
        a: min(p, *(m.get(a, 0) for m in others)) for a, p in first.items()
        if others and atom_bounds(a)[0] >= 0 and all(a in m for m in others)
    }  # fmt: skip
    number = gcd(*terms.values())
    if not shared and number == 1:
        return known
    factor = tuple(shared.items())
    rest = {without(m, factor): c // number for m, c in terms.items()}
    top = _highest({m: c for m, c in rest.items() if m is not None}, depth)
    most: int = prod(atom_bounds(a)[top > 0] ** p for a, p in factor)
    return top * number * most


def _binding(terms: Terms) -> list[Atom]:
    """Return the atoms that are worth relaxing: of many only those that bind several others.

    A sum of a hundred counts and of the best of them all falls apart with that last one alone.
    """
    atoms = list(dict.fromkeys(a for m in terms for a, _ in m))
    if len(atoms) <= _FEW:
        return atoms
    groups: dict[object, set[Atom]] = {}
    for monomial in terms:
        for atom, _ in monomial:
            for each in (monomial, *atom.symbols):
                groups.setdefault(each, set()).add(atom)
    met: dict[Atom, set[Atom]] = {}
    for group in groups.values():
        for atom in group:
            met.setdefault(atom, set()).update(group)
    return [atom for atom in atoms if len(met[atom]) > 2]


def without_quotients(terms: Terms) -> Terms | None:
    """Return a polynomial that is never less, where floor(n / q) * q gives way to n; else None."""
    for monomial, factor in terms.items():
        for atom, _ in monomial if factor > 0 else ():
            divided = _undivided(monomial, atom)
            if divided is not None:
                rest = {m: c for m, c in terms.items() if m != monomial}
                return canonical(added(rest, multiplied(divided, {(): factor})))
    return None


def _undivided(monomial: Monomial, atom: Atom) -> Terms | None:
    """Return a monomial that holds floor(n / q) * q with n in their place."""
    if not isinstance(atom, Function) or atom.fn != "div":
        return None
    if not isinstance(atom.args[1], Polynomial):
        return None
    ((divisor, factor), *more) = atom.args[1].terms
    others = without(monomial, ((atom, 1),))
    left = without(others, divisor) if others is not None else None
    if more or factor != 1 or left is None or lower_bound(atom.args[0]) < 0:
        return None
    if any(atom_bounds(a)[0] < 0 for a, _ in left):
        return None
    return multiplied(terms_of(atom.args[0]), {left: 1})


def _highest_by_intervals(terms: Terms) -> int:
    total = 0
    for monomial, factor in terms.items():
        ends = (1, 1)
        for atom, power in monomial:
            own = atom_bounds(atom)
            for _ in range(power):
                corners = [a * b for a in ends for b in own]
                ends = (min(corners), max(corners))
        total += max(factor * end for end in ends)
    return total


def _highest_from_corners(terms: Terms) -> int:
    """Bound a polynomial written in the distances of its atoms from one of their ends.

    From the lowest values, h * w - w, say, is seen to grow with both.
    """
    atoms = list(dict.fromkeys(a for m in terms for a, _ in m))
    ends = product((False, True), repeat=len(atoms)) if len(atoms) <= _CORNERS else ()
    tops = [dict(zip(atoms, each, strict=True)) for each in ends]
    return min(_highest_from(terms, top) for top in tops or [dict.fromkeys(atoms, False)])


def _highest_from(terms: Terms, top: Mapping[Atom, bool]) -> int:
    expanded: dict[Monomial, int] = {}
    for monomial, factor in terms.items():
        partial: dict[Monomial, int] = {(): factor}
        for atom, power in monomial:
            start, sign = atom_bounds(atom)[top[atom]], -1 if top[atom] else 1
            for _ in range(power):
                grown: dict[Monomial, int] = {}
                for m, c in partial.items():
                    both = join(m, ((atom, 1),))
                    grown[both] = grown.get(both, 0) + c * sign
                    grown[m] = grown.get(m, 0) + c * start
                partial = grown
        if len(expanded) + len(partial) > _TERMS:
            return _highest_by_intervals(terms)
        for m, c in partial.items():
            expanded[m] = expanded.get(m, 0) + c
    total = 0
    for monomial, factor in expanded.items():
        reach = prod(_width(a) ** p for a, p in monomial)
        total += factor * reach if factor > 0 or not monomial else 0
    return total


def _width(atom: Atom) -> int:
    lowest, highest = atom_bounds(atom)
    return highest - lowest


def _relaxed(terms: Terms, atom: Atom) -> Iterator[tuple[Terms, int]]:
    """Yield polynomials that are never less, times a divisor, without this atom.

    The atom gives way to something simpler on its far side: floor(n / q) lies between
    (n - q + 1) / q and n / q, a minimum is below each of its arguments, a count below its bound.
    """
    ups, downs = _neighbours(atom, {a: None for m in terms for a, _ in m})
    own, rest = split(terms, atom)
    rises = [c > 0 for c in own.values()]
    if (any(rises) and not ups) or (not all(rises) and not downs) or not (ups or downs):
        return
    for up, down in zip(ups or downs, downs or ups, strict=False):
        divisor = up[1]
        total: Terms = {m: c * divisor for m, c in rest.items()}
        for monomial, factor in own.items():
            others = without(monomial, ((atom, 1),))
            if others is None or any(a == atom or atom_bounds(a)[0] < 0 for a, _ in others):
                return
            side = up if factor > 0 else down
            total = added(total, multiplied(side[0], {others: factor}))
        yield canonical(total), divisor


_Fraction = tuple[Terms, int]
"""A polynomial, and the whole number that divides it."""


def _coarser(n: Terms, q: int, others: Iterable[Atom]) -> Iterator[_Fraction]:
    """Yield fractions whose floors are that of n / q, too, over quotients of the same by less."""
    for other in others:
        if isinstance(other, Function) and other.fn == "div":
            m, p = other.args
            if isinstance(p, Polynomial) or q % p or q == p:
                continue
            difference = canonical(added(n, {k: -c for k, c in terms_of(m).items()}))
            if not any(difference) and difference.get((), 0) % p == 0:
                yield {((other, 1),): 1, (): difference.get((), 0) // p}, q // p


def _neighbours(atom: Atom, others: Iterable[Atom]) -> tuple[list[_Fraction], list[_Fraction]]:
    """Return fractions above and below an atom, with one of the others in them, or none.

    A quarter, rounded down, lies beside half of a half that is: floor(n / 4) <= floor(n / 2) / 2.
    """
    if isinstance(atom, Symbol):
        return ([(terms_of(atom.high), 1)], []) if isinstance(atom.high, Polynomial) else ([], [])
    match atom.fn:
        case "div" if not isinstance(atom.args[1], Polynomial):
            n, q = terms_of(atom.args[0]), atom.args[1]
            found = [(n, q), *_coarser(n, q, others)]
            return found, [(added(m, {(): 1 - p}), p) for m, p in found]
        case "min":
            return [(terms_of(a), 1) for a in atom.args], []
        case "max":
            return [], [(terms_of(a), 1) for a in atom.args]
        case _:
            return [], []
