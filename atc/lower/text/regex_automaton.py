"""Regular expressions as deterministic automata over the bytes of UTF-8."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from atc.errors import UnsupportedError
from atc.ir.graph import Array
from atc.lower.text.regex_sets import WORD
from atc.lower.text.regex_syntax import AnyByte, Assertion, Chars, Choice, Join, Node, Repeat, parse

MOST_NFA_STATES = 20_000
"""States of the automaton before it is made deterministic."""

MOST_STATES = 4_096
"""States of the deterministic one; the tables have a row each."""

MOST_VISITS = 5_000_000
"""Those visited while making it deterministic, which takes seconds; what needs more is refused."""


@dataclass(frozen=True)
class Automaton:
    """Tables: the class of each byte, next states [states, classes], whether to accept."""

    classes: Array
    steps: Array
    accepting: Array


def automaton(pattern: str) -> Automaton:
    """Return the automaton of the strings that an expression matches from end to end."""
    nfa = _Nfa()
    end = nfa.add()
    start = nfa.build(parse(pattern), end)
    return _determined(nfa, start, end)


# ---- an automaton with choices ------------------------------------------------------------------


@dataclass
class _Nfa:
    """States with bytes that lead on, and epsilon moves, some only where an assertion holds."""

    bytes: list[list[tuple[int, int, int]]] = field(default_factory=list)
    epsilon: list[list[tuple[str, int]]] = field(default_factory=list)
    tails: dict[tuple[int, tuple[tuple[int, int], ...]], int] = field(default_factory=dict)

    def add(self) -> int:
        if len(self.epsilon) >= MOST_NFA_STATES:
            raise UnsupportedError("the regular expression is too large")
        self.bytes.append([])
        self.epsilon.append([])
        return len(self.epsilon) - 1

    def build(self, node: Node, end: int) -> int:
        """Add what matches `node` and goes on at `end`; return where it begins."""
        match node:
            case Chars():
                state = self.add()
                for sequence in _utf8(node.ranges):
                    self._sequence(state, sequence, end)
                return state
            case AnyByte():
                state = self.add()
                self.bytes[state].append((0, 255, end))
                return state
            case Assertion():
                state = self.add()
                self.epsilon[state].append((node.kind, end))
                return state
            case Join():
                for part in reversed(node.parts):
                    end = self.build(part, end)
                return end
            case Choice():
                state = self.add()
                self.epsilon[state] += [("", self.build(option, end)) for option in node.options]
                return state
            case Repeat():
                return self._repeat(node, end)
        raise TypeError(node)

    def _sequence(self, state: int, sequence: Sequence[tuple[int, int]], end: int) -> None:
        """Lead from a state over ranges of bytes; equal ends of sequences are shared."""
        (low, high), *rest = sequence
        if not rest:
            self.bytes[state].append((low, high, end))
            return
        key = (end, tuple(rest))
        if key not in self.tails:
            self.tails[key] = self.add()
            self._sequence(self.tails[key], rest, end)
        self.bytes[state].append((low, high, self.tails[key]))

    def _repeat(self, node: Repeat, end: int) -> int:
        if node.most < 0:
            loop = self.add()
            self.epsilon[loop] += [("", end), ("", self.build(node.part, loop))]
            end = loop
        else:
            last = end
            for _ in range(node.most - node.least):
                begin = self.build(node.part, end)
                end = self.add()
                self.epsilon[end] += [("", begin), ("", last)]
        for _ in range(node.least):
            end = self.build(node.part, end)
        return end


def _utf8(ranges: Sequence[tuple[int, int]]) -> Iterator[list[tuple[int, int]]]:
    """Yield sequences of ranges of bytes that are the UTF-8 of ranges of code points."""
    for low, high in ranges:
        for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xFFFF), (0x10000, 0x10FFFF)):
            if low <= last and high >= first:
                yield from _split(max(low, first), min(high, last))


def _split(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Yield the sequences of a range whose code points take equally many bytes."""
    one, two = (_encode(c) for c in (low, high))
    for k in range(1, len(one)):  # the low 6 bits of the last k bytes
        mask = (1 << (6 * k)) - 1
        if low & ~mask != high & ~mask:
            if low & mask:
                yield from _split(low, low | mask)
                yield from _split((low | mask) + 1, high)
                return
            if high & mask != mask:
                yield from _split(low, (high & ~mask) - 1)
                yield from _split(high & ~mask, high)
                return
    yield list(zip(one, two, strict=True))


def _encode(code: int) -> bytes:
    return chr(code).encode("utf-8", "surrogatepass")


# ---- a deterministic one ------------------------------------------------------------------------

_WORD_BYTES = frozenset(c for low, high in WORD for c in range(low, high + 1))
_NEWLINE = 10
_EDGE = -1
"""Stands for what lies before the first and behind the last byte."""


def _kind(byte: int) -> str:
    """Return what assertions need to know of a byte: edge, word, line or other."""
    if byte == _EDGE:
        return "edge"
    return "word" if byte in _WORD_BYTES else "line" if byte == _NEWLINE else "other"


def _holds(assertion: str, before: str, after: str) -> bool:
    boundary = (before == "word") != (after == "word")
    return {
        "": True, "begin": before == "edge", "end": after == "edge",
        "line_begin": before in ("edge", "line"), "line_end": after in ("edge", "line"),
        "word": boundary, "no_word": not boundary,
    }[assertion]  # fmt: skip


def _classes(nfa: _Nfa) -> list[int]:
    """Return the class of each byte; what no move and no assertion distinguishes shares one."""
    cuts = {0, 256, _NEWLINE, _NEWLINE + 1}
    for low, high in WORD:
        cuts |= {low, high + 1}
    for moves in nfa.bytes:
        for low, high, _ in moves:
            cuts |= {low, high + 1}
    ends = sorted(cuts)
    table = []
    for number, (low, high) in enumerate(zip(ends, ends[1:], strict=False)):
        table += [number] * (high - low)
    return table


Subset = tuple[frozenset[int], str]
"""The states of the NFA that bytes lead to, and the kind of the last byte."""


def _determined(nfa: _Nfa, start: int, end: int) -> Automaton:
    classes = _classes(nfa)
    samples = [classes.index(c) for c in range(classes[-1] + 1)]
    dead: Subset = (frozenset(), "dead")
    numbers: dict[Subset, int] = {dead: 0, (frozenset([start]), "edge"): 1}
    order = list(numbers)
    steps: list[list[int]] = [[0] * len(samples)]
    accepting = [False]
    visits = 0
    while len(steps) < len(order):
        held, before = order[len(steps)]
        reached = {k: _closure(nfa, held, before, k) for k in ("edge", "word", "line", "other")}
        visits += sum(map(len, reached.values()))
        accepting.append(end in reached["edge"])
        row = []
        for byte in samples:
            kind = _kind(byte)
            goals = frozenset(
                goal
                for state in reached[kind]
                for low, high, goal in nfa.bytes[state]
                if low <= byte <= high
            )
            visits += len(reached[kind])
            subset: Subset = (goals, kind) if goals else dead
            if subset not in numbers:
                numbers[subset] = len(order)
                order.append(subset)
            row.append(numbers[subset])
        steps.append(row)
        if len(order) > MOST_STATES or visits > MOST_VISITS:
            raise UnsupportedError(
                f"the regular expression needs too many states (at most {MOST_STATES})",
                hint="shorten its repetitions",
            )
    return _minimal(np.asarray(classes), np.asarray(steps), np.asarray(accepting))


def _closure(nfa: _Nfa, held: frozenset[int], before: str, after: str) -> set[int]:
    """Return all states that can be reached without a byte, between two kinds of bytes."""
    found = set(held)
    todo = list(held)
    while todo:
        for assertion, goal in nfa.epsilon[todo.pop()]:
            if goal not in found and _holds(assertion, before, after):
                found.add(goal)
                todo.append(goal)
    return found


def _minimal(classes: Array, steps: Array, accepting: Array) -> Automaton:
    """Merge states that accept the same, and classes of bytes with equal columns."""
    group = np.asarray(accepting, np.int64)
    while True:
        signature = np.concatenate([group[:, None], group[steps]], axis=1)
        _, first, new = np.unique(signature, axis=0, return_index=True, return_inverse=True)
        new = new.reshape(-1)
        if len(first) == len(np.unique(group)):
            break
        group = new
    # The dead state is 0 and the first one 1; they are one where nothing can match.
    order = list(dict.fromkeys([int(group[0]), int(group[1]), *map(int, group)]))
    if group[0] == group[1]:
        order.insert(0, -1)
    number = {g: k for k, g in enumerate(order)}
    picked = [0 if g == -1 else int(np.flatnonzero(group == g)[0]) for g in order]
    rename = np.asarray([number[int(g)] for g in group])
    table = rename[steps[picked]]
    columns, which = np.unique(table, axis=1, return_inverse=True)
    which = which.reshape(-1)
    return Automaton(which[classes].astype(np.uint8), columns.astype(np.uint16), accepting[picked])
