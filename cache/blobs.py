"""Stores of bytes by name: a bucket, a Redis server, a shared folder, a web server.

Nothing here judges what it reads: `remote` does. Packages are imported when a store is first used.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote, unquote

from atc.cache.folder import EVERYBODY, Folder, open_folder
from atc.cache.private import open_private
from atc.cache.remote_url import BUCKETS, OPTION, REDIS, WEB, RemoteUrl
from atc.errors import OptionError

TIMEOUT = 5.0
"""Seconds that a server may take to accept a connection, or for the next bytes."""
_KEEP = "atc/"  # before all names in a Redis server, which others may use, too


class Blobs(Protocol):
    """Bytes by name, such as `objects/c99/0123...`; what the store's client raises goes through."""

    def read(self, name: str, limit: int) -> bytes | None:
        """Return the bytes of a name, None if there are none; of more than `limit` one more."""

    def write(self, name: str, data: bytes) -> None:
        """Store bytes under a name: readers see all of them or none."""


def open_blobs(url: RemoteUrl, *, private: bool) -> Blobs:
    """Return the store at an address; nothing is asked of it yet.

    With `private` a folder must be one that nobody else can write to. Raises OptionError where a
    package that it needs isn't installed.
    """
    if url.scheme in WEB:
        return _Web(url)
    if url.scheme == "file":
        return _Shared(Path(unquote(url.path)), private)
    needed = ["redis"] if url.scheme in REDIS else ["fsspec", BUCKETS[url.scheme]]
    missing = next((name for name in needed if find_spec(name) is None), None)
    if missing is not None:
        raise OptionError(
            f"{url.scheme}:// needs the package {missing}", where=OPTION,
            hint=f"pip install {missing}, or atc with [farm]",
        )  # fmt: skip
    return _Redis(url) if url.scheme in REDIS else _Bucket(url)


class _Shared:
    """A folder, as a rule on a file system that several machines mount."""

    def __init__(self, path: Path, private: bool) -> None:
        self._path, self._private = path, private

    def _open(self, create: bool) -> Folder:
        if self._private:
            return open_private(self._path, shared=False, create=create)
        return open_folder(self._path, create=create, mask=EVERYBODY)

    def read(self, name: str, limit: int) -> bytes | None:
        *folders, last = name.split("/")
        try:
            with _within(self._open(create=False), folders, create=False) as place:
                return place.read(last, limit)
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        *folders, last = name.split("/")
        with _within(self._open(create=True), folders, create=True) as place:
            place.write(last, data)


def _within(folder: Folder, names: list[str], *, create: bool) -> Folder:
    """Open a folder some levels below an open one, which is closed."""
    for name in names:
        with folder:
            folder = folder.child(name, create=create)
    return folder


class _Web:
    """Files of a web server below an address; they can't be written."""

    def __init__(self, url: RemoteUrl) -> None:
        self._base = url.text.partition("?")[0].rstrip("/")
        self._query = url.parts.query

    def read(self, name: str, limit: int) -> bytes | None:
        import urllib.error  # deferred: few need it
        import urllib.request

        query = f"?{self._query}" if self._query else ""
        request = urllib.request.Request(f"{self._base}/{quote(name)}{query}")
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT) as answer:
                return bytes(answer.read(limit + 1))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (404, 410):
                    return None
                raise OSError(f"the server answers {error.code} {error.reason}") from None

    def write(self, name: str, data: bytes) -> None:
        raise PermissionError("a web server is only read")


class _Lazy:
    """A client that is made at first use, by whichever thread is first."""

    def __init__(self, url: RemoteUrl) -> None:
        self._url = url
        self._mutex = Lock()
        self._made: Any = None

    @property
    def client(self) -> Any:
        with self._mutex:
            if self._made is None:
                self._made = self._make()
            return self._made

    def _make(self) -> Any:
        raise NotImplementedError


class _Redis(_Lazy):
    def _make(self) -> Any:
        redis = import_module("redis")
        return redis.Redis.from_url(
            self._url.text, socket_timeout=TIMEOUT, socket_connect_timeout=TIMEOUT
        )

    def read(self, name: str, limit: int) -> bytes | None:
        return bytes(self.client.getrange(_KEEP + name, 0, limit)) or None

    def write(self, name: str, data: bytes) -> None:
        self.client.set(_KEEP + name, data)


class _Bucket(_Lazy):
    def _make(self) -> Any:
        fsspec = import_module("fsspec")
        if self._url.scheme != "s3":
            return fsspec.filesystem(self._url.scheme)
        patience = {"connect_timeout": TIMEOUT, "read_timeout": TIMEOUT}
        config = {**patience, "retries": {"max_attempts": 2}, "max_pool_connections": 32}
        names = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
        endpoint = next((os.environ[n] for n in names if os.environ.get(n)), None)
        return fsspec.filesystem("s3", config_kwargs=config, endpoint_url=endpoint)

    def read(self, name: str, limit: int) -> bytes | None:
        try:
            return bytes(self.client.cat_file(f"{self._url.path}/{name}", start=0, end=limit + 1))
        except FileNotFoundError:
            return None

    def write(self, name: str, data: bytes) -> None:
        self.client.pipe_file(f"{self._url.path}/{name}", data)
