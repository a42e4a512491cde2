"""Measure what a core of this machine does in a cycle, by a small program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from atc.backends.cpu.targets import TARGETS
from atc.backends.machine import Cache, Machine
from atc.backends.target import Target, host_arch, host_features
from atc.backends.targets import get_target
from atc.backends.toolchain.compiler import compile_flags
from atc.backends.toolchain.compiling import Job, compile_many
from atc.backends.toolchain.find_compiler import find_compiler
from atc.backends.toolchain.linking import link_program
from atc.backends.toolchain.processes import run_binary
from atc.errors import ToolchainError
from atc.files.temporary import temporary_folder
from atc.templates import render, verbatim

KIB, MIB = 1 << 10, 1 << 20
SIZES = tuple(
    size * KIB
    for size in (
        *(8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096),
        *(6144, 8192, 12288, 16384, 24576, 32768, 49152, 65536, 131072, 262144),
    )
)
"""Bytes of the working sets that are read."""
CHASED = 16 * MIB
"""Bytes of the largest one whose latency is measured."""
CHAINS = {16: 12, 32: 24}
"""Sums that don't wait for each other, by the registers that there are."""
SECONDS = 0.01
"""How long each number is tried for, each time."""
SHARE = 0.9
"""The least part of the time that a program must have had its core for."""
SPREAD = 1.25
"""The most by which a number may be larger than when it was measured before."""
COMPUTING = 0.8
"""What tiles get of the rate at which a loop reads that does nothing else."""
STREAMS = (
    ("some", "v_prefetch_l2(p + 8192)", 1024),
    ("every", "v_prefetch_l2(p + 16384)", 64),
    ("near", "v_prefetch_l1(p + 8192)", 64),
)
"""Ways to ask for a stream of memory: C, and every how many bytes."""
STREAMED = 96 * MIB
"""Bytes of such a stream."""
FASTER = 1.05
"""How many times as fast a way must be that asks for more lines, or sooner."""
SLOW_PAIRS = 0.375
"""The part of multiply-adds' rate below which products of pairs of bfloat16 are slow."""
_SYSTEM = Path("/sys/devices/system/cpu/cpu0/cache")
_TIMEOUT = 300


@dataclass(frozen=True)
class Found:
    """The measurements for vectors of so many bytes: numbers by name, curves by size."""

    vector_bytes: int
    numbers: Mapping[str, float]
    rates: Mapping[int, float]
    latencies: Mapping[int, float]


@dataclass(frozen=True)
class Measured:
    """A machine, and in words why its numbers can't be relied on; '' where they can."""

    machine: Machine
    doubt: str = ""


def measure_machine(
    known: Machine, environ: Mapping[str, str], sizes: Sequence[int] = SIZES,
    seconds: float = SECONDS,
) -> Measured:  # fmt: skip
    """Return the machine that this host is, measured twice in some 8 s; the rest is as `known`.

    Memory is measured for arrays of these sizes, each number for so many seconds.

    Raises ToolchainError where no program can be built or run.
    """
    with temporary_folder("machine") as folder:
        *narrow, wide = vector_targets()
        programs = [_program(t, environ, Path(folder, t.simd), sizes[:1], seconds) for t in narrow]
        programs.append(_program(wide, environ, Path(folder, wide.simd), sizes, seconds))
        once, again = ([_measured(p) for p in programs] for _ in range(2))
    caches = system_caches(_SYSTEM)
    before, machine = (machine_of(known, found, caches) for found in (once, again))
    share = min(f.numbers["share"] for f in (*once, *again))
    return Measured(machine, doubt(before, machine, share))


def doubt(before: Machine, machine: Machine, share: float) -> str:
    """Return in words why measurements don't say what a machine can do; '' where they may.

    `share` is the part of the time that they had their core for.
    """
    if share < SHARE:
        return f"other programs had the core for {1 - share:.0%} of the time"
    pairs = {
        "multiply-adds per cycle": (before.fmas, machine.fmas),
        "loads per cycle": (before.loads, machine.loads),
        "the latency of multiply-adds": (before.fma_latency, machine.fma_latency),
        "bytes of memory per cycle": (before.memory, machine.memory),
    }
    levels = ((1, before.l1, machine.l1), (2, before.l2, machine.l2), (3, before.l3, machine.l3))
    for level, a, b in levels:
        pairs[f"bytes of the L{level} cache per cycle"] = a.rate, b.rate
        pairs[f"the latency of the L{level} cache"] = a.latency, b.latency
    what, (first, second) = max(pairs.items(), key=lambda p: _ratio(*p[1]))
    worst = _ratio(first, second)
    return f"{what} were {first:g} and then {second:g}" if worst > SPREAD else ""


def _ratio(a: float, b: float) -> float:
    """Return how many times the larger is the smaller."""
    return max(a, b, 0.1) / max(min(a, b), 0.1)


def vector_targets() -> list[Target]:
    """Return the host's targets of each vector width with multiply-adds, the narrowest first."""
    able = [t for t in TARGETS if t.arch == host_arch() and t.features <= host_features()]
    widths = {t.vector_bytes: get_target(t.name) for t in able if "fma" in t.features}
    if not widths:
        raise ToolchainError("no target of this machine has vectors with multiply-adds")
    return [widths[size] for size in sorted(widths)]


@dataclass(frozen=True)
class _Program:
    """A program that measures vectors of so many bytes."""

    path: Path
    vector_bytes: int


def _program(
    target: Target, environ: Mapping[str, str], folder: Path, sizes: Sequence[int],
    seconds: float,
) -> _Program:  # fmt: skip
    folder.mkdir()
    compiler = find_compiler(target, environ)
    flags = (*compile_flags(compiler, target), "-I.")
    (folder / "simd.h").write_text(verbatim(f"simd/{target.simd}.h"))
    (folder / "bf16.h").write_text(verbatim("simd/bf16.h"))
    values: dict[str, object] = {
        "pairs": "avx512_bf16" in target.features,
        "chains": CHAINS[target.vector_registers], "sizes": sizes, "largest": max(sizes),
        "chased": CHASED, "seconds": seconds, "vector": target.vector_bytes, "streams": STREAMS,
        "streamed": min(STREAMED, max(sizes)),
    }  # fmt: skip
    (folder / "machine.c").write_text(render("bench/machine.c.j2", values))
    compile_many([Job(compiler, flags, "machine.c", folder)], 1)
    program = link_program(compiler, flags, ["machine.c.o"], "machine", folder)
    return _Program(program, target.vector_bytes)


def _measured(program: _Program) -> Found:
    done = run_binary([str(program.path)], _TIMEOUT, cwd=program.path.parent)
    if done.status != 0:
        raise ToolchainError(f"the measuring program ended with status {done.status}")
    return parsed(done.stdout.decode("ascii"), program.vector_bytes)


def parsed(text: str, vector_bytes: int) -> Found:
    """Return what lines `name bytes value` say."""
    found: dict[str, dict[int, float]] = {}
    for line in text.splitlines():
        name, size, value = line.split()
        found.setdefault(name, {})[int(size)] = float(value)
    curves = found.pop("rate", {}), found.pop("latency", {})
    return Found(vector_bytes, {name: value[0] for name, value in found.items()}, *curves)


def system_caches(folder: Path) -> dict[int, int]:
    """Return the sizes of data caches by level, as Linux reports them; empty where it doesn't."""
    sizes: dict[int, int] = {}
    for each in sorted(folder.glob("index*")):
        try:
            level, kind, size = (
                (each / name).read_text().strip() for name in ("level", "type", "size")
            )
            if kind != "Instruction":
                sizes[int(level)] = int(size.removesuffix("K")) * KIB
        except (OSError, ValueError):
            continue
    return sizes


def machine_of(known: Machine, found: Sequence[Found], sizes: Mapping[int, int]) -> Machine:
    """Return a machine by what programs found, narrowest vectors first, and the caches' sizes."""
    most = found[0].numbers["fmas"]
    widest = [f for f in found if f.numbers["fmas"] > 0.75 * most][-1]
    own, wide = widest.numbers, found[-1]
    l1 = sizes.get(1) or knee(wide.latencies, 0)
    l2 = sizes.get(2) or knee(wide.latencies, l1)
    l3 = sizes.get(3, 0)
    near, middle = _within(wide.rates, 0, l1), _within(wide.rates, l1, l2)
    far = _within(wide.rates, l2, l3) if l3 > 2 * l2 else 0.0
    beyond = wide.rates[max(wide.rates)]
    some, every, near_lines = (wide.numbers[f"{name}_lines"] for name, *_ in STREAMS)
    return replace(
        known,
        datapath=widest.vector_bytes,
        fmas=_nearest_half(own["fmas"]),
        fma_latency=_nearest_half(own["fma_latency"]),
        loads=_nearest_half(own["loads"]),
        l1=Cache(l1, round(near, 1), round(_within(wide.latencies, 0, l1), 1)),
        l2=Cache(l2, round(middle * COMPUTING, 1), round(_within(wide.latencies, l1, l2), 1)),
        l3=Cache(l3, round(far * COMPUTING, 1), round(_within(wide.latencies, l2, l3), 1))
        if far
        else Cache(0, 0.0, 0.0),
        memory=round(beyond, 1),
        every_line=every > FASTER * some,
        near_lines=near_lines > FASTER * max(some, every),
        slow_pairs=wide.numbers["pair_products"] < SLOW_PAIRS * wide.numbers["fmas"]
        if "pair_products" in wide.numbers
        else known.slow_pairs,
        measured=True,
    )


def knee(latencies: Mapping[int, float], after: int) -> int:
    """Return the largest working set beyond `after` bytes before latencies rise by half."""
    sizes = [size for size in sorted(latencies) if size > after]
    if not sizes:
        return after
    first = latencies[sizes[min(1, len(sizes) - 1)]]
    kept = sizes[0]
    for size in sizes:
        if latencies[size] > 1.5 * first:
            break
        kept = size
    return kept


def _within(curve: Mapping[int, float], low: int, high: int) -> float:
    """Return the value of a working set well inside of a level: a larger one may be shared."""
    wanted = min(high / 2, 4 * low or high)
    return curve[min(curve, key=lambda size: abs(size - wanted))]


def _nearest_half(value: float) -> float:
    """Return the nearest half: rates and latencies are such, what is measured is a little off."""
    return max(round(2 * value) / 2, 0.5)
