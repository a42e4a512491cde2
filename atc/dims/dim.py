"""Extents that are known when the network runs: integers with a range, as polynomials.

A `Dim` stands where an `int` may: in shapes, strides, offsets and loops. Arithmetic gives exact
integer polynomials over the network's symbols (an axis of an input, a count that a kernel writes),
with floor division, remainder, minimum and maximum as further atoms. What no longer varies is an
`int` again, so a `Dim` never equals one.

Nothing takes a value by accident: a `Dim` isn't an `int`. Comparing for order asks the bounds, and
raises `Undecided` where the range holds both answers; two unlike extents count as different.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import TYPE_CHECKING, Literal

from atc.dims.bounds import atom_bounds, bounds_of, lower_bound, rough_bounds, upper_bound
from atc.dims.polynomial import (
    Atom,
    Call,
    Function,
    Monomial,
    Polynomial,
    Symbol,
    Terms,
    added,
    canonical,
    in_c,
    multiplied,
    sum_in_c,
    terms_of,
    united,
    without,
)
from atc.dims.text import plain, wrapped
from atc.dims.undecided import NARROWER, Undecided

if TYPE_CHECKING:

    class _Integer(Polynomial, int):
        """The type that checkers are told of: a `Dim` stands where an `int` may."""
else:
    _Integer = Polynomial


class Dim(_Integer):
    """An extent that varies: a polynomial, never a constant. Make one with `dim` or arithmetic."""

    def __bool__(self) -> bool:
        return True

    @property
    def bounds(self) -> tuple[int, int]:
        """The lowest and highest values that can be proven."""
        return bounds_of(self)

    # ---- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _added(self, other) if known else NotImplemented

    def __mul__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _multiplied(self, other) if known else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> int:
        return _multiplied(self, -1)

    def __pos__(self) -> int:
        return self

    def __sub__(self, other: int) -> int:
        return self + -1 * other if isinstance(other, int | Dim) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return _added(other, -self) if isinstance(other, int | Dim) else NotImplemented

    def __floordiv__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _divided(self, other)[0] if known else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _divided(other, self)[0] if known else NotImplemented

    def __mod__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _divided(self, other)[1] if known else NotImplemented

    def __rmod__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return _divided(other, self)[1] if known else NotImplemented

    def __divmod__(self, other: int) -> tuple[int, int]:
        known = isinstance(other, int | Dim)
        return _divided(self, other) if known else NotImplemented

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        known = isinstance(other, int | Dim)
        return _divided(other, self) if known else NotImplemented

    def __pow__(self, other: int) -> int:  # type: ignore[override]  # an int has overloads
        return prod([self] * other)

    def __abs__(self) -> int:
        return maximum(self, -self)

    # ---- order --------------------------------------------------------------------------------

    def __lt__(self, other: int) -> bool:
        return _below(self, other)

    def __le__(self, other: int) -> bool:
        return _below(self, other + 1)

    def __gt__(self, other: int) -> bool:
        return _below(other, self)

    def __ge__(self, other: int) -> bool:
        return _below(other, self + 1)


def dim(symbol: Symbol) -> int:
    """Return the extent that a symbol stands for."""
    if lower_bound(symbol.high) == upper_bound(symbol.high) == symbol.low:
        return symbol.low
    return Dim(((((symbol, 1),), 1),))


def made(terms: Terms) -> int:
    """Return the extent of a polynomial."""
    kept = canonical(united(canonical(terms)))
    return Dim(tuple(kept.items())) if any(kept) else kept.get((), 0)


def atom_of(atom: Atom) -> int:
    """Return the extent of an atom."""
    lowest, highest = atom_bounds(atom)
    return lowest if lowest == highest else Dim(((((atom, 1),), 1),))


def applied(fn: Call, *args: int) -> int:
    """Return the extent of a function of extents, simplified by its bounds alone."""
    return atom_of(Function(fn, args, _call_in_c(fn, args, [in_c(a) for a in args])))


def _is_rounded_down(args: Sequence[int]) -> bool:
    """Return whether C divides so, too: of what is not negative, by what is positive."""
    return lower_bound(args[0]) >= 0 and lower_bound(args[1]) > 0


def _call_in_c(fn: Call, args: Sequence[int], texts: Sequence[str]) -> str:
    match fn:
        case "ne":
            operator = "!="
        case "div" | "mod" if _is_rounded_down(args):
            operator = "/" if fn == "div" else "%"
        case _:
            return f"atc_{fn}({', '.join(texts)})"
    return f"({wrapped(texts[0])} {operator} {wrapped(texts[1])})"


def written(value: int, name: Callable[[Symbol], str]) -> str:
    """Return an extent as C in which symbols have other names than entries of the table `d`."""

    def text(atom: Atom) -> str:
        if isinstance(atom, Symbol):
            return name(atom)
        return _call_in_c(atom.fn, atom.args, [written(a, name) for a in atom.args])

    return sum_in_c(value.terms, text) if isinstance(value, Dim) else str(value)


def _added(a: int, b: int) -> int:
    return made(added(terms_of(a), terms_of(b)))


def _multiplied(a: int, b: int) -> int:
    return made(multiplied(terms_of(a), terms_of(b)))


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
    lowest, highest = lower_bound(difference), upper_bound(difference)
    if lowest == highest == 0:
        return 0
    if lowest > 0 or highest < 0:
        return 1
    return applied("ne", a, b)


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


def _divided(a: int, b: int) -> tuple[int, int]:
    """Return the floored quotient and the remainder of two extents; b is positive."""
    if not isinstance(a, Dim) and not isinstance(b, Dim):
        return divmod(a, b)
    if not b:
        raise ZeroDivisionError("an extent is divided by 0")
    shared, factor = _common([*terms_of(a).items(), *terms_of(b).items()])
    if shared or factor > 1:
        quotient, rest = _divided(_over(a, shared, factor), _over(b, shared, factor))
        return quotient, rest * made({shared: factor})
    quotient, rest = _long_division(a, b)
    if rest == 0 or (lower_bound(rest) >= 0 and lower_bound(b - rest) > 0):
        return quotient, rest
    if not isinstance(b, Dim):
        return _by_constant(quotient, rest, b)
    return applied("div", a, b), applied("mod", a, b)


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
    below_zero = upper_bound(shorter) <= 0 and isinstance(shorter, Dim)
    if below_zero:  # floor(n / q) is -floor((-n + q - 1) / q)
        whole = -_divided(b // common - 1 - shorter, b // common)[0]
    else:
        whole = applied("div", shorter, b // common)
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
            rest = rest + made({monomial: factor})
            continue
        step = made({shared: times})
        quotient = quotient + step
        taken = terms_of(step * b)
        left[monomial] = factor
        for m, c in taken.items():
            left[m] = left.get(m, 0) - c
        left = {m: c for m, c in left.items() if c}
        if monomial in left:  # the constant's own remainder
            rest = rest + made({monomial: left.pop(monomial)})
    return quotient, rest


def _degree(monomial: Monomial) -> tuple[object, ...]:
    """Order monomials from the highest down: by total degree, then by text."""
    return (-sum(p for _, p in monomial), [(a.text, -p) for a, p in monomial])


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
    return applied(fn, *sorted(kept, key=str))


def _dominates(fn: str, a: int, b: int) -> bool:
    """Return whether `a` makes `b` superfluous."""
    return lower_bound(b - a if fn == "min" else a - b) >= 0


def _only_atom(value: int) -> Atom | None:
    if isinstance(value, Dim) and len(value.terms) == 1:
        monomial, factor = value.terms[0]
        if factor == 1 and len(monomial) == 1 and monomial[0][1] == 1:
            return monomial[0][0]
    return None


def _below(a: int, b: int) -> bool:
    """Return whether a < b; raises Undecided where the range holds both answers."""
    difference = a - b
    if not isinstance(difference, Dim):
        return difference < 0
    for bounds in (rough_bounds, bounds_of):
        lowest, highest = bounds(difference)
        if highest < 0:
            return True
        if lowest >= 0:
            return False
    raise Undecided(
        f"whether {plain(a)} is less than {plain(b)} depends on the shape",
        hint=NARROWER,
    )
