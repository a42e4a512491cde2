"""Runs a compiled network whose partitions the caller's own threads run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import numpy as np

from atc.ir.graph import Array

Run = Callable[[int], None]
"""Runs one partition."""


def run_with(
    folder: Path, inputs: Sequence[Array], like: Sequence[Array],
    parallel: Callable[[Run, int], None],
) -> list[Array]:  # fmt: skip
    """Return the outputs, arrays as those of `like`, of the library `net` in a folder.

    `parallel` runs all partitions of each call; it gets what runs one of them, and their number.
    """
    library = ctypes.CDLL(str(folder / "libnet.so"))
    library.net_context_size.restype = library.net_arena_size.restype = ctypes.c_size_t
    context = (ctypes.c_uint64 * (library.net_context_size() // 8 + 1))()
    arena = np.zeros(library.net_arena_size() + 64, np.uint8)
    start = arena.ctypes.data + -arena.ctypes.data % 64
    assert library.net_init(context, ctypes.c_void_p(start), ctypes.c_size_t(arena.size - 64)) == 0
    task = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)

    def called(user: object, run: Any, at: int, partitions: int) -> None:
        parallel(lambda partition: run(at, partition), partitions)

    kind = ctypes.CFUNCTYPE(None, ctypes.c_void_p, task, ctypes.c_void_p, ctypes.c_int)
    callback = kind(called)
    library.net_set_parallel(context, callback, None)
    outputs = [np.zeros(a.shape, a.dtype) for a in like]
    pointers = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in (inputs, outputs)]
    assert library.net_run_tensors(context, *pointers) == 0
    return outputs


def run_at_once(
    folder: Path, inputs: Sequence[Array], like: Sequence[Array]
) -> tuple[list[Array], int]:
    """Return the outputs, and how many calls had partitions that all ran at the same time.

    Each partition waits until all others have begun.
    """
    met = 0

    def together(run: Run, partitions: int) -> None:
        nonlocal met
        barrier = Barrier(partitions)

        def partition(k: int) -> bool:
            try:
                barrier.wait(10)
            except BrokenBarrierError:
                return False
            run(k)
            return True

        with ThreadPoolExecutor(partitions) as threads:
            met += all([*threads.map(partition, range(partitions))])

    return run_with(folder, inputs, like, together), met
