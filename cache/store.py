"""The op compiler cache as a compilation sees it: open, get, put."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from atc.cache import entry as entries
from atc.cache.counts import add_counts
from atc.cache.entry import Damaged
from atc.cache.eviction import evict, is_full, remove_stale_temporaries
from atc.cache.explain import Explainer
from atc.cache.folder import Data, Folder, chunks_of, describe
from atc.cache.key import Key
from atc.cache.limits import Limits, read_limits
from atc.cache.listings import Listings
from atc.cache.mode import check_mode
from atc.cache.private import open_private, private_child
from atc.cache.proved import check_content_stores
from atc.cache.remote import LARGEST, RemoteTier, object_name, object_payload, parse_object
from atc.cache.root import BASE, CHANGE_LOCK, USE_LOCK, check_target, find_root
from atc.cache.secret import Secret, find_secret
from atc.cache.session import Session
from atc.cache.stats import CacheStats, Event
from atc.cache.versions import read_inis, record_versions
from atc.errors import one_line

Warn = Callable[[str], None]

_WAIT_S = 10.0  # for a lock that is needed; it is held for milliseconds, or by a stopped process
_AGEING_WAIT_S = 0.5  # for one that isn't: whoever holds it longer is ageing already
_COUNTS_WAIT_S = 0.5  # for counts, which nothing depends on
_MAX_NAME = 200
REMOTE = "from the remote store"  # the reason of a hit there


@dataclass(frozen=True)
class _Place:
    """The open folders of an active cache, and what was found when it was opened."""

    base: Folder
    folder: Folder
    secret: Secret
    limits: Limits
    deleted: Mapping[str, str]  # digest -> why this run deleted the entry
    explainer: Explainer
    listings: Listings
    resources: ExitStack


class Cache:
    """The compiled operators of one target; make it with `open_cache`.

    `get` and `put` may be called from several threads, and never raise for what is on disk:
    trouble is a miss, or a warning and nothing stored. `stats` counts what happened.
    """

    def __init__(
        self, mode: str, warn: Warn, place: _Place | None, off: str, aged: int,
        remote: RemoteTier | None = None,
    ) -> None:  # fmt: skip
        self.mode = mode
        self.stats = CacheStats(mode, str(place.folder.path) if place else "", aged=aged)
        self._remote = remote
        if remote is not None:
            self.stats.remote, self.stats.remote_counts = remote.shown, remote.counts
        self._warn = warn
        self._place = place
        self._off = off
        self._stores = True
        self._mutex = threading.Lock()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self.close(wait=kind is None)

    @property
    def active(self) -> bool:
        """Whether the cache is on: not disabled, not in trouble, not closed."""
        return self._place is not None

    @property
    def limits(self) -> Limits | None:
        """The limits in force, None while the cache is off."""
        return self._place.limits if self._place else None

    def close(self, *, wait: bool = True) -> None:
        """Give the folder and its locks back; later look-ups miss.

        What is on its way to a remote store is waited for, within limits, or dropped.
        """
        with self._mutex:
            if self._remote is not None:
                self._remote.close(wait=wait)
                self._remote = None
            if self._place is not None:
                self._keep_counts(self._place)
                self._place.resources.close()
                self._place, self._off = None, "the cache is closed"

    def prefetch(self, keys: Iterable[Key]) -> None:
        """Begin to ask the remote store for the objects that aren't here: `get` will want them."""
        with self._mutex:
            place, remote = self._place, self._remote
            if place is None or remote is None or self.mode == "force":
                return
            missing = (d for key in keys if not _is_here(place, d := key.digest()))
            remote.prefetch(object_name(place.folder.path.name, d) for d in missing)

    def lacks(self, key: Key) -> bool:
        """Return whether `get` can only miss; looks at no content and counts nothing."""
        with self._mutex:
            place = self._place
            if place is None or self.mode == "force":
                return True
            return self._remote is None and not _is_here(place, key.digest())

    def get(
        self, key: Key, name: str, *, bypass: bool = False, shortcut: bool = False
    ) -> bytes | None:
        """Return the object stored under `key`, or None and record why there is none.

        `name` is the kernel's readable label. With `bypass` the entry isn't looked at, for
        operators that are being debugged. Where a `shortcut` to several objects misses, that isn't
        counted: these are asked for next.
        """
        with self._mutex:
            digest, label = key.digest(), one_line(name, _MAX_NAME)
            if bypass:
                self.stats.bypassed += 1
                self._record(label, digest, "bypass", "kept out of the cache")
                return None
            data, reason = self._look_up(key, digest, label)
            if data is None:
                self.stats.misses += not shortcut
                self._record(label, digest, "miss", reason)
            else:
                self.stats.hits += 1
                self._record(label, digest, "hit", reason)
            return data

    def put(self, key: Key, name: str, data: Data, *, bypass: bool = False) -> None:
        """Store a compiled object; the first failure is a warning and ends storing.

        One in chunks, which are gone through more than once, never lies in memory as a whole
        unless it is small enough for a remote store.
        """
        with self._mutex:
            place = self._place
            if place is None or bypass:
                return
            if self._remote is not None and sum(map(len, chunks_of(data))) < LARGEST:
                label = one_line(name, _MAX_NAME)
                named = object_name(place.folder.path.name, key.digest())
                whole = b"".join(chunks_of(data))
                self._remote.put(named, object_payload(key, label, whole))
            self._store(place, key, name, data)

    def _store(self, place: _Place, key: Key, name: str, data: Data) -> None:
        """Store an object on the disk."""
        if self._stores:
            try:
                with place.base.locked(CHANGE_LOCK, wait_s=_WAIT_S):
                    if self.mode == "enable" and _is_stored(place, key.digest()):
                        return  # by a parallel run
                    label = one_line(name, _MAX_NAME)
                    size = entries.store(place.folder, key, label, data, place.secret)
                    place.listings.grow(place.folder, size)
            except OSError as error:
                self._stores = False
                self._warn(f"compiled operators are no longer cached: {describe(error)}")
            else:
                self.stats.stored += 1

    def _look_up(self, key: Key, digest: str, label: str) -> tuple[bytes | None, str]:
        place = self._place
        if place is None:
            return None, self._off
        if self.mode == "force":
            return None, "force compiles everything"
        try:
            data, flaw = entries.load(place.folder, digest, place.secret), ""
        except Damaged as damage:
            self.stats.damaged += 1
            data, flaw = None, f"damaged: {damage}"
        if data is None:
            data = self._from_remote(place, key, digest, label)
            if data is not None:
                return data, REMOTE
            return None, flaw or place.deleted.get(digest) or place.explainer.explain(key, label)
        try:
            _touch(place, digest)
        except OSError as error:
            return None, f"the access time can't be set: {describe(error)}"
        return data, ""

    def _from_remote(self, place: _Place, key: Key, digest: str, label: str) -> bytes | None:
        """Return an object of the remote store, which is on the disk from now on."""
        if self._remote is None:
            return None
        name = object_name(place.folder.path.name, digest)
        payload = self._remote.get(name)
        if payload is None:
            return None
        try:
            data = parse_object(digest, payload).data
        except Damaged as damage:
            self._remote.refuse(name, str(damage))
            return None
        self._store(place, key, label, data)
        return data

    def _keep_counts(self, place: _Place) -> None:
        """Add what this run had to the counts of the target's folder, if it had anything."""
        with suppress(OSError), place.base.locked(CHANGE_LOCK, wait_s=_COUNTS_WAIT_S):
            add_counts(place.folder, self.stats)

    def _record(self, label: str, digest: str, outcome: str, reason: str) -> None:
        self.stats.events.append(Event(label, digest, outcome, reason))


def open_cache(
    mode: str,
    directory: Path | None,
    target: str,
    *,
    versions: Mapping[str, str],
    environ: Mapping[str, str],
    warn: Warn,
    remote: RemoteTier | None = None,
    session: Session | None = None,
) -> Cache:
    """Open the cache of `target` in `mode`, one of MODES, below `directory`.

    Without a directory the root is $ASCEND_CACHE_PATH, else $HOME/atc_data. `versions` are the
    keys and values that op_cache.ini records; other ones there empty the cache. Entries are aged
    now, before anything is compiled. `environ` also says which key signs. `disable` touches no
    file. `remote` is asked after the disk, filled behind it, and closed with the cache; where the
    cache is off it isn't used. `session` is what the caller's earlier openings found, which
    spares listing large folders again. Directories that others can change and trouble with the
    disk are a call of `warn` with one line, and a cache that is off; an unknown mode or a wrong
    path raises OptionError.
    """
    check_mode(mode)
    if mode == "disable":
        return Cache(mode, warn, None, "the cache is disabled", 0)
    root = find_root(directory, environ)
    check_target(target)
    try:
        if root is None:
            raise OSError("no directory is given and HOME is not set")
        place, aged = _open_place(
            mode, root, target, versions, environ, warn, (session or Session()).listings
        )
    except (OSError, ValueError) as error:  # ValueError: a NUL in $HOME
        warn(f"the op compiler cache is off: {describe(error)}")
        return Cache(mode, warn, None, "the cache is off", 0)
    return Cache(mode, warn, place, "", aged, remote)


def _open_place(
    mode: str,
    root: Path,
    target: str,
    versions: Mapping[str, str],
    environ: Mapping[str, str],
    warn: Warn,
    listings: Listings,
) -> tuple[_Place, int]:
    with ExitStack() as stack:
        secret = find_secret(environ)
        shared = secret.shared
        top = stack.enter_context(open_private(root, shared=shared, create=True))
        check_content_stores(root, shared)
        base = stack.enter_context(private_child(top, BASE, shared=shared, create=True))
        folder = stack.enter_context(private_child(base, target, shared=shared, create=True))
        if mode == "force":
            _warn_if_in_use(folder, warn)
        stack.callback(os.close, folder.lock(USE_LOCK, shared=True, wait_s=_WAIT_S))
        deleted = record_versions(base, target, versions, secret, wait_s=_WAIT_S)
        if mode == "force":
            with base.locked(CHANGE_LOCK, wait_s=_WAIT_S):
                entries.remove_all(folder)
        limits = _limits(base, environ, warn)
        aged = _age(base, folder, limits, listings, warn) if limits.ages else {}
        gone = {**deleted, **aged}
        explainer = Explainer(folder, secret)
        place = _Place(
            base, folder, secret, limits, gone, explainer, listings, stack.pop_all()
        )
        return place, len(aged)


def _warn_if_in_use(folder: Folder, warn: Warn) -> None:
    try:
        os.close(folder.lock(USE_LOCK))
    except TimeoutError:
        warn(
            f"another compilation is using '{folder.path}', whose entries force mode deletes; "
            "don't run force beside other compilations"
        )


def _limits(base: Folder, environ: Mapping[str, str], warn: Warn) -> Limits:
    inis = read_inis(base)
    for ini in inis:
        if ini.warning:
            warn(ini.warning)
    return read_limits([(ini.path, ini.values) for ini in inis], environ, warn)


def _age(
    base: Folder, folder: Folder, limits: Limits, listings: Listings, warn: Warn
) -> dict[str, str]:
    now = time.time()
    try:
        if listings.spare(folder, limits):
            return {}
        begin = time.monotonic()
        contents = entries.scan(folder)
        remove_stale_temporaries(folder, contents, now)
        listings.note(folder, contents, time.monotonic() - begin)
        if not is_full(contents, limits):
            return {}
        with base.locked(CHANGE_LOCK, wait_s=_AGEING_WAIT_S):
            aged = evict(folder, limits, now)
    except OSError as error:
        warn(f"the op compiler cache is not aged: {describe(error)}")
        return {}
    return {entry.digest: "aged at the start of this run" for entry in aged}


def _is_stored(place: _Place, digest: str) -> bool:
    try:
        if entries.load(place.folder, digest, place.secret) is None:
            return False
        _touch(place, digest)
    except (Damaged, OSError):
        return False
    return True


def _is_here(place: _Place, digest: str) -> bool:
    with suppress(OSError):
        place.folder.stat(f"{digest}.json")
        return True
    return False


def _touch(place: _Place, digest: str) -> None:
    if place.limits.ages:
        entries.touch(place.folder, digest)
