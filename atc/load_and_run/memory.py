"""Memory of inputs and outputs: numpy's, or that of an external operator's library."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cffi
import numpy as np

from atc.errors import OptionError
from atc.ir.graph import Array

SYMBOLS = tuple(f"copr_param_device_ptr_{name}" for name in ("malloc", "h2d", "free"))
_DECLARATIONS = """
void *copr_param_device_ptr_malloc(size_t size);
void copr_param_device_ptr_h2d(void *device, void *host, size_t size);
void copr_param_device_ptr_free(void *device);
"""


class Memory:
    """numpy's memory."""

    def holding(self, array: Array) -> Array:
        """Return an array with this content."""
        return array

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array for results."""
        return np.zeros(tuple(shape), dtype)

    def close(self) -> None:
        """Give the memory back."""


@dataclass
class ExternalMemory(Memory):
    """Memory that a user's library provides through its three functions."""

    ffi: cffi.FFI
    handle: Any
    _taken: list[Any] = field(default_factory=list)

    def holding(self, array: Array) -> Array:
        """Return an array with this content, copied by the library."""
        held = self.empty(array.shape, array.dtype)
        source = np.ascontiguousarray(array)
        if source.nbytes:
            target, host = (self.ffi.cast("void *", a.ctypes.data) for a in (held, source))
            self.handle.copr_param_device_ptr_h2d(target, host, source.nbytes)
        return held

    def empty(self, shape: Sequence[int], dtype: np.dtype[Any]) -> Array:
        """Return an array for results."""
        size = max(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize, 1)
        pointer = self.handle.copr_param_device_ptr_malloc(size)
        if pointer == self.ffi.NULL:
            raise OptionError(
                f"the library gives no memory of {size} bytes", where="--c_opr_lib_with_param"
            )
        self._taken.append(pointer)
        raw = np.frombuffer(self.ffi.buffer(pointer, size), np.uint8)
        count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return raw[:count].view(dtype).reshape(tuple(shape))

    def close(self) -> None:
        """Give the memory back; nothing may use its arrays any more."""
        free: Callable[[Any], None] = self.handle.copr_param_device_ptr_free
        while self._taken:
            free(self._taken.pop())


def external_memory(path: Path) -> ExternalMemory:
    """Return the memory of a library; raises OptionError that lists the functions it lacks."""
    ffi = cffi.FFI()
    ffi.cdef(_DECLARATIONS)
    handle = ffi.dlopen(os.fspath(path.absolute()))
    missing = [name for name in SYMBOLS if not _has(handle, name)]
    if missing:
        raise OptionError(
            f"{path} lacks {', '.join(missing)}", where="--c_opr_lib_with_param",
            hint="leave the option out, or define them as atc_external.h says",
        )  # fmt: skip
    return ExternalMemory(ffi, handle)


def _has(handle: Any, name: str) -> bool:
    try:
        getattr(handle, name)
    except AttributeError:
        return False
    return True
