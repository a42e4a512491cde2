"""Reads of pixels' words by a step of a tile: each broadcast, or a vector of them at a time.

NEON multiplies by a lane of a vector: where words of pixels follow each other, as in blocks of four
channels of a byte, one load reads four, and one instruction two such vectors side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

Pixels = Sequence[tuple[str, int]]
"""Accumulators, and the places of their inputs."""


@dataclass(frozen=True)
class Read:
    """A C expression of words, of one in every lane, and the accumulators that meet them: (name,
    lane)."""

    words: str
    users: tuple[tuple[str, int], ...]
    count: int = 1
    at: int = 0
    """The element where they begin."""

    def products(self, vectors: int) -> list[tuple[str, int, int]]:
        """Return (name, lane, vector of weights) of all products of the words."""
        return [(name, lane, v) for name, lane in self.users for v in range(vectors)]


@dataclass(frozen=True)
class PairRead:
    """Vectors of words that are loaded, (name, C), and what pairs of pixels are made of: (number,
    C)."""

    loads: tuple[tuple[str, str], ...]
    pairs: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Stage:
    """Pixels in a row whose bytes are shuffled at once and go to the stack: the C function and its
    arguments; accumulators, places in x and those of a step's words on the stack."""

    call: tuple[str, ...]
    users: tuple[tuple[str, int, tuple[int, ...]], ...]


@dataclass(frozen=True)
class WordReads:
    """Formats of C expressions of the word at {0} in every lane, and of two and of four words from
    {0} on; without those each is broadcast. {1} is the number of the element at {0}."""

    broadcast: str
    two: str = ""
    four: str = ""
    word: int = 1
    """The elements of a word."""
    place: Callable[[int], str] = lambda at: f"a + {at}" if at else "a"
    """The C expression of a place."""
    paired: bool = False
    """Whether one instruction may load two vectors of four words, side by side."""

    def loads(self, pixels: Pixels, more: int = 0) -> list[list[Read]]:
        """Return the reads of the pixels' words `more` elements on, two together where one
        instruction loads them.

        That reaches only what is near, so that a pointer has to go from word to word: one pair
        alone isn't worth it.
        """
        found: list[list[Read]] = []
        reads = self.reads(pixels, more)
        for read in reads:
            last = found[-1] if found else []
            beside = len(last) == 1 and last[0].at + 4 * self.word == read.at
            if self.paired and beside and last[0].count == read.count == 4:
                last.append(read)
            else:
                found.append([read])
        return found if len(reads) - len(found) > 1 else [[read] for read in reads]

    def reads(self, pixels: Pixels, more: int = 0) -> list[Read]:
        """Return the reads of the pixels' words `more` elements on, none outside of them all."""
        if not self.four:
            return [Read(self._at(self.broadcast, at + more), ((name, 0),)) for name, at in pixels]
        found = []
        left = list(pixels)
        while left:
            begin, count = self._cover([at for _, at in left], [at for _, at in pixels])
            lanes = {begin + k * self.word: k for k in range(count)}
            users = tuple((name, lanes[at]) for name, at in left if at in lanes)
            left = [(name, at) for name, at in left if at not in lanes]
            form = {1: self.broadcast, 2: self.two, 4: self.four}[count]
            found.append(Read(self._at(form, begin + more), users, count, begin + more))
        return found

    def _cover(self, left: Sequence[int], places: Iterable[int]) -> tuple[int, int]:
        """Return begin and words of the widest load with the first place left that has company."""
        at, first, end = min(left), min(places), max(places) + self.word
        for count in (4, 2):
            over = at + count * self.word - end
            begin = at - max(0, -(-over // self.word)) * self.word
            lanes = {begin + k * self.word for k in range(count)}
            if begin >= first and len(lanes & set(left)) > 1:
                return begin, count
        return at, 1

    def _at(self, form: str, at: int) -> str:
        return form.format(self.place(at), at)
