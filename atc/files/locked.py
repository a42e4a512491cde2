"""Folders that one process changes at a time."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

if sys.platform != "win32":
    import fcntl

PATIENCE = 60.0
"""Seconds to wait for whoever has a folder: it moves files, and never takes a second for that."""
_POLL = 0.01


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for it out of a folder, if it is there.

    The system takes the lock away with its process. Raises OSError where another one keeps it;
    where the file system has no locks there are none.
    """
    deadline = time.monotonic() + PATIENCE
    while (descriptor := _lock(folder, deadline)) is not None and not _is(descriptor, folder):
        os.close(descriptor)  # the folder is another one meanwhile
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock(place: Path, deadline: float) -> int | None:
    if sys.platform == "win32":
        return None
    try:
        descriptor = os.open(place, os.O_RDONLY | os.O_DIRECTORY)
    except OSError:  # it isn't there, or may not be read
        return None
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise TimeoutError(None, "another process is writing to it") from None
                time.sleep(_POLL)
            except OSError:
                break
    except BaseException:
        os.close(descriptor)
        raise
    os.close(descriptor)
    return None


def _is(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), place.stat())
    except OSError:
        return False
