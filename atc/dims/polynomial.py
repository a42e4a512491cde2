"""Exact integer polynomials in canonical form, and their text in C: what extents are made of.

They know no bounds: what a function's text depends on of these is decided where one is made.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

Call = Literal["div", "mod", "min", "max", "ne", "broadcast"]
"""Functions of extents that are no polynomials.

`div` and `mod` are floored. `ne` is 1 where its two arguments differ, else 0. `broadcast` is
what two axes become that are broadcast to each other: the first one unless that is 1.
"""


@dataclass(frozen=True)
class Symbol:
    """A run-time extent: entry `index` of the network's table of dims, from `low` to `high`.

    `high` may depend on other symbols. `label` names it to people. One that is `given` is an axis
    of an input; any other is written by a kernel.
    """

    index: int
    label: str
    low: int
    high: int
    given: bool = True

    @cached_property
    def text(self) -> str:
        """The symbol in C."""
        return f"d[{self.index}]"

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbol and those that its highest value depends on."""
        return (self.high.symbols if isinstance(self.high, Polynomial) else frozenset()) | {self}


@dataclass(frozen=True)
class Function:
    """A function of extents; `text` is the call in C. See `applied`, which makes them."""

    fn: Call
    args: tuple[int, ...]
    text: str = field(compare=False, repr=False)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that the arguments depend on."""
        return frozenset().union(*(a.symbols for a in self.args if isinstance(a, Polynomial)))


Atom = Symbol | Function
Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers, in order of their text; empty for the constant."""
Terms = Mapping[Monomial, int]


@dataclass(frozen=True, eq=False)
class Polynomial:
    """A polynomial in canonical form."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Polynomial)
            and self._hash == other._hash
            and self.terms == other.terms
        )

    @cached_property
    def text(self) -> str:
        """The value as C over the table `d`."""
        return sum_in_c(self.terms, lambda atom: atom.text)

    def __str__(self) -> str:
        return f"⟨{self.text}⟩"

    def __repr__(self) -> str:
        return str(self)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it depends on."""
        return frozenset().union(*(atom.symbols for m, _ in self.terms for atom, _ in m))


def terms_of(value: int) -> dict[Monomial, int]:
    """Return the terms of an extent."""
    if isinstance(value, Polynomial):
        return dict(value.terms)
    return {(): value} if value else {}


def canonical(terms: Terms) -> dict[Monomial, int]:
    """Return terms in order, without those that are 0."""
    kept = [term for term in terms.items() if term[1]]
    return dict(sorted(kept, key=lambda t: (not t[0], [(a.text, p) for a, p in t[0]])))


def added(a: Terms, b: Terms) -> Terms:
    """Return a + b, in any order."""
    total = dict(a)
    for monomial, factor in b.items():
        total[monomial] = total.get(monomial, 0) + factor
    return total


def multiplied(a: Terms, b: Terms) -> Terms:
    """Return a * b, in any order."""
    total: dict[Monomial, int] = {}
    for m, c in a.items():
        for n, d in b.items():
            both = join(m, n)
            total[both] = total.get(both, 0) + c * d
    return total


def join(m: Monomial, n: Monomial) -> Monomial:
    """Return the product of two monomials."""
    if not m or not n:
        return m or n
    powers = dict(m)
    for atom, power in n:
        powers[atom] = powers.get(atom, 0) + power
    return tuple(sorted(powers.items(), key=lambda p: p[0].text))


def without(monomial: Monomial, divisor: Monomial) -> Monomial | None:
    """Return a monomial divided by another, None where it isn't divisible."""
    powers = dict(monomial)
    for atom, power in divisor:
        if powers.get(atom, 0) < power:
            return None
        powers[atom] -= power
    return tuple((a, p) for a, p in powers.items() if p)


def split(terms: Terms, atom: Atom) -> tuple[Terms, Terms]:
    """Return the terms that hold an atom, and the others."""
    own = {m: c for m, c in terms.items() if any(a == atom for a, _ in m)}
    return own, {m: c for m, c in terms.items() if m not in own}


def replaced(terms: Terms, atom: Atom, value: Terms) -> Terms:
    """Return a polynomial with a value in the place of an atom."""
    own, total = split(terms, atom)
    for monomial, factor in own.items():
        product: Terms = {tuple((a, p) for a, p in monomial if a != atom): factor}
        for _ in range(dict(monomial)[atom]):
            product = multiplied(product, value)
        total = added(total, product)
    return canonical(total)


def united(terms: Terms) -> Terms:
    """Return a polynomial with one atom for all extremes of two values that are as far apart.

    max(0, n) - max(0, -n) is n; the least and the largest of two are what both add up to.
    """
    pairs = [
        a for a in dict.fromkeys(a for m in terms for a, _ in m)
        if isinstance(a, Function) and a.fn in ("min", "max") and len(a.args) == 2
    ]  # fmt: skip
    if len(pairs) < 2:
        return terms
    positive: dict[frozenset[tuple[Monomial, int]], Terms] = {}
    """The larger of 0 and a difference, as the first atom of those terms has it."""
    for atom in pairs:
        first, second = map(terms_of, atom.args)
        both = added(first, second)
        own: Terms = {((atom, 1),): 1}
        ahead = frozenset(_less(first, second).items())
        behind = frozenset(_less(second, first).items())
        if ahead in positive or behind in positive:
            known = ahead in positive
            largest = added(second, positive[ahead]) if known else added(first, positive[behind])
            value = largest if atom.fn == "max" else _less(both, largest)
            terms = replaced(terms, atom, canonical(value))
        else:
            positive[ahead] = _less(own if atom.fn == "max" else _less(both, own), second)
    return terms


def _less(a: Terms, b: Terms) -> Terms:
    return canonical(added(a, {m: -c for m, c in b.items()}))


def in_c(value: int) -> str:
    """Return an extent as C."""
    return value.text if isinstance(value, Polynomial) else str(value)


def sum_in_c(terms: Sequence[tuple[Monomial, int]], text: Callable[[Atom], str]) -> str:
    """Return terms as C, with the atoms as `text` writes them."""
    return " + ".join(_term_in_c(m, c, text) for m, c in terms).replace("+ -", "- ")


def _term_in_c(monomial: Monomial, factor: int, text: Callable[[Atom], str]) -> str:
    if not monomial:
        return str(factor)
    atoms = " * ".join(text(a) for a, power in monomial for _ in range(power))
    if factor == 1:
        return atoms
    return f"-{atoms}" if factor == -1 else f"{factor} * {atoms}"
