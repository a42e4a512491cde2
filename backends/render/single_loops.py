"""Loops of one iteration in the C of kernels: what the loop does stands there without it.

Templates write every loop of their algorithm; an extent of 1 leaves `for (n = 0; n < 1; n++)`. The
text that templates make is regular: a loop begins and ends on lines of its own, what is inside is
indented further. It is done to the text because it concerns every loop of every template, some 800:
written there it would be as many blocks whose bodies are indented, and whose indices are summed, by
what their loops turn out to be. Where the text is less regular than this the loop stays.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import lru_cache

from atc.backends.render.code import names_in

_LOOP = re.compile(
    r"(?P<indent> *)for \((?P<type>ptrdiff_t|size_t|int|unsigned|u?int(?:32|64)_t) (?P<name>\w+) = "
    r"(?P<first>\d+)u?; (?P=name) < (?P<end>\d+)u?; "
    r"(?:(?P=name)\+\+|\+\+(?P=name)|(?P=name) \+= (?P<step>\d+)u?)(?:, (?P<more>[^;()]+))?\)"
    r"(?P<rest>| [^\\]*[^\\ ])"
)
_COMMENT = re.compile(r" ?(/\*(?:[^*]|\*(?!/))*\*/)$")
_DECLARES = re.compile(
    r"(?!return\b|goto\b|else\b|case\b)(?:[A-Za-z_]\w* )+\**(?:(?:const|restrict) )*"
    r"(?=\w+(?: =|[;,\[]))"
)
_DECLARED = re.compile(r"(?:^|, )\**(\w+)(?= =|[;,\[])")
_AFTER_STATEMENT = re.compile(r"(?:[;{}]|\*/)$")
_NARROW = re.compile(r"\b(?:int|unsigned|u?int(?:8|16|32)_t) (\w+)\b")


@dataclass(frozen=True)
class _Loop:
    """A loop of one iteration: its variable's only value, and what stands in it."""

    indent: str
    type: str
    name: str
    value: int
    comment: str
    body: Sequence[str]
    """Lines, as far to the right as they stand inside of the loop."""
    length: int
    """How many lines of the text it takes."""


def without_single_loops(text: str) -> str:
    """Return C without the loops of one iteration.

    A variable that is 0 goes from the sums of indices that it is a term of; where it is needed
    otherwise it becomes a constant. What a `continue` skips stands in an `else`; a loop that is
    left early otherwise stays as it is. What says that a loop is to be unrolled goes with it.
    """
    lines = text.split("\n")
    at = 0
    while at < len(lines):
        loop = _single_loop(lines, at) if "for (" in lines[at] else None
        if loop is None:
            at += 1
            continue
        first, end = _function(lines, at)
        others = [*lines[first:at], *lines[at + loop.length : end]]
        end, at = at + loop.length, at - (at > 0 and lines[at - 1].strip().startswith("UNROLL"))
        before = next((line for k in range(at - 1, -1, -1) if (line := lines[k].strip())), "{")
        lines[at:end] = _statements(loop, others, before)
    return "\n".join(lines)


def _single_loop(lines: Sequence[str], at: int) -> _Loop | None:
    """Return the loop that begins at a line, None if it isn't one of one iteration."""
    head = _LOOP.fullmatch(lines[at])
    if head is None:
        return None
    first, end, step = int(head["first"]), int(head["end"]), int(head["step"] or 1)
    if not first < end <= first + step:
        return None
    comment = _COMMENT.search(head["rest"])
    rest = head["rest"].removesuffix(comment[0] if comment else "").strip()
    last = at if rest not in ("", "{") else _last_line(lines, at, head["indent"], rest == "{")
    body = [f"{head['indent']}  {rest}"] if last == at else [*lines[at + 1 : last + 1]]
    if rest == "{":
        body = body[:-1]
        if any(line and not line.startswith(f"{head['indent']}  ") for line in body):
            body = [f"  {line}" if line else "" for line in body]  # of a nest
    body = _without_continue(body, f"{head['indent']}  ")
    if not body or _is_left_early(body):
        return None
    if head["more"]:
        body.append(f"{head['indent']}  {head['more']};")
    return _Loop(
        head["indent"], head["type"], head["name"], first, comment[1] if comment else "", body,
        last + 1 - at,
    )  # fmt: skip


def _last_line(lines: Sequence[str], at: int, indent: str, braces: bool) -> int:
    """Return where a loop ends, -1 where the text isn't as regular as templates write it.

    Loops of a nest may stand below each other, without further indentation.
    """
    depth = 1
    for k in range(at + 1, len(lines)):
        line = lines[k]
        if line.startswith("#") or line.endswith("\\"):
            return -1
        if line and not line.startswith(f"{indent}  "):
            if braces and line.startswith(f"{indent}for (") and line.endswith(" {"):
                depth += 1
                continue
            if braces:
                depth -= 1
                if depth and line == f"{indent}}}":
                    continue
                return k if line == f"{indent}}}" else -1
            return k if line == f"{indent}}}" and lines[at + 1].endswith("{") else k - 1
    return -1


def _without_continue(body: Sequence[str], indent: str) -> list[str]:
    """Return the lines of a loop's only iteration with what a condition skips in its `else`."""
    if not any("continue;" in line for line in body):  # as in most loops
        return [*body]
    for k, line in enumerate(body):
        skip = re.fullmatch(rf"{indent}if \((.*)\) continue;", line)
        ends = body[k : k + 2] == [f"{indent}  continue;", f"{indent}}}"]
        if skip or ends:
            rest = _without_continue(body[k + 1 if skip else k + 2 :], indent)
            begin = f"{indent}if (!({skip[1]})) {{" if skip else f"{indent}}} else {{"
            return [
                *body[:k],
                begin,
                *(f"  {each}" if each else "" for each in rest),
                f"{indent}}}",
            ]
    return [*body]


def _is_left_early(body: Sequence[str]) -> bool:
    """Return whether a `break` or `continue` in the lines of a loop is the loop's own."""
    around: list[tuple[int, str]] = []
    if not any("break;" in line or "continue;" in line for line in body):
        return False
    for line in filter(None, body):
        depth, text = len(line) - len(line.lstrip(" ")), line.strip()
        around = [(d, t) for d, t in around if d < depth]
        for word, holders in (("break;", ("for", "while", "do", "switch")),
                              ("continue;", ("for", "while", "do"))):  # fmt: skip
            if word in text and re.search(rf"\b{word}", text):
                openers = [*(t for _, t in around), text]
                if not any(t.startswith(tuple(f"{h} " for h in holders)) for t in openers):
                    return True
        around.append((depth, text))
    return False


def _function(lines: Sequence[str], at: int) -> tuple[int, int]:
    """Return the first line of the function around a line, and the line after its last."""
    first = next((k for k in range(at, -1, -1) if lines[k][:1] not in ("", " ")), 0)
    while first > 0 and lines[first - 1] and not lines[first - 1].startswith((" *", "}", "#")):
        first -= 1
    return first, next((k for k in range(at, len(lines)) if lines[k].startswith("}")), len(lines))


@lru_cache(1 << 14)  # kernels share most of their lines, and each is asked for by many loops
def _narrow_names(line: str) -> tuple[str, ...]:
    """Return the variables of few bits that a line declares."""
    return tuple(_NARROW.findall(line))


def _statements(loop: _Loop, others: Sequence[str], before: str) -> list[str]:
    """Return what a loop does, in a block of its own where it declares what others call so."""
    narrow = {name for line in (*others, *loop.body) for name in _narrow_names(line)}
    body = [_without_term(line, loop, narrow) for line in loop.body]
    if _names(body, {loop.name}):
        body.insert(0, f"{loop.indent}  const {loop.type} {loop.name} = {loop.value};")
    if loop.comment:
        body.insert(0, f"{loop.indent}  {loop.comment}")
    inside = f"{loop.indent}  "
    declared = {
        name
        for line in body
        if line.startswith(inside) and (type_ := _DECLARES.match(line.removeprefix(inside)))
        for name in _DECLARED.findall(line.removeprefix(inside)[type_.end() :])
    }
    alone = _AFTER_STATEMENT.search(before) is not None
    if not alone or _names(others, declared):
        return [f"{loop.indent}{{", *body, f"{loop.indent}}}"]
    return [line.removeprefix("  ") for line in body]


def _names(lines: Sequence[str], names: Set[str]) -> bool:
    """Return whether the code of some lines, not a comment alone, has one of these names."""
    there = any(name in line for name in names for line in lines)
    return there and not names.isdisjoint(names_in("\n".join(lines)))


def _without_term(line: str, loop: _Loop, narrow: Set[str]) -> str:
    """Return a line without a variable that is 0 where it is a term of an index.

    Not beside `narrow` variables, of fewer bits, whose sum would then be of fewer bits, too.
    """
    if loop.name not in line:  # as in most lines
        return line
    line = re.sub(rf"(?<=\w\[){loop.name}(?=\])", str(loop.value), line)
    if loop.value:
        return line
    line = re.sub(rf"(?<=\w\[){loop.name} \+ (\d+)(?=\])", r"\1", line)
    if not re.search(rf"\b{loop.name}\b", line):
        return line
    if not narrow.isdisjoint(re.findall(r"\w+", line)):
        return line
    term = rf"{loop.name}\b(?: \* (?:\d+|dim\d+))*"
    line = re.sub(rf"(?<=\w) \+ \((?:0 \+ {term}|{term} \+ 0)\)", "", line)
    line = re.sub(rf"(?<![\w)\]])\((?:(\w+) \+ {term}|{term} \+ (\w+))\)", r"\1\2", line)
    line = re.sub(rf" \+ {term}(?=[\]),;]| [+-] )", "", line)
    line = re.sub(rf"(?<=[\[(]){term} \+ ", "", line)
    line = re.sub(rf" = {term} \+ ", " = ", line)
    return re.sub(rf"(?<=\[){term}(?=\])", "0", line)
