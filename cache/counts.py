"""Counts of hits and misses by tier, added up over all runs, in each target's folder.

They are statistics and decide nothing: a file that can't be read counts as none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress

from atc.cache.entry import COUNTS_NAME
from atc.cache.folder import Folder
from atc.cache.stats import CacheStats

FIELDS = (
    "local_hits", "remote_hits", "misses", "remote_misses", "remote_damaged", "remote_stored",
)  # fmt: skip
_LARGEST = 1 << 16


def read_counts(folder: Folder) -> Mapping[str, int]:
    """Return the counts of a target's folder by FIELDS."""
    with suppress(OSError, ValueError, AttributeError, RecursionError):
        found = json.loads(folder.read(COUNTS_NAME, _LARGEST))
        return {name: n if isinstance(n := found.get(name), int) else 0 for name in FIELDS}
    return dict.fromkeys(FIELDS, 0)


def add_counts(folder: Folder, stats: CacheStats) -> None:
    """Add a run's counts to those of a folder, whose lock the caller holds; raises OSError."""
    remote = stats.remote_counts
    run = (
        stats.hits - remote.hits, remote.hits, stats.misses, remote.misses, remote.damaged,
        remote.stored,
    )  # fmt: skip
    if any(run):
        before = read_counts(folder)
        summed = {name: before[name] + n for name, n in zip(FIELDS, run, strict=True)}
        folder.write(COUNTS_NAME, json.dumps(summed, indent=1).encode() + b"\n")
