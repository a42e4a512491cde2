"""Tensors on a GPU, whoever's they are: where they lie, and new ones of the same kind.

A part of `atc/runtime/network.py`; generated projects carry both in one module.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from threading import Lock, get_ident
from typing import Any

import numpy as np

from atc.runtime.library import Context, Library
from atc.runtime.values import Tensor, dtype_of

_CUDA = (2, 13)
"""DLPack's kinds of devices that CUDA's pointers reach: its memory, and managed memory."""
_LEGACY, _OF_THREAD = 1, 2
"""The default stream, and that of each thread, as CUDA and DLPack number them."""
_KINDS = {0: "int", 1: "uint", 2: "float"}
_BFLOAT, _BOOL = 4, 6


class _DLTensor(ctypes.Structure):
    """The begin of a capsule of DLPack."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


@dataclass(frozen=True)
class DeviceTensor:
    """A tensor on a GPU: its address, shape, element type and device; `owner` keeps it alive."""

    pointer: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dense: bool
    device: int | None
    owner: Any
    stream: int | None = None
    """The stream on which it is written, where it says so."""


class Streams:
    """The contexts of a network's runs on a GPU, one for each stream.

    Runs on one stream follow each other, those of several may overlap. A network with states has
    one context: each of its runs goes on from the one before, whatever their streams.
    """

    def __init__(self, library: Library) -> None:
        """Take a library; nothing is prepared before the first run."""
        self._library = library
        self._contexts: dict[tuple[int, int], tuple[Context, Lock]] = {}

    def run(
        self, stream: int, inputs: Sequence[DeviceTensor],
        made: Callable[[list[tuple[int, ...]]], Sequence[DeviceTensor]],
    ) -> list[tuple[int, ...]]:  # fmt: skip
        """Queue a run on a stream; `made` returns outputs of the shapes that it is given.

        Returns the shapes that the run gave them: smaller where they depend on values.
        """
        library = self._library
        ffi = library.ffi
        with self._context(stream) as context:
            shapes = context.shapes_for(inputs)
            tables = [
                ffi.new("void *[]", [ffi.cast("void *", each.pointer) for each in side] or 1)
                for side in (inputs, made(shapes))
            ]
            status = library.run_device(
                context.arguments[0], ffi.cast("void *", stream), *tables
            )
            if status:
                raise library.error(status, context.arguments[0])
            return context.shapes_made(shapes)

    @contextmanager
    def _context(self, stream: int) -> Iterator[Context]:
        """Yield the context of a stream, which nobody else uses meanwhile."""
        library, own = self._library, (stream, get_ident() if stream == _OF_THREAD else 0)
        if library.state_size:
            context = library.context()
            try:
                yield context
            finally:
                library.idle.append(context)
            return
        context, lock = self._contexts.get(own) or self._contexts.setdefault(
            own, (library.context(), Lock())
        )
        with lock:
            yield context


def is_on_device(value: Any) -> bool:
    """Return whether something is a tensor on a GPU."""
    if isinstance(value, np.ndarray | np.generic):
        return False
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) in _CUDA
    return hasattr(value, "__cuda_array_interface__")


def device_tensor(value: Any, stream: int) -> DeviceTensor:
    """Return where a tensor lies; what writes it ends before what is queued on `stream` next.

    Raises TypeError for an element type that numpy has no name for.
    """
    if not hasattr(value, "__dlpack__"):
        return _by_interface(value)
    capsule = value.__dlpack__(stream=stream or _LEGACY)
    pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
    pointer_of.restype, pointer_of.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    own = _DLTensor.from_address(pointer_of(capsule, b"dltensor"))
    shape = tuple(own.shape[: own.ndim])
    strides = tuple(own.strides[: own.ndim]) if own.strides else _strides(shape)
    return DeviceTensor(
        (own.data or 0) + own.byte_offset, shape, _dtype(own.code, own.bits, own.lanes),
        _is_dense(shape, strides), int(value.__dlpack_device__()[1]), (value, capsule),
    )  # fmt: skip


def _by_interface(value: Any) -> DeviceTensor:
    given = value.__cuda_array_interface__
    shape, dtype = tuple(given["shape"]), np.dtype(given["typestr"])
    strides = given.get("strides")
    dense = strides is None or _is_dense(shape, tuple(s // dtype.itemsize for s in strides))
    return DeviceTensor(
        int(given["data"][0]), shape, dtype, dense, None, value, given.get("stream")
    )


def _dtype(code: int, bits: int, lanes: int) -> np.dtype[Any]:
    if lanes == 1 and code in _KINDS:
        return np.dtype(f"{_KINDS[code]}{bits}")
    if lanes == 1 and (code, bits) == (_BOOL, 8):
        return np.dtype(np.bool_)
    if lanes == 1 and (code, bits) == (_BFLOAT, 16):
        return dtype_of(16)
    raise TypeError(f"tensors of DLPack's type {code} with {lanes} times {bits} bits aren't taken")


def _strides(shape: Sequence[int]) -> tuple[int, ...]:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def _is_dense(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    rows = zip(shape, strides, _strides(shape), strict=True)
    return 0 in shape or all(n == 1 or own == dense for n, own, dense in rows)


def checked_tensor(value: Any, tensor: Tensor, side: str, stream: int) -> DeviceTensor:
    """Return where an input or output lies; TypeError or ValueError where it isn't as it must be.
    """
    if not is_on_device(value):
        raise TypeError(f"{side} {tensor.name!r} must be on the GPU, as other tensors are")
    found = device_tensor(value, stream)
    if found.dtype != tensor.stored:
        raise TypeError(f"{side} {tensor.name!r} must be {tensor.stored}, not {found.dtype}")
    if not tensor.takes(found.shape):
        wanted = f"the shape {tensor.shape}"
        if tensor.lowest:
            wanted = f"a shape in [{', '.join(tensor.extents)}]"
        raise ValueError(f"{side} {tensor.name!r} must have {wanted}, not {found.shape}")
    if not found.dense:
        raise ValueError(f"{side} {tensor.name!r} must be contiguous")
    if found.pointer % 16:
        raise ValueError(f"{side} {tensor.name!r} must begin at a multiple of 16 bytes")
    return found


def new_tensor(like: Any, tensor: Tensor) -> Any:
    """Return a new tensor for an output, of the library and on the device that `like` is of.

    Raises TypeError for a library that isn't known and has no array API.
    """
    library = type(like).__module__.partition(".")[0]
    module = sys.modules.get(library)
    if library == "torch" and module is not None:
        dtype = getattr(module, tensor.dtype.name)
        return module.empty(tensor.shape, dtype=dtype, device=like.device)
    if library == "cupy" and module is not None:
        with like.device:
            return module.empty(tensor.shape, tensor.dtype)
    if hasattr(like, "__array_namespace__"):
        space = like.__array_namespace__()
        dtype = getattr(space, tensor.dtype.name)
        made = space.empty(tensor.shape, dtype=dtype, device=like.device)
        wait = getattr(made, "block_until_ready", None)  # JAX fills it in the background
        return made if wait is None else wait()
    raise TypeError(f"output {tensor.name!r}: {type(like).__name__} can't be made, give out=")


def resized(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return the first elements of a tensor in a shape, the tensor itself where that is its own."""
    if not hasattr(tensor, "shape") or tuple(tensor.shape) == shape:
        return tensor
    return tensor.reshape(-1)[: prod(shape)].reshape(shape)


def current_stream(tensor: Any) -> int:
    """Return the handle of the stream on which the library of a tensor queues its own work."""
    library = type(tensor).__module__.partition(".")[0]
    module = sys.modules.get(library)
    if module is None or library not in ("torch", "cupy") or not is_on_device(tensor):
        return 0
    if library == "torch":
        return stream_of(module.cuda.current_stream(tensor.device))
    return stream_of(module.cuda.get_current_stream())


def stream_of(stream: Any) -> int:
    """Return the handle of a stream: of torch's, cupy's, any that follows `__cuda_stream__`."""
    if hasattr(stream, "__cuda_stream__"):
        return int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr"):
        if hasattr(stream, name):
            return int(getattr(stream, name))
    return int(stream)
