"""The grammar of the command line: `--name=value`, `--name value`, and what may stand alone."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from atc.errors import OptionError, one_line
from atc.options.help import COMMANDS
from atc.options.table import find_option

_SHORT = {"h": "help", "j": "jobs"}
_TRUTHS = frozenset({"0", "1", "true", "false"})


@dataclass(frozen=True)
class Arguments:
    """The user's texts by setting name (of repeated ones the last), and bare words."""

    given: dict[str, str]
    words: tuple[str, ...]


def parse_arguments(argv: Sequence[str], command: str, words: int = 0) -> Arguments:
    """Parse the arguments of a command that takes up to `words` bare words.

    Raises OptionError for an unknown option, a missing value and a word too many.
    """
    given: dict[str, str] = {}
    bare: list[str] = []
    rest = list(reversed(argv))
    while rest:
        argument = rest.pop()
        if not argument.startswith("-") or argument == "-":
            bare.append(argument)
            if len(bare) > words:
                raise _too_many(argument, command)
            continue
        name, equals, value = _split(argument)
        setting = find_option(name, command)
        if not equals:
            if setting.flag:
                value = rest.pop() if rest and rest[-1].lower() in _TRUTHS else "1"
            elif setting.alone:
                value = rest.pop() if rest and _is_number(rest[-1]) else setting.alone
            elif rest:
                value = rest.pop()
            else:
                raise OptionError(
                    "the value is missing", where=f"--{setting.name}", code="E10004",
                    hint=f"give --{setting.name}={setting.values}",
                )  # fmt: skip
        given[setting.name] = value
    return Arguments(given, tuple(bare))


def _is_number(word: str) -> bool:
    return word.removeprefix("-").isdecimal()


def _split(argument: str) -> tuple[str, str, str]:
    """Return name, `=` if there is a value in the argument, and that value."""
    if argument.startswith("--"):
        return argument[2:].partition("=")
    name, value = argument[1], argument[2:].removeprefix("=")
    if name not in _SHORT or (value and name == "h"):
        raise OptionError(
            f"unknown option {one_line(argument, 60)}", hint="options begin with two dashes"
        )
    return _SHORT[name], "=" if value else "", value


def _too_many(word: str, command: str) -> OptionError:
    shown = one_line(word, 60)
    if command not in ("compile", "verify", "check"):
        hint = f"see atc {command} --help"
    elif command == "compile" and (meant := _meant_by(word)):
        hint = f"did you mean atc {meant}?"
    else:
        hint = f"did you mean --model={shown}?"
    return OptionError(f"'{shown}' is not an option", hint=hint)


def _meant_by(word: str) -> str:
    """Return what a word without a command's name was to be, if it looks like one."""
    if word in ("compile", "help"):
        return "--help" if word == "help" else "--model=FILE --output=FOLDER, without a command"
    near = difflib.get_close_matches(word, COMMANDS, n=1, cutoff=0.75)
    return near[0] if near else ""
