"""Opening directories that nobody else can write to, as ssh asks of those that hold its keys.

Whoever can write to a directory, or to one above it, can put other files in place of ours. So each
of them must belong to the user or to root, and neither its group nor everybody may write to it;
above the cache a sticky one such as /tmp will do, where only an owner replaces what is his. Where
several share a cache, and with it the key that its entries are signed with, other owners and
groups are allowed: nothing is believed but the signatures. What all may write to never is.
"""

from __future__ import annotations

import os
import shlex
import stat
from pathlib import Path

from atc.cache.folder import EVERYBODY, OTHERS, Folder, open_folder


def open_private(path: Path, *, shared: bool, create: bool = False) -> Folder:
    """Open the directory `path`; OSError, which says how to mend it, if others can change it."""
    real = Path(os.path.realpath(path))
    _check_all(real, shared)
    folder = open_folder(real, create=create, mask=_mask(shared))
    try:
        if create:
            _check_all(real, shared)  # somebody else may have made one of them meanwhile
    except BaseException:
        folder.close()
        raise
    return folder


def private_child(parent: Folder, name: str, *, shared: bool, create: bool = False) -> Folder:
    """Open a sub-directory of a private directory, which must be private, too."""
    folder = parent.child(name, create=create)
    try:
        check_private(folder, shared=shared)
    except BaseException:
        folder.close()
        raise
    return folder


def check_private(folder: Folder, *, shared: bool) -> None:
    """Raise OSError, which says how to mend it, if others can write to an open directory."""
    _check(folder.path, folder.status(), shared, above=False)


def _check_all(real: Path, shared: bool) -> None:
    """Check a path without symbolic links, from the top: what is fine there stays as it is."""
    for place in (*reversed(real.parents), real):
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return
        _check(place, status, shared, above=place != real)


def _check(place: Path, status: os.stat_result, shared: bool, above: bool) -> None:
    if not shared and status.st_uid not in (0, os.geteuid()):
        raise OSError(
            f"'{place}' belongs to {_user(status.st_uid)}, who may change what is in it; "
            "choose another directory, or set ATC_CACHE_KEY where several share one"
        )
    sticky = above and status.st_mode & stat.S_ISVTX
    if status.st_mode & _mask(shared) and not sticky:
        who = "g" if not shared and status.st_mode & stat.S_IWGRP else ""
        raise OSError(
            f"others may write to '{place}' (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"run: chmod {who}o-w {shlex.quote(str(place))}"
        )


def _mask(shared: bool) -> int:
    return EVERYBODY if shared else OTHERS


def _user(number: int) -> str:
    import pwd  # deferred: few need it

    try:
        return f"the user {pwd.getpwuid(number).pw_name}"
    except KeyError:
        return f"the user {number}"
