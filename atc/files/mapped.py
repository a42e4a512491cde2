"""Arrays that lie in mapped files."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import numpy.typing as npt


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
