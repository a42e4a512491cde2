"""The algo cache: how long each kernel took for each workload on this machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atc.cache.entry import Damaged
from atc.cache.folder import describe, open_folder
from atc.cache.remote import RemoteTier, parse_times, times_name

_SCHEMA = 1
_LOCK = "cache.lock"
_LARGEST = 1 << 28  # bytes of a file
_PATIENCE = 10.0
"""Seconds to wait for another process that writes."""


@dataclass
class AlgoCache:
    """Measured times in ns by workload and candidate; None: it failed.

    Below 0 is a limit in ns, negative: the candidate took longer.

    They only say which of the right kernels is chosen, so that they aren't signed, and the umask
    decides who may write them.

    One JSON file per machine: `<root>/algo_cache/<machine>.json`, replaced whole and atomically
    under a lock, merged with what other processes wrote meanwhile. An unreadable file counts as
    empty; trouble with the disk is a call of `warn` and nothing more. Without a path nothing is
    kept.
    """

    path: Path | None
    warn: Callable[[str], None]
    _known: dict[str, dict[str, float | None]] = field(default_factory=dict)
    _new: dict[str, dict[str, float | None]] = field(default_factory=dict)
    remote: RemoteTier | None = None
    machine: str = ""

    def fetch(self, rows: Iterable[tuple[str, Sequence[str]]]) -> None:
        """Ask the remote store for the rows (workload, candidates) that aren't all known here."""
        if self.remote is None:
            return
        unknown = [(w, cs) for w, cs in rows if not all(self.get(w, c)[0] for c in cs)]
        names = [times_name(self.machine, w, cs) for w, cs in unknown]
        self.remote.prefetch(names)
        for name, (workload, candidates) in zip(names, unknown, strict=True):
            payload = self.remote.get(name)
            if payload is not None:
                try:
                    self._merge(workload, parse_times(payload, candidates))
                except Damaged as damage:
                    self.remote.refuse(name, str(damage))

    def get(self, workload: str, candidate: str) -> tuple[bool, float | None]:
        """Return (known, time in ns, negative limit, or None for a failure)."""
        row = self._new.get(workload) or self._known.get(workload) or {}
        return (candidate in row, row.get(candidate))

    def put(self, workload: str, times: Mapping[str, float | None]) -> None:
        """Remember the times of one workload's candidates; limits aren't for others."""
        self._merge(workload, times)
        if self.remote is not None and all(t is None or t >= 0 for t in times.values()):
            payload = json.dumps(dict(times), sort_keys=True).encode()
            self.remote.put(times_name(self.machine, workload, times), payload)

    def close(self) -> None:
        """Wait, not for long, until a remote store has what was measured."""
        if self.remote is not None:
            self.remote.close()

    def _merge(self, workload: str, times: Mapping[str, float | None]) -> None:
        self._new.setdefault(workload, {**self._known.get(workload, {})}).update(times)

    def save(self) -> None:
        """Write the new times to the file."""
        if self.path is None or not self._new:
            return
        try:
            with (
                open_folder(self.path.parents[1], create=True) as root,
                root.child(self.path.parent.name, create=True, mask=0) as folder,
                folder.locked(_LOCK, wait_s=_PATIENCE),
            ):
                merged = {**_read(self.path), **self._new}
                text = json.dumps({"schema": _SCHEMA, "ns": merged}, indent=1, sort_keys=True)
                folder.write(self.path.name, text.encode() + b"\n")
        except OSError as error:
            self.warn(f"measured times are not kept: {describe(error)}")
            return
        self._known.update(self._new)
        self._new.clear()


def open_algo_cache(
    root: Path | None, machine: str, warn: Callable[[str], None], remote: RemoteTier | None = None
) -> AlgoCache:
    """Open the times of a machine, named by anything that identifies it.

    A remote store is asked after the file, filled behind it, and closed with the cache.
    """
    if root is None:
        return AlgoCache(None, warn, remote=remote, machine=machine)
    digest = hashlib.sha256(machine.encode()).hexdigest()[:16]
    path = root / "algo_cache" / f"{digest}.json"
    return AlgoCache(path, warn, _read(path), remote=remote, machine=machine)


def _read(path: Path) -> dict[str, dict[str, float | None]]:
    """Return the file's rows; those that aren't numbers by name are dropped."""
    try:
        with open_folder(path.parents[1]) as root, root.child(path.parent.name) as folder:
            data = json.loads(folder.read(path.name, _LARGEST))
        rows = data["ns"] if data["schema"] == _SCHEMA else {}
        return {
            str(k): {str(c): t for c, t in row.items() if t is None or isinstance(t, int | float)}
            for k, row in rows.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}
