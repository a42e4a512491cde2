"""Compare the versions in `op_cache.ini` with the running tool's and empty what is outdated."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

from atc.cache.entry import FORMAT, Damaged, Entry, check, remove, remove_all, scan
from atc.cache.folder import Folder, open_folder
from atc.cache.ini import (
    INI_NAME,
    SECTION,
    clean_versions,
    misplaced,
    parse_ini,
    with_versions,
)
from atc.cache.proved import content_files, is_signed
from atc.cache.root import CHANGE_LOCK, target_names
from atc.cache.secret import Secret

FORMAT_KEY = "cache_format"  # the ini's version of the entries' form


@dataclass(frozen=True)
class Ini:
    """An ini as it was found: the values of its section, limits that stand before any section."""

    path: str
    values: Mapping[str, str]
    misplaced: tuple[str, ...] = ()

    @property
    def warning(self) -> str:
        """A warning for its user, empty for none."""
        if not self.misplaced:
            return ""
        return (
            f"{self.path}: {' and '.join(self.misplaced)} before the line [{SECTION}] are ignored; "
            "put them below it"
        )


def read_ini_text(folder: Folder) -> str | None:
    """Return the text of a folder's ini, None if there is none."""
    try:
        return _decode(folder.read(INI_NAME))
    except FileNotFoundError:
        return None


def read_inis(base: Folder) -> list[Ini]:
    """Return the ini in `<root>/kernel_cache`, then the one in the root, where they exist."""
    found = []
    with open_folder(base.path.parent) as root:
        for folder in (base, root):
            text = read_ini_text(folder)
            if text is not None:
                path = str(folder.path / INI_NAME)
                found.append(Ini(path, parse_ini(text) or {}, tuple(misplaced(text))))
    return found


def record_versions(
    base: Folder, target: str, versions: Mapping[str, str], secret: Secret, *, wait_s: float
) -> dict[str, str]:
    """Record `versions` and the cache's own in the ini; return why entries of `target` went.

    It is the one in the root, made if there is none, unless there is one in `<root>/kernel_cache`.
    Other versions recorded: all entries of all targets go, since one ini speaks for them all.
    One not recorded (a new ini, one written by hand or by a version that didn't sign): entries that
    prove themselves stay.
    """
    versions = {**versions, FORMAT_KEY: str(FORMAT)}
    wanted = clean_versions(versions)
    if _recorded(_recorded_text(base), wanted) == wanted:
        return {}
    with base.locked(CHANGE_LOCK, wait_s=wait_s):
        text = _recorded_text(base)  # another process may have recorded them meanwhile
        recorded = _recorded(text, wanted)
        if recorded == wanted:
            return {}
        changed = [
            f"{key} {old} -> {wanted[key]}" for key, old in recorded.items() if old != wanted[key]
        ]
        deleted: dict[str, str] = {}
        for name in target_names(base):
            if name == target:
                deleted = _empty(base, name, changed, secret)
            else:
                with suppress(OSError):  # another user's; its keys still distinguish it
                    _empty(base, name, changed, secret)
        with suppress(OSError):
            for folder, file in content_files(base.path.parent):
                if not is_signed(folder, file, secret):
                    folder.remove(file)
        _write(base, _encode(with_versions(text, versions)))
        return deleted


def _recorded_text(base: Folder) -> str | None:
    """Return the text of the ini that records versions, None if there is none."""
    with open_folder(base.path.parent) as root:
        inner = read_ini_text(base)
        return read_ini_text(root) if inner is None else inner


def _write(base: Folder, data: bytes) -> None:
    """Write the ini where it is, else into the root; where only `base` is ours, there."""
    if read_ini_text(base) is None:
        with suppress(PermissionError), open_folder(base.path.parent) as root:
            root.write(INI_NAME, data, durable=True)
            return
    base.write(INI_NAME, data, durable=True)


def _empty(base: Folder, target: str, changed: list[str], secret: Secret) -> dict[str, str]:
    with base.child(target) as folder:
        if changed:
            reason = f"emptied, versions differ: {', '.join(changed)}"
            return {entry.digest: reason for entry in remove_all(folder)}
        return _remove_unproved(folder, secret)


def _remove_unproved(folder: Folder, secret: Secret) -> dict[str, str]:
    removed = {}
    for entry in scan(folder).entries:
        reason = _flaw(folder, entry, secret)
        if reason:
            remove(folder, entry)
            removed[entry.digest] = f"deleted, not proved by its key: {reason}"
    return removed


def _flaw(folder: Folder, entry: Entry, secret: Secret) -> str:
    try:
        check(folder, entry.digest, secret)
    except Damaged as damage:
        return str(damage)
    return ""


def _recorded(text: str | None, wanted: Mapping[str, str]) -> dict[str, str]:
    values = parse_ini(text or "") or {}
    return {key: values[key] for key in wanted if key in values}


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
