"""A CUDA driver that runs nothing and refuses what the real one would: fake_cuda.c."""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.runtime.load import load

SOURCE = Path(__file__).parent / "fake_cuda.c"
LIBRARY = "libcuda.so.1"
GLOBAL = 0


def build_driver(folder: Path, *options: str) -> Path:
    """Write the compiled driver into a folder."""
    compiler = find_compiler(get_target("c99"), os.environ)
    library = folder / LIBRARY
    library.write_bytes(_compiled((*compiler.argv, *options)))
    return library


@cache
def _compiled(command: Sequence[str]) -> bytes:
    """Return the driver as a compiler with some options makes it, once for all tests."""
    words = ("-shared", "-fPIC", "-pthread", f"-Wl,-soname,{LIBRARY}", str(SOURCE))
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, *words, "-o", LIBRARY], cwd=folder, check=True)
        return Path(folder, LIBRARY).read_bytes()


class Driver:
    """The driver in this process; whoever opens it from here on finds this one."""

    def __init__(self, library: Path) -> None:
        self._calls = ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        context = ctypes.c_void_p()
        self("cuInit", 0)
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.context = context
        self.enter()

    def enter(self) -> None:
        """Make the device's context the thread's own."""
        self("cuCtxPushCurrent_v2", self.context)

    def __call__(self, name: str, *arguments: Any) -> None:
        status = getattr(self._calls, name)(*arguments)
        assert status == 0, f"{name}: {status}"

    def count(self, name: str) -> int:
        """Return what the driver counts: taken, held, refused."""
        return int(getattr(self._calls, f"fake_{name}")())

    def made(self, name: str, *arguments: Any) -> int:
        """Return the handle that a call makes."""
        found = ctypes.c_void_p()
        self(name, ctypes.byref(found), *arguments)
        assert found.value is not None
        return found.value

    def tensor(self, array: np.ndarray) -> Lent:
        """Return a copy on the device."""
        size = max(array.nbytes, 1)
        address = self.made("cuMemAlloc_v2", ctypes.c_size_t(size))
        ctypes.memmove(address, array.ctypes.data, array.nbytes)
        return Lent(address, array)


class Lent:
    """A tensor on the device that says where it lies."""

    def __init__(self, address: int, like: np.ndarray) -> None:
        self.address = address
        self.__cuda_array_interface__ = {
            "shape": like.shape, "typestr": like.dtype.str, "data": (address, False),
            "strides": None, "version": 3, "stream": None,
        }  # fmt: skip


def drive(
    library: Path, folder: Path, feeds: Sequence[Mapping[str, Any]], captured: bool
) -> None:
    """Run a network in all ways there are: on the host's tensors and the device's, in threads.

    Those of the device take turns, on several streams and, if it may be `captured`, in a graph of
    the caller's. Fails if the driver refuses anything, or if something is held in the end.
    """
    driver = Driver(library)
    before = driver.count("held")
    net = load(folder)
    outputs = [[*net.run(dict(feed)).values()] for feed in (*feeds, *feeds)]
    with ThreadPoolExecutor(2) as threads:
        [*threads.map(lambda feed: net.run(dict(feed)), [*feeds] * 2)]
    streams = [0, 1, *(driver.made("cuStreamCreate", flags) for flags in (0, 1))]
    tensors = []  # of the caller's, who gives them back

    def lent(array: Any) -> Lent:
        tensors.append(driver.tensor(np.asarray(array)))
        return tensors[-1]

    inputs = [[lent(feed[t.name]) for t in net.inputs] for feed in feeds]
    results = [[[lent(a) for a in arrays] for _ in range(6)] for arrays in outputs[: len(feeds)]]
    for stream in streams:
        for given, places in zip(inputs, results, strict=True):
            for out in (*places, *places):  # more of them than graphs are kept for
                net(*given, out=out, stream=stream)
    if captured:  # on a stream that nothing is prepared for, and as strictly as can be
        streams.append(driver.made("cuStreamCreate", 1))
        own = ctypes.c_void_p(streams[-1])
        driver("cuStreamBeginCapture_v2", own, GLOBAL)
        net(*inputs[0], out=results[0][0], stream=streams[-1])
        graph = ctypes.c_void_p()
        driver("cuStreamEndCapture", own, ctypes.byref(graph))
        driver("cuGraphDestroy", graph)
    net.close()
    gc.collect()
    for tensor in tensors:
        driver("cuMemFree_v2", ctypes.c_uint64(tensor.address))
    for stream in streams[2:]:
        driver("cuStreamDestroy_v2", ctypes.c_void_p(stream))
    assert driver.count("refused") == 0
    assert driver.count("launched") > 0
    assert driver.count("held") == before
