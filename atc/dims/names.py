"""Axes that are called by names: those of an option, and those that exporters write into models.

`past_sequence_length + 1` and `s+p` are sums: whole numbers and names, these times whole numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_NAME = r"[^\W\d][\w.]*"
_TERM = re.compile(rf"\s*(?:(\d{{1,18}})\s*\*\s*({_NAME})|({_NAME})\s*\*\s*(\d{{1,18}})"
                   rf"|({_NAME})|(\d{{1,18}}))\s*")  # fmt: skip


@dataclass(frozen=True)
class Range:
    """The extents that an axis may have when the network runs, both ends included."""

    low: int
    high: int

    def __str__(self) -> str:
        return f"{self.low}~{self.high}"


RANGES = "atc.ranges"
"""Where an imported model's input says the ranges of its axes: None for those that are fixed."""


@dataclass(frozen=True)
class Named:
    """An axis that has a name: all others that are called so have the same extent."""

    name: str
    extent: int | Range

    def __str__(self) -> str:
        return f"{self.name}={self.extent}"


@dataclass(frozen=True)
class Sum:
    """An extent that follows from named ones: each times a whole number, and a constant."""

    terms: tuple[tuple[str, int], ...]
    constant: int = 0

    def __str__(self) -> str:
        parts = [name if k == 1 else f"{k}*{name}" for name, k in self.terms]
        parts += [str(self.constant)] if self.constant or not parts else []
        return "+".join(parts).replace("+-", "-").replace("-1*", "-")

    @property
    def names(self) -> tuple[str, ...]:
        """The names that are in it."""
        return tuple(name for name, _ in self.terms)

    @property
    def name(self) -> str:
        """The name that is all of it, "" where it is more than one."""
        return self.terms[0][0] if self.terms and self == named(self.terms[0][0]) else ""

    @property
    def is_multiple(self) -> bool:
        """Whether it is a multiple of one name, twice it at least, and a constant."""
        return len(self.terms) == 1 and self.terms[0][1] > 1

    def value(self, extents: Mapping[str, int]) -> int:
        """Return the extent where the names have these."""
        total = self.constant
        for name, factor in self.terms:
            total = total + extents[name] * factor
        return total


@dataclass(frozen=True)
class Multiple:
    """An axis of `factor` times the extent that a name has, which no other axis may be, and a
    constant."""

    name: str
    ends: Range
    """Those of the name."""
    factor: int
    constant: int = 0


Extent = int | Range | Named | Sum
"""What the shape of an input may say of an axis: -1 is one that another option lists."""

InputShape = tuple[Extent, ...] | list[tuple[Extent, ...]] | None
"""The shape of a tensor, those of a sequence's elements, or an optional that has no value."""


def is_name(text: str) -> bool:
    """Return whether a text may be a name in `--input_shape`."""
    return re.fullmatch(_NAME, text) is not None


def named(name: str) -> Sum:
    """Return the extent that a name stands for."""
    return Sum(((name, 1),))


def read_multiple(text: str) -> Sum | None:
    """Return the sum that a text writes if that is a multiple of one name and a constant."""
    total = read_sum(text)
    return total if total is not None and total.is_multiple else None


def within(total: Sum, ends: int | Range) -> Range | None:
    """Return the extents of its one name for which a multiple is in a range; None for none."""
    factor, least = total.terms[0][1], ends if isinstance(ends, int) else ends.low
    most = ends if isinstance(ends, int) else ends.high
    low, high = -((total.constant - least) // factor), (most - total.constant) // factor
    return Range(max(low, 0), high) if max(low, 0) <= high else None


def read_sum(text: str) -> Sum | None:
    """Return the sum that a text writes, None where it is none."""
    total: list[tuple[str, int]] = []
    constant, at, sign = 0, 0, 1
    while True:
        found = _TERM.match(text, at)
        if found is None:
            return None
        before, right, left, behind, alone, number = found.groups()
        if number is not None:
            constant += sign * int(number)
        else:
            total.append((right or left or alone, sign * int(before or behind or 1)))
        at = found.end()
        if at == len(text):
            return collected(total, constant)
        if text[at] not in "+-":
            return None
        sign, at = (1 if text[at] == "+" else -1), at + 1


def collected(terms: Sequence[tuple[str, int]], constant: int = 0) -> Sum:
    """Return a sum whose names stand once each."""
    factors: dict[str, int] = {}
    for name, factor in terms:
        factors[name] = factors.get(name, 0) + factor
    return Sum(tuple((name, k) for name, k in factors.items() if k), constant)
