"""Extents as text: C over the table of dims, marked so that kernels can bind them to names."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

_TOKEN = re.compile(r"⟨([^⟩|]*)(?:\|[^⟩]*)?⟩")
"""An extent in C; that of an `Opened` is a number, and what it is follows."""


def plain(value: object) -> str:
    """Return a text, or a value as text, with its extents as people and C read them."""
    text = str(value)
    return _TOKEN.sub(r"\1", text) if "⟨" in text else text


def bind_tokens(
    text: str, name: Callable[[int], str], head: str = ""
) -> tuple[str, tuple[str, ...]]:
    """Replace each distinct extent in a text by `name(k)`; returns their C expressions too.

    Before `head`, a comment's end, extents that aren't in the rest are called `n`.
    """
    comment, _, body = text.partition(head) if head else ("", "", text)
    found = {match[0]: match[1] for match in _TOKEN.finditer(body)}
    names = {token: name(k) for k, token in enumerate(found)}
    text = _TOKEN.sub(lambda match: names.get(match[0], "n"), comment + head + body)
    return text, tuple(found.values())


def is_open(text: str) -> bool:
    """Return whether a text holds extents known only at run time."""
    return bool(_TOKEN.search(text))


def functions_in(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the helper functions that C expressions of extents call."""
    call = re.compile(r"\batc_(div|mod|min|max|broadcast)\(")
    used = {name for text in texts for name in call.findall(text)}
    return tuple(sorted(used))


def wrapped(text: str) -> str:
    """Return C as a factor."""
    simple = re.fullmatch(r"[\w\[\]]+|\([^()]*\)", text)
    return text if simple else f"({text})"
