"""The driver of tests refuses what the real one does: who passes it has done nothing of this."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest
from strict_driver import build_driver

INVALID_VALUE, INVALID_CONTEXT, INVALID_HANDLE = 1, 201, 400
UNSUPPORTED, INVALIDATED, UNJOINED, CAPTURED_EVENT = 900, 901, 904, 907
SPAN = 4096


class Calls:
    """The driver's calls, which return statuses, with a context and some memory."""

    def __init__(self, library: Path) -> None:
        self.driver = ctypes.CDLL(str(library))
        assert self.status("cuInit", 0) == 0
        context = ctypes.c_void_p()
        assert self.status("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0) == 0
        assert self.status("cuCtxPushCurrent_v2", context) == 0
        self.memory = self.made("cuMemAlloc_v2", ctypes.c_size_t(SPAN))

    def status(self, name: str, *arguments: Any) -> int:
        return int(getattr(self.driver, name)(*arguments))

    def made(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self.status(name, ctypes.byref(handle), *arguments) == 0
        return handle

    def map(self, **changes: Any) -> int:
        """Describe 8 rows of 64 half floats; return the status."""
        room = ctypes.create_string_buffer(256)
        given: dict[str, Any] = {
            "map": (ctypes.addressof(room) + 63) // 64 * 64, "type": 6, "rank": 2,
            "address": self.memory.value, "extents": (64, 8), "strides": (128,), "box": (64, 8),
            "steps": (1, 1), "interleave": 0, "swizzle": 3, "promotion": 3, "fill": 0, **changes,
        }  # fmt: skip
        kinds = {"extents": ctypes.c_uint64, "strides": ctypes.c_uint64, "box": ctypes.c_uint32,
                 "steps": ctypes.c_uint32}  # fmt: skip
        words = [
            (kinds[name] * len(value))(*value) if name in kinds
            else ctypes.c_uint64(value) if name in ("map", "address") else value
            for name, value in given.items()
        ]  # fmt: skip
        return self.status("cuTensorMapEncodeTiled", *words)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def calls(library: Path, tmp_path: Path) -> Calls:
    """Give each test a driver of its own, that holds nothing yet."""
    copy = tmp_path / "libcuda.so.1"
    copy.write_bytes(library.read_bytes())
    return Calls(copy)


def test_maps_are_as_the_copy_engine_needs_them(calls: Calls) -> None:
    assert calls.map() == 0
    start = calls.memory.value or 0
    for wrong in (
        {"type": 16}, {"rank": 6}, {"address": start + 8}, {"extents": (0, 8)},
        {"extents": (64, 99)}, {"strides": (136,)}, {"box": (64, 257)}, {"box": (128, 8)},
        {"box": (4, 8)}, {"steps": (9, 1)}, {"swizzle": 0}, {"promotion": 4}, {"map": 8},
    ):  # fmt: skip
        assert calls.map(**wrong) == INVALID_VALUE, wrong


def test_copies_stay_within_what_was_allocated(calls: Calls) -> None:
    own = ctypes.create_string_buffer(SPAN + 1)
    start = calls.memory.value or 0
    for name, size, status in (
        ("cuMemcpyHtoDAsync_v2", SPAN, 0), ("cuMemcpyHtoDAsync_v2", SPAN + 1, INVALID_VALUE),
    ):  # fmt: skip
        words = (ctypes.c_uint64(start), own, ctypes.c_size_t(size), None)
        assert calls.status(name, *words) == status
    past = ctypes.c_uint64(start + SPAN - 1)
    words = (own, past, ctypes.c_size_t(2), None)
    assert calls.status("cuMemcpyDtoHAsync_v2", *words) == INVALID_VALUE
    assert calls.status("cuMemFree_v2", past) == INVALID_VALUE


def test_captures_take_what_can_be_captured(calls: Calls) -> None:
    origin, side = (calls.made("cuStreamCreate", 1) for _ in range(2))
    fork, join = (calls.made("cuEventCreate", 2) for _ in range(2))
    graph = ctypes.c_void_p()
    ended = (origin, ctypes.byref(graph))

    def forked() -> None:
        assert calls.status("cuStreamBeginCapture_v2", origin, 1) == 0
        assert calls.status("cuEventRecord", fork, origin) == 0
        assert calls.status("cuStreamWaitEvent", side, fork, 0) == 0

    forked()
    assert calls.status("cuMemAlloc_v2", ctypes.byref(graph), ctypes.c_size_t(8)) == UNSUPPORTED
    assert calls.status("cuEventRecord", join, side) == 0
    assert calls.status("cuStreamWaitEvent", origin, join, 0) == 0
    assert calls.status("cuStreamEndCapture", *ended) == 0
    assert calls.status("cuStreamWaitEvent", side, fork, 0) == CAPTURED_EVENT
    assert calls.status("cuEventSynchronize", fork) == CAPTURED_EVENT
    forked()
    assert calls.status("cuStreamEndCapture", *ended) == UNJOINED
    assert calls.status("cuStreamBeginCapture_v2", origin, 1) == 0
    assert calls.status("cuStreamSynchronize", origin) == UNSUPPORTED
    assert calls.status("cuStreamEndCapture", *ended) == INVALIDATED
    assert calls.status("cuStreamBeginCapture_v2", None, 1) == UNSUPPORTED


def test_captures_copy_what_cannot_be_paged_out(calls: Calls) -> None:
    """A stream that goes on behind what its origin waits for isn't joined."""
    origin, side = (calls.made("cuStreamCreate", 1) for _ in range(2))
    fork, join = (calls.made("cuEventCreate", 2) for _ in range(2))
    locked = calls.made("cuMemHostAlloc", ctypes.c_size_t(64), 0)
    graph = ctypes.c_void_p()
    ended = (origin, ctypes.byref(graph))
    device, size = ctypes.c_uint64(calls.memory.value or 0), ctypes.c_size_t(64)

    def copied(host: Any, size: ctypes.c_size_t = size) -> int:
        return calls.status("cuMemcpyDtoHAsync_v2", host, device, size, side)

    def begun() -> None:
        assert calls.status("cuStreamBeginCapture_v2", origin, 1) == 0
        assert calls.status("cuEventRecord", fork, origin) == 0
        assert calls.status("cuStreamWaitEvent", side, fork, 0) == 0
        assert copied(locked) == 0
        assert calls.status("cuEventRecord", join, side) == 0

    def joined() -> int:
        assert calls.status("cuStreamWaitEvent", origin, join, 0) == 0
        return calls.status("cuStreamEndCapture", *ended)

    begun()
    assert joined() == 0
    begun()
    assert copied(locked) == 0  # after what is waited for
    assert joined() == UNJOINED
    for host, room in ((ctypes.create_string_buffer(64), 64), (locked, 65)):
        begun()
        assert copied(host, ctypes.c_size_t(room)) == UNSUPPORTED
        assert joined() == INVALIDATED
    assert calls.status("cuMemFreeHost", locked) == 0
    assert calls.status("cuMemFreeHost", locked) == INVALID_VALUE


def test_handles_and_contexts_are_there(calls: Calls) -> None:
    stream = calls.made("cuStreamCreate", 1)
    assert calls.status("cuStreamDestroy_v2", stream) == 0
    assert calls.status("cuStreamSynchronize", stream) == INVALID_HANDLE
    assert calls.status("cuGraphLaunch", stream, None) == INVALID_HANDLE
    untimed = calls.made("cuEventCreate", 2)
    elapsed = ctypes.c_float()
    assert calls.status("cuEventRecord", untimed, None) == 0
    words = (ctypes.byref(elapsed), untimed, untimed)
    assert calls.status("cuEventElapsedTime", *words) == INVALID_HANDLE
    context = ctypes.c_void_p()
    assert calls.status("cuCtxPopCurrent_v2", ctypes.byref(context)) == 0
    assert calls.status("cuStreamSynchronize", None) == INVALID_CONTEXT
    assert calls.status("cuCtxPopCurrent_v2", ctypes.byref(context)) == INVALID_CONTEXT
