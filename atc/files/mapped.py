"""Arrays that lie in mapped files, which must not change while they are used."""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from atc.errors import ModelError


class ModelFile(mmap.mmap):
    """A file that is mapped to be read, and that can tell whether it was written since."""

    path: Path
    descriptor: int
    state: tuple[int, int]

    def __new__(cls, path: Path) -> Self:
        """Map a file; ValueError if it is empty."""
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            self = super().__new__(cls, descriptor, 0, access=mmap.ACCESS_READ)
            self.path, self.descriptor, self.state = path, descriptor, _state(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        weakref.finalize(self, os.close, descriptor).atexit = False
        return self

    def check(self) -> None:
        """Raise ModelError if the file was written or shortened after it was mapped.

        What lies beyond a shortened file's end can't be read: the system ends who tries.
        """
        if _state(self.descriptor) != self.state:
            raise ModelError(
                "changed while it was compiled", where=str(self.path),
                hint="compile it again, and let its writer replace it instead of writing into it",
            )  # fmt: skip


def _state(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_size, status.st_mtime_ns


def model_files(arrays: Iterable[npt.NDArray[Any]]) -> frozenset[ModelFile]:
    """Return the model's files that arrays lie in."""
    return frozenset(f for f in map(_file_of, arrays) if isinstance(f, ModelFile))


@contextmanager
def reading(array: npt.NDArray[Any]) -> Iterator[None]:
    """Read an array that may lie in a mapped file; its memory is given back.

    Raises ModelError if the file was written since it was mapped, before or after.
    """
    files = model_files([array])
    for file in files:
        file.check()
    yield
    for file in files:
        file.check()
    release(array)


def release(array: npt.NDArray[Any]) -> None:
    """Give back the memory of an array if it is part of a file that is mapped to be read.

    The array stays valid: whoever reads it again gets its pages from the file.
    """
    file = _file_of(array)
    if file is None or not hasattr(mmap, "MADV_DONTNEED"):
        return
    whole = np.frombuffer(file, np.uint8)
    if whole.flags.writeable:  # a private mapping would lose what was written
        return
    begin, end = (at - whole.ctypes.data for at in np.lib.array_utils.byte_bounds(array))
    first, last = -(-begin // mmap.PAGESIZE), end // mmap.PAGESIZE  # the pages that are its alone
    if first < last:
        file.madvise(mmap.MADV_DONTNEED, first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE)


def _file_of(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """Return the mapped file that an array is a view of."""
    base: object = array
    while isinstance(base, np.ndarray | memoryview):
        base = base.base if isinstance(base, np.ndarray) else base.obj
    return base if isinstance(base, mmap.mmap) else None
