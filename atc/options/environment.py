"""Settings from outside the command line: the environment and the configuration file.

Variables that are read once count as they were when this module was imported, the others as they
are at each call. The configuration file is `$ATC_CONFIG`, else `$XDG_CONFIG_HOME/atc/atc.cfg`, else
`~/.config/atc/atc.cfg`. It has the form of ATC's other files: lines `name=value` with the names of
options or variables, `#` begins a comment line.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from atc.errors import OptionError, one_line, reason_of
from atc.files.regular import is_file, regular
from atc.options.table import OPTIONS, VARIABLES
from atc.options.table.setting import Setting

_AT_START: Mapping[str, str] = MappingProxyType(dict(os.environ))
_FILE = ("atc", "atc.cfg")
_LARGEST = 1 << 20  # bytes


@dataclass(frozen=True)
class Found:
    """A setting's text and where it was found."""

    text: str
    source: str


@dataclass(frozen=True)
class ConfigEnvironment:
    """The environment, and what the configuration file says of options and variables."""

    environ: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Found] = field(default_factory=dict)
    variables: Mapping[str, Found] = field(default_factory=dict)

    def of_environment(self, variable: Setting) -> Found | None:
        """Return what the environment says of a variable; nothing counts as not set."""
        for name in names_of(variable):
            if self.environ.get(name):
                return Found(self.environ[name], "environment")
        return None

    def of_file(self, variable: Setting) -> Found | None:
        """Return what the configuration file says of a variable."""
        found = (self.variables.get(name) for name in names_of(variable))
        return next((f for f in found if f is not None), None)

    def find(self, variable: Setting) -> Found | None:
        """Return what counts for a variable, None where nothing sets it."""
        return self.of_environment(variable) or self.of_file(variable)

    def merged(self) -> dict[str, str]:
        """Return the environment, completed by the variables of the configuration file."""
        file = {name: found.text for name, found in self.variables.items()}
        return {**file, **{name: text for name, text in self.environ.items() if text}}


def names_of(variable: Setting) -> tuple[str, ...]:
    """Return a variable's names, the one that wins first."""
    return (*variable.aliases, variable.name)


def config_environment() -> ConfigEnvironment:
    """Return this process's environment; OptionError for a wrong configuration file."""
    environ = dict(os.environ)
    for variable in VARIABLES:
        for name in names_of(variable) if variable.read == "once" else ():
            environ.pop(name, None)
            if name in _AT_START:
                environ[name] = _AT_START[name]
    return read_config_environment(environ)


def read_config_environment(environ: Mapping[str, str]) -> ConfigEnvironment:
    """Return an environment with the configuration file that belongs to it."""
    path = config_path(environ)
    if path is None or not (environ.get("ATC_CONFIG") or is_file(path)):
        return ConfigEnvironment(environ)
    try:
        with regular(path).open(encoding="utf-8-sig") as file:
            text = file.read(_LARGEST + 1)
    except (OSError, ValueError) as error:
        raise OptionError(
            f"the configuration file can't be read: {one_line(reason_of(error), 200)}",
            where="ATC_CONFIG", hint="correct or unset ATC_CONFIG",
        ) from None  # fmt: skip
    if len(text) > _LARGEST:
        raise OptionError("the configuration file is too large", where=str(path))
    return parse_config(text, str(path), environ)


def config_path(environ: Mapping[str, str]) -> Path | None:
    """Return where the configuration file lies or would lie; None without a home."""
    if named := environ.get("ATC_CONFIG"):
        return Path(named)
    if base := environ.get("XDG_CONFIG_HOME"):
        return Path(base, *_FILE)
    home = environ.get("HOME")
    return Path(home, ".config", *_FILE) if home else None


def parse_config(
    text: str, source: str, environ: Mapping[str, str] | None = None
) -> ConfigEnvironment:
    """Parse the text of a configuration file; `source` names it in errors and as a source."""
    variables = {name for v in VARIABLES for name in names_of(v)} - {"ATC_CONFIG"}
    options = {name for name, s in OPTIONS.items() if s.role != "help"}
    found: dict[str, dict[str, Found]] = {"options": {}, "variables": {}}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        name, equals, value = (part.strip() for part in stripped.partition("="))
        option = name.removeprefix("--").replace("-", "_")
        kind, known = ("variables", name) if name in variables else ("options", option)
        place = f"{source}, line {number}"
        if not equals:
            raise OptionError(
                f"no '=' in this line: '{one_line(stripped, 100)}'", where=place,
                hint="write name=value",
            )  # fmt: skip
        if known not in variables | options:
            near = difflib.get_close_matches(known, sorted(variables | options), n=1)
            raise OptionError(
                f"there is no option or variable '{one_line(name, 60)}'", where=place,
                hint=f"did you mean {near[0]}?" if near else "atc env lists them",
            )  # fmt: skip
        if known in found[kind]:
            raise OptionError(f"duplicate setting '{known}'", where=place)
        found[kind][known] = Found(value, place)
    return ConfigEnvironment(environ or {}, found["options"], found["variables"])
