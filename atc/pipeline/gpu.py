"""Additions of a compilation for a GPU to that for a CPU: its compiler and its cubins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from atc.backends.cuda.targets import EMULATED
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler
from atc.backends.toolchain.nvcc import find_nvcc
from atc.backends.toolchain.processes import Log
from atc.build.gpu import compile_cubins
from atc.build.objects import BuildContext, Unit
from atc.codegen.emit import Emission
from atc.codegen.weights import included_weights


def nvcc_of(target: Target, environ: Mapping[str, str], log: Log, timeout: float) -> Compiler:
    """Return nvcc, each of whose calls may take so long; ToolchainError where none can."""
    return replace(find_nvcc(target.device, environ, log=log), timeout=timeout)


def by_host(target: Target) -> bool:
    """Return whether the host's compiler takes the kernels of a GPU."""
    return target.device == EMULATED


def compiled_cubins(
    cwd: Path, emission: Emission, nvcc: Compiler, context: BuildContext
) -> tuple[dict[str, bytes], Unit]:
    """Compile those kernels that a GPU runs; returns them in a file, and what includes it."""
    data, text = f"{emission.name}_cubins.bin", f"{emission.name}_cubins.S"
    source = included_weights(emission.name, data, "cubins").encode()
    unit = Unit(text, f"{emission.name}_cubins", (data,), cacheable=False)
    own = [k for k in emission.kernels if k.launch]
    cubins = compile_cubins(cwd, emission.files, own, nvcc, context)
    return {data: cubins, text: source}, unit
