"""Extents read back from their text: what `plain` writes, as the polynomial that it was."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod
from typing import Literal

from atc.dims.dim import applied, dim
from atc.dims.polynomial import Symbol

_TOKEN = re.compile(r"\s*(\d+|d\[\d+\]|atc_(?:div|mod|min|max|broadcast)\(|!=|[-+*/%(),])")
_FUNCTIONS: Mapping[str, Literal["div", "mod", "ne"]] = {"/": "div", "%": "mod", "!=": "ne"}
_CALLS: Mapping[str, Literal["div", "mod", "min", "max", "broadcast"]] = {
    "atc_div(": "div", "atc_mod(": "mod", "atc_min(": "min", "atc_max(": "max",
    "atc_broadcast(": "broadcast",
}  # fmt: skip


def parse_extent(text: str, symbols: Mapping[int, Symbol]) -> int:
    """Return the extent that a text says, over the symbols by their index; raises ValueError."""
    if re.fullmatch(r"-?\d+", text):
        return int(text)
    parser = _Parser(text, symbols)
    value = parser.sum()
    if parser.next:
        raise ValueError(f"'{text}' is not a valid extent")
    return value


class _Parser:
    """Recursive descent over the tokens; `next` is the one to come, '' at the end."""

    def __init__(self, text: str, symbols: Mapping[int, Symbol]) -> None:
        self.text, self.symbols = text.rstrip(), symbols
        self.position = 0
        self.next = ""
        self.take()

    def take(self) -> str:
        """Return the token to come and go on behind it."""
        taken = self.next
        found = _TOKEN.match(self.text, self.position)
        if found is None and self.position < len(self.text):
            raise ValueError(f"'{self.text}' is not a valid extent")
        self.next = found[1] if found else ""
        self.position = found.end() if found else self.position
        return taken

    def expect(self, *tokens: str) -> str:
        if self.next not in tokens:
            raise ValueError(f"'{self.text}' is not a valid extent")
        return self.take()

    def sum(self) -> int:
        negative = self.next == "-" and bool(self.take())
        value = -self.product() if negative else self.product()
        while self.next in ("+", "-"):
            value = value + self.product() if self.take() == "+" else value - self.product()
        return value

    def product(self) -> int:
        factors = [self.atom()]
        while self.next == "*":
            self.take()
            factors.append(self.atom())
        return prod(factors)

    def atom(self) -> int:
        token = self.take()
        if token.isdigit():
            return int(token)
        if token.startswith("d["):
            index = int(token[2:-1])
            if index not in self.symbols:
                raise ValueError(f"there is no dim {token}")
            return dim(self.symbols[index])
        if token in _CALLS:
            args = [self.sum()]
            while self.expect(",", ")") == ",":
                args.append(self.sum())
            return applied(_CALLS[token], *args)
        if token != "(":
            raise ValueError(f"'{self.text}' is not a valid extent")
        value = self.sum()
        if self.next in _FUNCTIONS:
            fn = _FUNCTIONS[self.take()]
            value = applied(fn, value, self.sum())
        self.expect(")")
        return value
