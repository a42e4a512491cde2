"""Arrays that leave memory for a temporary file until they are read."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

LEAST = 1 << 18
"""Bytes of an array from which on it leaves memory."""
STRETCH = 1 << 28
"""Bytes of a file that are mapped at a time: a mapping holds one of the process's few files."""


@dataclass
class Spool:
    """A file without a name that takes arrays; its room is free again once none is used.

    What the system's temporary folder has no room for stays in memory.
    """

    _mapped: mmap.mmap | None = None
    _file: int = -1
    _used: int = 0
    _full: bool = field(default=not hasattr(mmap, "MADV_DONTNEED"))

    def stored(
        self, parts: Iterable[tuple[int, npt.NDArray[Any]]], size: int, dtype: npt.DTypeLike
    ) -> npt.NDArray[Any] | None:
        """Return an array in the file of `size` elements, each of which is in one of the `parts`.

        Parts are flat, and come with the element at which they begin. The array is flat and may
        only be read; its pages are in memory while they are used, see `mapped.release`. None where
        there is no room, or where so little isn't worth it.
        """
        kind = np.dtype(dtype)
        nbytes = size * kind.itemsize
        if nbytes < LEAST or self._full:
            return None
        try:
            begin, filled = self._place(nbytes), 0
            for first, part in parts:
                self._write(part, begin + first * kind.itemsize)
                filled += part.nbytes
        except OSError:  # no room, or no folder to write to
            self._full = True
            return None
        if filled != nbytes:
            raise ValueError(f"the parts have {filled} bytes, not {nbytes}")
        assert self._mapped is not None
        self._used = -(-(begin + nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        return np.frombuffer(self._mapped, kind, size, begin)

    def _place(self, nbytes: int) -> int:
        """Return where in the mapped file there is room."""
        if self._mapped is None or self._used + nbytes > len(self._mapped):
            size = max(STRETCH, -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE)
            with tempfile.TemporaryFile() as file:
                os.ftruncate(file.fileno(), size)  # a hole, which takes no room
                self._mapped = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
                self._close()
                self._file, self._used = os.dup(file.fileno()), 0
        return self._used

    def _write(self, array: npt.NDArray[Any], at: int) -> None:
        """Write an array's bytes to a place."""
        data = np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
        while data:
            written = os.pwrite(self._file, data, at)
            data, at = data[written:], at + written

    def _close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def __del__(self) -> None:
        """Close the file; the arrays in it stay valid."""
        self._close()
