"""What the tests of single rows share: options from an environment, and the row's test by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atc.options.environment import ConfigEnvironment
from atc.options.options import Options, make_options
from atc.options.resolve import resolve
from atc.options.table import SETTINGS, VARIABLES
from atc.options.table.setting import Setting


def options(environ: Mapping[str, str], model: Path | str = "x.onnx", **given: object) -> Options:
    """Return the options of `atc --model=... <given>` in an environment."""
    named = {"model": str(model), "output": "out/net", **given}
    return make_options(resolve(named, "compile", ConfigEnvironment(environ)).values)


def variable_of(row: str) -> Setting:
    """Return the variable of a row of the specification."""
    (found,) = (s for s in VARIABLES if s.row == row)
    return found


def rows_of(letter: str) -> set[str]:
    """Return the rows of a table of the specification that the settings have."""
    return {s.row for s in SETTINGS if s.row.startswith(f"{letter}-")}


def accepted_rows(letter: str) -> list[str]:
    """Return the rows whose variables are accepted with one warning, in order."""
    return [s.row for s in VARIABLES if s.row.startswith(f"{letter}-") and s.accepted]


def is_only_a_warning(row: str, value: str) -> None:
    """Check that a value changes nothing but one warning that names the variable."""
    variable = variable_of(row)
    plain, chosen = options({}), options({variable.name: value})
    (warning,) = chosen.warnings()
    assert warning.startswith(f"{variable.name}={value} has no effect: ")
    assert warning.endswith(variable.accepted)
    assert {**vars(chosen), "notes": ()} == {**vars(plain), "notes": ()}
