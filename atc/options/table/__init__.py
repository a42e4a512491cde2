"""Every option of the command lines and every variable, as one table.

Parsing, validation, precedence, `--help`, `atc env`, shell completion, `Options`, the keywords of
`atc.compile` and the documentation come from it. May import `options.values` and
what `options` may.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping

from atc.errors import OptionError, one_line
from atc.options.table.atc_options import ATC_OPTIONS, LOG_LEVELS
from atc.options.table.commands import WITH_OPTIONS, command_options
from atc.options.table.ignored import IGNORED_OPTIONS
from atc.options.table.load_and_run import LOAD_AND_RUN
from atc.options.table.megengine import MEGENGINE
from atc.options.table.mxnet import MXNET
from atc.options.table.setting import Role, Setting
from atc.options.table.training import TRAINING
from atc.options.table.variables import ATC_VARIABLES
from atc.options.unsupported import LATER
from atc.options.values import required_path

__all__ = [
    "ATC_OPTIONS", "LOAD_AND_RUN", "LOG_LEVELS", "OPTIONS", "ROLES", "SETTINGS", "VARIABLES",
    "Setting", "find_option", "options_of", "read_values",
]  # fmt: skip

SETTINGS: tuple[Setting, ...] = (
    *ATC_OPTIONS, *TRAINING, *IGNORED_OPTIONS, *ATC_VARIABLES, *MEGENGINE, *MXNET, *LOAD_AND_RUN
)  # fmt: skip

VARIABLES: tuple[Setting, ...] = tuple(s for s in SETTINGS if s.kind == "variable")
"""Environment variables; of two that answer the same question the first one counts."""

OPTIONS: Mapping[str, Setting] = {
    s.name: s for s in (*ATC_OPTIONS, *TRAINING, *IGNORED_OPTIONS) if s.kind == "option"
}
"""The options of `atc` and its commands; `load_and_run` has its own, of the same names in part."""

ROLES: Mapping[str, tuple[Role, ...]] = {
    "compile": ("compilation", "tool", "train", "ignored"),
    "verify": ("compilation", "verify", "ignored"),
    "check": ("compilation", "ignored"),
    "diff": ("compilation", "ignored"),
    "bisect": ("compilation", "ignored"),
}
"""The roles of the options that each way of compiling takes; commands write none of its output."""

SILENT = ("env", "completion")
"""The commands that report nothing while they run."""


def options_of(command: str) -> dict[str, Setting]:
    """Return the options of a command of the command line, in the table's order."""
    if command == "load_and_run":
        own = {s.name: s for s in LOAD_AND_RUN if s.kind == "option"}
    else:
        own = {name: s for name, s in OPTIONS.items() if s.role in ROLES.get(command, ())}
        if command != "compile":
            own.pop("output", None)
        own |= command_options(command)
        if command not in SILENT:
            own["log"] = OPTIONS["log"]
    return {**own, **{name: s for name, s in OPTIONS.items() if s.role == "help"}}


def find_option(name: str, command: str) -> Setting:
    """Return an option by its name, dashes for underscores alike.

    Raises OptionError with the command that has it, or the nearest name.
    """
    own = options_of(command)
    wanted = name.replace("-", "_")
    if wanted in own:
        return own[wanted]
    where = f"--{one_line(name, 60)}"
    if wanted in LATER:
        raise OptionError(
            f"--{wanted} is an option of ATC that this version does not support yet "
            f"({LATER[wanted]})", where=where, code="E10055",
        )  # fmt: skip
    raise OptionError(
        f"unknown option --{one_line(name, 60)}", where=where, hint=_way_out(wanted, own, command)
    )


def _way_out(name: str, own: Mapping[str, Setting], command: str) -> str:
    for other in (*ROLES, *WITH_OPTIONS, "load_and_run"):
        if name in options_of(other):
            return f"it is an option of {_called(other)}"
    near = difflib.get_close_matches(name, (*own, *LATER), n=2, cutoff=0.6)
    return f"did you mean --{' or --'.join(near)}?" if near else f"see {_called(command)} --help"


def _called(command: str) -> str:
    match command:
        case "compile":
            return "atc"
        case "load_and_run":
            return command
        case _:
            return f"atc {command}"


def read_values(given: Mapping[str, object], command: str) -> dict[str, object]:
    """Return the checked values of all of a command's options: those given, else the defaults.

    Raises OptionError (E10007) where a required one is missing.
    """
    result = {}
    for name, setting in options_of(command).items():
        if name not in given and setting.parse is required_path:
            raise OptionError(
                f"--{name} is required", where=f"--{name}", code="E10007",
                hint=f"give --{name}={setting.values}",
            )  # fmt: skip
        result[name] = setting.value(given.get(name, setting.default))
    return result
