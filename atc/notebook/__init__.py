"""Progress of a compilation in a notebook, where no terminal shows it.

Takes a `Diagnostics`, gives one. May import `diagnostics`.
"""

from __future__ import annotations

import html
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from atc.diagnostics import Diagnostics
from atc.errors import one_line

_PAUSE = 0.1
"""Seconds between two states of a bar."""


@dataclass(frozen=True)
class Bar:
    """The progress of a stage as a notebook shows it; of no `text` nothing is left."""

    text: str
    done: int = 0
    total: int = 0

    def _repr_html_(self) -> str:
        if not self.text:
            return ""
        part = f' value="{self.done}" max="{self.total}"' if self.total else ""
        count = f" {self.done}/{self.total}" if self.total else ""
        return f"<progress{part}></progress> {html.escape(one_line(self.text, 80))}{count}"


def in_notebook() -> bool:
    """Return whether this process is a notebook's kernel."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return getattr(shell, "kernel", None) is not None


@contextmanager
def with_progress(diagnostics: Diagnostics) -> Iterator[Diagnostics]:
    """Show a bar below the cell of a notebook, which goes in the end; elsewhere show nothing."""
    if not in_notebook():
        yield diagnostics
        return
    from IPython.display import display

    shown = display(Bar("starting"), display_id=True)
    latest = 0.0

    def stage(text: str) -> None:
        diagnostics.stage(text)
        shown.update(Bar(text))

    def progress(what: str, done: int, total: int) -> None:
        nonlocal latest
        diagnostics.progress(what, done, total)
        if time.monotonic() - latest > _PAUSE:
            latest = time.monotonic()
            shown.update(Bar(what, done, total))

    try:
        yield replace(diagnostics, stage=stage, progress=progress)
    finally:
        shown.update(Bar(""))
