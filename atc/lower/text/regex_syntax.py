"""Regular expressions in RE2's syntax, parsed to trees over sets of code points.

Source: https://github.com/google/re2/wiki/Syntax, which ONNX RegexFullMatch-20 refers to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atc.errors import ModelError, UnsupportedError
from atc.lower.text.regex_sets import LAST, PERL, POSIX, Ranges, category, folded, negated, union

MOST_REPEATS = 1000
"""RE2's own limit of {n}, nested ones multiplied."""


@dataclass(frozen=True)
class Node:
    """Base of the trees."""


@dataclass(frozen=True)
class Chars(Node):
    """One code point of a set."""

    ranges: Ranges


@dataclass(frozen=True)
class AnyByte(Node):
    """One byte."""


@dataclass(frozen=True)
class Assertion(Node):
    """A place: begin, end, line_begin, line_end, word (a boundary) or no_word."""

    kind: str


@dataclass(frozen=True)
class Join(Node):
    """One after the other."""

    parts: tuple[Node, ...]


@dataclass(frozen=True)
class Choice(Node):
    """One of several."""

    options: tuple[Node, ...]


@dataclass(frozen=True)
class Repeat(Node):
    """At least and (-1: no limit) at most so often."""

    part: Node
    least: int
    most: int


@dataclass(frozen=True)
class _Flags:
    fold: bool = False
    lines: bool = False
    all: bool = False
    """Whether a dot takes newlines too."""


def parse(pattern: str) -> Node:
    """Return the tree of an expression; ModelError with the place of what is wrong."""
    parser = _Parser(pattern)
    node = parser.choice(_Flags(), 0)
    if parser.at < len(pattern):
        raise parser.error("unexpected ')'")
    return node


# ---- the parser ---------------------------------------------------------------------------------

ESCAPES = {"a": 7, "f": 12, "t": 9, "n": 10, "r": 13, "v": 11}
PLACES = {"A": "begin", "z": "end", "b": "word", "B": "no_word"}
DEEPEST = 200


class _Parser:
    def __init__(self, pattern: str) -> None:
        self.text = pattern
        self.at = 0
        self.quoted = False
        """Between \\Q and \\E."""

    def error(self, message: str) -> ModelError:
        return ModelError(f"regular expression, at character {self.at}: {message}")

    def next(self, *wanted: str) -> bool:
        """Pass over the first of some texts that stands here."""
        for text in wanted:
            if self.text.startswith(text, self.at):
                self.at += len(text)
                return True
        return False

    def char(self) -> str:
        if self.at >= len(self.text):
            raise self.error("it ends too early")
        self.at += 1
        return self.text[self.at - 1]

    def choice(self, flags: _Flags, depth: int) -> Node:
        if depth > DEEPEST:
            raise self.error("nested too deeply")
        options = []
        while True:
            part, flags = self.join(flags, depth)
            options.append(part)
            if not self.next("|"):
                return options[0] if len(options) == 1 else Choice(tuple(options))

    def join(self, flags: _Flags, depth: int) -> tuple[Node, _Flags]:
        parts: list[Node] = []
        while self.at < len(self.text):
            if self.next("\\Q"):
                self.quoted = True
            if self.quoted:
                if not self.next("\\E"):
                    parts += [_literal(self.char(), flags)] if self.at < len(self.text) else []
                    continue
                self.quoted = False
                if parts:
                    parts.append(self.repeated(parts.pop()))
                continue
            if self.text[self.at] in "|)":
                break
            if self.next("(?"):
                changed = self.flags(flags)
                if changed is not None:
                    new, closed = changed
                    if closed:
                        flags = new
                        continue
                    parts.append(self.repeated(self.group(new, depth)))
                    continue
                parts.append(self.repeated(self.group(flags, depth)))
                continue
            parts.append(self.repeated(self.atom(flags, depth)))
        return Join(tuple(parts)), flags

    def group(self, flags: _Flags, depth: int) -> Node:
        node = self.choice(flags, depth + 1)
        if not self.next(")"):
            raise self.error("a ')' is missing")
        return node

    def flags(self, flags: _Flags) -> tuple[_Flags, bool] | None:
        """Read what follows `(?`: flags and whether that was all; None for a name."""
        if self.next("P<", "<"):
            name = self.text[self.at :].partition(">")[0]
            if not name.isidentifier() or not self.next(f"{name}>"):
                raise self.error("a group's name is wrong")
            return None
        value = True
        while True:
            match self.char():
                case ":":
                    return flags, False
                case ")":
                    return flags, True
                case "-" if value:
                    value = False
                case "i":
                    flags = replace(flags, fold=value)
                case "m":
                    flags = replace(flags, lines=value)
                case "s":
                    flags = replace(flags, all=value)
                case "U":
                    pass  # which repetition is preferred makes no difference to a full match
                case other:
                    raise self.error(f"'(?{other}' is not known to RE2")

    def repeated(self, node: Node) -> Node:
        while True:
            if self.next("*"):
                node = Repeat(node, 0, -1)
            elif self.next("+"):
                node = Repeat(node, 1, -1)
            elif self.next("?"):
                node = Repeat(node, 0, 1)
            elif (counts := self.counts()) is not None:
                node = Repeat(node, *counts)
                if _times(node) > MOST_REPEATS:
                    raise self.error(f"more than {MOST_REPEATS} repetitions")
            else:
                return node
            self.next("?")  # which one is preferred makes no difference to a full match

    def counts(self) -> tuple[int, int] | None:
        """Read {n}, {n,} or {n,m}; anything else that begins like it is a literal."""
        body, brace, _ = self.text[self.at + 1 : self.at + 12].partition("}")
        if not self.text.startswith("{", self.at) or not brace:
            return None
        low, comma, high = body.partition(",")
        if not _is_number(low) or not (_is_number(high) or high == ""):
            return None
        self.at += len(body) + 2
        least = int(low)
        most = least if not comma else int(high) if high else -1
        if most not in (-1, *range(least, MOST_REPEATS + 1)) or least > MOST_REPEATS:
            raise self.error(f"repetitions {{{body}}}")
        return least, most

    def atom(self, flags: _Flags, depth: int) -> Node:
        char = self.char()
        match char:
            case "(":
                return self.group(flags, depth)
            case "[":
                return Chars(self.set(flags))
            case ".":
                return Chars(((0, LAST),) if flags.all else negated(((10, 10),)))
            case "^":
                return Assertion("line_begin" if flags.lines else "begin")
            case "$":
                return Assertion("line_end" if flags.lines else "end")
            case "*" | "+" | "?":
                raise self.error(f"'{char}' has nothing to repeat")
            case "\\":
                return self.escape(flags)
        return _literal(char, flags)

    def escape(self, flags: _Flags) -> Node:
        char = self.char()
        if char in PLACES:
            return Assertion(PLACES[char])
        if char == "C":
            return AnyByte()
        self.at -= 1
        found = self.escaped_set(flags)
        return Chars(found) if found is not None else _literal(chr(self.escaped_code()), flags)

    def escaped_set(self, flags: _Flags) -> Ranges | None:
        """Read a class such as \\d or \\pL behind its backslash, if one stands here."""
        char = self.char()
        if char.lower() in PERL:
            ranges = PERL[char.lower()]
            ranges = folded(ranges) if flags.fold and char == char.lower() else ranges
            return negated(ranges) if char.isupper() else ranges
        if char not in "pP":
            self.at -= 1
            return None
        name = self.char()
        if name == "{":
            name, brace, _ = self.text[self.at :].partition("}")
            if not brace:
                raise self.error("a '}' is missing")
            self.at += len(name) + 1
        negative = (char == "P") != name.startswith("^")
        found = category(name.removeprefix("^"))
        if found is None:
            raise UnsupportedError(f"regular expression: the class of Unicode '{name[:20]}'")
        found = folded(found) if flags.fold else found
        return negated(found) if negative else found

    def escaped_code(self) -> int:
        """Read one escaped code point behind its backslash."""
        char = self.char()
        if char in ESCAPES:
            return ESCAPES[char]
        if char == "x":
            if self.next("{"):
                digits, brace, _ = self.text[self.at :].partition("}")
                size = len(digits) + 1
            else:
                digits, brace, size = self.text[self.at : self.at + 2], "}", 2
            code = int(digits, 16) if brace and _is_hex(digits, size) else LAST + 1
            if code > LAST:
                raise self.error("a hexadecimal number is wrong")
            self.at += size
            return code
        if char in "01234567":
            digits = char
            while len(digits) < 3 and self.text[self.at : self.at + 1] in tuple("01234567"):
                digits += self.char()
            if len(digits) > 1 or char == "0":
                return int(digits, 8)
        if char.isascii() and char.isalnum():
            raise self.error(f"'\\{char}' is not known to RE2")
        return ord(char)

    def set(self, flags: _Flags) -> Ranges:
        """Read a set behind its '['."""
        negative = self.next("^")
        ranges: list[tuple[int, int]] = []
        first = True
        while first or not self.next("]"):
            first = False
            if self.text.startswith("[:", self.at) and self.posix(ranges):
                continue
            if self.next("\\"):
                found = self.escaped_set(flags)
                if found is not None:
                    ranges += found
                    continue
                self.at -= 1
            low = self.set_code()
            high = low
            if self.text.startswith("-", self.at) and not self.text.startswith("-]", self.at):
                self.at += 1
                high = self.set_code()
            if high < low:
                raise self.error("a range is upside down")
            ranges.append((low, high))
        result = folded(union(ranges)) if flags.fold else union(ranges)
        return negated(result) if negative else result

    def set_code(self) -> int:
        char = self.char()
        return self.escaped_code() if char == "\\" else ord(char)

    def posix(self, ranges: list[tuple[int, int]]) -> bool:
        """Read [:name:] or [:^name:], if it stands here."""
        name, end, _ = self.text[self.at + 2 :].partition(":]")
        if not end or not name.removeprefix("^").isalpha():
            return False
        if name.removeprefix("^") not in POSIX:
            raise self.error(f"the class [:{name[:20]}:] is not known")
        found = POSIX[name.removeprefix("^")]
        ranges += negated(found) if name.startswith("^") else found
        self.at += len(name) + 4
        return True


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def _is_hex(digits: str, size: int) -> bool:
    right = len(digits) in (2, size - 1) and len(digits) > 0
    return right and all(c in "0123456789abcdefABCDEF" for c in digits)


def _literal(char: str, flags: _Flags) -> Node:
    ranges: Ranges = ((ord(char), ord(char)),)
    return Chars(folded(ranges) if flags.fold else ranges)


def _times(node: Node) -> int:
    """Return how often the innermost part is written out at most."""
    match node:
        case Repeat():
            return max(node.most, node.least, 1) * _times(node.part)
        case Join() | Choice():
            parts: Sequence[Node] = node.parts if isinstance(node, Join) else node.options
            return max((_times(p) for p in parts), default=1)
    return 1
