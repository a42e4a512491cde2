"""Parses MXNet's attribute strings: '(3, 3)', '3', '(1L, 1L)', 'None', 'True', '1e-05'."""

from __future__ import annotations

import re
from math import isfinite

MAX_ITEMS = 4096
"""The longest tuple that is read; MXNet's own have a few entries."""

INT64 = 1 << 63

_INTEGER = re.compile(r"[+-]?\d{1,19}L?")


def parse_int(text: str) -> int:
    """Parse '3', '3L' or '3.0'; ValueError for anything else."""
    text = text.strip()
    if _INTEGER.fullmatch(text):
        value = int(text.removesuffix("L"))
    elif text.lower() in ("true", "false"):
        value = int(text.lower() == "true")
    else:
        number = float(text)
        if not isfinite(number) or number != int(number):
            raise ValueError(text)
        value = int(number)
    if not -INT64 <= value < INT64:
        raise ValueError(text)
    return value


def parse_bool(text: str) -> bool:
    """Parse 'True', 'false', '1' or '0'."""
    match text.strip().lower():
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise ValueError(text)


def parse_float(text: str) -> float:
    """Parse a number as C's strtod does."""
    return float(text)


def is_none(text: str) -> bool:
    """Return whether an attribute says that it isn't given."""
    return text.strip() in ("None", "")


def parse_ints(text: str) -> tuple[int | None, ...]:
    """Parse a tuple of integers; a bare integer is a tuple of one, None stands for itself."""
    return tuple(None if is_none(item) else parse_int(item) for item in _items(text))


def parse_floats(text: str) -> tuple[float, ...]:
    """Parse a tuple of numbers; a bare number is a tuple of one."""
    return tuple(parse_float(item) for item in _items(text))


def _items(text: str) -> list[str]:
    text = text.strip()
    if text[:1] in ("(", "["):
        if text[-1:] != {"(": ")", "[": "]"}[text[0]]:
            raise ValueError(text)
        text = text[1:-1]
    items = [item.strip() for item in text.split(",", MAX_ITEMS)]
    if len(items) > MAX_ITEMS:
        raise ValueError("a tuple that long")
    if items[-1] == "":  # '(3,)' and '()'
        items.pop()
    if "" in items:
        raise ValueError(text)
    return items
