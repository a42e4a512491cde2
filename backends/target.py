"""Targets of the generated C: one record each, and the choice of the host's own."""

from __future__ import annotations

import ctypes
import platform
import sys
from dataclasses import dataclass, replace

from atc.backends.machine import Machine

TILES = frozenset({"amx_tile", "amx_bf16", "amx_int8"})
"""Features that are of use only where the operating system keeps AMX's registers."""


@dataclass(frozen=True)
class Target:
    """A processor with one instruction set, and what a compiler needs to know about it.

    `simd` is the stem of the vector table `templates/simd/<simd>.h`, `vector_bytes` the width of
    its vectors (one float for the scalar table). `features` are the names that GCC, clang,
    /proc/cpuinfo and archspec agree on; `cpu_checks` are those that the generated library asks
    `__builtin_cpu_supports` for before it runs. `arch` is empty where any processor will do.
    `machine` is what estimates count on. `compiler` is a program name, `cc` for the host's;
    `runner` starts a program on this machine.

    Small cores: their `features` are `dsp` (SMLAD and its relatives on pairs of 16 bits), `mve`
    (vectors of 16 bytes, Helium) and, where floats are no work of software, `fpu`.
    """

    name: str
    arch: str
    simd: str
    vector_bytes: int
    vector_registers: int
    machine: Machine
    features: frozenset[str] = frozenset()
    cflags: tuple[str, ...] = ()
    cpu_checks: tuple[str, ...] = ()
    compiler: str = "cc"
    compiler_words: tuple[str, ...] = ()
    """What says to `compiler`, where it serves several processors, which one is meant."""
    link_words: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    """What `compiler` doesn't know by itself about linking a program, and the C library's files."""
    runner: tuple[str, ...] = ()
    zig: str = ""
    """The triple that zig knows the processor by; '': the architecture's, with Linux. Where there
    is no operating system it is musl's, whose headers take the place of newlib's."""
    zig_flags: tuple[str, ...] = ()
    """What zig takes in the place of `-march`, `-mcpu` and `-mfpu`, if it needs anything."""
    bare: bool = False
    """Whether there is no operating system: no libraries to load, no threads, no files."""
    float_bits: int = 64
    """The widest floating-point type that its hardware computes, 0: none."""
    alignment: int = 64
    """Bytes that the addresses of arenas, weights and every value in them are multiples of: one
    line of a cache, one vector of AVX-512. At least 8, and where no vectors are, what any
    allocator gives."""
    bytes_last: bool = False
    """Whether quantized tensors lie with their channels last, for the kernels in `cpu/small`."""
    own_math: bool = False
    """Whether portable kernels call functions of floats that are ours, not those of a C library,
    and keep sums in compensated floats, not in double."""
    deterministic: bool = False
    """Whether results in float32 are to be the same bits as on all such targets; see
    `deterministic`."""
    device: str = ""
    """The architecture that nvcc compiles for, `emulated` for the host's imitation; '': no GPU."""
    saves_memory: bool = False
    """Whether the least memory counts more than time, as it does on every microcontroller."""
    big_endian: bool = False
    """Whether the first byte of a number is its most significant one, in the constants, too."""

    @property
    def link_flags(self) -> tuple[str, ...]:
        """The linker's flags for a program that brings its own startup: no operating system."""
        newlib = ("--specs=nano.specs", "--specs=nosys.specs") if self.arch == "arm" else ()
        return ("-nostartfiles", *newlib, *self.link_words)

    @property
    def is_native(self) -> bool:
        """Whether this machine's system loads libraries for it, on a CPU with its features."""
        same = self.arch in ("", host_arch()) and self.big_endian == (sys.byteorder == "big")
        return same and not self.bare

    @property
    def byte_order(self) -> str:
        """The end of a number that comes first: `big` or `little`."""
        return "big" if self.big_endian else "little"

    @property
    def includes_files(self) -> bool:
        """Whether assemblers for it have `.incbin`; else weights are text for the compiler."""
        return self.arch != "wasm32"

    @property
    def is_microcontroller(self) -> bool:
        """Whether programs for it bring their own startup, and find some KB of RAM."""
        return self.bare and self.arch != "wasm32"

    @property
    def scarce_memory(self) -> bool:
        """Whether layers run in the way that needs the least memory."""
        return self.saves_memory or self.is_microcontroller


def on_host(target: Target) -> Target:
    """Return a target of the same name that has no GPU: its kernels all run on the host."""
    return replace(target, device="") if target.device else target


def deterministic(target: Target, like: Target) -> Target:
    """Return a target whose float32 results are the same bits as those of `like`, made so too.

    Kernels are chosen as for `like`, which has no vectors; own functions take the place of a C
    library's. On small targets and 32-bit Arm compilers make no vectors: those of Helium and of
    ARMv7's NEON flush denormals to zero. Nor do they on RISC-V, whose conversions of vectors toward
    zero stop QEMU 7.2.
    """
    plain = target.bytes_last or target.arch in ("arm", "riscv32", "riscv64")
    scalar = ("-fno-tree-vectorize", "-fno-tree-slp-vectorize") if plain else ()
    return replace(
        target, simd=like.simd, vector_bytes=like.vector_bytes,
        vector_registers=like.vector_registers, machine=like.machine,
        features=target.features if target.bytes_last else like.features,
        cflags=(*target.cflags, *scalar), own_math=True, deterministic=True,
    )  # fmt: skip


def host_arch() -> str:
    """Return this machine's architecture in the spelling of GNU triples."""
    return normal_arch(platform.machine())


def normal_arch(arch: str) -> str:
    """Return the GNU spelling of an architecture that Windows or Apple call otherwise."""
    known = {"amd64": "x86_64", "arm64": "aarch64", "armv7l": "arm", "thumb": "arm"}
    return known.get(arch.lower(), arch.lower())


def host_features() -> frozenset[str]:
    """Return the names of what this machine's CPU can do, and programs may use."""
    import archspec.cpu  # reads a database: only when the host is asked for
    import archspec.cpu.detect

    host = archspec.cpu.host()  # the features of the nearest model that archspec knows
    own = archspec.cpu.detect.detected_info()
    baseline = ("neon", "fma") if host_arch() == "aarch64" else ()  # always there, never listed
    found = frozenset(host.features) | frozenset(own.features) | frozenset(baseline)
    found -= _denied_by_cpuid()
    return found if not found & TILES or _linux_keeps_tiles() else found - TILES


def _denied_by_cpuid() -> frozenset[str]:
    """Return the features that x86's instruction says are missing.

    The operating system lists those of the real CPU, also to programs in an emulator of one that
    has fewer (qemu-user), where compiled libraries, which ask the instruction, would refuse to
    run. What the system itself has switched off is only missing in its list: both count.
    """
    import archspec.cpu.detect as archspec

    if host_arch() != "x86_64":
        return frozenset()
    try:
        present = frozenset(archspec.CpuidInfoCollector().features)
    except OSError:  # no memory may be executed that was written: the list has to do
        return frozenset()
    calls = [*archspec.CPUID_JSON["flags"], *archspec.CPUID_JSON["extension-flags"]]
    return frozenset(bit["name"] for call in calls for bit in call["bits"]) - present


def _linux_keeps_tiles() -> bool:
    """Return whether programs may ask for AMX's registers: ARCH_GET_XCOMP_SUPP of Linux (5.16).

    Older systems and some sandboxes don't know the call. Nothing is asked for here: that would
    change what this process may do with its signal stacks.
    """
    arch_prctl, get_supported, both_states = 158, 0x1021, 3 << 17
    if not sys.platform.startswith("linux"):
        return False
    supported = ctypes.c_uint64()
    result = ctypes.CDLL(None).syscall(arch_prctl, get_supported, ctypes.byref(supported))
    return result == 0 and supported.value & both_states == both_states
