"""Runs kernels by themselves: one program of many workloads, native or under an emulator.

All operands of all calls lie in one file, each between two fences of known bytes. The program reads
it into memory, calls the kernels and writes it back, so that a stray write shows. Where BOCHS names
an emulator (machine/bochs.py), programs for x86-64 also run on the least CPU that must be able to,
with tiles of its own, and must give the same bits.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from c_compiler import compile_command, compile_in
from machine.bochs import FOR_MACHINE, MODELS, Machine, Read, Run, Write, find_machine
from tile_emulation import emulable, emulated, emulating

from atc.backends.kernel import AnyKernel, Candidate, Workload
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.render.own_math import ONE_LANE
from atc.backends.target import TILES, Target, host_arch, host_features
from atc.backends.targets import get_target
from atc.dims import Symbol, concrete, dim, evaluate, functions_in, symbols_of
from atc.ir.graph import Array
from atc.templates import render, verbatim
from support import static_names

FENCE, FENCE_BYTE = 256, 0xA5
LEFT_BYTE = 0x4B
"""What memory holds that a kernel may write: a large number in all types, as others leave there."""
VECTOR_TARGETS = (
    "x86-64-avx2", "x86-64-avx512", "aarch64-neon", "armv7-neon", "wasm32-simd128", "riscv64-rvv",
)  # fmt: skip

_MAIN = """#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
{permission}

static union {{ long double align[8]; unsigned char bytes[{size}]; }} memory;

int main(int argc, char **argv)
{{
  unsigned char *const d = memory.bytes + (64 - (uintptr_t)memory.bytes % 64) % 64;
  FILE *file = argc == 3 ? fopen(argv[1], "rb") : NULL;
  if (file == NULL || fread(d, 1, {data}, file) != {data}) return 1;
  fclose(file);
{ask}
{calls}
  file = fopen(argv[2], "wb");
  if (file == NULL || fwrite(d, 1, {data}, file) != {data}) return 2;
  return fclose(file);
}}
"""


@dataclass(frozen=True)
class Call:
    """A kernel with parameters, what it is called for, and its operands (None where absent)."""

    kernel: AnyKernel
    params: Any
    workload: Workload
    inputs: Sequence[Array | None]

    def __str__(self) -> str:
        return f"{Candidate(self.kernel, self.params).label} of {self.workload.op}"


@dataclass(frozen=True)
class _Counted(Symbol):
    value: int = 0

    @cached_property
    def text(self) -> str:
        return str(self.value)


def counted(value: int, name: str, high: int, low: int = 1) -> int:
    """Return an extent that a kernel's call is told: `value`, which may be `low` to `high`."""
    return dim(_Counted(-1, name, low, high, value=value))


def vector_target(name: str) -> Target:
    """Return a target, or skip the test where nothing here can build and run it."""
    target = emulable(get_target(name))
    at_home = target.arch in ("", host_arch())
    if at_home and not target.features - TILES <= host_features():
        pytest.skip(f"this CPU can't run {name}")
    for tool in () if at_home else (target.compiler, *target.runner[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"{name} needs {tool}")
    return target


def run_calls(calls: Sequence[Call], target: Target) -> list[list[Array]]:
    """Compile the kernels and return each call's results; fails on any warning or stray write.

    Results of `counted` extents have room for the largest, whose begin is written.
    """
    sources = [render_kernel(Candidate(c.kernel, c.params), c.workload, target) for c in calls]
    memory = _Memory()
    texts, outputs = [], []
    for call, source in zip(calls, sources, strict=True):
        packs = call.kernel.packs(call.workload, call.params, target)
        given = [packs[k](a) if k in packs and a is not None else a
                 for k, a in enumerate(call.inputs)]  # fmt: skip
        places = [memory.fixed(a) for a in given if a is not None]
        results = [memory.free(t.nbytes) for t in concrete(call.workload.outputs)]
        scratch = [memory.free(_value(source.scratch))] if source.scratch else []
        arguments = ", ".join(f"(void *)(d + {at})" for at in (*places, *results, *scratch))
        texts.append(_all_partitions(source, arguments))
        outputs.append(results)
    with tempfile.TemporaryDirectory() as folder:
        after = _run(sources, texts, memory, target, Path(folder))
    memory.check(after)
    return [
        [np.frombuffer(after, t.dtype.numpy, t.size, at).reshape(t.shape)
         for t, at in zip(concrete(c.workload.outputs), results, strict=True)]
        for c, results in zip(calls, outputs, strict=True)
    ]  # fmt: skip


def _value(extent: int) -> int:
    """Return the value of an extent of which only `counted` ones are unknown."""
    return evaluate(extent, {s: s.value for s in symbols_of(extent) if isinstance(s, _Counted)})


def _all_partitions(source: KernelSource, arguments: str) -> str:
    """Return the C that calls a kernel, or all its partitions in all phases, in their order."""
    work_split, table = source.work_split, [source.table] if source.dims else []
    counts = {"phase": work_split.phases, "partition": work_split.partitions}
    each = "".join(
        f"for (int {name} = 0; {name} < {count}; {name}++) "
        for name, count in counts.items() if count > 1
    )  # fmt: skip
    return f"  {each}{source.symbol}({', '.join((arguments, *work_split.names, *table))});"


class _Memory:
    """The bytes before the calls, and which of them the calls may change."""

    def __init__(self) -> None:
        self.parts: list[bytes] = [bytes([FENCE_BYTE]) * FENCE]
        self.size = FENCE
        self.writable: list[tuple[int, int]] = []

    def fixed(self, array: Array) -> int:
        return self._add(np.ascontiguousarray(array).tobytes())

    def free(self, size: int) -> int:
        at = self._add(bytes([LEFT_BYTE]) * size)
        self.writable.append((at, size))
        return at

    def _add(self, data: bytes) -> int:
        at = self.size
        self.parts.append(data + bytes([FENCE_BYTE]) * (FENCE + -len(data) % 64))
        self.size += len(self.parts[-1])
        return at

    def check(self, after: bytes) -> None:
        before = np.frombuffer(b"".join(self.parts), np.uint8)
        changed = before != np.frombuffer(after, np.uint8)
        for at, size in self.writable:
            changed[at : at + size] = False
        assert not changed.any(), f"a kernel wrote outside its results at {changed.argmax()}"


def _run(
    sources: Sequence[KernelSource], texts: Sequence[str], memory: _Memory, target: Target,
    folder: Path,
) -> bytes:  # fmt: skip
    (folder / "before").write_bytes(b"".join(memory.parts))
    _write(_files(sources, texts, memory, target, not emulated()), folder, emulate=True)
    after = _run_here(target, folder)
    machine = find_machine(MODELS.get(target.name, ""))
    if machine is not None and target.name in MODELS:
        wanted = after
        if any(s.tiles for s in sources) and emulated():
            wanted = _run_here(target, folder, "-DBYTES_ARE_UNSIGNED")
        _write(_files(sources, texts, memory, target, True), folder, emulate=False)
        got = _run_on(machine, target, folder)
        changed = np.frombuffer(got, np.uint8) != np.frombuffer(wanted, np.uint8)
        places = f"{changed.sum()} bytes from {changed.argmax()} of {changed.size}"
        assert not changed.any(), f"other bits on {machine.model}: {places}"
    return after


def _run_here(target: Target, folder: Path, *flags: str) -> bytes:
    _build(target, folder, *flags)
    command = [*target.runner, "./program", "before", "after"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr[:2000]}"
    return (folder / "after").read_bytes()


def _run_on(machine: Machine, target: Target, folder: Path) -> bytes:
    _build(target, folder, *FOR_MACHINE)
    given = [Write(name, (folder / name).read_bytes()) for name in ("program", "before")]
    ran, after = machine.run([*given, Run(("program", "before", "after")), Read("after")])
    assert ran.status == 0, f"ended with {ran.status} on {machine.model}: {ran.text}"
    return after.data


def _files(
    sources: Sequence[KernelSource], texts: Sequence[str], memory: _Memory, target: Target,
    own_tiles: bool,
) -> dict[str, bytes]:  # fmt: skip
    distinct = {s.symbol: s for s in sources}
    files = {"kernel.h": verbatim("cpu/kernel.h")}
    files["simd.h"] = verbatim(f"simd/{target.simd}.h")
    files["simd_math.h"] = verbatim("simd/math.h")
    for header in {h for s in sources for h in s.headers}:
        files[f"simd_{header}.h"] = verbatim(f"simd/{header}.h")
    asks = any(s.tiles for s in sources) and own_tiles
    files |= {f"kernels/{s.symbol}.c": s.text for s in distinct.values()}
    own = [s for s in distinct.values() if ONE_LANE in s.headers]
    if own:
        files["one_lane.c"] = _unit(own)
    unit = _unit(s for s in distinct.values() if s not in own)
    declared = "".join(f"{s.prototype};\n" for s in own)
    extents = SimpleNamespace(functions=functions_in(s.table for s in sources))
    declared += render("project/extents.c.j2", {"dynamic": extents})
    files["program.c"] = unit + declared + _MAIN.format(
        size=memory.size + 64, data=memory.size, calls="\n".join(texts),
        permission=render("project/tiles.c.j2", {}) if asks else "",
        ask="  if (!tiles_are_allowed()) return 3;" if asks else "",
    )  # fmt: skip
    return {path: text.encode() for path, text in files.items()}


def _write(files: Mapping[str, bytes], folder: Path, emulate: bool) -> None:
    for path, data in (emulating(files) if emulate else files).items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(data)


def _unit(sources: Iterable[KernelSource]) -> str:
    """Return a C file of many kernels; static functions of equal names get numbers."""
    lines = ["typedef int never_empty;"]
    for k, source in enumerate(sources):
        names = static_names(source.text)
        lines += [f"#define {n} {n}_{k}" for n in names]
        lines += [f'#include "kernels/{source.symbol}.c"', *(f"#undef {n}" for n in names)]
    return "\n".join(lines) + "\n"


def _build(target: Target, folder: Path, *flags: str) -> None:
    static = target.runner and target.arch != "wasm32"  # which knows nothing else
    command = [*compile_command(target), *flags, *(["-static"] if static else [])]
    sources = [name for name in ("program.c", "one_lane.c") if (folder / name).exists()]
    compile_in(folder, [*command, "-o", "program", *sources, "-lm"], "program")
