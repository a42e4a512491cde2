"""A directory held open, and the lock that guards changes to it.

Every name is looked up in the open directory and never followed if it is a symbolic link, so that
neither reading nor deleting can leave the cache, whatever is put in it meanwhile.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from atc.errors import one_line, reason_of

if sys.platform != "win32":
    import fcntl

# Reading must not count as an access: a hit is recorded by touching, see Folder.touch.
_NO_ATIME = getattr(os, "O_NOATIME", 0)
_FIRST_POLL_S, _POLL_S = 0.0002, 0.01
_LONGEST = 1000  # characters of a message

OTHERS = 0o022  # mode bits that let others than the owner write
EVERYBODY = 0o002

Data: TypeAlias = bytes | Iterable[bytes | memoryview]
"""The bytes of a file, in chunks where they are many."""


class Folder:
    """An open directory; all its methods raise OSError when the file system refuses.

    What is made in it gets no mode bit of `mask`, whatever the umask is.
    """

    def __init__(self, path: Path, descriptor: int, mask: int = OTHERS) -> None:
        self.path = path
        self._descriptor = descriptor
        self._mask = mask

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the directory."""
        os.close(self._descriptor)

    def child(self, name: str, *, create: bool = False, mask: int | None = None) -> Folder:
        """Open the sub-directory `name`, which must not be a symbolic link."""
        mask = self._mask if mask is None else mask
        if create:
            with suppress(FileExistsError):
                os.mkdir(name, 0o777 & ~mask, dir_fd=self._descriptor)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        return Folder(self.path / name, os.open(name, flags, dir_fd=self._descriptor), mask)

    def files(self) -> list[tuple[str, os.stat_result]]:
        """Return the names and stats of the regular files here, sorted by name."""
        found = []
        for name in sorted(os.listdir(self._descriptor)):
            with suppress(FileNotFoundError):  # deleted meanwhile
                status = self.stat(name)
                if stat.S_ISREG(status.st_mode):
                    found.append((name, status))
        return found

    def folders(self) -> list[str]:
        """Return the names of the sub-directories, sorted; symbolic links aren't among them."""
        with os.scandir(self._descriptor) as entries:
            return sorted(e.name for e in entries if e.is_dir(follow_symlinks=False))

    def status(self) -> os.stat_result:
        """Return the status of the directory."""
        return os.fstat(self._descriptor)

    def stat(self, name: str) -> os.stat_result:
        """Return the status of `name` itself."""
        return os.stat(name, dir_fd=self._descriptor, follow_symlinks=False)

    def read(self, name: str, limit: int = -1) -> bytes:
        """Return the bytes of the regular file `name`, leaving its access time alone.

        With a limit, of a larger file no more than the first byte beyond it is read.
        """
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a planted FIFO must not block
        try:
            descriptor = os.open(name, flags | _NO_ATIME, dir_fd=self._descriptor)
        except PermissionError:  # only a file's owner may leave its access time alone
            descriptor = os.open(name, flags, dir_fd=self._descriptor)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(f"'{self.path / name}' is not a regular file")
        with os.fdopen(descriptor, "rb") as file:
            return file.read(limit + 1 if limit >= 0 else -1)

    def write(self, name: str, data: Data, *, durable: bool = False) -> None:
        """Write a file at once: readers see the old bytes or all of the new ones.

        `durable` also waits for the disk; without it a power failure may leave a file that its
        checksum unmasks, and that is enough for what can be recomputed.
        """
        with self._temporary(name, data, 0o666 & ~self._mask, durable) as temporary:
            os.replace(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
        if durable:
            os.fsync(self._descriptor)

    def create(self, name: str, data: bytes, mode: int) -> None:
        """Write a file at once and wait for the disk; raise FileExistsError if there is one."""
        with self._temporary(name, data, mode, durable=True) as temporary:
            os.link(temporary, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)
            self.remove(temporary)
        os.fsync(self._descriptor)

    @contextmanager
    def _temporary(self, name: str, data: Data, mode: int, durable: bool) -> Iterator[str]:
        """Write a file under another name, which goes if what is done with it fails."""
        temporary = f"{name}.{secrets.token_hex(8)}.tmp"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(temporary, flags, mode, dir_fd=self._descriptor)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for chunk in chunks_of(data):
                    file.write(chunk)
                if durable:
                    file.flush()
                    os.fsync(file.fileno())
            yield temporary
        except BaseException:
            self.remove(temporary)
            raise

    def remove(self, name: str) -> None:
        """Delete the file `name`; one that is gone already is fine."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def touch(self, name: str) -> None:
        """Set the access time to now, whatever the mount options are.

        The modification time goes with it: members of a group may do that to each other's files,
        while setting the access time alone is the owner's right.
        """
        os.utime(name, dir_fd=self._descriptor, follow_symlinks=False)

    def lock(self, name: str, *, shared: bool = False, wait_s: float = 0.0) -> int:
        """Return a descriptor that holds a lock on file `name` until it is closed.

        Raises TimeoutError after `wait_s` seconds. The lock dies with its process, and excludes
        the other users of the same process too, which POSIX record locks do not.
        """
        flags, mode = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666 & ~self._mask
        try:
            descriptor = os.open(name, flags | os.O_RDWR, mode, dir_fd=self._descriptor)
        except PermissionError:  # another user's lock file: reading is enough for a local lock
            descriptor = os.open(name, flags | os.O_RDONLY, mode, dir_fd=self._descriptor)
        try:
            _wait_for_lock(descriptor, shared, time.monotonic() + wait_s)
        except BlockingIOError:
            os.close(descriptor)
            raise TimeoutError(f"'{self.path / name}' is locked by another process") from None
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    @contextmanager
    def locked(self, name: str, *, wait_s: float) -> Iterator[None]:
        """Hold the exclusive lock `name` inside a with statement."""
        descriptor = self.lock(name, wait_s=wait_s)
        try:
            yield
        finally:
            os.close(descriptor)


def chunks_of(data: Data) -> Iterable[bytes | memoryview]:
    """Return the chunks of what may be whole."""
    return [data] if isinstance(data, bytes) else data


def open_folder(path: Path, *, create: bool = False, mask: int = OTHERS) -> Folder:
    """Open the directory `path`; here, and only here, symbolic links are followed."""
    if sys.platform == "win32":
        raise OSError("the op compiler cache needs a POSIX system")
    if create:
        missing = [place for place in (path, *path.parents) if not place.exists()]
        for place in reversed(missing):  # Path.mkdir lets the umask decide for parents
            with suppress(FileExistsError):
                place.mkdir(0o777 & ~mask)
    return Folder(path, os.open(path, os.O_RDONLY | os.O_DIRECTORY), mask)


def describe(error: Exception) -> str:
    """Return the text of an error for a message: one line, without the number."""
    return one_line(reason_of(error), _LONGEST)


def _wait_for_lock(descriptor: int, shared: bool, deadline: float) -> None:
    operation = (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB
    pause = _FIRST_POLL_S  # most locks are held for less than a millisecond
    while True:
        try:
            fcntl.flock(descriptor, operation)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(pause)
            pause = min(2 * pause, _POLL_S)
