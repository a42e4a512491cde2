"""`--fusion_switch_file`: which of the graph's passes are left out, in ATC's two notations.

Lines `name:on|off`, or JSON {"Switch": {"GraphFusion": {"ALL": "off", "name": "on"}, "UBFusion":
{...}}}; both groups mean our passes. `ALL` is a default for all passes, wherever it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from atc.errors import OptionError
from atc.options.files import lines_of, read_json, read_text, wrong
from atc.passes import pass_names

ALL = "ALL"
CASCADES = "cascade"
"""The one rule that is no pass: cascades, calls that run stripe by stripe."""
RULES = (*pass_names(), CASCADES)

LEVELS: Mapping[str, frozenset[str]] = {
    "O0": frozenset(),
    "O1": frozenset({"eliminate_common_subexpressions", "fold_views"}),
    "O2": frozenset(pass_names()) - {"fuse_elementwise", "fuse_attention"},
    "O3": frozenset(RULES),
}
"""The passes of each `--oo_level`: none, clean-ups, fusion and layouts, all."""

_OPTION = "fusion_switch_file"
_GROUPS = ("GraphFusion", "UBFusion")


@dataclass(frozen=True)
class Switches:
    """The passes that are off, those that are on by name, and the names that no pass has."""

    off: frozenset[str] = frozenset()
    on: frozenset[str] = frozenset()
    unknown: tuple[str, ...] = ()

    def warnings(self) -> Iterator[str]:
        """Yield what is asked for in vain."""
        for name in self.unknown:
            known = ", ".join(RULES)
            yield f"unknown fusion rule '{name}'; this compiler has {known}"


def read_switches(path: Path) -> Switches:
    """Return what a file says; raises OptionError, E10032 for what should be JSON and isn't."""
    text = read_text(path, _OPTION)
    pairs = _json(path) if text.lstrip().startswith("{") else list(_lines(text, path))
    return switches(pairs)


def switches(pairs: Iterable[tuple[str, bool]]) -> Switches:
    """Return what pairs of a pass's name and `on` mean; later ones count."""
    given: Mapping[str, bool] = dict(pairs)
    meant = {n: given.get(n, given.get(ALL)) for n in RULES}
    off = frozenset(n for n, on in meant.items() if on is False)
    on = frozenset(n for n, on in meant.items() if on)
    return Switches(off, on, tuple(n for n in given if n != ALL and n not in RULES))


def parse_switches(text: str) -> Switches:
    """Return what `--optimization_switch=pass:on;pass:off` means."""
    items = [item.strip() for item in text.split(";") if item.strip()]
    pairs = []
    for item in items:
        pair = _pair(item)
        if pair is None:
            raise OptionError(
                f"'{item}' is not a switch", where="--optimization_switch",
                hint="the form is pass:on;pass:off", code="E10014",
            )  # fmt: skip
        pairs.append(pair)
    return switches(pairs)


def _pair(text: str) -> tuple[str, bool] | None:
    name, colon, state = (part.strip() for part in text.rpartition(":"))
    if not colon or not name or state.lower() not in ("on", "off"):
        return None
    return name, state.lower() == "on"


def _lines(text: str, path: Path) -> Iterator[tuple[str, bool]]:
    for number, line in lines_of(text):
        pair = _pair(line)
        if pair is None:
            hint = "the form is PassName:on or PassName:off"
            raise wrong(f"'{line}' is not a switch", path, _OPTION, line=number, hint=hint)
        yield pair


def _json(path: Path) -> list[tuple[str, bool]]:
    content = read_json(path, _OPTION)
    hint = '{"Switch": {"GraphFusion": {"ALL": "off", "PassName": "on"}}}'
    groups = content.get("Switch")
    if not isinstance(groups, dict):
        raise wrong('has no object "Switch"', path, _OPTION, hint=hint)
    pairs = []
    for group, members in groups.items():
        if group not in _GROUPS or not isinstance(members, dict):
            raise wrong(f"'{group}' is not one of {', '.join(_GROUPS)}", path, _OPTION, hint=hint)
        for name, state in members.items():
            if str(state).lower() not in ("on", "off"):
                raise wrong(f"'{name}' is neither on nor off", path, _OPTION, hint=hint)
            pairs.append((name, str(state).lower() == "on"))
    return pairs
