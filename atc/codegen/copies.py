"""Copies of a GPU's values on the host, for who looks at them around a launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from atc.memory.arena import ALIGNMENT


@dataclass(frozen=True)
class Copies:
    """The places of copies of values on the host, and the room that they take there.

    Pointers to the copies come first.
    """

    begins: tuple[int, ...]
    room: int


def copies_of(sizes: Sequence[int]) -> Copies:
    """Return the places of copies of so many bytes, one behind the other."""
    first = _aligned(8 * len(sizes))
    *begins, room = accumulate(map(_aligned, sizes), initial=first)
    return Copies(tuple(begins), room)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
