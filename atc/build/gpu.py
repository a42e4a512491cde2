"""Parts of a program that uses a GPU: the driver's, and compiled kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from atc.backends.kernel_source import KernelSource
from atc.backends.target import Target
from atc.backends.toolchain.compiler import LOADS, Compiler
from atc.backends.toolchain.nvcc import nvcc_flags
from atc.build.objects import BuildContext, Unit, compile_units
from atc.codegen.cubins import pack_cubins
from atc.codegen.sources import gpu_files

_HEADERS = ("src/device.h", "src/tensor.h", "src/warpgroup.h", "src/kernel.h")


def headers_of(target: Target) -> tuple[str, ...]:
    """Return the headers that the network's own source includes."""
    verbatim = (file for file in gpu_files(target) if file.endswith(".h"))
    return ("src/gpu_own.h", *(f"src/{file}" for file in verbatim))


def gpu_units(target: Target, flags: tuple[str, ...]) -> list[Unit]:
    """Return what every network for a GPU is linked with."""
    return [
        Unit(f"src/{file}", file.removesuffix(".c"), headers_of(target), flags=(*flags, LOADS))
        for file in gpu_files(target) if file.endswith(".c")
    ]  # fmt: skip


def compile_cubins(
    cwd: Path, files: Mapping[str, bytes], kernels: Sequence[KernelSource], nvcc: Compiler,
    context: BuildContext,
) -> bytes:  # fmt: skip
    """Return the cubins of kernels in one piece, in their order."""
    units = [Unit(k.path, k.symbol, _HEADERS) for k in kernels]
    context = replace(context, compiler=nvcc, flags=nvcc_flags(context.target.device))
    compile_units(cwd, files, units, context)
    return pack_cubins([(cwd / f"{unit.path}.o").read_bytes() for unit in units])
