"""One entry of the cache: `<digest>.key`, `<digest>.o` and, written last, `<digest>.json`.

The descriptor (json) names the key's digest, holds the SHA-256 of the object and is signed; the key
file holds the bytes whose SHA-256 is the digest. So every entry proves itself, and whatever is
truncated, flipped, planted or copied under a wrong name is found out, before it is used.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass

from atc.cache.folder import Data, Folder, chunks_of
from atc.cache.key import Key, parse_key
from atc.cache.secret import Secret

COUNTS_NAME = "op_cache_counts.json"  # counts of all runs, see `counts`
FORMAT = 2  # of the descriptor
_ENTRY_FILE = re.compile(r"([0-9a-f]{64})\.(?:json|o|key)")
_TEMPORARY = re.compile(r"[0-9a-f]{64}\.(?:json|o|key)\.[0-9a-f]{16}\.tmp")
_MAX_DESCRIPTOR = 1 << 16
UNSIGNED = "not signed with the key in use"


class Damaged(Exception):
    """An entry that is there but can't be trusted; the text says why."""


@dataclass(frozen=True)
class Descriptor:
    """The descriptor of an entry: the kernel's label, the object's bytes and SHA-256."""

    digest: str
    name: str
    size: int
    sha256: str

    @property
    def signed_parts(self) -> tuple[bytes, ...]:
        """The signed fields of the entry: all of them, and what it is."""
        parts = ("entry", str(FORMAT), self.digest, self.name, str(self.size), self.sha256)
        return tuple(part.encode("utf-8", "surrogatepass") for part in parts)


@dataclass(frozen=True)
class Entry:
    """The files of one entry as found on disk, complete or not; sizes in bytes."""

    digest: str
    files: tuple[str, ...]
    size: int
    accessed: float  # the latest access time of its files, seconds since the epoch

    @property
    def has_descriptor(self) -> bool:
        """Whether the entry was finished; without descriptor it is a crash's leftover."""
        return f"{self.digest}.json" in self.files


@dataclass(frozen=True)
class Contents:
    """Contents of a target's folder; only `entries` and `temporaries` are the cache's own."""

    entries: tuple[Entry, ...]
    temporaries: tuple[tuple[str, float], ...]  # name, modification time
    foreign: int

    @property
    def size(self) -> int:
        """Bytes of all entries."""
        return sum(entry.size for entry in self.entries)


def scan(folder: Folder) -> Contents:
    """List what is in a target's folder, by names alone."""
    groups: dict[str, list[tuple[str, int, float]]] = {}
    temporaries = []
    foreign = 0
    for name, status in folder.files():
        if match := _ENTRY_FILE.fullmatch(name):
            groups.setdefault(match[1], []).append((name, status.st_size, status.st_atime))
        elif _TEMPORARY.fullmatch(name):
            temporaries.append((name, status.st_mtime))
        elif not name.endswith(".lock") and name != COUNTS_NAME:
            foreign += 1
    entries = (
        Entry(
            digest,
            tuple(name for name, _, _ in files),
            sum(size for _, size, _ in files),
            max(accessed for _, _, accessed in files),
        )
        for digest, files in groups.items()
    )
    return Contents(tuple(entries), tuple(temporaries), foreign)


def read_descriptor(folder: Folder, digest: str, secret: Secret) -> Descriptor | None:
    """Return an entry's descriptor, None if there is none; raise Damaged if it is no good."""
    data = _read(folder, f"{digest}.json", "descriptor", _MAX_DESCRIPTOR)
    if data is None:
        return None
    if len(data) > _MAX_DESCRIPTOR:
        raise Damaged(f"the descriptor has more than {_MAX_DESCRIPTOR} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise Damaged("the descriptor is not JSON") from None
    match value:
        case {
            "format": int(form),
            "key": str(key),
            "name": str(name),
            "object": {"sha256": str(sha256), "size": int(size)},
            "signature": str(signature),
        } if form == FORMAT:
            if key != digest:
                raise Damaged("the descriptor belongs to another key")
            found = Descriptor(digest, name, size, sha256)
            if not secret.signed(_from_hex(signature), *found.signed_parts):
                raise Damaged(UNSIGNED)
            return found
    raise Damaged("the descriptor lacks a field or has another format")


def load(folder: Folder, digest: str, secret: Secret) -> bytes | None:
    """Return the object of an entry, None if there is no entry; raise Damaged if it is no good."""
    descriptor = read_descriptor(folder, digest, secret)
    if descriptor is None:
        return None
    data = _read(folder, f"{digest}.o", "object", descriptor.size)
    if data is None:
        raise Damaged("the object is missing")
    if len(data) > descriptor.size:
        raise Damaged(f"the object has more than its {descriptor.size} bytes")
    if len(data) != descriptor.size:
        raise Damaged(f"the object has {len(data)} bytes instead of {descriptor.size}")
    if hashlib.sha256(data).hexdigest() != descriptor.sha256:
        raise Damaged("sha256 differs")
    return data


def load_key(folder: Folder, digest: str) -> Key:
    """Return the key an entry was stored under; raise Damaged if its file is no good."""
    data = _read(folder, f"{digest}.key", "key")
    if data is None:
        raise Damaged("the key is missing")
    if hashlib.sha256(data).hexdigest() != digest:
        raise Damaged("the key's sha256 is not the entry's name")
    try:
        return parse_key(data)
    except ValueError:
        raise Damaged("the key can't be parsed") from None


def check(folder: Folder, digest: str, secret: Secret) -> None:
    """Raise Damaged unless all three files of an entry are there and prove each other."""
    if load(folder, digest, secret) is None:
        raise Damaged("the descriptor is missing")
    load_key(folder, digest)


def store(folder: Folder, key: Key, name: str, data: Data, secret: Secret) -> int:
    """Write an entry and return its bytes, those of the descriptor left out.

    That comes last, so it never refers to an absent object.
    """
    digest, size, content = key.digest(), 0, hashlib.sha256()
    for chunk in chunks_of(data):
        size += len(chunk)
        content.update(chunk)
    stored = Descriptor(digest, name, size, content.hexdigest())
    descriptor = {
        "format": FORMAT,
        "name": name,
        "key": digest,
        "object": {"sha256": stored.sha256, "size": stored.size},
        "signature": secret.sign(*stored.signed_parts).hex(),
    }
    folder.write(f"{digest}.key", key.encoded())
    folder.write(f"{digest}.o", data)
    folder.write(f"{digest}.json", json.dumps(descriptor, indent=2).encode() + b"\n")
    return len(key.encoded()) + size


def touch(folder: Folder, digest: str) -> None:
    """Mark an entry as accessed now; raise OSError if that can't be done."""
    folder.touch(f"{digest}.json")
    folder.touch(f"{digest}.o")


def remove(folder: Folder, entry: Entry) -> None:
    """Delete an entry's files, the descriptor first."""
    for name in sorted(entry.files, key=lambda name: not name.endswith(".json")):
        folder.remove(name)


def remove_all(folder: Folder) -> tuple[Entry, ...]:
    """Delete all entries and temporaries, and nothing else; return the entries."""
    contents = scan(folder)
    for entry in contents.entries:
        remove(folder, entry)
    for name, _ in contents.temporaries:
        folder.remove(name)
    return contents.entries


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _read(folder: Folder, name: str, what: str, limit: int = -1) -> bytes | None:
    try:
        return folder.read(name, limit)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Damaged(f"the {what} can't be read: {error.strerror or error}") from None
