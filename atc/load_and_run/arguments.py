"""The command line: `--name`, `--name=value`, `--name value`, `--noname`, dashes or underscores."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line, reason_of, way_out
from atc.files.regular import regular
from atc.options.environment import read_config_environment
from atc.options.parse import parse_arguments
from atc.options.resolve import variable
from atc.options.table import options_of, read_values
from atc.options.table.megengine import device_threads

COMMAND = "load_and_run"
_THREADS = {"cpu_default", "multithread", "multithread_default"}
"""Options that say which threads compute."""
_ALIASES = {"const": "const_shape"}
_DEPTH = 8
"""Flag files may name others, this deep."""


@dataclass(frozen=True)
class RunArguments:
    """Checked values of all options, and the texts of those that the user gave."""

    subject: Path
    values: Mapping[str, Any]
    texts: Mapping[str, str]

    @property
    def given(self) -> frozenset[str]:
        """The names of the options that the user gave."""
        return frozenset(self.texts)

    def __getitem__(self, name: str) -> Any:
        return self.values[name]


def read_arguments(argv: Sequence[str], environ: Mapping[str, str]) -> RunArguments:
    """Return what a command line says; raises OptionError."""
    flags = {name for name, s in options_of(COMMAND).items() if s.flag}
    words = [_spelled(word, flags) for word in _expanded(argv, environ)]
    arguments = parse_arguments(words, COMMAND, words=1)
    if not arguments.words:
        raise OptionError(
            "no model or library is named", hint="load_and_run MODEL_OR_LIBRARY [options]",
            code="E10007",
        )  # fmt: skip
    values = read_values(arguments.given, COMMAND)
    if not arguments.given.keys() & _THREADS:
        values["multithread"] = _default_threads(environ)
    return RunArguments(Path(arguments.words[0]), values, arguments.given)


def _default_threads(environ: Mapping[str, str]) -> int:
    """Return the threads of the pool that MGE_DEFAULT_DEVICE says, -1 where it says none."""
    setting = variable("MGE_DEFAULT_DEVICE")
    found = read_config_environment(environ).find(setting)
    return (device_threads(str(setting.value(found.text))) if found else None) or -1


def _expanded(
    argv: Sequence[str], environ: Mapping[str, str], depth: int = 0
) -> Iterator[str]:
    """Yield the arguments with those that --flagfile and --fromenv stand for in their place."""
    for word in argv:
        name, _, value = word.partition("=")
        match name.replace("-", "_"):
            case "__flagfile":
                yield from _expanded(_flag_file(Path(value), depth), environ, depth + 1)
            case "__fromenv":
                for each in value.split(","):
                    if f"FLAGS_{each}" not in environ:
                        raise OptionError(
                            f"FLAGS_{one_line(each, 60)} is not set", where="--fromenv"
                        )
                    yield f"--{each}={environ[f'FLAGS_{each}']}"
            case _:
                yield word


def _flag_file(path: Path, depth: int) -> list[str]:
    if depth >= _DEPTH:
        raise OptionError(f"{path} is read from within itself", where="--flagfile")
    try:
        lines = regular(path).read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise OptionError(
            f"can't read the file: {reason_of(error, path)}", where=f"--flagfile: {path}",
            hint=way_out(error),
        ) from None  # fmt: skip
    try:
        return [w for line in lines if not line.startswith("#") for w in shlex.split(line)]
    except ValueError as error:
        text = f"{path} can't be split into words: {error}"
        raise OptionError(text, where="--flagfile") from None


def _spelled(word: str, flags: set[str]) -> str:
    """Return an argument with `--noflag` as `--flag=0` and aliases by their names."""
    if not word.startswith("--"):
        return word
    name, equals, value = word[2:].partition("=")
    plain = name.replace("-", "_")
    plain = _ALIASES.get(plain, plain)
    positive = plain.removeprefix("no").removeprefix("_")
    if not equals and plain not in flags and positive in flags:
        return f"--{positive}=0"
    return f"--{plain}{equals}{value}"
