"""Journal of a batch: the outcome of each row, a line each, so that a killed run goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from atc.errors import not_written

NAME = "batch.jsonl"


@dataclass(frozen=True)
class Outcome:
    """The outcome of a row: sizes in bytes, time in seconds; `message` where it failed."""

    row: str
    digest: str
    ok: bool
    message: str = ""
    library: int = 0
    weights: int = 0
    arena: int = 0
    seconds: float = 0.0
    compiled: int = 0
    cached: int = 0
    warnings: tuple[str, ...] = ()


class Journal:
    """The outcomes of all runs below a folder; of a row the last one is known."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / NAME
        self.last: dict[str, Outcome] = {}
        self._torn = False
        self._read()

    def _read(self) -> None:
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        self._torn = bool(data) and not data.endswith(b"\n")
        for line in data.splitlines():
            try:
                fields = json.loads(line)
                outcome = Outcome(**{**fields, "warnings": tuple(fields["warnings"])})
                self._note(outcome)
            except (ValueError, TypeError, KeyError):  # torn when a run was killed
                continue

    def add(self, outcome: Outcome) -> None:
        """Write down an outcome; it is on the disk when this returns. Raises OptionError."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                line = json.dumps(asdict(outcome)).encode()
                file.write(b"\n" * self._torn + line + b"\n")
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise not_written(self._path, error, "output") from None
        self._torn = False
        self._note(outcome)

    def _note(self, outcome: Outcome) -> None:
        self.last[outcome.row] = outcome


def changes(now: Outcome, before: Outcome | None) -> Mapping[str, str]:
    """Return what an outcome changed, by what it is, as text for people; empty for nothing."""
    if before is None:
        return {"status": "new"}
    found = {}
    if now.ok != before.ok:
        found["status"] = "works now" if now.ok else "worked before"
    for name in ("library", "weights", "arena"):
        old, new = getattr(before, name), getattr(now, name)
        if old != new and now.ok and before.ok:
            found[name] = f"{new - old:+d} bytes"
    return found
