"""Find out what this machine has for a target: a working compiler, and what starts programs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from atc.backends.cuda.targets import EMULATED
from atc.backends.target import Target
from atc.backends.toolchain.compiler import Compiler, compile_flags, machine_flags
from atc.backends.toolchain.compiling import compile_object
from atc.backends.toolchain.find_compiler import compiler_advice, find_compiler
from atc.backends.toolchain.linking import link_program, link_wasm
from atc.backends.toolchain.nvcc import find_nvcc
from atc.backends.toolchain.processes import Log, no_log
from atc.errors import AtcError

EMULATORS = {
    "qemu-system-arm": "qemu-system-arm", "qemu-system-riscv32": "qemu-system-misc",
    "qemu-aarch64-static": "qemu-user-static", "qemu-arm-static": "qemu-user-static",
    "qemu-riscv64-static": "qemu-user-static", "qemu-s390x-static": "qemu-user-static",
    "node": "nodejs",
}  # fmt: skip
"""Debian's packages of what starts programs for other processors."""

_PATIENCE = 60.0
_PROBE = """\
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

double atc_probe(double x, void *to, size_t size);
double atc_probe(double x, void *to, size_t size)
{
  memset(to, 0, size);
  return sqrt(x) + (double)INT32_C(1);
}

int main(void)
{
  char to[4];

  return atc_probe(2.0, to, sizeof to) > 2.0 ? 0 : 1;
}
"""

_SCRIPT = "ENTRY(main) SECTIONS { . = 0x10000; }"
"""A linker script that needs no startup of a C library's."""


@dataclass(frozen=True)
class Tools:
    """The tools for a target.

    `compiler` is None where nothing compiles for it: `trouble` then says why, and `advice` what to
    do. `runner` starts a program for it, empty where it starts by itself; `no_runner` says what to
    do where there is an emulator for it, but not on this machine.
    """

    target: Target
    compiler: Compiler | None
    trouble: str = ""
    advice: str = ""
    runner: tuple[str, ...] = ()
    no_runner: str = ""


def probe(target: Target, environ: Mapping[str, str]) -> Tools:
    """Look for a target's tools, and build a few lines with its flags and its C library."""
    runner, no_runner = find_runner(target, environ)
    found: Compiler | None = None
    trouble, advice = "", ""
    try:
        found = find_compiler(target, environ, timeout=_PATIENCE)
        _build_lines(found, target)
        if target.device not in ("", EMULATED):  # whose host's part is C
            found = target_compiler(target, environ)
    except AtcError as error:
        trouble, advice = error.message, error.hint
        if found is not None and not error.hint:  # it is there, but doesn't compile or link
            advice = compiler_advice(target)
        found = None
    return Tools(target, found, trouble, advice, runner, no_runner)


def probe_all(targets: Sequence[Target], environ: Mapping[str, str]) -> tuple[Tools, ...]:
    """Look for the tools of several targets, some at a time."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return tuple(pool.map(lambda target: probe(target, environ), targets))


def find_runner(target: Target, environ: Mapping[str, str]) -> tuple[tuple[str, ...], str]:
    """Return the command that starts a program for a target, and what to do where it's missing."""
    if not target.runner:
        return (), ""
    program, *words = target.runner
    path = shutil.which(program, path=environ.get("PATH", os.defpath))
    if path is None:
        return (), install_runner(program)
    return (path, *words), ""


def install_runner(program: str) -> str:
    """Return the command that brings an emulator on Debian and Ubuntu."""
    return f"apt install {EMULATORS.get(program, program)}"


def target_compiler(
    target: Target, environ: Mapping[str, str], *, log: Log = no_log
) -> Compiler:
    """Return what compiles a target's kernels: nvcc for GPUs, else a C compiler."""
    if target.device not in ("", EMULATED):
        return find_nvcc(target.device, environ, log=log)
    return find_compiler(target, environ, log=log)


def _build_lines(compiler: Compiler, target: Target) -> None:
    with tempfile.TemporaryDirectory(prefix="atc-probe-") as name:
        cwd, flags = Path(name), compile_flags(compiler, target)
        Path(cwd, "probe.c").write_text(_PROBE)
        compile_object(compiler, flags, "probe.c", cwd)
        objects = ["probe.c.o", "-lm"]
        if compiler.kind == "zig":
            return  # it builds a C library first, which takes a minute
        if target.arch == "wasm32":
            link_wasm(compiler, ["atc_probe"], "probe.c.o", "probe", cwd)
        elif target.bare:
            Path(cwd, "probe.ld").write_text(_SCRIPT)
            bare = [*machine_flags(compiler, target), *target.link_flags, "-T", "probe.ld"]
            link_program(compiler, (), [*bare, *objects, *target.libraries], "probe", cwd)
        else:
            link_program(compiler, flags, objects, "probe", cwd)

