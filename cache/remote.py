"""The second tier of the caches: a store that several machines share, asked after the disk.

An entry is one blob: a line with its SHA-256 and, where there is a key, its HMAC-SHA256, then the
payload. Both are of the entry's name, too, which says what the payload answers: entries never
change, and one under another's name doesn't hold. Reading happens many at a time, writing in the
background. Whatever the store does costs one warning and a bounded time.
"""

from __future__ import annotations

import hashlib
import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from atc.cache.blobs import Blobs, open_blobs
from atc.cache.entry import UNSIGNED, Damaged
from atc.cache.folder import describe
from atc.cache.key import Key, parse_key
from atc.cache.remote_url import RemoteUrl
from atc.cache.secret import KEY_VARIABLE, Secret, find_secret
from atc.cache.session import Session
from atc.cache.stats import RemoteCounts
from atc.errors import OptionError, one_line

T = TypeVar("T")

LARGEST = 1 << 25
"""Bytes of an entry."""
AT_A_TIME = 16
"""Entries that are asked for, or written, at the same time."""
OF_FOLDERS = 4
"""The same of a folder, which answers sooner than more threads begin."""
PATIENCE = 8.0
"""Seconds without any answer after which a store counts as away."""
IN_ALL = 60.0
"""Seconds that a run waits for a store, all in all."""

_MAGIC = b"atc-cache-entry 1"
_HEADER = len(_MAGIC) + 1 + 64 + 1 + 64 + 1
_LONGEST_NS = 1e15
_NO_HMAC = b"-" * 64


class RemoteTier:
    """Payloads by name in a store, checked when they are read; make it with `open_remote`.

    To be used by one thread at a time. No method raises for what the store does.
    """

    def __init__(
        self, blobs: Blobs, url: RemoteUrl, secret: Secret | None, writes: bool,
        warn: Callable[[str], None], session: Session,
    ) -> None:  # fmt: skip
        self.counts = RemoteCounts()
        self.shown = url.shown
        self._blobs, self._url, self._secret = blobs, url, secret
        self._reads = not session.rests(url.shown)
        self._writes = writes and self._reads and not session.rests(url.shown, writes=True)
        self._warn, self._session = warn, session
        self._patience, self._left = PATIENCE, IN_ALL
        self._crew = _Crew(OF_FOLDERS if url.scheme == "file" else AT_A_TIME)
        self._asked: dict[str, Future[bytes | None]] = {}
        self._writing: list[Future[None]] = []

    def prefetch(self, names: Iterable[str]) -> None:
        """Begin to read entries that `get` will be asked for."""
        for name in names:
            if self._reads and name not in self._asked:
                self._asked[name] = self._crew.do(partial(self._blobs.read, name, LARGEST))

    def get(self, name: str) -> bytes | None:
        """Return the payload of a name if the store has it and it holds."""
        self.prefetch([name])
        asked = self._asked.pop(name, None)
        if asked is None or not self._reads:
            return None
        try:
            blob = self._answer(asked)
            payload = None if blob is None else unsealed(name, blob, self._secret)
        except Damaged as damage:
            self.refuse(name, str(damage))
            return None
        except Exception as error:
            self._reads = self._writes = False
            self._crew.stop()
            self._session.note_failure(self.shown)
            self._warn_once(f"is not asked any more: {describe(error)}")
            return None
        if payload is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return payload

    def refuse(self, name: str, reason: str) -> None:
        """Count an entry that isn't used."""
        self.counts.damaged += 1
        self._warn_once(f"has an entry that is not used, {name}: {reason}")

    def put(self, name: str, payload: bytes) -> None:
        """Store a payload in the background."""
        if self._writes and _HEADER + len(payload) <= LARGEST:
            blob = sealed(name, payload, self._secret)
            self._writing.append(self._crew.do(partial(self._blobs.write, name, blob)))

    def close(self, *, wait: bool = True) -> None:
        """Wait, not for long, until everything is stored, and let go of the store."""
        for asked in self._asked.values():
            asked.cancel()
        self._asked.clear()
        try:
            for written in self._writing if self._writes and wait else ():
                self._answer(written)
                self.counts.stored += 1
        except Exception as error:
            self._session.note_failure(self.shown, writes=True)
            self._warn_once(f"is not written any more: {describe(error)}")
        self._reads = self._writes = False
        self._writing.clear()
        self._crew.stop()

    def _answer(self, future: Future[T]) -> T:
        """Return a result; TimeoutError once nothing at all has been done for a while."""
        while True:
            before, begin = self._crew.done, time.monotonic()
            try:
                return future.result(min(self._patience, max(self._left, 0.0)))
            except TimeoutError:
                if future.done():  # the store's own
                    raise OSError("it takes too long") from None
                if self._left <= 0:
                    raise OSError(f"it took more than {IN_ALL:g} s") from None
                if self._crew.done == before:
                    raise OSError(f"no answer within {self._patience:g} s") from None
            finally:
                self._left -= time.monotonic() - begin

    def _warn_once(self, text: str) -> None:
        if self._session.first_warning(self.shown):
            self._warn(f"the remote cache {self.shown} {one_line(self._url.scrubbed(text), 400)}")


class _Crew:
    """Threads that nobody waits for: a store that hangs keeps no process from ending."""

    def __init__(self, most: int) -> None:
        self.done = 0
        self._most = most
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = 0
        self._over = False

    def do(self, work: Callable[[], T]) -> Future[T]:
        """Have something done; one more thread for it, up to a limit."""
        future: Future[T] = Future()

        def job() -> None:
            if self._over or not future.set_running_or_notify_cancel():
                future.cancel()
                return
            try:
                result = work()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)
            self.done += 1

        self._jobs.put(job)
        if self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, daemon=True, name="atc-remote-cache").start()
        return future

    def stop(self) -> None:
        """Begin nothing more."""
        self._over = True
        for _ in range(self._threads):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()


# ----------------------------------------------------------------------------------- entries


def sealed(name: str, payload: bytes, secret: Secret | None) -> bytes:
    """Return the blob of a payload under a name, signed where there is a key."""
    digest = hashlib.sha256(_joined(name, payload)).hexdigest().encode()
    signature = _NO_HMAC if secret is None else secret.sign(*_parts(name, payload)).hex().encode()
    return b" ".join((_MAGIC, digest, signature)) + b"\n" + payload


def unsealed(name: str, blob: bytes, secret: Secret | None) -> bytes:
    """Return the payload of a blob that was read under a name; raise Damaged unless it holds."""
    if len(blob) > LARGEST:
        raise Damaged(f"more than {LARGEST} bytes")
    header, payload = blob[:_HEADER], blob[_HEADER:]
    if not (header.startswith(_MAGIC + b" ") and header.endswith(b"\n")):
        raise Damaged("not an entry of this cache")
    digest, signature = header[len(_MAGIC) + 1 : -1].split(b" ", 1)
    if secret is not None and not secret.signed(_from_hex(signature), *_parts(name, payload)):
        raise Damaged(UNSIGNED)
    if hashlib.sha256(_joined(name, payload)).hexdigest().encode() != digest:
        raise Damaged("sha256 differs")
    return payload


def object_name(target: str, digest: str) -> str:
    """Return the name of a compiled operator's entry."""
    return f"objects/{target}/{digest}"


def object_payload(key: Key, label: str, data: bytes) -> bytes:
    """Return what is stored of a compiled operator."""
    encoded = key.encoded()
    head = json.dumps({"key": len(encoded), "label": label}).encode()
    return head + b"\n" + encoded + data


@dataclass(frozen=True)
class RemoteObject:
    """A compiled operator as it was stored: its label, its key and its object."""

    label: str
    key: Key
    data: bytes


def parse_object(digest: str, payload: bytes) -> RemoteObject:
    """Return the operator of a payload; raise Damaged if it isn't the one of a key's digest."""
    head, _, rest = payload.partition(b"\n")
    try:
        match json.loads(head):
            case {"key": int(size), "label": str(label)} if size >= 0:
                encoded, data = rest[:size], rest[size:]
                if hashlib.sha256(encoded).hexdigest() == digest and data:
                    return RemoteObject(label, parse_key(encoded), data)
    except (ValueError, RecursionError):
        pass
    raise Damaged("it belongs to another key")


def times_name(machine: str, workload: str, candidates: Iterable[str]) -> str:
    """Return the name of measured times: of these candidates for a workload on a machine."""
    listed = json.dumps([machine, workload, sorted(candidates)])
    return f"times/{hashlib.sha256(listed.encode()).hexdigest()}"


def parse_times(payload: bytes, candidates: Iterable[str]) -> dict[str, float | None]:
    """Return the times in ns by candidate; raise Damaged unless they are those of `candidates`."""
    try:
        found = json.loads(payload)
        times = {str(c): None if t is None else float(t) for c, t in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise Damaged("it holds no times") from None
    sound = all(t is None or 0 <= t < _LONGEST_NS for t in times.values())
    if times.keys() != set(candidates) or not sound:
        raise Damaged("it holds other times")
    return times


def _parts(name: str, payload: bytes) -> tuple[bytes, ...]:
    return b"remote entry", _MAGIC, name.encode(), payload


def _joined(name: str, payload: bytes) -> bytes:
    return b"%d\0%s%s" % (len(name), name.encode(), payload)


def _from_hex(text: bytes) -> bytes:
    try:
        return bytes.fromhex(text.decode("ascii"))
    except ValueError:
        return b""


# ----------------------------------------------------------------------------------- opening


def open_remote(
    url: RemoteUrl | None,
    *,
    access: str = "",
    trust: str = "key",
    environ: Mapping[str, str],
    warn: Callable[[str], None],
    session: Session | None = None,
) -> RemoteTier | None:
    """Return the store at an address, None where there is none or where it can't be believed.

    Entries are signed by ATC_CACHE_KEY. Without it those of a folder that only the user can write
    to are signed by the user's own key; another store is a warning and None, unless `trust` is
    `store`, when whoever can write there can put code into the build. `access` is `read` or
    `readwrite`, by default what the store allows. `session` knows stores that failed or were warned
    of lately, which isn't repeated. Raises OptionError for what can't be so.
    """
    if url is None:
        return None
    if url.read_only and access == "readwrite":
        raise OptionError(
            f"{url.shown} can only be read", where="--op_compiler_cache_remote_access",
            hint="leave it out, or use read",
        )  # fmt: skip
    writes = not url.read_only and access != "read"
    try:
        secret: Secret | None = find_secret(environ)
    except OSError as error:
        secret = None
        if trust != "store":
            warn(f"the remote cache {url.shown} is off: {describe(error)}")
            return None
    shared = secret is not None and secret.shared
    private = url.scheme == "file" and not shared and trust != "store"
    if not (shared or private):
        secret = None
        if trust != "store":
            warn(
                f"the remote cache {url.shown} is off: others may write to it, and what it holds "
                f"is code; set {KEY_VARIABLE} to the key its entries are signed with, or trust "
                "all who can write there with --op_compiler_cache_trust=store"
            )
            return None
    known = session or Session()
    return RemoteTier(open_blobs(url, private=private), url, secret, writes, warn, known)
