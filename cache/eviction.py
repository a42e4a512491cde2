"""Eviction: delete what has been idle longest once a target's folder is full."""

from __future__ import annotations

from atc.cache.entry import Contents, Entry, remove, scan
from atc.cache.folder import Folder
from atc.cache.limits import Limits

IDLE_S = 1800  # an entry used within the last half hour is never evicted


def is_full(contents: Contents, limits: Limits) -> bool:
    """Say whether the entries have reached the size limit."""
    return contents.size >= limits.max_bytes


def evict(folder: Folder, limits: Limits, now: float) -> tuple[Entry, ...]:
    """Delete idle entries, oldest access first, until the remaining share is reached.

    Stops at the first entry accessed within IDLE_S, so that a run's own entries stay. The caller
    holds the folder's lock. Returns the deleted entries; `now` is in seconds since the epoch.
    """
    contents = scan(folder)
    if not is_full(contents, limits):
        return ()
    surplus = contents.size - limits.remain_bytes
    aged: list[Entry] = []
    for entry in sorted(contents.entries, key=lambda e: (e.accessed, e.digest)):
        if surplus <= 0 or now - entry.accessed <= IDLE_S:
            break
        if _was_accessed(folder, entry):
            continue
        remove(folder, entry)
        aged.append(entry)
        surplus -= entry.size
    return tuple(aged)


def remove_stale_temporaries(folder: Folder, contents: Contents, now: float) -> None:
    """Delete the temporary files that a killed process left more than half an hour ago."""
    for name, modified in contents.temporaries:
        if now - modified > IDLE_S:
            folder.remove(name)


def _was_accessed(folder: Folder, entry: Entry) -> bool:
    """Reread the access times: another process may have had a hit since the listing."""
    try:
        return max(folder.stat(name).st_atime for name in entry.files) != entry.accessed
    except FileNotFoundError:
        return True
