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
from functools import lru_cache
from itertools import product
from math import ceil, floor

import numpy as np
import numpy.typing as npt

from atc.backends.cpu.small.rounded import Rounded, rounded_byte
from atc.backends.render.expr import render_expr
from atc.errors import InternalError
from atc.ir.expr import Call, Const, Expr, Input, cast, walk
from atc.ir.graph import Array, DType
from atc.ir.ops.blocked import BYTES

HALF_ULP = Fraction(1, 1 << 24)
"""The largest error of a float operation, relative to its result."""
FINEST = 20
"""A byte has at most 2^20 steps."""
COARSEST = 8
"""With fewer steps than 2^8, too much would be near a middle."""
FACTOR = 13
"""Bits by which a product of two bytes is shifted up before its high word is taken."""
TRIED = 3
"""Steps from a scale within which weights are tried."""
EVEN = (0, 1, 16, 64, 256, 1024)
"""What is tried where results are ties, of steps of a byte."""
LARGE = 1 << 40
FEWEST = Fraction(1, 1 << 100)

Interval = tuple[int, int]
Integers = npt.NDArray[np.int64]
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
        """How the byte is computed: by weights that always do, or with a look at the middles."""
        terms = tuple(self.terms.items())
        exact = _exact(self.value, terms, self.bits, self.near, self.ranges, self.rounded)
        return exact or self._guarded()

    def lines(self, names: Sequence[str], prefix: str) -> tuple[list[str], str]:
        """Return the C lines and the stored value, of atoms in INT32 variables."""
        steps = self.steps
        if not steps.guard:
            return steps.lines(names, prefix)
        fine, whole = f"{prefix}_fine", f"{prefix}_whole"
        own, text = render_expr(self.value, lambda k: f"(float){names[k]}", f"{prefix}_f")
        text = f"q_round({text}){_plus(self.rounded.zero)}"
        turned = [line.replace("rintf(", "q_rounded(") for line in (*own, text)]
        lines = [
            f"const int32_t {fine} = {steps.total(names)};",
            f"int32_t {whole} = q_down({fine}, {self.bits}){_plus(steps.zero)};",
            f"if (((uint32_t){fine} & {steps.guard}u) == 0) {{",
            *(f"  {line}" for line in turned[:-1]),
            f"  {whole} = {turned[-1]};",
            "}",
        ]
        return lines, steps.byte(whole)

    def _guarded(self) -> Steps:
        """Return rounded weights, with the definition near a middle.

        What lies within `near` of one lies in the first steps of a byte, of a power of two.
        """
        start, pair, shift = self.terms.get((), Fraction(0)) + Fraction(1, 2), _pair(self.terms), 0
        zeros: tuple[int, ...] = ()
        if pair is None:
            count = len(self.atoms)
            scales = [self.terms.get((k,), Fraction(0)) for k in range(count)]
        else:
            _, scale, zeros, rest = pair
            start, scales, shift = rest + Fraction(1, 2), [scale], 32 - FACTOR
        bits, ahead = self.bits, 1 << (self.near - 1).bit_length()
        weights = tuple(round(c * (1 << (bits + shift))) for c in scales)
        whole = self.offset + abs(self.rounded.zero) + 2
        folds = whole << bits < 1 << 31
        first = round(start * (1 << bits)) + ahead
        guard = (1 << bits) - 2 * ahead
        return Steps(weights, first, bits, zeros, 0, guard, folds, self.rounded)


def fixed_point(expr: Expr, bounds: Callable[[Expr], Interval | None]) -> FixedPoint | None:
    """Return an expression that becomes a byte in fixed point; None where it isn't of the kind.

    `bounds` tells between which numbers an atom lies; None where an expression is no atom.
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


@dataclass(frozen=True)
class Steps:
    """A byte `clamp(((total + start) >> bits) + zero)`, `total` the weighted sum of the atoms.

    A product of two atoms less their zero points, shifted up by FACTOR, is multiplied by a weight:
    of that the upper 32 bits count. Where ties are met, `even` steps are added where the result
    would be odd: it then is the next, even one. Where none of the bits `guard` is set, the result
    is the definition's.
    """

    weights: tuple[int, ...]
    own_start: int
    bits: int
    zeros: tuple[int, ...]
    """Of the factors of a product; none of a sum."""
    even: int
    """A power of two, 0 where no tie is met."""
    guard: int
    """0 where all results are the definition's."""
    folds: bool
    """Whether the start has the zero point in it."""
    rounded: Rounded

    @property
    def zero(self) -> int:
        """What is added at the end."""
        return 0 if self.folds else self.rounded.zero

    @property
    def start(self) -> int:
        """What is added to the total."""
        return self.own_start + (self.rounded.zero << self.bits if self.folds else 0)

    @property
    def bounds(self) -> Interval:
        """The least and the greatest byte."""
        return self.rounded.low + self.rounded.zero, self.rounded.high + self.rounded.zero

    def total(self, names: Sequence[str]) -> str:
        """Return the C of what is shifted."""
        if self.zeros:
            a, b = (_less(name, z) for name, z in zip(names, self.zeros, strict=True))
            return f"q_muladd1_high({self.start}, {a} * {b} * {1 << FACTOR}, {self.weights[0]})"
        total = str(self.start)
        for name, weight in zip(names, self.weights, strict=True):
            total = f"q_muladd1({total}, {name}, {weight})"
        return total

    def byte(self, value: str) -> str:
        """Return the C of a whole number, saturated."""
        low, high = self.bounds
        return f"({self.rounded.dtype.c})q_clamp({value}, {low}, {high})"

    def lines(self, names: Sequence[str], prefix: str) -> tuple[list[str], str]:
        """Return the C lines and the stored value, without a guard."""
        total, fine, lines = self.total(names), f"{prefix}_fine", []
        if self.even:
            lines = [f"const int32_t {fine} = {total};"]
            total = f"{fine} + (q_down({fine}, {self.bits}) & 1) * {self.even}"
        saturated = {(-128, 127): "Q_BYTE_S", (0, 255): "Q_BYTE_U"}.get(self.bounds)
        if saturated and not self.zero:
            return lines, f"({self.rounded.dtype.c}){saturated}({total}, {self.bits})"
        return lines, self.byte(f"q_down({total}, {self.bits}){_plus(self.zero)}")

    def vector_lines(self, names: Sequence[str]) -> tuple[list[str], str]:
        """Return the C lines and the value of four results, of vectors of atoms.

        The first of the lines makes `v`, which a guard looks at.
        """
        low, high = self.bounds
        start, down = f"q_same({self.start})", f"q_down4(v, {self.bits})"
        if self.zeros:
            a, b = (
                f"q_add({name}, q_same({-z}))" if z else name
                for name, z in zip(names, self.zeros, strict=True)
            )
            product_ = f"q_multiply(q_multiply_by({a}, {1 << FACTOR}), {b})"
            value = f"q_add(q_high_word4({product_}, {self.weights[0]}), {start})"
        else:
            value = start
            for name, weight in zip(names, self.weights, strict=True):
                value = f"q_muladd_by({value}, {name}, {weight})"
        lines = [f"q_sums v = {value};"]
        if self.even:
            odd = f"q_multiply_by(q_odd4({down}), {self.even})"
            lines.append(f"v = q_add(v, {odd});")
        result = f"q_add({down}, q_same({self.zero}))" if self.zero else down
        return lines, f"q_clamp4({result}, {low}, {high})"


def _plus(number: int) -> str:
    return f" + {number}" if number > 0 else f" - {-number}" if number else ""


@lru_cache(maxsize=256)
def _exact(
    value: Expr, terms: tuple[tuple[tuple[int, ...], Fraction], ...], bits: int, near: int,
    ranges: tuple[Interval, ...], r: Rounded,
) -> Steps | None:  # fmt: skip
    """Return weights near the scales with the results of `value`, for all numbers of its atoms."""
    if len(ranges) > 2:
        return None
    known, pair = dict(terms), _pair(dict(terms))
    numbers = (np.arange(first, last + 1) for first, last in ranges)
    atoms: list[Integers] = [a.reshape(-1) for a in np.meshgrid(*numbers)]
    real = _computed(value, [a.astype(np.float32) for a in atoms]).astype(np.float64)
    want = np.clip(np.rint(real), r.low, r.high).astype(np.int64)
    start = known.get((), Fraction(0))
    zeros: tuple[int, ...] = ()
    if pair is None:
        operands = atoms
        scales = [known.get((k,), Fraction(0)) for k in range(len(atoms))]
    else:
        _, scale, zeros, start = pair
        operands = [(atoms[0] - zeros[0]) * (atoms[1] - zeros[1]) << FACTOR]
        scales = [scale * (1 << (32 - FACTOR))]
    nominal = round((start + Fraction(1, 2)) * (1 << bits))
    deciding = np.abs(real - np.floor(real) - 0.5) * (1 << bits) < 64 * near + 4 * EVEN[-1]
    some, those = [a[deciding] for a in operands], want[deciding]
    steps = sorted(product(range(-TRIED, TRIED + 1), repeat=len(scales)), key=_distance)
    for part, even in product(steps, EVEN):
        weights = [round(s * (1 << bits)) + d for s, d in zip(scales, part, strict=True)]
        least, most = _starts(_sums(some, weights, pair is not None), those, bits, even, r)
        if least > most:
            continue
        first = min(max(nominal, least), most)
        sums = _sums(operands, weights, pair is not None)
        one = Steps(tuple(weights), first, bits, zeros, even, 0, not even, r)
        reach = int(np.abs(sums).max()) + max(abs(first), abs(one.start)) + even
        largest = max(map(abs, weights))
        if max(largest, reach + (0 if pair else largest << 8)) >= 1 << 31:
            return None  # more than 32 bits, if only on the way
        fine = sums + first
        fine = fine + (fine >> bits & 1) * even
        if np.array_equal(np.clip(fine >> bits, r.low, r.high), want):
            return one
    return None


def _distance(steps: tuple[int, ...]) -> int:
    return sum(map(abs, steps))


def _sums(operands: Sequence[Integers], weights: Sequence[int], multiplied: bool) -> Integers:
    """Return weighted sums of operands, of a product the upper words."""
    total: Integers = np.zeros(operands[0].shape, np.int64)
    for weight, operand in zip(weights, operands, strict=True):
        total = total + operand * weight
    return total >> 32 if multiplied else total


def _starts(
    sums: Integers, want: Integers, bits: int, even: int, r: Rounded
) -> tuple[int, int]:
    """Return the least and the most that may be added to sums to get the wanted results.

    An even result also comes of the `even` last steps before it, an odd one not of its last ones.
    """
    odd = want & 1
    first = (want << bits) - even * (1 - odd) - sums
    last = (want + 1 << bits) - 1 - even * odd - sums
    least = np.max(first[want > r.low], initial=-LARGE)
    return int(least), int(np.min(last[want < r.high], initial=LARGE))


def _computed(value: Expr, atoms: Sequence[Array]) -> Array:
    """Return what an expression of `_polynomial` is, every step rounded to float."""
    match value:
        case Const():
            return np.full_like(atoms[0], np.float32(value.value))
        case Input(_, k):
            return atoms[k]
        case Call(fn=fn, args=(a, b)):
            return _STEPS[fn](_computed(a, atoms), _computed(b, atoms))
        case _:
            raise InternalError(f"{value} is no sum or product")


_STEPS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}


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
    for e in walk(value):
        if e not in done:
            done[e] = (
                Call(e.dtype, e.fn, tuple(done[a] for a in e.args)) if isinstance(e, Call) else e
            )
    return done[value]


def _less(name: str, zero: int) -> str:
    return f"({name} - {zero})" if zero > 0 else f"({name} + {-zero})" if zero else name


def byte_bounds(e: Expr) -> Interval | None:
    """Return the bounds of an operand of bytes."""
    if isinstance(e, Input) and e.dtype in BYTES:
        return (-128, 127) if e.dtype is DType.INT8 else (0, 255)
    return None
