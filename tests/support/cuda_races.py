"""Tests of CUDA kernels under ThreadSanitizer: what threads of a block share, barriers must order.

    LD_PRELOAD=$(gcc -print-file-name=libtsan.so) python tests/support/cuda_races.py ARGUMENTS

The arguments are pytest's. The host compiles kernels with the sanitizer, and the emulated driver
tells it of threads and barriers. Data races are printed; the exit status is that of pytest, or 66
where one was found.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
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

OPTIONS = "report_thread_leaks=0 history_size=7 ignore_noninstrumented_modules=1 exitcode=66"
"""For TSAN_OPTIONS: threads are fibers, and Python isn't looked at."""

_compile, _link = joined_sources.compile_joined, onnx_backend.link_shared


def _watched(job: Job) -> Job:
    if job.source.endswith(".cu"):
        return replace(job, flags=(*job.flags, "-fsanitize=thread"))
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


if __name__ == "__main__":
    os.environ.pop("LD_PRELOAD", None)  # compilers do without
    joined_sources.compile_joined = compile_watched
    onnx_backend.link_shared = link_watched
    sys.exit(pytest.main(["-p", "no:xdist", "-p", "no:cacheprovider", "-q", *sys.argv[1:]]))
