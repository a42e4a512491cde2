"""Memory that Python gives a library: weights mapped from files, and arenas.

A part of `atc/runtime/network.py`; generated projects carry all in one module.
"""

from __future__ import annotations

import mmap
import os
from contextlib import suppress
from os import PathLike

import numpy as np

from atc.runtime.values import Array


def read_weights(path: str | PathLike[str]) -> Array:
    """Return the weights of a file, mapped, or of the files in a folder of its name, joined.

    What isn't in memory yet is read into large pages where the system can.
    """
    folder = os.path.splitext(path)[0]
    if os.path.exists(path) or not os.path.isdir(folder):
        with open(path, "rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with suppress(AttributeError, OSError):  # systems without such pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)
    parts = sorted(os.path.join(folder, n) for n in os.listdir(folder) if n.endswith(".bin"))
    sizes = [os.path.getsize(part) for part in parts]
    memory = np.empty(sum(sizes) + 64, np.uint8)
    joined = at = memory[-memory.ctypes.data % 64 :][: sum(sizes)]
    for part, size in zip(parts, sizes, strict=True):
        at[:size] = np.fromfile(part, np.uint8, size)
        at = at[size:]
    return joined


def new_memory(size: int, huge_pages: bool) -> Array:
    """Return bytes for an arena, in large pages if that is asked for and possible."""
    with suppress(AttributeError, OSError):  # systems without such pages
        if huge_pages:
            mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            mapped.madvise(mmap.MADV_HUGEPAGE)
            return np.frombuffer(mapped, np.uint8)
    return np.empty(size, np.uint8)
