"""The documentation page of all settings: `atc env --documentation > atc/docs/settings.md`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import groupby

from atc.options.help import shown_default
from atc.options.table import SETTINGS
from atc.options.table.setting import Setting
from atc.options.unsupported import LATER

_INTRODUCTION = """\
# Settings

Written by `atc env --documentation` from the tables in `atc/options/table/`; don't edit it by hand.

**What counts**, most first: the command line (or a keyword of `atc.compile` that isn't at its
default), the environment, the configuration file, the default. The configuration file is
`$ATC_CONFIG`, else `$XDG_CONFIG_HOME/atc/atc.cfg`, else `~/.config/atc/atc.cfg`: lines `name=value`
with names of options (of `atc`) or variables; `#` begins a comment line. The limits of the op
compiler cache have an order of their own: `op_cache.ini` comes before the environment. Of two
variables that answer the same question the one that comes first here counts. A variable that is set
to nothing counts as not set.

**Read**: a variable that is read *once* counts as it was when the process began; later changes by
the process itself do nothing. A *dynamic* one counts as it is at each call.

**State**: a setting that *works* does what its meaning says. One that is *accepted* changes
nothing in the result: whoever sets it gets one warning that names it, for the reason that is
given. The values named beside it need no warning, because they are what happens anyway. A wrong
value of a setting that works is an error with a code and the allowed values. `atc env` shows the
variables with their current values, `atc --help NAME` one setting.
"""

_TABLES = (
    ("M", "MegEngine: environment variables"),
    ("X", "MXNet: environment variables"),
    ("L", "MegEngine: options of load_and_run"),
    ("O", "Ascend ATC: the op compiler cache"),
    ("A", "Ascend ATC: options"),
    ("", "Our own"),
)


def settings_page() -> str:
    """Return the page as Markdown: a table per table of the specification, a row per setting."""
    parts = [_INTRODUCTION]
    for letter, title in _TABLES:
        rows = sorted((s for s in SETTINGS if _place(s) == letter), key=lambda s: s.row or "~")
        parts.append(f"## {title}\n\n{''.join(_table(rows))}")
    if LATER:
        parts.append(_refused())
    return "\n".join(parts)


def _place(setting: Setting) -> str:
    """Return the letter of the table that a setting is in; those without a row stand last."""
    if not setting.row and setting.kind == "variable" and setting.system == "MegEngine":
        return "M"
    return "L" if setting.role == "run" else setting.row[:1]


def _table(rows: Iterable[Setting]) -> Iterator[str]:
    yield "| row | name | values | default | read | meaning | state |\n"
    yield "|---|---|---|---|---|---|---|\n"
    for _, same in groupby(rows, key=lambda s: (s.row, s.name)):
        yield _row(next(same))


def _row(setting: Setting) -> str:
    names = "<br>".join(_code(n) for n in (setting.label, *setting.aliases))
    if setting.kind == "feature":
        names = setting.label
    about = ". ".join(t.rstrip(".") for t in (setting.meaning, setting.documentation) if t)
    cells = (
        setting.row or "-", names, _code(setting.values), _code(shown_default(setting)),
        setting.read if setting.kind == "variable" else "", _text(about), _state(setting),
    )  # fmt: skip
    return f"| {' | '.join(cells)} |\n"


def _state(setting: Setting) -> str:
    if not setting.accepted:
        return "works"
    fine = ", ".join(_code(str(value)) for value in setting.works_for)
    return f"accepted: {_text(setting.accepted)}" + (f" (no warning for {fine})" if fine else "")


def _refused() -> str:
    lines = "".join(f"- `--{name}`: {_text(about)}\n" for name, about in LATER.items())
    return f"## Ascend ATC: refused by name\n\nThese are errors (E10055) so far.\n\n{lines}"


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|") if text else ""


def _text(text: str) -> str:
    """Return a text with what Markdown would take for markup escaped."""
    return re.sub(r"([|*_<>`\[\]~])", r"\\\1", text)
