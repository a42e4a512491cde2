"""Compiled templates that are kept from one process to the next, wherever the caller says."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
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


class StoredBytecode(BytecodeCache):
    """Jinja's way to the store: an entry per template and interpreter.

    Its key is all that the code depends on: Jinja, the interpreter and the template's own text.
    """

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Return the name of a template's entry: as a file name, the same in every folder."""
        return f"{re.sub('[^A-Za-z0-9_.-]', '-', name)}.{sys.implementation.cache_tag}"

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill the bucket if the store has its code."""
        store = _STORE.get()
        data = store.get(bucket.key, _key(bucket)) if store is not None else None
        if data is not None:
            bucket.bytecode_from_string(data)

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep the bucket's code."""
        store = _STORE.get()
        if store is not None:
            store.put(bucket.key, _key(bucket), bucket.bytecode_to_string())


def _key(bucket: Bucket) -> bytes:
    return f"{sys.version} {jinja2.__version__} {bucket.checksum}".encode()
