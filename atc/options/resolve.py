"""Precedence of values: command line > environment > configuration file > default.

The limits of the op compiler cache have an order of their own: its op_cache.ini comes before the
environment (see cache/README.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atc.errors import OptionError, one_line
from atc.files.regular import is_file
from atc.options.environment import ConfigEnvironment, Found, config_environment
from atc.options.machine import kept_path
from atc.options.table import OPTIONS, ROLES, VARIABLES, options_of, read_values
from atc.options.table.setting import Setting

_TWINS = (("fast_run", "full_run"), ("target", "soc_version"),
          ("input_shape", "input_shape_range"))  # fmt: skip
"""Options that answer one question: whoever gives one of them has answered it."""


@dataclass(frozen=True)
class Resolved:
    """The checked values of a command's options, and the environment that goes with them.

    `values` also holds `notes`: warnings of what is set but has no effect. `sources` says where
    the values come from that are neither the command line's nor defaults.
    """

    values: dict[str, Any]
    sources: Mapping[str, str]
    environ: dict[str, str]


def resolve(
    given: Mapping[str, object],
    command: str,
    around: ConfigEnvironment | None = None,
    *,
    program: bool = False,
) -> Resolved:
    """Return the values of a command's options: those given, else what the environment says.

    A `program` that gives a log level is overruled by RUNTIME_OVERRIDE_LOG_LEVEL. Raises
    OptionError for a wrong value, naming the option, variable or line that has it.
    """
    around = around or config_environment()
    if program and around.find(variable("RUNTIME_OVERRIDE_LOG_LEVEL")):
        given = {name: value for name, value in given.items() if name != "log"}
    own = {name for name, s in options_of(command).items() if s is OPTIONS.get(name)}
    values, sources = dict(given), dict[str, str]()
    for layer, source in _layers(own, around):
        answered = {t for twins in _TWINS if values.keys() & set(twins) for t in twins}
        for name, value in layer.items():
            if name not in values and name not in answered and (meant := value()) is not None:
                values[name], sources[name] = meant, source
    if "machine" in own and _means_host(values):
        path = kept_path(around.merged())
        if path is not None and is_file(path):
            values["machine"], sources["machine"] = str(path), "atc machine --measure"
    checked = _checked(values, sources, command)
    if command in ROLES:
        checked["sources"] = sources
        checked["notes"] = tuple(_notes(values, checked, around))
        home = _text_of("MXNET_HOME", around)
        for name in ("model", "weight"):
            checked[name] = find_model(checked[name], home)
    return Resolved(checked, sources, around.merged())


def _means_host(values: Mapping[str, object]) -> bool:
    """Return whether estimates are to count on the machine that compiles."""
    machine = str(values.get("machine", ""))
    named = values.get("soc_version") or values.get("host_env_cpu")
    host = values.get("target", "host") in ("", "host") and not named
    return machine == "host" or (host and not machine)


_Layer = Mapping[str, Callable[[], object]]


def _layers(own: Iterable[str], around: ConfigEnvironment) -> Iterator[tuple[_Layer, str]]:
    """Yield what options are given, each variable by itself, from what counts most to the least."""
    for setting in VARIABLES:
        if found := around.of_environment(setting):
            yield _meaning(setting, found, own), f"environment: {setting.name}"
    lines = {name: found for name, found in around.options.items() if name in own}
    yield {name: partial(str, found.text) for name, found in lines.items()}, "configuration file"
    for setting in VARIABLES:
        if found := around.of_file(setting):
            yield _meaning(setting, found, own), f"configuration file: {setting.name}"


def _meaning(setting: Setting, found: Found, own: Iterable[str]) -> _Layer:
    return {
        option: partial(_given, setting, found, meant)
        for option, meant in setting.gives.items()
        if option in own
    }


def _given(setting: Setting, found: Found, meant: Callable[[Any], object]) -> object:
    return meant(_parsed(setting, found))


def _parsed(setting: Setting, found: Found) -> object:
    """Return a variable's value; OptionError names the variable and where it was set."""
    try:
        return setting.parse(found.text)
    except OptionError as error:
        line = "" if found.source == "environment" else f" of {found.source}"
        error.where = f"{setting.name}{line}"
        raise


def _checked(
    values: Mapping[str, object], sources: Mapping[str, str], command: str
) -> dict[str, object]:
    try:
        return read_values(values, command)
    except OptionError as error:
        source = sources.get(error.where.removeprefix("--"))
        if source is not None:
            error.where = f"{error.where}, {source}"
        raise


def _notes(
    values: Mapping[str, object], checked: Mapping[str, object], around: ConfigEnvironment
) -> Iterator[str]:
    """Yield a warning for everything that is set and has no effect."""
    for name in values:
        if name in OPTIONS and OPTIONS[name].accepted:
            yield f"--{name} has no effect: {OPTIONS[name].accepted}"
    for setting in VARIABLES:
        found = around.find(setting)
        if found is None:
            continue
        value = _parsed(setting, found)
        if setting.accepted and value not in setting.works_for:
            yield f"{setting.name}={one_line(found.text, 60)} has no effect: {setting.accepted}"
        if setting.needs and not checked.get(setting.needs):
            yield (
                f"{setting.name}={one_line(found.text, 60)} has no effect: the library isn't "
                f"compiled with --{setting.needs}"
            )


def variable(name: str) -> Setting:
    """Return a variable of the table by its name."""
    return next(v for v in VARIABLES if v.name == name)


def _text_of(name: str, around: ConfigEnvironment) -> str:
    found = around.find(variable(name))
    return found.text if found is not None else str(variable(name).default)


def find_model(path: object, home: str) -> object:
    """Return a path; a bare name that isn't in the working directory is looked for in `home`."""
    if not isinstance(path, Path) or len(path.parts) != 1 or path.exists():
        return path
    with suppress(RuntimeError):  # `~` of a user without a home
        folder = Path(home).expanduser()
        places = (folder / path, folder / "models" / path)
        return next((place for place in places if is_file(place)), path)
    return path
