"""Say why an operator is not in the cache, by comparing its key with the nearest stored one."""

from __future__ import annotations

from contextlib import suppress

from atc.cache.entry import Damaged, load_key, read_descriptor, scan
from atc.cache.folder import Folder
from atc.cache.key import Key, differences
from atc.cache.secret import Secret

NEVER_SEEN = "never seen"
_CANDIDATES = 32  # keys compared at most, the last used ones
_SHOWN = 3


class Explainer:
    """The labels of a target's entries as they were at the first miss of a run.

    Entries stored later aren't compared: that one kernel of a network differs from the next
    explains nothing.
    """

    def __init__(self, folder: Folder, secret: Secret) -> None:
        self._folder = folder
        self._secret = secret
        self._digests: dict[str, list[str]] | None = None

    def explain(self, key: Key, name: str) -> str:
        """Return what distinguishes `key` from the nearest stored key of the same name."""
        if self._digests is None:
            self._digests = {}
            with suppress(OSError):  # a folder deleted meanwhile explains nothing
                self._digests = digests_by_name(self._folder, self._secret)
        found = []
        for digest in self._digests.get(name, ())[:_CANDIDATES]:
            with suppress(Damaged):  # ageing or a crash may have taken it
                found.append(differences(load_key(self._folder, digest), key))
        if not found:
            return NEVER_SEEN
        nearest = min(found, key=len)
        more = len(nearest) - _SHOWN
        return "; ".join(nearest[:_SHOWN]) + (f"; and {more} more" if more > 0 else "")


def digests_by_name(folder: Folder, secret: Secret) -> dict[str, list[str]]:
    """Return the digests of the finished entries by label, the last used first."""
    found: dict[str, list[str]] = {}
    listed = [entry for entry in scan(folder).entries if entry.has_descriptor]
    for entry in sorted(listed, key=lambda e: (-e.accessed, e.digest)):
        with suppress(Damaged):
            descriptor = read_descriptor(folder, entry.digest, secret)
            if descriptor is not None:
                found.setdefault(descriptor.name, []).append(entry.digest)
    return found
