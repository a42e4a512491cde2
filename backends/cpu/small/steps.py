"""Bytes as weighted sums of whole numbers: the C of them, one by one and in vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.backends.cpu.small.rounded import Rounded

FACTOR = 13
"""Bits by which a product of two bytes is shifted up before its high word is taken."""


@dataclass(frozen=True)
class Steps:
    """A byte `clamp(((total + start) >> bits) + zero)`, `total` the weighted sum of the atoms.

    A product of two atoms less their zero points, shifted up by FACTOR, is multiplied by a weight:
    of that the upper 32 bits count. Where ties are met, `even` steps are added where the result
    would be odd: it then is the next, even one. Where none of the bits `guard` is set, the result
    is the definition's.
    """

    weights: tuple[int, ...]
    base_start: int
    """What is added to the total, without the zero point."""
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
        """The zero point that is added at the end."""
        return 0 if self.folds else self.rounded.zero

    @property
    def start(self) -> int:
        """The number that is added to the total."""
        return self.base_start + (self.rounded.zero << self.bits if self.folds else 0)

    @property
    def bounds(self) -> tuple[int, int]:
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
        return lines, self.byte(f"q_down({total}, {self.bits}){plus(self.zero)}")

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


def plus(number: int) -> str:
    """Return the C that adds a number to what stands before."""
    return f" + {number}" if number > 0 else f" - {-number}" if number else ""


def _less(name: str, zero: int) -> str:
    return f"({name} - {zero})" if zero > 0 else f"({name} + {-zero})" if zero else name
