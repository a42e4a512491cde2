"""Compiled templates that are kept from one process to the next, as Python keeps its modules.

They lie beside Python's own bytecode where that may be written, else wherever the caller says.
"""

from __future__ import annotations

import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from hashlib import sha256
from importlib.util import cache_from_source
from pathlib import Path
from typing import Protocol

import jinja2
from jinja2.bccache import Bucket, BytecodeCache


class Store(Protocol):
    """Keeps bytes by name; what was stored under another key isn't there."""

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the bytes stored under a name and a key, whole, or None."""

    def put(self, name: str, key: bytes, data: bytes) -> None:
        """Store bytes, if that is possible."""


_STORE: ContextVar[Store | None] = ContextVar("where compiled templates are kept", default=None)


@contextmanager
def keeping_templates(store: Store | None) -> Iterator[None]:
    """Take compiled templates from a store, and put the others there, inside a with statement."""
    token = _STORE.set(store)
    try:
        yield
    finally:
        _STORE.reset(token)


class Beside:
    """Keeps compiled templates in the folder of Python's bytecode for a source folder.

    Whoever may write there may change the sources, too. Where that isn't this process, or Python
    writes no bytecode (`PYTHONDONTWRITEBYTECODE`), nothing is kept.
    """

    def __init__(self, sources: Path) -> None:
        self.folder = Path(cache_from_source(str(sources / "any.py"))).parent

    def get(self, name: str, key: bytes) -> bytes | None:
        """Return the bytes stored under a name and a key, or None."""
        with suppress(OSError):
            data = (self.folder / f"{name}.pyc").read_bytes()
            digest = sha256(key).digest()
            if data.startswith(digest):
                return data[len(digest) :]
        return None

    def put(self, name: str, key: bytes, data: bytes) -> bool:
        """Store bytes and return True, if that is possible."""
        if sys.dont_write_bytecode:
            return False
        with suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            part = self.folder / f"{name}.{os.getpid()}.{threading.get_ident()}.pyc"
            part.write_bytes(sha256(key).digest() + data)
            part.replace(self.folder / f"{name}.pyc")  # whole or not at all
            return True
        return False


class StoredBytecode(BytecodeCache):
    """Jinja's way to what is kept: an entry per template and interpreter.

    Its key is all that the code depends on: Jinja, the interpreter and the template's own text.
    `beside` comes before the store.
    """

    def __init__(self, beside: Beside | None = None) -> None:
        self._beside = beside

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the name of a template's entry: as a file name, the same in every folder."""
        return f"{re.sub('[^A-Za-z0-9_.-]', '-', name)}.{sys.implementation.cache_tag}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket if the store has its code."""
        for store in (self._beside, _STORE.get()):
            data = store.get(bucket.key, _key(bucket)) if store is not None else None
            if data is not None:
                bucket.bytecode_from_string(data)
                return

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the bucket's code."""
        data, store = bucket.bytecode_to_string(), _STORE.get()
        kept = self._beside is not None and self._beside.put(bucket.key, _key(bucket), data)
        if store is not None and not kept:
            store.put(bucket.key, _key(bucket), data)


def _key(bucket: Bucket) -> bytes:
    return f"{sys.version} {jinja2.__version__} {bucket.checksum}".encode()
