"""Files that options name: those that end, unlike pipes and devices, which may be read for ever."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


class NotRegularError(OSError):
    """A path names a pipe, a device or a socket."""

    def __init__(self) -> None:
        super().__init__(errno.EINVAL, "it is not a regular file")

    def __str__(self) -> str:
        return str(self.strerror)


def regular(path: Path) -> Path:
    """Return a path, unless what is there might never end: then NotRegularError, an OSError.

    /dev/null is as good as an empty file; where the kind can't be found out, opening says why.
    """
    try:
        mode = path.stat().st_mode
        if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or os.path.samefile(path, os.devnull):
            return path
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return path
    raise NotRegularError


def is_file(path: Path) -> bool:
    """Say whether a file is there; one in a directory that may not be searched isn't."""
    try:
        return path.is_file()
    except OSError:
        return False
