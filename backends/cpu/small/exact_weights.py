"""Weights that give the definition's byte for every pair of bytes, found when compiling."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import numpy.typing as npt

from atc.backends.cpu.small.rounded import Rounded
from atc.backends.cpu.small.steps import FACTOR, Steps
from atc.errors import InternalError
from atc.ir.expr import Call, Const, Expr, Input
from atc.ir.graph import Array

TRIED = 3
"""Steps from a scale within which weights are tried."""
EVEN = (0, 1, 16, 64, 256, 1024)
"""What is tried where results are ties, of steps of a byte."""
LARGE = 1 << 40

Integers = npt.NDArray[np.int64]


@lru_cache(maxsize=256)
def exact_steps(
    value: Expr, scales: tuple[Fraction, ...], start: Fraction, zeros: tuple[int, ...], bits: int,
    near: int, ranges: tuple[tuple[int, int], ...], r: Rounded,
) -> Steps | None:  # fmt: skip
    """Return weights near the scales with the results of `value`, for all numbers of its atoms.

    `zeros` are those of a product's factors, `start` is the constant, `near` bounds how many steps
    of 2^-bits the rounded scales err. None where no weights were found.
    """
    if len(ranges) > 2:
        return None
    numbers = (np.arange(first, last + 1) for first, last in ranges)
    atoms: list[Integers] = [a.reshape(-1) for a in np.meshgrid(*numbers)]
    real = computed(value, [a.astype(np.float32) for a in atoms]).astype(np.float64)
    want = np.clip(np.rint(real), r.low, r.high).astype(np.int64)
    operands = atoms
    if zeros:
        operands = [(atoms[0] - zeros[0]) * (atoms[1] - zeros[1]) << FACTOR]
        scales = (scales[0] * (1 << (32 - FACTOR)),)
    nominal = round((start + Fraction(1, 2)) * (1 << bits))
    deciding = np.abs(real - np.floor(real) - 0.5) * (1 << bits) < 64 * near + 4 * EVEN[-1]
    some, those = [a[deciding] for a in operands], want[deciding]
    steps = sorted(product(range(-TRIED, TRIED + 1), repeat=len(scales)), key=_distance)
    for part, even in product(steps, EVEN):
        weights = [round(s * (1 << bits)) + d for s, d in zip(scales, part, strict=True)]
        least, most = possible_starts(_sums(some, weights, bool(zeros)), those, bits, even, r)
        if least > most:
            continue
        first = min(max(nominal, least), most)
        sums = _sums(operands, weights, bool(zeros))
        one = Steps(tuple(weights), first, bits, zeros, even, 0, not even, r)
        reach = int(np.abs(sums).max()) + max(abs(first), abs(one.start)) + even
        largest = max(map(abs, weights))
        if max(largest, reach + (0 if zeros else largest << 8)) >= 1 << 31:
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


def possible_starts(
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


def computed(value: Expr, atoms: Sequence[Array]) -> Array:
    """Return what an expression of `_polynomial` is, every step rounded to float."""
    match value:
        case Const():
            return np.full_like(atoms[0], np.float32(value.value))
        case Input(_, k):
            return atoms[k]
        case Call(fn=fn, args=(a, b)):
            return _STEPS[fn](computed(a, atoms), computed(b, atoms))
        case _:
            raise InternalError(f"{value} is not a sum or product")


_STEPS = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}
