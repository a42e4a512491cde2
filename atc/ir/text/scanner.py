"""A place in a text, and how to go on from there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

SPACES = re.compile(r" *")
_BLANK = re.compile(r"\s*")


class Scanner:
    """Goes over a text: `position` is where it is, `begin` where the line that is read begins."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.begin = 0

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go over a pattern if it comes next."""
        found = pattern.match(self.text, self.position)
        if found is not None:
            self.position = found.end()
        return found

    def skip(self, literal: str) -> bool:
        """Go over a text if it comes next."""
        found = self.text.startswith(literal, self.position)
        self.position += len(literal) if found else 0
        return found

    def expect(self, literal: str) -> None:
        """Go over a text, which must come next."""
        if not self.skip(literal):
            raise self.unexpected(f"'{literal}'")

    def unexpected(self, wanted: str) -> ValueError:
        """Return the error of something else coming next than what is wanted."""
        end = self.text.find("\n", self.position)
        rest = self.text[self.position : end if end >= 0 else None]
        return ValueError(f"{wanted} is expected before '{rest[:40]}'")

    def word(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Return what a pattern matches, which must come next."""
        found = self.match(pattern)
        if found is None:
            raise self.unexpected(wanted)
        return found[0]

    def blank_lines(self) -> None:
        """Go to the first line with something on it, behind its indentation."""
        self.match(_BLANK)
        self.begin = self.position

    def end_line(self) -> None:
        """Go over the end of the line, which must come next, to the next one."""
        self.match(SPACES)
        if not self.at_end() and not self.skip("\n"):
            raise self.unexpected("the end of the line")
        self.blank_lines()

    def listed(self, read: Callable[[], T], end: str) -> Iterator[T]:
        """Yield what is read, comma by comma, up to `end`."""
        if self.skip(end):
            return
        while True:
            yield read()
            if self.skip(end):
                return
            self.expect(",")
            self.match(SPACES)

    def at_end(self) -> bool:
        """Return whether nothing is left."""
        return self.position >= len(self.text)
