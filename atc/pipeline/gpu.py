"""What a compilation for a GPU does beside that for a CPU: options it has not, and its cubins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from atc.backends.compiler import LOADS, Compiler
from atc.backends.cuda.targets import EMULATED
from atc.backends.nvcc import find_nvcc, nvcc_flags
from atc.backends.target import Target
from atc.backends.toolchain import Log
from atc.build.library import BuildContext, Unit, compile_units
from atc.build.output_folder import write_files
from atc.codegen.cubins import pack_cubins
from atc.codegen.emit import Emission, gpu_files
from atc.codegen.weights import included_weights
from atc.errors import OptionError
from atc.options.options import Options

_WITHOUT = (
    "hooks", "sanity_check", "runtime_log", "fast_run_algo_policy", "op_bank_path",
)  # fmt: skip
"""Options that watch or measure kernels of the CPU alone."""


def check_device_options(options: Options, target: Target) -> None:
    """Raise OptionError for what can't be had on a GPU yet."""
    if not target.device:
        return
    measures = ("fast_run",) if options.measures else ()
    for name in (*_WITHOUT, *measures):
        if name in measures or getattr(options, name, None):
            raise OptionError(
                f"--{name} and --target={target.name} can't be combined yet", where=f"--{name}",
                hint="leave it out, or choose a target that is a CPU",
            )  # fmt: skip


def nvcc_of(target: Target, environ: Mapping[str, str], log: Log, timeout: float) -> Compiler:
    """Return nvcc, each of whose calls may take so long; ToolchainError where none can."""
    return replace(find_nvcc(target.device, environ, log=log), timeout=timeout)


def by_host(target: Target) -> bool:
    """Whether the host's compiler takes the kernels of a GPU."""
    return target.device == EMULATED


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


def compiled_cubins(
    cwd: Path, emission: Emission, nvcc: Compiler, context: BuildContext
) -> tuple[dict[str, bytes], Unit]:
    """Compile those kernels that a GPU runs; returns them in a file, and what includes it."""
    data, text = f"{emission.name}_cubins.bin", f"{emission.name}_cubins.S"
    source = included_weights(emission.name, data, "cubins").encode()
    unit = Unit(text, f"{emission.name}_cubins", (data,), cacheable=False)
    return {data: _cubins(cwd, emission, nvcc, context), text: source}, unit


def _cubins(cwd: Path, emission: Emission, nvcc: Compiler, context: BuildContext) -> bytes:
    """Return the cubins of those kernels that a GPU runs, in the kernels' order."""
    files, own = emission.files, [k for k in emission.kernels if k.launch]
    units = [Unit(k.path, k.symbol, ("src/device.h", "src/tensor.h", "src/kernel.h")) for k in own]
    paths = dict.fromkeys(p for unit in units for p in (unit.path, *unit.includes))
    write_files(cwd, {path: files[path] for path in paths})
    context = replace(context, compiler=nvcc, flags=nvcc_flags(context.target.device))
    compile_units(cwd, files, units, context)
    return pack_cubins([(cwd / f"{unit.path}.o").read_bytes() for unit in units])
