"""The values of options: each parser takes text, or a Python value with the same meaning.

They raise OptionError without a place; the setting adds its own name.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line

Parse = Callable[[object], object]
"""Turns what the user gave into a checked value."""

OUTPUT_TYPES = (
    "FP32", "FP16", "BF16", "DOUBLE", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32",
    "INT64", "UINT64",
)  # fmt: skip
"""What `--output_type` calls types."""

_PATH_MAX, _NAME_MAX = 4096, 255  # bytes, on Linux


def text(value: object) -> str:
    """Return a free text."""
    return str(value)


def path(value: object) -> Path | None:
    """Return a path; None for the empty text."""
    name = os.fspath(value) if isinstance(value, os.PathLike) else str(value)
    if not name:
        return None
    if "\0" in name:
        raise OptionError(f"the path '{shown(name)}' holds a NUL")
    raw = os.fsencode(name)
    if len(raw) >= _PATH_MAX or any(len(part) > _NAME_MAX for part in raw.split(b"/")):
        raise OptionError(f"the path '{shown(name)}' is too long", code="E10021")
    return Path(name)


def required_path(value: object) -> Path:
    """Return a path that must be given."""
    found = path(value)
    if found is None:
        raise OptionError("the value is empty", code="E10004")
    return found


def switch(value: object) -> bool:
    """Return whether something is on: 1, 0, true or false."""
    match str(value).lower():
        case "1" | "true":
            return True
        case "0" | "false":
            return False
    raise OptionError(f"invalid value '{shown(value)}'", hint="use 1 or 0", code="E10006")


EXPORT = "export"


def switch_or_export(value: object) -> bool | str:
    """Return whether something is on, or `export`."""
    if value == EXPORT:
        return EXPORT
    try:
        return switch(value)
    except OptionError as error:
        error.hint = "use 1, 0 or export"
        raise


@dataclass(frozen=True)
class Checks:
    """The checks of a checked build; `limit` is the largest magnitude, 0 for none.

    With `path` a fault says how what the call read was computed.
    """

    memory: bool = False
    nan: bool = False
    infinite: bool = False
    limit: float = 0.0
    path: bool = False

    @property
    def numbers(self) -> bool:
        """Whether results are looked at."""
        return self.nan or self.infinite or self.limit > 0


def checks(value: object) -> Checks | None:
    """Return the checks of a list such as `memory,nan,inf,range:1e4`; None for none of them."""
    if value is None or isinstance(value, Checks):
        return value
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in str(value).lower().split(","))):
        name, _, limit = word.partition(":")
        match name:
            case "1" | "true" | "all":
                found |= {"memory": True, "nan": True, "infinite": True}
            case "0" | "false":
                found = {}
            case "memory" | "nan":
                found[name] = True
            case "inf":
                found["infinite"] = True
            case "range":
                found["limit"] = positive(limit)
            case _:
                raise OptionError(
                    f"invalid check '{shown(word)}'", code="E10001",
                    hint="use memory, nan, inf, range:LIMIT, or 1 for the first three",
                )  # fmt: skip
    return Checks(**found) if found else None


def choice(
    words: Iterable[str], later: Mapping[str, str] | None = None, *, code: str = "E10001",
    instead: str = "",
) -> Parse:  # fmt: skip
    """Return a parser of one of `words`, case-sensitive.

    `later` are words of the seed system that this version refuses by name, with a meaning;
    `instead` says what to do then.
    """
    allowed = tuple(words)

    def parse(value: object) -> str:
        word = str(value)
        if word in allowed:
            return word
        hint = "use one of " + ", ".join(w or '""' for w in allowed)
        if later is not None and word in later:
            meaning = f" ({later[word]})" if later[word] else ""
            raise OptionError(f"'{word}'{meaning} is not supported yet", hint=instead or hint,
                              code=code)  # fmt: skip
        raise OptionError(f"invalid value '{shown(value)}'", hint=hint, code=code)

    return parse


def choices(*allowed: str) -> Parse:
    """Return a parser of a list of `allowed` words, `a,b`."""

    def parse(value: object) -> tuple[str, ...]:
        found = words(value)
        for word in found:
            if word not in allowed:
                raise OptionError(f"invalid value '{shown(word)}'",
                                  hint=f"use one or more of {', '.join(allowed)}",
                                  code="E10001")  # fmt: skip
        return found

    return parse


def integer(low: int, high: int | None = None, later: Mapping[int, str] | None = None) -> Parse:
    """Return a parser of a whole number in a range; `later` as for `choice`."""

    def parse(value: object) -> int:
        number = whole(value)
        if number is None:
            raise OptionError(f"'{shown(value)}' is not a whole number", code="E10003")
        if number < low or (high is not None and number > high):
            bounds = f"{low} or more" if high is None else f"{low} to {high}"
            raise OptionError(f"{number} is out of range", hint=f"use {bounds}", code="E10013")
        if later is not None and number in later:
            raise OptionError(f"{number} ({later[number]}) is not supported yet")
        return number

    return parse


def word_or(word: str, otherwise: Parse) -> Parse:
    """Return a parser of one word, and of all that another parser takes."""
    return lambda value: word if value == word else otherwise(value)


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}


def size(value: object) -> int:
    """Return a number of bytes: 65536, 64K or 2M."""
    found = re.fullmatch(r"(\d{1,15})\s*([kKmM]?)(?:i?[bB])?", str(value).strip())
    if found is None:
        raise OptionError(
            f"'{shown(value)}' is not a number of bytes", hint="write 65536, 64K or 2M",
            code="E10003",
        )  # fmt: skip
    return int(found[1]) * _UNITS[found[2].lower()]


def pool(value: object) -> str:
    """Return a number of bytes as text, `all`, or nothing."""
    word = str(value).strip()
    return word if word in ("", "all") else str(size(word))


def truth(value: object) -> bool:
    """Return whether something is on: true or false in words, as some of ATC's options have it."""
    match str(value).lower():
        case "true":
            return True
        case "false" | "":
            return False
    raise OptionError(f"invalid value '{shown(value)}'", hint="use true or false", code="E10005")


def command(value: object) -> str:
    """Return a command line whose quotes are in pairs."""
    try:
        words = shlex.split(str(value))
    except ValueError as error:
        raise OptionError(f"can't be split into words: {error}", code="E10014") from None
    if words and words[0].startswith("-"):
        raise OptionError(
            f"'{shown(words[0])}' is not a program", hint="the form is: compiler flags...",
            code="E10014",
        )  # fmt: skip
    return str(value)


def output_types(value: object) -> tuple[tuple[str, str], ...]:
    """Return pairs of an output and a type, of `TYPE` for all or `output:TYPE;node:0:TYPE`."""
    pairs = []
    for item in str(value).split(";") if value else ():
        name, _, word = (part.strip() for part in item.rpartition(":"))
        if word.upper() not in OUTPUT_TYPES:
            raise OptionError(
                f"'{shown(word)}' is not a valid output type", code="E10014",
                hint=f"use one of {', '.join(OUTPUT_TYPES)}",
            )  # fmt: skip
        pairs.append((name, word.upper()))
    given = [name for name, _ in pairs]
    if len(set(given)) < len(given) or ("" in given and len(given) > 1):
        raise OptionError("an output has two types", hint="the form is out:FP16;out2:FP32")
    return tuple(pairs)


def words(value: object) -> tuple[str, ...]:
    """Return the words of `a,b,c`, or of a sequence."""
    return names(value.replace(",", ";") if isinstance(value, str) else value)


def positive(value: object) -> float:
    """Return a number above zero."""
    try:
        number = float(str(value))
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise OptionError(f"'{shown(value)}' is not a number above 0", code="E10003")
    return number


def nonnegative(value: object) -> float:
    """Return a number of 0 or more."""
    return 0.0 if str(value).strip() in ("0", "0.0") else positive(value)


def present(value: object) -> bool:
    """Return whether something is on: anything but 0, false and nothing."""
    return str(value).strip().lower() not in ("", "0", "false")


def listed(value: object) -> list[object]:
    """Return the items of a sequence, which text isn't here."""
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise OptionError(f"'{shown(value)}' is no list", hint="give a list")
    return [*value]


def names(value: object) -> tuple[str, ...]:
    """Return the names of `a;b;c`, or of a sequence; none may be empty or a duplicate."""
    items = value.split(";") if isinstance(value, str) else listed(value)
    result = tuple(str(item).strip() for item in items)
    if result in ((), ("",)):
        return ()
    for k, name in enumerate(result):
        if not name or name in result[:k]:
            problem = f"duplicate name '{shown(name)}'" if name else "a name is empty"
            raise OptionError(problem, hint='the form is "name;name2"')
    return result


def whole(value: object) -> int | None:
    """Return a whole number written in ASCII digits, or a Python one; None for anything else."""
    if isinstance(value, str):
        digits = re.fullmatch(r"\s*[+-]?[0-9]{1,18}\s*", value)
        return int(value) if digits else None
    try:
        return index(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def shown(value: object) -> str:
    """Return what a message shows of a value."""
    return one_line(str(value), 60)
