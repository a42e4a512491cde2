"""Inspect and tidy a cache, outside any compilation; values only, nothing is printed.

A root without a cache is an empty one. All raise OptionError if the folders can't be read or,
for `clear_cache`, changed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from atc.cache import entry as entries
from atc.cache.counts import read_counts
from atc.cache.entry import COUNTS_NAME, Damaged, Entry
from atc.cache.folder import Folder, describe
from atc.cache.key import Key, differences
from atc.cache.limits import Limits, read_limits
from atc.cache.private import check_private
from atc.cache.proved import check_content_stores, content_files, is_signed
from atc.cache.remote import RemoteObject, RemoteTier, object_name, parse_object
from atc.cache.root import BASE, CHANGE_LOCK, USE_LOCK, check_target, open_base, target_names
from atc.cache.secret import Secret, find_secret, is_shared
from atc.cache.versions import read_inis
from atc.errors import OptionError, one_line

_WAIT_S = 10.0
_DIGEST = re.compile(r"[0-9a-f]{64}")
_MIN_PREFIX = 4  # digits of a digest that name an entry


@dataclass(frozen=True)
class FolderStats:
    """Statistics of one target's folder; sizes in bytes, times in seconds since the epoch."""

    target: str
    entries: int
    size: int
    unfinished: int  # entries without descriptor and temporary files, left by a crash
    foreign: int  # files that aren't the cache's
    oldest_access: float | None
    newest_access: float | None
    counts: Mapping[str, int]  # of all runs, by `counts.FIELDS`


@dataclass(frozen=True)
class CacheReport:
    """The folders of a cache and the limits that apply to each of them."""

    root: Path
    limits: Limits
    warnings: tuple[str, ...]  # about wrong limits
    folders: tuple[FolderStats, ...]


@dataclass(frozen=True)
class Flaw:
    """An entry that won't be used, and why: a target and a digest, or a folder and a file."""

    target: str
    digest: str
    reason: str


@dataclass(frozen=True)
class VerifyReport:
    """The number of entries, and of small files beside them, and those that are no good."""

    root: Path
    checked: int
    files: int
    flaws: tuple[Flaw, ...]
    open_to_others: str = ""  # where others can change the cache, which is off then

    @property
    def good(self) -> bool:
        """Whether the cache can be used, all of it."""
        return not (self.flaws or self.open_to_others)


@dataclass(frozen=True)
class ClearReport:
    """Files deleted, and files kept because the cache didn't write them."""

    root: Path
    entries: int
    size: int
    kept_foreign: int
    in_use: tuple[str, ...]  # targets that a running compilation has open


@dataclass(frozen=True)
class StoredKernel:
    """A stored entry and how it differs from the one of the same name used before it."""

    target: str
    digest: str
    name: str
    size: int
    accessed: float  # 0 where only a remote store has it
    flaw: str  # empty if the entry is good
    key: Key | None
    differences: tuple[str, ...]  # from the next older one; empty for the oldest
    remote: str = ""  # what a remote store has of it; empty if none was asked


@dataclass(frozen=True)
class WhyReport:
    """The entries that have a name, or whose digest begins with it, the last used first."""

    root: Path
    query: str
    kernels: tuple[StoredKernel, ...]


def cache_stats(
    root: Path, target: str | None = None, *, environ: Mapping[str, str] | None = None
) -> CacheReport:
    """Count what the cache at `root` holds, for one target or all."""
    warnings: list[str] = []
    with _base(root, target) as base:
        inis = read_inis(base) if base else []
        warnings += (ini.warning for ini in inis if ini.warning)
        pairs = [(ini.path, ini.values) for ini in inis]
        limits = read_limits(pairs, environ or {}, warnings.append)
        folders = tuple(_folder_stats(name, folder) for name, folder in _targets(base, target))
        found = _open_to_others(base, environ or {})
    if found:
        warnings.append(f"the cache is off: {found}")
    return CacheReport(root, limits, tuple(warnings), folders)


def verify_cache(
    root: Path, target: str | None = None, *, environ: Mapping[str, str]
) -> VerifyReport:
    """Read every entry, check its files against each other and its signature; nothing is changed.

    Without a target the compiled templates and other small files beside the entries are checked,
    too. `environ` says which key signs.
    """
    checked = files = 0
    flaws = []
    with _base(root, target) as base:
        secret = find_secret(environ, create=False)
        for name, folder in _targets(base, target):
            for entry in entries.scan(folder).entries:
                checked += 1
                reason = _flaw(folder, entry, secret)
                if reason:
                    flaws.append(Flaw(name, entry.digest, reason))
        for folder, file in content_files(root) if base and target is None else ():
            files += 1
            if not is_signed(folder, file, secret):
                flaws.append(Flaw(folder.path.name, file, entries.UNSIGNED))
        found = _open_to_others(base, environ)
    return VerifyReport(root, checked, files, tuple(flaws), found)


def clear_cache(root: Path, target: str | None = None) -> ClearReport:
    """Delete the entries of one target, or all entries and compiled templates.

    The ini, the folders and foreign files stay.
    """
    removed: list[Entry] = []
    foreign = 0
    in_use = []
    with _base(root, target) as base:
        if base is None:
            return ClearReport(root, 0, 0, 0, ())
        for name, folder in _targets(base, target):
            if _is_in_use(folder):
                in_use.append(name)
            with base.locked(CHANGE_LOCK, wait_s=_WAIT_S):
                removed += entries.remove_all(folder)
                folder.remove(COUNTS_NAME)
            foreign += entries.scan(folder).foreign
        if target is None:
            for folder, file in content_files(root):
                folder.remove(file)
    size = sum(entry.size for entry in removed)
    return ClearReport(root, len(removed), size, foreign, tuple(in_use))


def why(
    root: Path,
    name_or_digest: str,
    target: str | None = None,
    *,
    environ: Mapping[str, str],
    remote: RemoteTier | None = None,
) -> WhyReport:
    """Find the stored kernels of a name, or a digest's beginning, and how they differ.

    The answer to "why was it compiled again?": the kernel used last comes first, with what
    changed since the one before. A remote store is asked for each of them, and for a whole digest
    of a `target` that isn't on the disk.
    """
    kernels: list[StoredKernel] = []
    with _base(root, target) as base:
        secret = find_secret(environ, create=False)
        for target_name, folder in _targets(base, target):
            kernels += _kernels(target_name, folder, name_or_digest, secret)
    if remote is not None:
        kernels = [replace(k, remote=_remote_state(remote, k.target, k.digest)[0]) for k in kernels]
        if not kernels and target is not None and _DIGEST.fullmatch(name_or_digest):
            state, found = _remote_state(remote, target, name_or_digest)
            if found is not None:
                size = len(found.data)
                label = found.label
                kernels.append(
                    StoredKernel(
                        target, name_or_digest, label, size, 0.0, "", found.key, (), state
                    )
                )
    return WhyReport(root, name_or_digest, tuple(kernels))


def _remote_state(
    remote: RemoteTier, target: str, digest: str
) -> tuple[str, RemoteObject | None]:
    """Return what a remote store has of an entry, in words, and the operator if it is good."""
    name = object_name(target, digest)
    before = replace(remote.counts)
    payload = remote.get(name)
    try:
        if payload is not None:
            return f"good, in {remote.shown}", parse_object(digest, payload)
    except Damaged as damage:
        remote.refuse(name, str(damage))
    if remote.counts.damaged > before.damaged:
        return f"not used, {remote.shown} has one that doesn't hold", None
    if remote.counts.misses > before.misses:
        return f"not in {remote.shown}", None
    return f"{remote.shown} doesn't answer", None


@contextmanager
def _base(root: Path, target: str | None) -> Iterator[Folder | None]:
    """Open the cache's base folder, None if there is none; turn OSError into OptionError."""
    if target is not None:
        check_target(target)
    root = Path(os.path.realpath(root))
    try:
        if not os.path.lexists(root / BASE):
            yield None
            return
        with open_base(root) as base:
            yield base
    except OSError as error:
        raise OptionError(
            f"the op compiler cache can't be used: {describe(error)}",
            where=str(root),
            hint="check the directory and its permissions",
        ) from error


def _open_to_others(base: Folder | None, environ: Mapping[str, str]) -> str:
    """Return where others can change the cache and how to mend that; empty if they can't."""
    if base is None:
        return ""
    shared = is_shared(environ)
    try:
        check_content_stores(base.path.parent, shared)
        check_private(base, shared=shared)
        for _, folder in _targets(base, None):
            check_private(folder, shared=shared)
    except OSError as error:
        return describe(error)
    return ""


def _targets(base: Folder | None, target: str | None) -> Iterator[tuple[str, Folder]]:
    if base is None:
        return
    for name in target_names(base):
        if target in (None, name):
            with base.child(name) as folder:
                yield name, folder


def _folder_stats(name: str, folder: Folder) -> FolderStats:
    contents = entries.scan(folder)
    finished = [entry for entry in contents.entries if entry.has_descriptor]
    times = [entry.accessed for entry in finished]
    unfinished = len(contents.entries) - len(finished) + len(contents.temporaries)
    return FolderStats(
        target=name,
        entries=len(finished),
        size=contents.size,
        unfinished=unfinished,
        foreign=contents.foreign,
        oldest_access=min(times, default=None),
        newest_access=max(times, default=None),
        counts=read_counts(folder),
    )


def _flaw(folder: Folder, entry: Entry, secret: Secret) -> str:
    try:
        entries.check(folder, entry.digest, secret)
    except Damaged as damage:
        return str(damage)
    return ""


def _is_in_use(folder: Folder) -> bool:
    try:
        os.close(folder.lock(USE_LOCK))
    except TimeoutError:
        return True
    return False


def _kernels(target: str, folder: Folder, query: str, secret: Secret) -> list[StoredKernel]:
    kernels: list[StoredKernel] = []
    older: dict[str, Key] = {}
    for entry in sorted(entries.scan(folder).entries, key=lambda e: (e.accessed, e.digest)):
        name = _name(folder, entry, secret)
        is_asked = name == one_line(query, 200)
        if not is_asked and not (len(query) >= _MIN_PREFIX and entry.digest.startswith(query)):
            continue
        key = _key(folder, entry)
        previous = older.get(name)
        changes = differences(previous, key) if previous and key else ()
        if key:
            older[name] = key
        kernels.append(
            StoredKernel(
                target=target,
                digest=entry.digest,
                name=name,
                size=entry.size,
                accessed=entry.accessed,
                flaw=_flaw(folder, entry, secret),
                key=key,
                differences=changes,
            )
        )
    return kernels[::-1]


def _name(folder: Folder, entry: Entry, secret: Secret) -> str:
    try:
        descriptor = entries.read_descriptor(folder, entry.digest, secret)
    except Damaged:
        return ""
    return descriptor.name if descriptor else ""


def _key(folder: Folder, entry: Entry) -> Key | None:
    try:
        return entries.load_key(folder, entry.digest)
    except Damaged:
        return None
