"""State that caches share from one opening to the next, for a build or a batch that owns it."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from atc.cache.listings import Listings

_RESTS_FOR = 300.0
"""Seconds for which a store that failed isn't asked."""


@dataclass
class Session:
    """Listings of large folders, and remote stores that were in trouble, by address."""

    listings: Listings = field(default_factory=Listings)
    _failed: dict[tuple[str, bool], float] = field(default_factory=dict)
    _warned: dict[str, float] = field(default_factory=dict)

    def rests(self, store: str, *, writes: bool = False) -> bool:
        """Return whether a store failed so lately that nobody should wait for it again."""
        return _lately(self._failed.get((store, writes)))

    def note_failure(self, store: str, *, writes: bool = False) -> None:
        """Remember that a store failed: to answer, or only to take what is written."""
        self._failed[store, writes] = time.monotonic()

    def first_warning(self, store: str) -> bool:
        """Return whether a store's trouble is news, which it isn't from now on."""
        if _lately(self._warned.get(store)):
            return False
        self._warned[store] = time.monotonic()
        return True


def _lately(when: float | None) -> bool:
    return when is not None and time.monotonic() - when < _RESTS_FOR
