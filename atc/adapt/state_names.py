"""Names by which exporters say that an output is what an input is in the next run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache

_ADDED = frozenset(
    ("new", "next", "updated", "r", "out", "output", "n", "present", "curr", "current")
)
"""Words that an output's name has more than the input's."""
_NEXT = frozenset(("new", "next", "updated", "r"))
"""Those that mark states alone: where one does, others with it are states whatever their names."""
_REPLACED = frozenset((
    ("past", "present"), ("in", "out"), ("input", "output"), ("prev", "next"), ("prev", "new"),
    ("prev", "curr"), ("previous", "next"), ("previous", "current"), ("old", "new"), ("i", "o"),
    ("hx", "hy"), ("cx", "cy"), ("previous", "new"), ("initial", "final"),
))  # fmt: skip
"""Words that others take the place of."""
_VAGUE = frozenset(("input output", "initial final"))
"""Replacements that aren't enough for a name that doesn't speak of a state."""
_DROPPED = frozenset(("prev", "previous", "old"))
"""Words that an output's name has less."""

_STATE = re.compile(
    r"state|cache|hidden|memor|buffer|context|history|overlap|fifo|carry|recurrent"
    r"|^[hc] ?\d*$|\b[hc]x\b"
)
_SIGNAL = re.compile(
    r"audio|wav|speech|sound|signal|noisy|mixture|feat|frame|image|video|pixel|token|mask"
    r"|\b(mix|src|img|ids?|pcm|mel|stft|spec|data|x|y)\b"
)
"""What is heard, seen and read, even where its names are in pairs (audio_in, audio_out)."""
_ONCE = re.compile(r"encoder|cross")
"""Keys and values that are computed once, of what a decoder attends to."""


def pairs_of(
    inputs: Sequence[str], alike: Iterable[tuple[str, str]]
) -> list[tuple[str, str]]:
    """Return the pairs of an input and an output that have names of states, each of them once.

    Only pairs that are `alike` count.
    """
    ways: dict[str, dict[str, str]] = {given: {} for given in inputs}
    for given, computed in alike:
        if way := _way(given, computed):
            ways[given][way] = computed
    named = {way for given, own in ways.items() if _is_state(given) for way in own}
    taken: dict[str, str] = {}
    for given, own in ways.items():
        free = (c for way, c in own.items() if _says_state(given, way, named))
        first = next((c for c in free if c not in taken.values()), None)
        if first is not None:
            taken[given] = first
    if len(taken) == len(inputs):  # something is no state
        taken = {a: b for a, b in taken.items() if _is_state(a)}
    return [*taken.items()]


def _says_state(given: str, way: str, named: set[str]) -> bool:
    """Return whether a name that changes in a way is a state's, where `named` are ways of such."""
    text = _text(given)
    if way == "past present":
        return not _ONCE.search(text)
    if _is_state(given):
        return True
    if _SIGNAL.search(text):
        return False
    if way == "i o":
        return re.fullmatch(r"\w+ \d+ i", text) is not None
    return way in _NEXT & named or (" " in way and way not in _VAGUE)


def _is_state(given: str) -> bool:
    """Return whether an input's name says by itself that it is a state."""
    return _STATE.search(_text(given)) is not None


def _way(given: str, computed: str) -> str:
    """Return how an output's name is made of an input's: the word that is added or replaced.

    '' if it isn't, or not by what says that it comes later.
    """
    a, b = _text(given).split(), _text(computed).split()
    found = _change(a, b)
    if not found and a[0] in ("h", "c") and a[1:] == ["0"]:  # h0, hn
        return _change(a[:1], b)
    return found


def _change(a: Sequence[str], b: Sequence[str]) -> str:
    differ = (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    at = next(differ, min(len(a), len(b)))
    x, y = (words[at] if at < len(words) else "" for words in (a, b))
    if a[at:] == b[at + 1 :]:
        return y if y in _ADDED else ""
    if a[at + 1 :] == b[at:]:
        return f"{x} " if x in _DROPPED else ""
    if a[at + 1 :] != b[at + 1 :]:
        return ""
    if (x, y) in _REPLACED:
        return f"{x} {y}"
    if y == f"{x}n":
        return "n"
    inner = x.removeprefix("in"), y.removeprefix("out")
    return "input output" if inner[0] == inner[1] and x != inner[0] else ""  # instate, outstate


@lru_cache(1 << 12)
def _text(name: str) -> str:
    """Return the words and numbers of a name: newState0 is 'new state 0'."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", name).lower()
    apart = re.sub(r"(past|present)_key_values", r"\1", apart)
    return " ".join(re.findall(r"[^\W\d_]+|\d+", apart)) or apart
