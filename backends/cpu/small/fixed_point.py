"""Sums and products of bytes in fixed point, with the bits of the floats that define them.

What is rounded to a byte is often a sum of a few bytes, each times a scale, or a product of two.
That is one sum of integers, in steps of a small part of a byte. Such a step errs by a known bound,
and so do the floats; only where both together may reach the middle between two bytes, which
decides what is rounded to, is the definition itself computed. So all targets have the same bits,
and cores without hardware for floats hardly ever compute one.

Two bytes have 65,536 values in all. Where some weights and a start give the definition's result
for each of them, which is found out when compiling, nothing else is computed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, floor

from atc.backends.cpu.small.exact_weights import exact_steps
from atc.backends.cpu.small.rounded import ROUNDING, Rounded, rounded_byte
from atc.backends.cpu.small.steps import FACTOR, Steps, plus
from atc.backends.render.expr import render_expr
from atc.ir.expr import Call, Const, Expr, Input, cast, rewritten
from atc.ir.graph import DType
from atc.ir.ops.blocked import BYTES

HALF_ULP = Fraction(1, 1 << 24)
"""The largest error of a float operation, relative to its result."""
FINEST = 20
"""A byte has at most 2^20 steps."""
COARSEST = 8
"""With fewer steps than 2^8, too much would be near a middle."""
FEWEST = Fraction(1, 1 << 100)

Interval = tuple[int, int]
Terms = dict[tuple[int, ...], Fraction]
"""Coefficients by the numbers of the atoms that are multiplied; () is the constant."""


@dataclass(frozen=True)
class FixedPoint:
    """A byte `clamp(round(value) + zero)` of a few whole numbers, its atoms.

    `value` reads atom k as Input(FLOAT, k).
    """

    atoms: tuple[Expr, ...]
    value: Expr
    terms: Terms
    bits: int
    offset: int
    """What is added to the value, so that no sum is negative."""
    near: int
    """Steps from a middle within which the definition is computed."""
    rounded: Rounded
    ranges: tuple[Interval, ...]
    """Between which numbers each atom lies."""

    @property
    def steps(self) -> Steps:
        """The computation of the byte: by weights that always do, or with a look at the middles."""
        start, zeros, scales = self.parts
        exact = exact_steps(
            self.value, scales, start, zeros, self.bits, self.near, self.ranges, self.rounded
        )
        return exact or self._guarded()

    @property
    def parts(self) -> tuple[Fraction, tuple[int, ...], tuple[Fraction, ...]]:
        """The constant, the zero points of a product's factors, and the scales."""
        start, pair = self.terms.get((), Fraction(0)), _pair(self.terms)
        if pair is not None:
            _, scale, zeros, rest = pair
            return rest, zeros, (scale,)
        scales = (self.terms.get((k,), Fraction(0)) for k in range(len(self.atoms)))
        return start, (), tuple(scales)

    def lines(self, names: Sequence[str], prefix: str) -> tuple[list[str], str]:
        """Return the C lines and the stored value, of atoms in INT32 variables."""
        steps = self.steps
        if not steps.guard:
            return steps.lines(names, prefix)
        fine, whole = f"{prefix}_fine", f"{prefix}_whole"
        read = lambda k: f"(float){names[k]}"  # noqa: E731
        own, text = render_expr(self.value, read, f"{prefix}_f", ROUNDING)
        lines = [
            f"const int32_t {fine} = {steps.total(names)};",
            f"int32_t {whole} = q_down({fine}, {self.bits}){plus(steps.zero)};",
            f"if (((uint32_t){fine} & {steps.guard}u) == 0) {{",
            *(f"  {line}" for line in own),
            f"  {whole} = q_round({text}){plus(self.rounded.zero)};",
            "}",
        ]
        return lines, steps.byte(whole)

    def _guarded(self) -> Steps:
        """Return rounded weights, with the definition near a middle.

        What lies within `near` of one lies in the first steps of a byte, of a power of two.
        """
        start, zeros, scales = self.parts
        shift = 32 - FACTOR if zeros else 0
        bits, ahead = self.bits, 1 << (self.near - 1).bit_length()
        weights = tuple(round(c * (1 << (bits + shift))) for c in scales)
        whole = self.offset + abs(self.rounded.zero) + 2
        folds = whole << bits < 1 << 31
        first = round((start + Fraction(1, 2)) * (1 << bits)) + ahead
        guard = (1 << bits) - 2 * ahead
        return Steps(weights, first, bits, zeros, 0, guard, folds, self.rounded)


def fixed_point(expr: Expr, bounds: Callable[[Expr], Interval | None]) -> FixedPoint | None:
    """Return an expression that becomes a byte in fixed point; None where it isn't of the kind.

    `bounds` gives the range of an atom; None where an expression is no atom.
    """
    found = rounded_byte(expr)
    if found is None or found.value.dtype is not DType.FLOAT:
        return None
    atoms: list[Expr] = []
    ranges: list[Interval] = []

    def atom(e: Expr) -> int | None:
        known = bounds(e)
        if known is None:
            return None
        if e not in atoms:
            atoms.append(e)
            ranges.append(known)
        return atoms.index(e)

    whole = _polynomial(found.value, atom, ranges)
    if whole is None or not atoms:
        return None
    terms, error = whole
    terms = {key: c for key, c in terms.items() if c or not key}
    if not any(terms.keys() - {()}):
        return None
    most = _magnitude(terms, ranges)
    products = [key for key in terms if len(key) > 1]
    pair = _pair(terms)
    if products and pair is None:
        return None
    offset = ceil(most) + 1
    room = 2 * offset + 2
    bits = min(FINEST, 31 - room.bit_length())
    if pair is None:
        steps = sum((max(map(abs, ranges[k])) for k in range(len(ranges))), 1)
        wrong = Fraction(steps, 2) + 1
    else:
        (i, j), scale, zeros, _ = pair
        spans = [max(abs(v - z) for v in ranges[k]) for k, z in zip((i, j), zeros, strict=True)]
        span = spans[0] * spans[1]
        while bits >= COARSEST and abs(scale) * (1 << (bits + 32 - FACTOR)) >= (1 << 31) - 1:
            bits -= 1
        if span << FACTOR >= 1 << 31:
            return None
        wrong = Fraction(span << FACTOR, 1 << 33) + 3
    if bits < COARSEST:
        return None
    near = ceil(error * (1 << bits) + wrong) + 1
    if near * 16 > 1 << bits:
        return None
    value = _of_atoms(found.value, atoms)
    return FixedPoint(tuple(atoms), value, terms, bits, offset, near, found, tuple(ranges))


def _polynomial(
    expr: Expr, atom: Callable[[Expr], int | None], ranges: list[Interval]
) -> tuple[Terms, Fraction] | None:
    """Return the exact coefficients of a float expression and a bound of its rounding errors."""
    match expr:
        case Const():
            value = float(expr.value)
            return ({(): Fraction(value)}, Fraction(0)) if abs(value) < 2.0**100 else None
        case Call(fn="Cast", dtype=DType.FLOAT, args=(x,)) if (k := atom(x)) is not None:
            return {(): Fraction(0), (k,): Fraction(1)}, Fraction(0)
        case _ if (k := atom(expr)) is not None:
            return {(): Fraction(0), (k,): Fraction(1)}, Fraction(0)
        case Call(fn="Div", dtype=DType.FLOAT, args=(a, Const() as divisor)):
            dividend, by = _polynomial(a, atom, ranges), float(divisor.value)
            if dividend is None or not 1 <= abs(by) < 2.0**24:
                return None
            terms = {key: c / Fraction(by) for key, c in dividend[0].items()}
            wrong = dividend[1] / abs(Fraction(by))
            return terms, wrong + (_magnitude(terms, ranges) + wrong) * HALF_ULP + FEWEST
        case Call(fn="Add" | "Sub" | "Mul", dtype=DType.FLOAT, args=(a, b)):
            first, second = _polynomial(a, atom, ranges), _polynomial(b, atom, ranges)
        case _:
            return None
    if first is None or second is None:
        return None
    (p, wrong_p), (q, wrong_q) = first, second
    if expr.fn == "Mul":
        terms = _product(p, q)
        size_p, size_q = _magnitude(p, ranges), _magnitude(q, ranges)
        wrong = wrong_p * size_q + wrong_q * size_p + wrong_p * wrong_q
    else:
        sign = 1 if expr.fn == "Add" else -1
        keys = dict.fromkeys((*p, *q))
        terms = {key: p.get(key, Fraction(0)) + sign * q.get(key, Fraction(0)) for key in keys}
        wrong = wrong_p + wrong_q
    if any(len(key) > 2 for key in terms):
        return None
    size = _magnitude(terms, ranges) + wrong
    if size > 1 << 22:
        return None
    exact = all(c.denominator == 1 for c in terms.values()) and not wrong
    return terms, wrong + (0 if exact else size * HALF_ULP + FEWEST)


def _product(p: Terms, q: Terms) -> Terms:
    terms: Terms = {}
    for (i, a), (j, b) in product(p.items(), q.items()):
        key = tuple(sorted((*i, *j)))
        terms[key] = terms.get(key, Fraction(0)) + a * b
    return terms


def _magnitude(terms: Terms, ranges: Sequence[Interval]) -> Fraction:
    """Return a bound of each partial sum of the terms."""
    total = Fraction(0)
    for key, c in terms.items():
        size = abs(c)
        for k in key:
            size *= max(map(abs, ranges[k]))
        total += size
    return total


def _pair(
    terms: Terms,
) -> tuple[tuple[int, int], Fraction, tuple[int, int], Fraction] | None:
    """Return `scale * (x_i - z_i) * (x_j - z_j) + rest` as (i, j), scale, zero points and rest.

    None where the terms are no such product.
    """
    products = [key for key, c in terms.items() if len(key) == 2 and c]
    if len(products) != 1 or any(k not in products[0] for key in terms for k in key):
        return None
    i, j = products[0]
    scale = terms[i, j]
    if i == j:
        return None
    zeros = [-terms.get((k,), Fraction(0)) / scale for k in (j, i)]
    if any(z.denominator > 1 for z in zeros):
        return None
    rest = terms.get((), Fraction(0)) - scale * zeros[0] * zeros[1]
    return (i, j), scale, (floor(zeros[0]), floor(zeros[1])), rest


def _of_atoms(value: Expr, atoms: Sequence[Expr]) -> Expr:
    """Return the value with Input(FLOAT, k) in place of atom k, cast to float or not."""
    done: dict[Expr, Expr] = {}
    for k, e in enumerate(atoms):
        done[e] = done[cast(e, DType.FLOAT)] = Input(DType.FLOAT, k)
    return rewritten(value, known=done)


def byte_bounds(e: Expr) -> Interval | None:
    """Return the bounds of an operand of bytes."""
    if isinstance(e, Input) and e.dtype in BYTES:
        return (-128, 127) if e.dtype is DType.INT8 else (0, 255)
    return None
