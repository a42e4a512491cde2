"""Statistics of a run's use of the cache."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


@dataclass
class RemoteCounts:
    """Entries of a remote store that a run found, didn't find, refused, and stored."""

    hits: int = 0
    misses: int = 0
    damaged: int = 0
    stored: int = 0


class Event(NamedTuple):
    """One look-up: the kernel's label, its key's digest, hit, miss or bypass, and why."""

    name: str
    digest: str
    outcome: str
    reason: str


@dataclass
class CacheStats:
    """Counts of one run and, in order, its look-ups; `misses + bypassed` were compiled.

    `damaged` are misses because a stored entry was no good; `aged` were deleted at the start.
    Objects that a remote store had are hits, too; `remote` names it, empty for none.
    """

    mode: str
    folder: str = ""
    hits: int = 0
    misses: int = 0
    bypassed: int = 0
    stored: int = 0
    aged: int = 0
    damaged: int = 0
    remote: str = ""
    remote_counts: RemoteCounts = field(default_factory=RemoteCounts)
    events: list[Event] = field(default_factory=list)
