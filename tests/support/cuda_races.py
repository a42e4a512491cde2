"""Tests of CUDA kernels under ThreadSanitizer: what threads of a block share, barriers must order.

    export TSAN_OPTIONS="report_thread_leaks=0 history_size=7 ignore_noninstrumented_modules=1"
    LD_PRELOAD=$(gcc -print-file-name=libtsan.so) python tests/support/cuda_races.py ARGUMENTS

The arguments are pytest's. The host compiles kernels with the sanitizer, and the emulated driver
tells it of threads and barriers. Data races are printed; the exit status is that of pytest, or 66
where one was found.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import joined_sources
import pytest

from atc import onnx_backend
from atc.backends.toolchain.compiling import Job

RUNTIME = subprocess.run(
    ["gcc", "-print-file-name=libtsan.so"], capture_output=True, text=True, check=True
).stdout.strip()

_compile, _link = joined_sources.compile_joined, onnx_backend.link_shared


def _watched(job: Job) -> Job:
    if job.source.endswith(".cu"):
        return replace(job, flags=(*job.flags, "-fsanitize=thread", "-g"))
    if Path(job.source).name == "emulated_driver.c":
        return replace(job, flags=(*job.flags, "-DATC_EMULATED_RACES"))
    return job


def compile_watched(jobs: Sequence[Job], workers: int) -> None:
    """Compile as `compile_joined` does, kernels with the sanitizer."""
    _compile([_watched(job) for job in jobs], workers)


def link_watched(
    compiler: Any, flags: Any, objects: Sequence[str], *rest: Any, **named: Any
) -> Path:
    """Link as `link_shared` does, with the sanitizer's runtime."""
    return _link(compiler, flags, [*objects, RUNTIME], *rest, **named)


@contextmanager
def lasting_folder(purpose: str) -> Iterator[str]:
    """Yield a folder that lasts as long as the process: reports name lines of what is in it."""
    folder = tempfile.mkdtemp(prefix=purpose)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    yield folder


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)  # compilers do without
    joined_sources.compile_joined = compile_watched
    onnx_backend.link_shared = link_watched  # type: ignore[attr-defined]
    onnx_backend.temporary_folder = lasting_folder  # type: ignore[attr-defined]
    sys.exit(pytest.main(["-p", "no:cacheprovider", "-q", "-s", "-o", "addopts=", *sys.argv[1:]]))
