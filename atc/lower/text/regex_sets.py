"""Sets of code points, as regular expressions name them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import cache

LAST = 0x10FFFF
"""The last code point."""

Ranges = tuple[tuple[int, int], ...]
"""Code points, as ranges with both ends in, ascending and disjoint."""


def union(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Return ranges sorted and merged."""
    merged: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if merged and low <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(high, merged[-1][1]))
        else:
            merged.append((low, high))
    return tuple(merged)


def negated(ranges: Ranges) -> Ranges:
    """Return all other code points."""
    result, begin = [], 0
    for low, high in ranges:
        if low > begin:
            result.append((begin, low - 1))
        begin = high + 1
    if begin <= LAST:
        result.append((begin, LAST))
    return tuple(result)


DIGIT: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 10), (12, 13), (32, 32))
PERL = {"d": DIGIT, "w": WORD, "s": SPACE}
POSIX: dict[str, Ranges] = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": DIGIT,
    "graph": ((33, 126),), "lower": ((97, 122),), "print": ((32, 126),),
    "punct": ((33, 47), (58, 64), (91, 96), (123, 126)), "space": ((9, 13), (32, 32)),
    "upper": ((65, 90),), "word": WORD, "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip


_BLOCK = 256
"""Code points that are asked at once whether any has cases."""


@cache
def _cased() -> dict[int, frozenset[int]]:
    """Return the code points that differ in case only, by each of them."""
    groups: dict[str, set[int]] = {}
    for begin in range(0, LAST + 1, _BLOCK):
        block = "".join(map(chr, range(begin, begin + _BLOCK)))
        if block == block.casefold() == block.upper():  # one of forty has letters with cases
            continue
        for char in block:
            folded = char.casefold()
            folded = folded if len(folded) == 1 else char.lower()
            if len(folded) == 1 and (folded != char or char.upper() != char):
                groups.setdefault(folded, {ord(folded)}).add(ord(char))
    return {c: frozenset(g) for g in groups.values() for c in g if len(g) > 1}


def folded(ranges: Ranges) -> Ranges:
    """Return a set with the other cases of its code points."""
    inside = [
        (other, other)
        for low, high in ranges
        for code, group in _cased().items()
        if low <= code <= high
        for other in group
    ]
    return union([*ranges, *inside])


@cache
def category(name: str) -> Ranges | None:
    """Return a general category of Unicode, e.g. L or Lu; None for an unknown one."""
    if name == "Any":
        return ((0, LAST),)
    if name not in _categories() and name not in {c[0] for c in _categories()}:
        return None
    return union(r for c, ranges in _categories().items() if c.startswith(name) for r in ranges)


@cache
def _categories() -> dict[str, Ranges]:
    found: dict[str, list[tuple[int, int]]] = {}
    for code in range(LAST + 1):
        ranges = found.setdefault(unicodedata.category(chr(code)), [])
        if ranges and ranges[-1][1] == code - 1:
            ranges[-1] = (ranges[-1][0], code)
        else:
            ranges.append((code, code))
    return {name: tuple(ranges) for name, ranges in found.items()}
