"""The file of --op_debug_config: what to debug, and for which operators."""

from __future__ import annotations

from dataclasses import dataclass

from atc.errors import OptionError, one_line

_KEYS = ("op_debug_config", "op_debug_list")


@dataclass(frozen=True)
class DebugConfig:
    """Debug switches and the operators they are for; an empty `operators` means all of them.

    An operator is listed by its name in the model, or by `OpType::` and its type.
    """

    switches: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()

    def lists(self, name: str, op_type: str) -> bool:
        """Say whether this operator is listed, hence debugged and kept out of the cache."""
        return name in self.operators or f"OpType::{op_type}" in self.operators


def parse_debug_config(text: str, source: str) -> DebugConfig:
    """Parse the text of a debug configuration; `source` names it in errors.

    `#` lines and blank lines are skipped, values are comma separated, blanks around them trimmed.
    A list without switches has no effect. Raises OptionError that names the line.
    """
    values: dict[str, tuple[str, ...]] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        key, equals, value = (part.strip() for part in line.partition("="))
        items = tuple(item.strip() for item in value.split(",") if item.strip())
        problem = _problem(key, equals, items, values)
        if problem:
            raise OptionError(
                f"{problem}: '{one_line(line.strip(), 100)}'",
                where=f"{source}, line {number}",
                hint="write op_debug_config=a,b and, if only some, op_debug_list=Name,OpType::Type",
            )
        values[key] = items
    switches = values.get("op_debug_config", ())
    return DebugConfig(switches, values.get("op_debug_list", ()) if switches else ())


def _problem(
    key: str, equals: str, items: tuple[str, ...], seen: dict[str, tuple[str, ...]]
) -> str:
    if not equals:
        return "no '=' in this line"
    if key not in _KEYS:
        return "unknown key"
    if not items:
        return "empty value"
    return "second line with the same key" if key in seen else ""
