"""Folders of small signed files, of what can always be remade."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from atc.cache.folder import Folder, open_folder
from atc.cache.private import open_private, private_child
from atc.cache.secret import SIGNATURE_BYTES, Secret, find_secret

TEMPLATES = "template_cache"  # compiled templates: code
ERRORS = "error_cache"
FOLDERS = (TEMPLATES, ERRORS)  # beside the folder of compiled operators

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,200}")
_DIGEST_BYTES = hashlib.sha256().digest_size
_LARGEST = 1 << 26


@dataclass(frozen=True)
class ContentStore:
    """Bytes by name below a root, one file each: a signature, the SHA-256 of a key, the data.

    `put` replaces a file at once, so the folder never outgrows its number of names, and `get`
    returns only what was stored and signed under the same name and key. Neither raises for what is
    on disk: what can't be read isn't there, what can't be stored isn't kept. With `fresh`, nothing
    stored counts.
    """

    root: Path
    folder: str
    secret: Secret
    fresh: bool = False

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the bytes stored under a name and a key, if they are whole and signed."""
        if self.fresh or not _NAME.fullmatch(name):
            return None
        try:
            with open_folder(self.root) as root, root.child(self.folder) as folder:
                said = _signed(folder, name, self.secret)
        except (OSError, ValueError):  # ValueError: a NUL in the root
            return None
        if said is None or said[:_DIGEST_BYTES] != hashlib.sha256(key).digest():
            return None
        return said[_DIGEST_BYTES:]

    def put(self, name: str, key: bytes, data: bytes) -> None:
        """Store bytes under a name and a key."""
        if not _NAME.fullmatch(name):
            return
        shared = self.secret.shared
        said = hashlib.sha256(key).digest() + data
        signature = self.secret.sign(*_parts(self.folder, name, said))
        with (
            suppress(OSError, ValueError),
            open_private(self.root, shared=shared, create=True) as root,
            private_child(root, self.folder, shared=shared, create=True) as folder,
        ):
            folder.write(name, signature + said)


def open_content_store(
    root: Path, folder: str, environ: Mapping[str, str], *, fresh: bool = False
) -> ContentStore | None:
    """Return the files of a folder; None where others can change them, as for `open_cache`."""
    try:
        secret = find_secret(environ)
        with suppress(FileNotFoundError):
            check_content_stores(root, secret.shared)
    except (OSError, ValueError):
        return None
    return ContentStore(Path(os.path.realpath(root)), folder, secret, fresh)


def check_content_stores(root: Path, shared: bool) -> None:
    """Raise OSError, which says how to mend it, if others can change a root or these folders."""
    with open_private(root, shared=shared) as top:
        for name in FOLDERS:
            with suppress(FileNotFoundError), private_child(top, name, shared=shared):
                pass


def content_files(root: Path) -> Iterator[tuple[Folder, str]]:
    """Yield the files in these folders below a root, as names in open folders."""
    with open_folder(root) as top:
        for folder_name in FOLDERS:
            with suppress(FileNotFoundError), top.child(folder_name) as folder:
                yield from ((folder, n) for n, _ in folder.files() if _NAME.fullmatch(n))


def is_signed(folder: Folder, name: str, secret: Secret) -> bool:
    """Say whether a file is whole and signed."""
    try:
        return _signed(folder, name, secret) is not None
    except OSError:
        return False


def _signed(folder: Folder, name: str, secret: Secret) -> bytes | None:
    """Return what a file says after its signature, if that holds."""
    stored = folder.read(name, _LARGEST)
    signature, said = stored[:SIGNATURE_BYTES], stored[SIGNATURE_BYTES:]
    return said if secret.signed(signature, *_parts(folder.path.name, name, said)) else None


def _parts(folder: str, name: str, said: bytes) -> tuple[bytes, ...]:
    return b"file", folder.encode(), name.encode(), said
