"""A folder of small files, each with its own checksum, of what can always be made again."""

from __future__ import annotations

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atc.cache.folder import open_folder

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")
_DIGEST_BYTES = hashlib.sha256().digest_size


@dataclass(frozen=True)
class ProvedFiles:
    """Bytes by name below a root, one file each: the SHA-256 of key and data, then the data.

    `put` replaces a file at once, so the folder never outgrows its number of names, and `get`
    returns only what was stored under the same key. Neither raises for what is on disk: what can't
    be read isn't there, what can't be stored isn't kept. With `fresh`, nothing stored counts.
    """

    root: Path
    folder: str
    fresh: bool = False

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the bytes stored under a name and a key, if they are whole."""
        if self.fresh or not _NAME.fullmatch(name):
            return None
        try:
            with open_folder(self.root) as root, root.child(self.folder) as folder:
                stored = folder.read(name)
        except (OSError, ValueError):  # ValueError: a NUL in the root
            return None
        digest, data = stored[:_DIGEST_BYTES], stored[_DIGEST_BYTES:]
        return data if digest == _digest(key, data) else None

    def put(self, name: str, key: bytes, data: bytes) -> None:
        """Store bytes under a name and a key."""
        if not _NAME.fullmatch(name):
            return
        with (
            suppress(OSError, ValueError),
            open_folder(self.root, create=True) as root,
            root.child(self.folder, create=True) as folder,
        ):
            folder.write(name, _digest(key, data) + data)


def _digest(key: bytes, data: bytes) -> bytes:
    return hashlib.sha256(len(key).to_bytes(8, "little") + key + data).digest()
