"""Remembered listings of large folders, lest each opening lists them again."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from atc.cache.entry import Contents
from atc.cache.folder import Folder
from atc.cache.limits import Limits

_MANY = 100  # entries of a folder that isn't listed each time it is opened
_HOLDS_FOR = 100  # times as long as listing a folder took what was found holds, if it is small


@dataclass
class _Listing:
    """The content of a target's folder when it was listed, and what has been stored there since."""

    when: float
    seconds: float
    size: int

    def still_holds(self, limits: Limits) -> bool:
        """Return whether the folder can't be full yet, as far as others fill it no faster."""
        recent = time.monotonic() - self.when < _HOLDS_FOR * self.seconds
        return recent and 2 * self.size < limits.max_bytes


@dataclass
class Listings:
    """Listings of targets' folders; whoever opens them again and again, as a batch, owns one."""

    _found: dict[tuple[int, int], _Listing] = field(default_factory=dict)
    """By device and inode."""

    def spare(self, folder: Folder, limits: Limits) -> bool:
        """Return whether the folder needn't be listed: it can't be full yet."""
        known = self._found.get(_identity(folder))
        return known is not None and known.still_holds(limits)

    def note(self, folder: Folder, contents: Contents, seconds: float) -> None:
        """Remember what a listing found, and the time that it took, if that is worth it."""
        if len(contents.entries) >= _MANY:
            listing = _Listing(time.monotonic(), seconds, contents.size)
            self._found[_identity(folder)] = listing

    def grow(self, folder: Folder, size: int) -> None:
        """Add the bytes of what was stored in a folder."""
        if self._found and (listing := self._found.get(_identity(folder))):
            listing.size += size


def _identity(folder: Folder) -> tuple[int, int]:
    status = folder.status()
    return status.st_dev, status.st_ino
