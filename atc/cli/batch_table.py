"""The rows of a batch as the user sees them: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, TextIO

from atc.errors import one_line

if TYPE_CHECKING:
    from atc.batch.matrix import Matrix
    from atc.batch.run import Event

MOST = 30
"""Rows of the table that are shown at a time."""


class BatchLines:
    """A line for each row that is done; a context."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._count = self._total = 0

    def __enter__(self) -> BatchLines:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.flush()

    def begin(self, matrix: Matrix) -> None:
        """Take note of the rows."""
        self._total = len(matrix.rows)

    def report(self, event: Event) -> None:
        """Write what became of a row."""
        if event.outcome is None:
            return
        self._count += 1
        state, detail = _state(event)
        count = f"[{self._count}/{self._total}]"
        text = one_line(f"{count} {event.row.name}: {state} {detail}".rstrip())
        self._stream.write(text + "\n")
        self._stream.flush()


class BatchTable:
    """A table of the rows that are compiled and of those that were done last; a context."""

    def __init__(self, stream: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._rows: dict[str, tuple[str, str, float]] = {}
        self._total = self._done = 0
        self._live = Live(console=Console(file=stream), get_renderable=self._table)

    def __enter__(self) -> BatchTable:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._live.__exit__(*exception)

    def begin(self, matrix: Matrix) -> None:
        """Take note of the rows."""
        self._total = len(matrix.rows)

    def report(self, event: Event) -> None:
        """Show what becomes of a row."""
        self._rows.pop(event.row.name, None)
        if event.outcome is None:
            self._rows[event.row.name] = "compiling", "", time.monotonic()
            return
        self._done += 1
        self._rows[event.row.name] = (*_state(event), 0.0)

    def _table(self) -> Any:
        from rich.markup import escape
        from rich.table import Table

        table = Table("row", "status", "", title=f"{self._done} of {self._total}")
        styles = {"failed": "red", "compiling": "bold"}
        for name, (state, detail, begun) in list(self._rows.items())[-MOST:]:
            detail = f"{time.monotonic() - begun:.0f} s" if begun else detail
            cells = (one_line(name, 60), state, one_line(detail, 100))
            table.add_row(*map(escape, cells), style=styles.get(state, ""))
        return table


def _state(event: Event) -> tuple[str, str]:
    """Return a row's state, and a word about it."""
    outcome = event.outcome
    assert outcome is not None
    if event.kind == "same":
        return "up to date", ""
    if not outcome.ok:
        return "failed", outcome.message
    compiled = f"{outcome.compiled} compiled, {outcome.cached} from the cache"
    return "ok", f"{outcome.seconds:.1f} s, {outcome.library} bytes, {compiled}"
