"""The most floating-point work that a core of this machine does, by a small program that tries."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from atc.backends.target import Target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.processes import run_binary
from atc.errors import AtcError
from atc.fast_run.measure import runs_here
from atc.files.temporary import temporary_folder
from atc.templates import render, verbatim

_CHAINS = 12  # more than two units of latency four or five need
_STEPS = 1_000_000
_ROUNDS = 8
_SECONDS = 60


def measured_peak(target: Target, environ: Mapping[str, str]) -> float:
    """Return the GFLOP/s of a target's widest fused multiply-adds on one core.

    0 where that can't be found out: no C compiler, or a target that doesn't run here.
    """
    if target.runner or not runs_here(target):
        return 0.0
    try:
        with temporary_folder("peak") as folder:
            program = peak_program(target, environ, Path(folder))
            done = run_binary([str(program)], _SECONDS, cwd=Path(folder))
        return float(done.stdout.split()[0])
    except (AtcError, ValueError, IndexError):
        return 0.0


def peak_program(target: Target, environ: Mapping[str, str], folder: Path) -> Path:
    """Build the program that measures for some 10 ms and prints GFLOP/s; raises AtcError."""
    compiler = find_compiler(target, environ)
    flags = (*compile_flags(compiler, target), "-I.")
    (folder / "simd.h").write_text(verbatim(f"simd/{target.simd}.h"))
    values: dict[str, object] = {"chains": _CHAINS, "steps": _STEPS, "rounds": _ROUNDS}
    (folder / "peak.c").write_text(render("bench/peak.c.j2", values))
    compile_many([Job(compiler, flags, "peak.c", folder)], 1)
    return link_program(compiler, flags, ["peak.c.o"], "peak", folder)
