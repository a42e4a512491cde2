"""NVIDIA's compiler: where it is, what it knows, and the flags it gets."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from atc.backends.cuda.targets import PORTABLE
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.processes import Log, TimedOut, no_log, run_binary, timeout_error
from atc.errors import OptionError, ToolchainError

_ANSWER = 60.0  # seconds that nvcc may take to say who it is
FLAGS = ("-std=c++17", "-O3", "--fmad=false")
"""Flags of every kernel for any device: floating point as it is written, as everywhere."""
HOW = "install the CUDA toolkit, or run: pip install 'atc[cuda]'; NVCC or CUDA_HOME may say where"


def find_nvcc(device: str, environ: Mapping[str, str], *, log: Log = no_log) -> Compiler:
    """Return nvcc: `$NVCC`, that of `$CUDA_HOME`, `$CUDA_BIN_PATH`, PATH, or NVIDIA's packages.

    Raises ToolchainError where there is none, or it doesn't know the architecture `device`.
    """
    argv = next(_places(environ), None)
    if argv is None:
        raise ToolchainError("no CUDA compiler: nvcc isn't there", hint=HOW)
    output = _ask(argv, "--version", log)
    version = re.search(r"release [\d.]+, V[\d.]+", output)
    if version is None:
        raise ToolchainError(f"{shlex.join(argv)} is not nvcc", hint=HOW)
    known = re.findall(r"sm_\d+\w?", _ask(argv, "--list-gpu-code", log))
    if device.replace("compute_", "sm_") not in known:
        raise ToolchainError(
            f"nvcc of {version[0]} doesn't know {device}; it knows {', '.join(known)}",
            where="--target", hint="choose one of these, or another CUDA toolkit",
        )  # fmt: skip
    return Compiler(argv, "nvcc", f"nvcc {version[0]}", "nvptx64-nvidia-cuda")


def _places(environ: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the commands that there are, in order of preference."""
    path = environ.get("PATH", os.defpath)
    if words := environ.get("NVCC", ""):
        try:
            argv = tuple(shlex.split(words))
        except ValueError as error:
            raise OptionError(f"NVCC can't be split into words: {error}", where="NVCC") from None
        found = shutil.which(argv[0], path=path) if argv else None
        if found is None:
            raise ToolchainError(
                f"NVCC names a program that isn't there: {words}", hint="correct or unset NVCC"
            )
        yield (found, *argv[1:])
    if home := environ.get("CUDA_HOME", ""):
        found = shutil.which(str(Path(home, "bin", "nvcc")), path=path)
        if found is None:
            raise ToolchainError(
                f"CUDA_HOME holds no bin/nvcc: {home}", hint="correct or unset CUDA_HOME"
            )
        yield (found,)
    if folder := environ.get("CUDA_BIN_PATH", ""):
        found = shutil.which(str(Path(folder, "nvcc")), path=path)
        if found is None:
            raise ToolchainError(
                f"CUDA_BIN_PATH holds no nvcc: {folder}", hint="correct or unset CUDA_BIN_PATH"
            )
        yield (found,)
    if found := shutil.which("nvcc", path=path):
        yield (found,)
    spec = importlib.util.find_spec("nvidia")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield from ((str(file),) for file in sorted(Path(folder).glob("*/bin/nvcc")))


def _ask(argv: tuple[str, ...], option: str, log: Log) -> str:
    try:
        done = run_binary((*argv, option), _ANSWER, log=log)
    except TimedOut as error:
        raise timeout_error(error, (*argv, option)) from None
    if done.status != 0:
        raise ToolchainError(f"{shlex.join(argv)} doesn't understand {option}", hint=HOW)
    return done.stdout.decode(errors="replace")


def nvcc_flags(device: str) -> tuple[str, ...]:
    """Return the flags of every kernel for a device."""
    real = _real(device)
    kind = ("-cubin", f"-gencode=arch={real.replace('sm', 'compute')},code={real}")
    if device == PORTABLE:
        kind = ("-fatbin", f"-gencode=arch={device},code=[{device},{real}]")
    return (*kind, *FLAGS, "-Werror=all-warnings")


def cmake_architecture(device: str) -> str:
    """Return what a device's kernels are compiled for, as CMAKE_CUDA_ARCHITECTURES names it."""
    number = _real(device).removeprefix("sm_")
    return number if device == PORTABLE else f"{number}-real"


def _real(device: str) -> str:
    """Return the architecture of the machine code for a device, with what only that one has.

    nvcc knows of sm_90a from 12.0 on, but lists sm_90 alone.
    """
    return "sm_90a" if device == "sm_90" else device.replace("compute_", "sm_")
