"""Find the place of a blob in a file."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import BinaryIO

from atc.errors import InternalError
from atc.files.blob import Blob

_BEGIN = 1 << 12
"""Bytes by which a blob is looked for."""
_CHUNK = 1 << 20


def place_in(file: Path, blob: Blob) -> int:
    """Return at which byte a file holds all of a blob that isn't empty; InternalError if none."""
    at = found_in(file, blob)
    if at is None:
        raise InternalError("the library doesn't hold its constants", where=file.name)
    return at


def found_in(file: Path, blob: Blob) -> int | None:
    """Return at which byte a file holds all of a blob that isn't empty, None where it doesn't."""
    begin = b"".join(bytes(part[:_BEGIN]) for part in blob.parts[:2])[:_BEGIN]
    with (
        file.open("rb") as opened,
        mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        at = data.find(begin)
        while at >= 0 and not _holds(opened, at, blob):
            at = data.find(begin, at + 1)
    return None if at < 0 else at


def _holds(file: BinaryIO, at: int, blob: Blob) -> bool:
    """Return whether all of a blob lies at a byte of a file, which is read in small chunks."""
    file.seek(at)
    return all(file.read(len(chunk)) == bytes(chunk) for chunk in blob.chunks(_CHUNK))
