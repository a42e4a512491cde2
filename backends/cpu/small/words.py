"""Four bytes at a time in fixed point, by Arm's DSP instructions: sums, products of two and means.

A sum's bytes are read as the upper halves of pairs of 16 bits, which SMLAW multiplies by 32 bits
and shifts down by 16; so it does with sums of pixels, which are such pairs themselves. Where 16
bits behind the point are enough, whole parts are upper halves, which are saturated two at a time.
Of a product, made of pairs of 16 bits less their zero points, times 32 bits SMMLA adds the upper
word. As elsewhere the weights are ones that give the definition's result for
every pair of bytes, found when compiling; there are none where ties go to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np

from atc.backends.cpu.small.exact_weights import TRIED, Integers, computed, possible_starts
from atc.backends.cpu.small.fixed_point import FixedPoint
from atc.backends.cpu.small.rounded import Rounded
from atc.ir.expr import Expr, Input
from atc.ir.graph import DType

FINE = 64
"""Steps of a weight from one that is tried to the next."""
UPPER = 16
"""Bits behind the point where whole parts are upper halves."""
NEAR = 1 / 64
"""Results that lie so near to the middle between two bytes are looked at first."""
FEWEST = 1
"""A result has at least so many bits behind the point."""
ENDS = {DType.INT8: (-128, 127), DType.UINT8: (0, 255)}


@dataclass(frozen=True)
class WordSteps:
    """A byte `saturated((total + start) >> bits)`: how it is computed for four elements."""

    weights: tuple[int, ...]
    start: int
    bits: int
    zeros: tuple[int, ...]
    """Of the factors of a product; none of a sum."""
    dtype: DType

    @property
    def upper(self) -> bool:
        """Whether whole parts are upper halves."""
        return self.bits == UPPER and not self.zeros

    def less(self, k: int) -> str:
        """Return the C of minus a factor's zero point, in both halves; '' where it is 0."""
        zero = self.zeros[k] if self.zeros else 0
        return f"{-zero % 65536 * 65537}u" if zero else ""

    def lines(self, atoms: Sequence[tuple[int, DType]], index: str) -> list[str]:
        """Return the C of the elements from `index` on; atoms are numbers and types of operands."""
        lines = []
        for k, (number, dtype) in enumerate(atoms):
            word = f"q_load4(r{number} + {index})"
            if self.zeros:
                sign, less = "u" if dtype is DType.UINT8 else "s", self.less(k)
                even, odd = (
                    f"q_{half}_add_{sign}(less{k}, v{k})" if less else f"q_{half}_{sign}(v{k})"
                    for half in ("even", "odd")
                )
            else:
                word += " ^ 0x80808080u" if dtype is DType.UINT8 else ""
                even, odd = f"q_even_upper(v{k})", f"q_odd_upper(v{k})"
            lines += [f"const uint32_t v{k} = {word};",
                      f"const uint32_t even{k} = {even}, odd{k} = {odd};"]  # fmt: skip
        return [*lines, *self.stored(index)]

    def stored(self, index: str) -> list[str]:
        """Return the C that stores four results at `index`, of pairs even0, odd0 and so on."""
        lines = []
        for k, (half, part) in enumerate(product(("low", "high"), ("even", "odd"))):
            lines.append(f"const int32_t r{k} = {self._total(part, half)};")
        unsigned = self.dtype is DType.UINT8
        if self.upper:
            word = f"q_upper4_{'u' if unsigned else 's'}(r0, r1, r2, r3)"
        else:
            saturated = "Q_BYTE_U" if unsigned else "Q_BYTE_S"
            ends = ", ".join(f"(uint32_t){saturated}(r{k}, {self.bits})" for k in range(4))
            word = f"q_join4({ends})"
        return [*lines, f"const uint32_t word = {word};",
                f"memcpy(y + {index}, &word, sizeof word);"]  # fmt: skip

    def _total(self, part: str, half: str) -> str:
        if self.zeros:
            whole = f"q_product_{half}({part}0, {part}1)"
            return f"q_muladd1_high({self.start}, {whole}, {self.weights[0]})"
        total = str(self.start)
        for k, weight in enumerate(self.weights):
            total = f"q_scaled_{half}({total}, {part}{k}, {weight})"
        return total


def word_steps(found: FixedPoint) -> WordSteps | None:
    """Return how four elements are computed at a time; None where it isn't so, or not exactly."""
    inputs = all(isinstance(atom, Input) for atom in found.atoms)
    if not inputs or len(found.atoms) != 2:
        return None
    if found.parts[1]:
        return _steps(found, (), 32, range(found.bits, FEWEST - 1, -1))
    middles = tuple(128 if last > 127 else 0 for _, last in found.ranges)
    upper = _steps(found, middles, 8, (UPPER,))
    return upper or _steps(found, middles, 8, range(found.bits, FEWEST - 1, -1))


def sum_steps(found: FixedPoint, less: int) -> WordSteps | None:
    """Return how four sums of bytes become bytes at a time; None where it isn't so exactly.

    The sums are in pairs of 16 bits, where the zero points, `less` in all, aren't taken off yet.
    """
    return _steps(found, (-less,), 16, (UPPER,))


def _steps(
    found: FixedPoint, middles: tuple[int, ...], shift: int, possible: Sequence[int]
) -> WordSteps | None:
    """Return the steps with the first possible number of bits for which weights fit 32 bits."""
    start, zeros, scales = found.parts
    largest = max(map(abs, scales))
    for bits in possible:
        if largest * (1 << (bits + shift)) < (1 << 31) - FINE * 4:
            ranges, r = found.ranges, found.rounded
            return _exact(found.value, scales, start, zeros, bits, ranges, middles, shift, r)
    return None


@lru_cache(maxsize=256)
def _exact(
    value: Expr, scales: tuple[Fraction, ...], start: Fraction, zeros: tuple[int, ...], bits: int,
    ranges: tuple[tuple[int, int], ...], middles: tuple[int, ...], shift: int, r: Rounded,
) -> WordSteps | None:  # fmt: skip
    """Return weights with the results of `value`, for all numbers of the atoms.

    Atoms less their middles are multiplied by weights, and `shift` bits of that are dropped.
    """
    if (r.low + r.zero, r.high + r.zero) != ENDS[r.dtype]:
        return None
    numbers = (np.arange(first, last + 1) for first, last in ranges)
    atoms: list[Integers] = [a.reshape(-1) for a in np.meshgrid(*numbers)]
    real = computed(value, [a.astype(np.float32) for a in atoms]).astype(np.float64)
    want = np.clip(np.rint(real), r.low, r.high).astype(np.int64)
    if zeros:
        operands = [(atoms[0] - zeros[0]) * (atoms[1] - zeros[1])]
    else:
        operands = [a - middle for a, middle in zip(atoms, middles, strict=True)]
        start += sum(s * m for s, m in zip(scales, middles, strict=True))
    near = np.abs(real - np.floor(real) - 0.5) < NEAR
    nominal = round((start + Fraction(1, 2)) * (1 << bits))
    steps = product(range(-TRIED, TRIED + 1), repeat=len(scales))
    for part in sorted(steps, key=lambda p: sum(map(abs, p))):
        weights = [round(s * (1 << (bits + shift))) + FINE * d
                   for s, d in zip(scales, part, strict=True)]  # fmt: skip
        few = _terms([a[near] for a in operands], weights, shift)
        least, most = possible_starts(np.sum(few, 0), want[near], bits, 0, r)
        if least > most:
            continue
        terms = _terms(operands, weights, shift)
        least, most = possible_starts(np.sum(terms, 0), want, bits, 0, r)
        if least > most:
            continue
        first = min(max(nominal, least), most) + (r.zero << bits)
        first += 128 << bits if bits == UPPER and not zeros and r.dtype is DType.INT8 else 0
        reach = abs(first) + sum(int(np.abs(t).max()) for t in terms)
        if reach < 1 << 31:
            return WordSteps(tuple(weights), first, bits, zeros, r.dtype)
    return None


def _terms(operands: Sequence[Integers], weights: Sequence[int], shift: int) -> list[Integers]:
    return [a * w >> shift for a, w in zip(operands, weights, strict=True)]
