"""Extents that are known when the network runs: integers with a range, as polynomials.

A `Dim` stands where an `int` may: in shapes, strides, offsets and loops. Arithmetic gives exact
integer polynomials over the network's symbols (an axis of an input, a count that a kernel writes),
with floor division, remainder, minimum and maximum as further atoms. What no longer varies is an
`int` again, so a `Dim` never equals one.

Nothing takes a value by accident: a `Dim` isn't an `int`. Comparing for order asks the bounds, and
raises `Undecided` where the range holds both answers; two unlike extents count as different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal, TypeVar, cast

from atc.errors import UnsupportedError

T = TypeVar("T")

NARROWER = "give a narrower range in --input_shape, or list shapes with --dynamic_dims"
RELATED = (
    'say how extents belong together, e.g. --input_shape="ids:1,s=1~8;past:1,p=0~64;mask:1,s+p", '
    "or give narrower ranges"
)


@dataclass(frozen=True)
class Range:
    """The extents that an axis may have when the network runs, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}~{self.high}"


RANGES = "atc.ranges"
"""Where an imported model's input says the ranges of its axes: None for those that are fixed."""


class Undecided(UnsupportedError):
    """Shapes inside the range would need different code."""


def decided(find: Callable[[], T]) -> T | None:
    """Return what a function finds; None where that depends on the shape."""
    try:
        return find()
    except Undecided:
        return None


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
        return (self.high.symbols if isinstance(self.high, Dim) else frozenset()) | {self}


@dataclass(frozen=True)
class Function:
    """A function of extents that is no polynomial.

    `div` and `mod` are floored. `unlike` is 1 where its two arguments differ, else 0. `broadcast`
    is what two axes become that are broadcast to each other: the first one unless that is 1.
    """

    fn: Literal["div", "mod", "min", "max", "unlike", "broadcast"]
    args: tuple[int, ...]

    @cached_property
    def text(self) -> str:
        """The call in C."""
        args = [text.in_c(a) for a in self.args]
        plain = self.fn in ("div", "mod") and low(self.args[0]) >= 0 and low(self.args[1]) > 0
        if plain:
            sign = "/" if self.fn == "div" else "%"
            return f"({text.wrapped(args[0])} {sign} {text.wrapped(args[1])})"
        if self.fn == "unlike":
            return f"({text.wrapped(args[0])} != {text.wrapped(args[1])})"
        return f"atc_{self.fn}({', '.join(args)})"

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that the arguments depend on."""
        return frozenset().union(*(a.symbols for a in self.args if isinstance(a, Dim)))


Atom = Symbol | Function
Monomial = tuple[tuple[Atom, int], ...]
"""Atoms with their powers, in order of their text; empty for the constant."""
Terms = Mapping[Monomial, int]


@dataclass(frozen=True, eq=False)
class Dim:
    """An extent that varies: a polynomial, never a constant. Make one with `dim` or arithmetic."""

    terms: tuple[tuple[Monomial, int], ...]

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dim) and self._hash == other._hash and self.terms == other.terms

    @cached_property
    def text(self) -> str:
        """The value as C over the table `d`."""
        return " + ".join(text.term(m, c) for m, c in self.terms).replace("+ -", "- ")

    def __str__(self) -> str:
        return f"⟨{self.text}⟩"

    def __repr__(self) -> str:
        return str(self)

    def __bool__(self) -> bool:
        return True

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest and highest values that can be proven."""
        return bounds.bounds_of(self.terms)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """The symbols that it depends on."""
        return frozenset().union(*(atom.symbols for m, _ in self.terms for atom, _ in m))

    # ---- arithmetic ---------------------------------------------------------------------------

    def __add__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.added(as_int(self), other) if known else NotImplemented

    def __mul__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.multiplied(as_int(self), other) if known else NotImplemented

    __radd__ = __add__
    __rmul__ = __mul__

    def __neg__(self) -> int:
        return algebra.multiplied(as_int(self), -1)

    def __pos__(self) -> int:
        return as_int(self)

    def __sub__(self, other: int) -> int:
        return self + -1 * other if isinstance(other, int | Dim) else NotImplemented

    def __rsub__(self, other: int) -> int:
        return algebra.added(other, -self) if isinstance(other, int | Dim) else NotImplemented

    def __floordiv__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.divided(as_int(self), other)[0] if known else NotImplemented

    def __rfloordiv__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.divided(other, as_int(self))[0] if known else NotImplemented

    def __mod__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.divided(as_int(self), other)[1] if known else NotImplemented

    def __rmod__(self, other: int) -> int:
        known = isinstance(other, int | Dim)
        return algebra.divided(other, as_int(self))[1] if known else NotImplemented

    def __divmod__(self, other: int) -> tuple[int, int]:
        known = isinstance(other, int | Dim)
        return algebra.divided(as_int(self), other) if known else NotImplemented

    def __rdivmod__(self, other: int) -> tuple[int, int]:
        known = isinstance(other, int | Dim)
        return algebra.divided(other, as_int(self)) if known else NotImplemented

    def __pow__(self, other: int) -> int:
        return prod([as_int(self)] * other)

    def __abs__(self) -> int:
        return algebra.maximum(as_int(self), -self)

    # ---- order --------------------------------------------------------------------------------

    def __lt__(self, other: int) -> bool:
        return algebra.below(as_int(self), other)

    def __le__(self, other: int) -> bool:
        return algebra.below(as_int(self), other + 1)

    def __gt__(self, other: int) -> bool:
        return algebra.below(other, as_int(self))

    def __ge__(self, other: int) -> bool:
        return algebra.below(other, as_int(self) + 1)


def as_int(value: Dim | int) -> int:
    """Return an extent as the type by which shapes go."""
    return cast(int, value)


def dim(symbol: Symbol) -> int:
    """Return the extent that a symbol stands for."""
    if low(symbol.high) == high(symbol.high) == symbol.low:
        return symbol.low
    return as_int(Dim(((((symbol, 1),), 1),)))


def low(value: int) -> int:
    """Return the lowest value of an extent."""
    return value.bounds[0] if isinstance(value, Dim) else value


def high(value: int) -> int:
    """Return the highest value of an extent."""
    return value.bounds[1] if isinstance(value, Dim) else value

from atc.dims import algebra, bounds, text  # noqa: E402 (what Dim is made of needs Dim)
