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
def locked(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Keep other processes that ask for it out of a folder, if it is there.

    The system takes the lock away with its process. Raises OSError where another one keeps it for
    `patience` seconds; where the file system has no locks there are none.
    """
    deadline = time.monotonic() + patience
    while (descriptor := _wait_for_lock(folder, deadline)) is not None:
        if _is(descriptor, folder):
            break
        os.close(descriptor)  # the folder is another one meanwhile
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)


def try_lock(folder: Path, *, follow: bool = True) -> int | None:
    """Return a descriptor that holds a folder's lock until it is closed.

    None where the folder isn't there, may not be read, or nothing locks it; symbolic links are only
    followed if that is said. Raises BlockingIOError if a process has the lock.
    """
    if sys.platform == "win32":
        return None
    try:
        links = 0 if follow else os.O_NOFOLLOW
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | links)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException as error:
        os.close(descriptor)
        if not isinstance(error, OSError) or isinstance(error, BlockingIOError):
            raise
        return None
    return descriptor


def _wait_for_lock(folder: Path, deadline: float) -> int | None:
    while True:
        try:
            return try_lock(folder)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise TimeoutError(None, "another process is writing to it") from None
            time.sleep(_POLL)


def _is(descriptor: int, place: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), place.stat())
    except OSError:
        return False
