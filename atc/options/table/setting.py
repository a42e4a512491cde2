"""Rows of the settings table."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from atc.errors import OptionError
from atc.options.values import Parse, checks, switch, switch_or_export, text

Kind = Literal["option", "variable", "feature"]
Role = Literal["compilation", "tool", "train", "verify", "run", "ignored", "help"]
Gives = Mapping[str, Callable[[Any], object]]
"""What a variable's parsed value means for options: by option's name, None for nothing."""


@dataclass(frozen=True)
class Setting:
    """An option, a variable or another feature that users of a seed system look for.

    `default` is what `atc.compile` shows; `parse` turns it, text or a Python value into what
    `Options` holds. `role` says who reads it: `compilation` every compilation (a field of
    `Options`), `tool` the command line and `atc.compile`, `train` `--mode=train` and
    `atc.training_step`, `verify` only `atc verify`, `run` only `load_and_run`, `ignored` nobody,
    `help` only the command line. A `feature` is neither option nor variable and
    stands here for its documentation.
    """

    name: str
    group: str
    meaning: str
    values: str = ""
    parse: Parse = text
    default: str | float | bool = ""
    documentation: str = ""
    system: str = ""
    """The seed system that it comes from, empty for our own."""
    row: str = ""
    """The row of the specification, such as M-28; empty for our own."""
    kind: Kind = "option"
    read: Literal["once", "dynamic"] = "once"
    """Whether a variable counts as it was when the process began, or at each use."""
    role: Role = "compilation"
    accepted: str = ""
    """Why it has no effect: it is accepted with one warning. Empty: it works."""
    works_for: tuple[object, ...] = ()
    """Of one that is only accepted: the parsed values that need no warning."""
    gives: Gives = field(default_factory=dict)
    """For a variable: the options that it gives a value, unless the command line does."""
    aliases: tuple[str, ...] = ()
    """Other names that mean the same."""
    secret: bool = False
    """Whether its value is never shown."""
    needs: str = ""
    """For a variable: an option without which it has no effect on a compilation."""
    alone: str = ""
    """What an option of a number means where none follows; empty: it needs one."""

    @property
    def flag(self) -> bool:
        """Whether the option may stand alone, meaning on."""
        return self.parse in (switch, checks, switch_or_export)

    @property
    def state(self) -> Literal["works", "accepted with a warning"]:
        """The documentation's text about it."""
        return "accepted with a warning" if self.accepted else "works"

    @property
    def label(self) -> str:
        """The name as the user writes it."""
        return f"--{self.name}" if self.kind == "option" else self.name

    def value(self, given: object) -> object:
        """Return the checked value; raises OptionError that names the option."""
        try:
            return self.parse(given)
        except OptionError as error:
            error.where = error.where or self.label
            raise
