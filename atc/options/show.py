"""Report of `atc env`: every variable with its current value and its source."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from dataclasses import asdict, dataclass

from atc.cache import cache_stats, find_root
from atc.cache.limits import RATIO_VARIABLE, SIZE_VARIABLE
from atc.errors import AtcError, OptionError, one_line
from atc.files.regular import is_file
from atc.options.environment import ConfigEnvironment, Found, config_path, names_of
from atc.options.table import VARIABLES
from atc.options.table.setting import Setting

HEADINGS = ("variable", "value", "from", "row", "state", "meaning")


@dataclass(frozen=True)
class Current:
    """A variable as it counts now. `source` is `default` where nobody has set it."""

    name: str
    value: str
    source: str
    system: str
    row: str
    read: str
    state: str
    meaning: str

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of a table with HEADINGS; texts from outside are made printable."""
        value, source = one_line(self.value, 60), one_line(self.source, 60)
        state = "works" if self.state == "works" else "no effect"
        return (self.name, value, source, self.row, state, self.meaning)


def current(around: ConfigEnvironment, only: Collection[str] = ()) -> tuple[Current, ...]:
    """Return all variables, or those of the given names; raises OptionError for an unknown one."""
    for name in only:
        if not any(name in names_of(v) for v in VARIABLES):
            raise OptionError(f"there is no variable '{one_line(name, 60)}'", hint="see atc env")
    shared = _shared_limits(around)
    return tuple(
        _current(v, shared.get(v.name) or around.find(v))
        for v in VARIABLES
        if not only or {*names_of(v)} & {*only}
    )


def _current(variable: Setting, found: Found | None) -> Current:
    value, source = (found.text, found.source) if found else (str(variable.default), "default")
    if variable.secret and found:
        value = "(set)"
    return Current(
        variable.name, value, source, variable.system, variable.row, variable.read, variable.state,
        variable.meaning,
    )  # fmt: skip


def _shared_limits(around: ConfigEnvironment) -> dict[str, Found]:
    """Return the limits that the cache's op_cache.ini sets for all its users."""
    environ = around.merged()
    try:
        root = find_root(None, environ)
        limits = cache_stats(root, "c99", environ=environ).limits if root is not None else None
    except (AtcError, OSError):
        return {}
    if limits is None or limits.source in ("environment", "default"):
        return {}
    size = limits.megabytes if limits.ages else -1
    return {
        SIZE_VARIABLE: Found(str(size), limits.source),
        RATIO_VARIABLE: Found(str(limits.remain_percent), limits.source),
    }


def env_text(rows: Collection[Current], around: ConfigEnvironment) -> str:
    """Return the variables as lines in columns, without meanings, for pipes."""
    cells = [HEADINGS[:5], *(row.cells[:5] for row in rows)]
    widths = [max(len(line[k]) for line in cells) for k in range(5)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "".join(f"{line.rstrip()}\n" for line in (*lines, *_footer(around)))


def env_json(rows: Collection[Current], around: ConfigEnvironment) -> str:
    """Return the variables as JSON: the configuration file's path, then a list of objects."""
    path = config_path(around.environ)
    data = {"config": str(path) if path else None, "variables": [asdict(row) for row in rows]}
    return json.dumps(data, indent=1) + "\n"


def _footer(around: ConfigEnvironment) -> Iterator[str]:
    path = config_path(around.environ)
    if path is not None:
        there = "" if is_file(path) else " (not there)"
        yield f"configuration file: {one_line(str(path), 200)}{there}"
