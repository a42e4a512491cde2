"""Paths of a cache: its root, the folders below it and the names in them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from atc.cache.folder import Folder, open_folder
from atc.errors import OptionError, one_line

ROOT_VARIABLE = "ASCEND_CACHE_PATH"
DEFAULT_ROOT = "atc_data"  # below $HOME
BASE = "kernel_cache"  # below the root: the ini, the lock, a folder per target
CHANGE_LOCK = "op_cache_file_del.lock"  # held while entries are written or deleted
USE_LOCK = "op_cache_use.lock"  # in a target's folder: shared by all who have it open

_OPTION = "--op_compiler_cache_dir"
_PATH = re.compile(r"[A-Za-z0-9_./\-\u3400-\u4dbf\u4e00-\u9fff]+")
_TARGET = re.compile(r"[A-Za-z0-9_+\-][A-Za-z0-9_+.\-]{0,127}")


def find_root(directory: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the cache's root: `directory`, else $ASCEND_CACHE_PATH, else $HOME/atc_data.

    None if none of the three is set. Raises OptionError if a path that was given for the cache
    holds other characters than letters, digits, `_`, `-`, `.`, `/` and Chinese ones; a home
    directory was not, so it may hold any.
    """
    if directory is not None:
        return _checked(str(directory), _OPTION)
    if environ.get(ROOT_VARIABLE):
        return _checked(environ[ROOT_VARIABLE], ROOT_VARIABLE)
    return Path(environ["HOME"]) / DEFAULT_ROOT if environ.get("HOME") else None


def check_target(target: str) -> None:
    """Raise OptionError unless `target` can name a folder."""
    if not _TARGET.fullmatch(target):
        raise OptionError(
            f"'{one_line(target, 40)}' can't name the cache folder of a target",
            where="--target",
            hint="use letters, digits, '_', '-', '+' and '.'",
        )


def open_base(root: Path) -> Folder:
    """Open `<root>/kernel_cache`; raises OSError, also if it is a symbolic link."""
    with open_folder(root) as folder:
        return folder.child(BASE, create=False)


def target_names(base: Folder) -> list[str]:
    """Return the names of the targets that have a folder in `base`."""
    return [name for name in base.folders() if _TARGET.fullmatch(name)]


def _checked(path: str, source: str) -> Path:
    wrong = sorted(set(_PATH.sub("", path)))
    if wrong:
        raise OptionError(
            f"the cache path '{one_line(path, 200)}' contains '{one_line(''.join(wrong), 40)}'",
            where=source,
            hint="use letters, digits, '_', '-', '.', '/' and Chinese characters",
        )
    return Path(path)
