"""Shell completion: scripts for bash, zsh and fish, made of the settings table."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from atc.backends.cpu.targets import TARGETS
from atc.errors import OptionError, one_line
from atc.options.help import COMMANDS
from atc.options.table import options_of
from atc.options.table.setting import Setting
from atc.templates import render

SHELLS = ("bash", "zsh", "fish")

_WORDS: Mapping[str, tuple[str, ...]] = {
    "cache": ("stats", "verify", "clear", "why"),
    "completion": SHELLS,
}
"""The words that a command takes besides options."""

_FILES = frozenset({"FILE", "PATH"})
_FOLDERS = frozenset({"DIR", "FOLDER"})
_TARGETS = frozenset({"target", "soc_version"})

_LONGEST = 72  # characters of a meaning: a line of a terminal has them beside an option

Kind = Literal["flag", "file", "dir", "word"]
"""What follows an option: nothing, a path, a folder, or one of some words or anything."""


@dataclass(frozen=True)
class CompletedOption:
    """An option as a shell needs it: its name, a line about it, and what may follow."""

    name: str
    meaning: str
    kind: Kind
    words: tuple[str, ...]


@dataclass(frozen=True)
class CommandLine:
    """A command, its words and its options; `compile` is `atc` without a command."""

    name: str
    words: tuple[str, ...]
    options: tuple[CompletedOption, ...]


def completion(shell: str) -> str:
    """Return the completion script of a shell; raises OptionError for an unknown one."""
    if shell not in SHELLS:
        wrong = f"no completion for '{one_line(shell, 40)}'" if shell else "a shell is needed"
        raise OptionError(wrong, hint=f"use one of {', '.join(SHELLS)}")
    return render(f"shell/{shell}.j2", {"commands": tuple(_command_lines())})


def _command_lines() -> Iterator[CommandLine]:
    subcommands = tuple(name for name in COMMANDS if name != "compile")
    for name in COMMANDS:
        options = tuple(_completed(s) for s in options_of(name).values() if s.role != "ignored")
        words = subcommands if name == "compile" else _WORDS.get(name, ())
        yield CommandLine(name, words, options)


def _completed(setting: Setting) -> CompletedOption:
    kind: Kind = "word"
    words: tuple[str, ...] = ()
    if setting.flag:
        kind, words = "flag", ("0", "1")
    elif setting.name in _TARGETS:
        words = ("host", *(t.name for t in TARGETS))
    elif setting.values in _FILES:
        kind = "file"
    elif setting.values in _FOLDERS:
        kind = "dir"
    elif re.fullmatch(r"[\w.-]+(\|[\w.-]+)+", setting.values):
        words = tuple(setting.values.split("|"))
    return CompletedOption(setting.name, _line(setting.meaning), kind, words)


def _line(meaning: str) -> str:
    """Return a meaning's beginning, in characters that no shell's quotes and brackets mind."""
    begin = re.split(r"[;:(]", meaning)[0].strip().replace("'", "\u2019")
    return re.sub(r"[^\w .,/+\u2019-]", "", begin)[:_LONGEST]
