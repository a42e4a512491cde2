"""Temporary folders: removed when they are left or, where a process was killed, by the next one.

Each is locked while its process lives; the system takes the lock away with the process. So what has
our name, is the user's own and can be locked was left behind.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from atc.files.locked import try_lock

_NAME = "atc-tmp-"


@contextmanager
def temporary_folder(
    what: str, place: Path | None = None, *, hidden: bool = False
) -> Iterator[Path]:
    """Make a folder in `place`, else in $TMPDIR, that goes on the way out.

    Folders there that killed processes left go, too. Raises OSError.
    """
    for _ in left_over(place, hidden=hidden):
        pass
    path, lock = _made(f"{_prefix(hidden)}{what}-", place)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)
        _close(lock)


def left_over(place: Path | None = None, *, hidden: bool = False) -> Iterator[Path]:
    """Yield the folders that killed processes left in a place; each goes once it was looked at."""
    with suppress(OSError):
        names = os.listdir(place or tempfile.gettempdir())
        for name in sorted(n for n in names if n.startswith(_prefix(hidden))):
            path = Path(place or tempfile.gettempdir(), name)
            lock = _locked(path)
            if lock is None:
                continue
            try:
                yield path
            finally:
                shutil.rmtree(path, ignore_errors=True)
                _close(lock)


def _prefix(hidden: bool) -> str:
    return f".{_NAME}" if hidden else _NAME


def _made(prefix: str, place: Path | None) -> tuple[Path, int | None]:
    """Make a folder and lock it.

    Between the two, another process may take it for left over: it has the lock, or has removed it.
    """
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place)).resolve()
        with suppress(BlockingIOError):
            lock = _lock(path)
            if lock is not None or path.is_dir():
                return path, lock


def _locked(path: Path) -> int | None:
    """Lock a folder of this user's; None if a process has it, it is gone, or nothing locks here."""
    try:
        return _lock(path)
    except BlockingIOError:
        return None


def _lock(path: Path) -> int | None:
    """Do so, but raise BlockingIOError if a process has it."""
    descriptor = try_lock(path, follow=False)
    if descriptor is None:
        return None
    with suppress(OSError):
        status = os.fstat(descriptor)
        if status.st_uid == os.geteuid() and os.path.samestat(status, os.lstat(path)):
            return descriptor
    os.close(descriptor)
    return None


def _close(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)
