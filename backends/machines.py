"""Processors by archspec's names of their microarchitectures.

The numbers are from AMD's, Intel's and Arm's software optimization guides, Agner Fog's instruction
tables and uops.info (latencies, rates), and from published measurements of caches and memory. Those
of Zen 5 were fitted to measured kernels, and so were Sapphire Rapids' L3 and memory; other caches'
rates are the same part of what vendors give as the most. A third-level cache counts as one core
finds it while the others rest, memory for servers at some 3 GHz and desktops at 4 to 5.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

from atc.backends.machine import Cache, Machine
from atc.backends.target import host_arch
from atc.errors import OptionError, one_line

KIB, MIB = 1 << 10, 1 << 20
NONE = Cache(0, 0.0, 0.0)
GENERIC = "generic"
"""archspec's vendor of the levels of an architecture, such as x86_64_v4."""


def _zen(
    name: str, datapath: int, l1: int, l2: Cache, l3: Cache, memory: float, latency: float = 4.0,
    near_lines: bool = False,
) -> Machine:  # fmt: skip
    near = Cache(l1 * KIB, 2.0 * datapath, 7.0 if datapath < 64 else 8.0)
    return Machine(
        name, datapath, fmas=2.0, fma_latency=latency, loads=2.0, l1=near, l2=l2, l3=l3,
        memory=memory, separate_adds=True, near_lines=near_lines,
    )  # fmt: skip


def _core(
    name: str, datapath: int, l1: int, l2: Cache, l3: Cache, memory: float, latency: float = 4.0,
    loads: float = 2.0, every_line: bool = False, slow_pairs: bool = False,
) -> Machine:  # fmt: skip
    near = Cache(l1 * KIB, 2.0 * datapath, 7.0)
    return Machine(
        name, datapath, fmas=2.0, fma_latency=latency, loads=loads, l1=near, l2=l2, l3=l3,
        memory=memory, every_line=every_line,
        slow_pairs=slow_pairs,
    )  # fmt: skip


def _arm(
    name: str, l1: int, l2: Cache, l3: Cache, memory: float, *, fmas: float, latency: float,
    loads: float, datapath: int = 16,
) -> Machine:  # fmt: skip
    near = Cache(l1 * KIB, loads * datapath, 4.0)
    return Machine(
        name, datapath, fmas=fmas, fma_latency=latency, loads=loads, l1=near, l2=l2, l3=l3,
        memory=memory, scalar_factors=True,
    )  # fmt: skip


def _microcontroller(
    name: str, l1: Cache, ram: int, flash: float, *, fmas: float, latency: float, loads: float,
    datapath: int = 4,
) -> Machine:  # fmt: skip
    return Machine(
        name, datapath, fmas=fmas, fma_latency=latency, loads=loads, l1=l1,
        l2=Cache(ram * KIB, 4.0, 2.0), l3=NONE, memory=flash,
    )  # fmt: skip


def _sram(size: int) -> Cache:
    """Half of a RAM without a cache: an operand and a result beside the rest."""
    return Cache(size * KIB // 2, 4.0, 2.0)


_RECORDS = (
    # AMD
    _zen("zen2", 32, 32, Cache(512 * KIB, 16.0, 12.0), Cache(16 * MIB, 12.0, 39.0), 6.0, 5.0),
    _zen("zen3", 32, 32, Cache(512 * KIB, 20.0, 12.0), Cache(32 * MIB, 16.0, 46.0), 7.0),
    _zen("zen4", 32, 32, Cache(MIB, 20.0, 14.0), Cache(32 * MIB, 16.0, 50.0), 9.0),
    _zen("zen5", 64, 48, Cache(MIB, 32.0, 14.0), Cache(32 * MIB, 24.0, 50.0), 10.0,
         near_lines=True),
    # Intel; Alder Lake's name is that of its P cores, its E cores are Gracemont
    _core("haswell", 32, 32, Cache(256 * KIB, 20.0, 12.0), Cache(2 * MIB, 10.0, 40.0), 6.0, 5.0),
    _core("skylake", 32, 32, Cache(256 * KIB, 24.0, 12.0), Cache(2 * MIB, 12.0, 42.0), 7.0),
    _core("skylake_avx512", 64, 32, Cache(MIB, 28.0, 14.0), Cache(MIB, 8.0, 70.0), 5.0),
    _core("cascadelake", 64, 32, Cache(MIB, 28.0, 14.0), Cache(MIB, 8.0, 70.0), 5.0),
    _core("icelake", 64, 48, Cache(5 * MIB // 4, 28.0, 14.0), Cache(3 * MIB // 2, 10.0, 70.0), 5.0),
    _core("sapphirerapids", 64, 48, Cache(2 * MIB, 32.0, 15.0), Cache(2 * MIB, 13.5, 75.0), 5.25,
          every_line=True, slow_pairs=True),
    _core("alderlake", 32, 48, Cache(5 * MIB // 4, 28.0, 15.0), Cache(3 * MIB, 12.0, 68.0), 8.0,
          loads=3.0),
    _core("gracemont", 16, 32, Cache(MIB // 2, 12.0, 17.0), Cache(3 * MIB, 8.0, 75.0), 6.0, 6.0),
    # Arm
    _arm("cortex_a53", 32, Cache(MIB // 4, 4.0, 15.0), NONE, 2.0, fmas=2.0, latency=4.0, loads=1.0,
         datapath=8),
    _arm("cortex_a72", 32, Cache(MIB // 2, 8.0, 18.0), NONE, 3.0, fmas=2.0, latency=3.0, loads=1.0),
    _arm("cortex_a76", 64, Cache(MIB // 2, 16.0, 9.0), Cache(2 * MIB, 10.0, 35.0), 5.0, fmas=2.0,
         latency=2.0, loads=2.0),
    _arm("neoverse_n1", 64, Cache(MIB, 16.0, 11.0), Cache(MIB, 8.0, 60.0), 6.0, fmas=2.0,
         latency=2.0, loads=2.0),
    _arm("neoverse_v1", 64, Cache(MIB, 24.0, 11.0), Cache(MIB, 10.0, 70.0), 8.0, fmas=4.0,
         latency=2.0, loads=3.0),
    _arm("neoverse_v2", 64, Cache(2 * MIB, 24.0, 10.0), Cache(3 * MIB, 12.0, 75.0), 8.0, fmas=4.0,
         latency=2.0, loads=3.0),
    # Apple: the P cores; four of them share the second-level cache, the system one is behind it
    _arm("m1", 128, Cache(3 * MIB, 24.0, 16.0), Cache(8 * MIB, 16.0, 90.0), 16.0, fmas=4.0,
         latency=4.0, loads=3.0),
    # Microcontrollers, at the clock of a common chip: RP2040, STM32F103, F446, H743, RP2350, and
    # Corstone-300's and -310's M55 and M85; ESP32-C3. Floats in software take some 50 cycles.
    _microcontroller("cortex_m0plus", _sram(264), 264, 1.0, fmas=0.01, latency=100.0,
                     loads=0.5),
    _microcontroller("cortex_m3", _sram(20), 20, 2.0, fmas=0.02, latency=50.0, loads=0.7),
    _microcontroller("cortex_m4", _sram(128), 128, 2.0, fmas=0.5, latency=3.0, loads=0.7),
    _microcontroller("cortex_m7", Cache(16 * KIB, 8.0, 2.0), 512, 2.0, fmas=1.0, latency=3.0,
                     loads=2.0),
    _microcontroller("cortex_m33", _sram(520), 520, 1.0, fmas=0.5, latency=3.0, loads=0.7),
    _microcontroller("cortex_m55", Cache(32 * KIB, 8.0, 2.0), 2048, 2.0, fmas=1.0,
                     latency=4.0, loads=1.0, datapath=8),
    _microcontroller("cortex_m85", Cache(32 * KIB, 8.0, 2.0), 2048, 2.0, fmas=1.0,
                     latency=4.0, loads=2.0, datapath=8),
    _microcontroller("esp32c3", _sram(400), 400, 1.0, fmas=0.01, latency=100.0, loads=0.7),
    # SpacemiT X60: the first processor on boards with 256-bit vectors of RISC-V
    _arm("spacemit_x60", 32, Cache(MIB // 2, 8.0, 20.0), NONE, 2.0, fmas=2.0, latency=4.0,
         loads=1.0),
)  # fmt: skip

MACHINES: Mapping[str, Machine] = {m.name: m for m in _RECORDS}
"""Records by name."""


_MODELS = {
    "GenuineIntel": {
        6: {85: "skylake_avx512", 106: "icelake", 108: "icelake", 143: "sapphirerapids",
            173: "sapphirerapids", 174: "sapphirerapids", 207: "sapphirerapids"},
    },
    "AuthenticAMD": {
        23: dict.fromkeys(range(0x30, 0x100), "zen2"),
        25: {n: "zen4" if 0x10 <= n < 0x20 or n >= 0x60 else "zen3" for n in range(0x100)},
        26: dict.fromkeys(range(0x100), "zen5"),
    },
}  # fmt: skip
"""Records by cpuid's vendor, family and model; Emerald and Granite Rapids count as Sapphire Rapids.
Of Intel's others archspec knows as much."""


def get_machine(name: str) -> Machine:
    """Return the record of a microarchitecture, `-` for `_` and any case alike; OptionError."""
    wanted = name.strip().lower().replace("-", "_")
    if wanted in MACHINES:
        return MACHINES[wanted]
    near = difflib.get_close_matches(wanted, MACHINES, n=1, cutoff=0.5)
    raise OptionError(
        f"unknown machine '{one_line(name, 60)}'; the machines are host, {', '.join(MACHINES)}",
        where="--machine",
        hint=f"did you mean {near[0]}?" if near else "",
    )


def host_machine() -> Machine | None:
    """Return the record of this machine's processor, or of the nearest older one; None if none.

    That is what archspec finds out, which in a virtual machine is the newest processor that has no
    more features than are shown, or only a level of the architecture. The model's number tells a
    newer one that hides some, or else its vectors do, where only its tiles (AMX) or instructions
    for the system are hidden.
    """
    import archspec.cpu  # reads a database: only when the host is asked for
    import archspec.cpu.detect

    host = archspec.cpu.host()
    shown = archspec.cpu.detect.detected_info()
    known = set() if host.vendor == GENERIC else _vectors(host.features)
    newer = [
        each
        for name in MACHINES
        if (each := archspec.cpu.TARGETS.get(name)) is not None
        and host in each.ancestors
        and host.vendor in (each.vendor, GENERIC)
        and each.vendor == shown.vendor
    ]
    own = _model(shown.vendor)
    hidden = [each for each in newer if known < _vectors(each.features) <= _vectors(shown.features)]
    names = (
        *(each.name for each in newer if each.name == own),
        *(each.name for each in sorted(hidden, key=lambda each: -len(each.ancestors))),
        host.name,
        *(a.name for a in host.ancestors),
    )
    return next((MACHINES[name] for name in names if name in MACHINES), None)


def _model(vendor: str) -> str | None:
    """Return the record that the number of an x86 processor's model tells; None if none does."""
    import archspec.cpu.detect as archspec

    if host_arch() != "x86_64":
        return None
    try:
        signature = archspec.CPUID().registers_for(eax=1, ecx=0).eax
    except OSError:  # no memory may be executed that was written
        return None
    family, model = signature >> 8 & 15, signature >> 4 & 15
    if family in (6, 15):
        model += signature >> 12 & 0xF0
    if family == 15:
        family += signature >> 20 & 255
    return _MODELS.get(vendor, {}).get(family, {}).get(model)


def _vectors(features: Iterable[str]) -> set[str]:
    """Return the features that are instructions on vectors."""
    return {name for name in features if name.startswith("avx")}
