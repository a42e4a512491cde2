"""The CPU targets, weakest first within an architecture: the host gets the last one it can run.

A new target is one entry here, and one vector table in `templates/simd` if its ISA has none.
Single `-m` flags are used instead of `-march` levels because zig and older compilers lack those.

Each has the machine that it most often means: Zen 3 for AVX2 and for less, Alder Lake for AVX2 with
VNNI, Zen 5 for AVX-512, Sapphire Rapids for AMX; Cortex-A72 for the plainest aarch64, Neoverse N1
and V1 for those with dot products and i8mm.
"""

from __future__ import annotations

from atc.backends.machines import MACHINES
from atc.backends.small_targets import SMALL_TARGETS
from atc.backends.target import Target

_AVX2 = ("avx2", "fma")
_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
_AVX512_FLAGS = (
    *("-mavx2", "-mfma", "-mf16c"),
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"),
    "-mprefer-vector-width=512",  # else GCC's own vectorisation stops at 256 bits
)
_TILES = ("amx_tile", "amx_bf16", "amx_int8")
_BESIDE_TILES = ("avx512_vnni", "avx512_bf16", "avx512_fp16")

TARGETS: tuple[Target, ...] = (
    Target(
        name="c99",
        arch="",
        simd="scalar",
        vector_bytes=4,
        vector_registers=16,
        machine=MACHINES["zen3"],
        alignment=16,
    ),
    Target(
        name="c99-big-endian",  # the same code, its constants the other way round
        arch="",
        simd="scalar",
        vector_bytes=4,
        vector_registers=16,
        machine=MACHINES["zen3"],
        compiler="s390x-linux-gnu-gcc",
        runner=("qemu-s390x-static",),
        zig="s390x-linux-gnu",
        alignment=16,
        big_endian=True,
    ),
    Target(
        name="x86-64",
        arch="x86_64",
        simd="scalar",
        vector_bytes=4,
        vector_registers=16,
        machine=MACHINES["zen3"],
    ),
    Target(
        name="x86-64-sse2",
        arch="x86_64",
        simd="sse2",
        vector_bytes=16,
        vector_registers=16,
        machine=MACHINES["zen3"],  # SSE2 is the architecture's baseline: nothing to check
    ),
    Target(
        name="x86-64-avx2",
        arch="x86_64",
        simd="avx2",
        vector_bytes=32,
        vector_registers=16,
        machine=MACHINES["zen3"],
        features=frozenset({*_AVX2, "f16c"}),
        cflags=("-mavx2", "-mfma", "-mf16c"),
        cpu_checks=_AVX2,  # every CPU with AVX2 has F16C; older compilers can't ask for it
    ),
    Target(
        name="x86-64-avx2-vnni",
        arch="x86_64",
        simd="avx2",
        vector_bytes=32,
        vector_registers=16,
        machine=MACHINES["alderlake"],
        features=frozenset({*_AVX2, "f16c", "avx_vnni"}),
        cflags=("-mavx2", "-mfma", "-mf16c", "-mavxvnni"),
        cpu_checks=(*_AVX2, "avx_vnni"),
    ),
    Target(
        name="x86-64-avx512",
        arch="x86_64",
        simd="avx512",
        vector_bytes=64,
        vector_registers=32,
        machine=MACHINES["zen5"],
        features=frozenset({*_AVX2, "f16c", *_AVX512}),
        cflags=_AVX512_FLAGS,
        cpu_checks=(*_AVX2, *_AVX512),
    ),
    Target(
        name="x86-64-avx512-vnni",
        arch="x86_64",
        simd="avx512",
        vector_bytes=64,
        vector_registers=32,
        machine=MACHINES["zen5"],
        features=frozenset({*_AVX2, "f16c", *_AVX512, "avx512_vnni"}),
        cflags=(*_AVX512_FLAGS, "-mavx512vnni"),
        cpu_checks=(*_AVX2, *_AVX512, "avx512_vnni"),
    ),
    Target(
        name="x86-64-avx512-bf16",
        arch="x86_64",
        simd="avx512",
        vector_bytes=64,
        vector_registers=32,
        machine=MACHINES["zen5"],
        features=frozenset({*_AVX2, "f16c", *_AVX512, "avx512_vnni", "avx512_bf16"}),
        cflags=(*_AVX512_FLAGS, "-mavx512vnni", "-mavx512bf16"),
        cpu_checks=(*_AVX2, *_AVX512, "avx512_vnni", "avx512_bf16"),
    ),
    Target(
        name="x86-64-amx",
        arch="x86_64",
        simd="avx512",
        vector_bytes=64,
        vector_registers=32,
        machine=MACHINES["sapphirerapids"],
        features=frozenset({*_AVX2, "f16c", *_AVX512, *_BESIDE_TILES, *_TILES}),
        cflags=(
            *(*_AVX512_FLAGS, "-mavx512vnni", "-mavx512bf16", "-mavx512fp16"),
            *("-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        ),
        cpu_checks=(*_AVX2, *_AVX512, *_BESIDE_TILES, *_TILES),
    ),
    Target(
        name="aarch64-neon",
        arch="aarch64",
        simd="neon",
        vector_bytes=16,
        vector_registers=32,
        machine=MACHINES["cortex_a72"],
        features=frozenset({"neon", "fma"}),  # the architecture's baseline: nothing to check
        compiler="aarch64-linux-gnu-gcc",
        runner=("qemu-aarch64-static",),
    ),
    Target(
        name="aarch64-neon-dotprod",
        arch="aarch64",
        simd="neon",
        vector_bytes=16,
        vector_registers=32,
        machine=MACHINES["neoverse_n1"],
        features=frozenset({"neon", "fma", "asimdhp", "asimddp"}),
        cflags=("-march=armv8.2-a+fp16+dotprod",),
        zig_flags=("-mcpu=generic+v8_2a+fullfp16+dotprod",),
        cpu_checks=("asimdhp", "asimddp"),
        compiler="aarch64-linux-gnu-gcc",
        runner=("qemu-aarch64-static",),  # whose default CPU has everything
    ),
    Target(
        name="aarch64-neon-i8mm",
        arch="aarch64",
        simd="neon",
        vector_bytes=16,
        vector_registers=32,
        machine=MACHINES["neoverse_v1"],
        features=frozenset({"neon", "fma", "asimdhp", "asimddp", "i8mm"}),
        cflags=("-march=armv8.2-a+fp16+dotprod+i8mm",),
        zig_flags=("-mcpu=generic+v8_2a+fullfp16+dotprod+i8mm",),
        cpu_checks=("asimdhp", "asimddp", "i8mm"),
        compiler="aarch64-linux-gnu-gcc",
        runner=("qemu-aarch64-static",),  # whose default CPU has everything
    ),
    *SMALL_TARGETS,
)

ALIASES = {
    "x86-64-v1": "x86-64",
    "x86-64-v3": "x86-64-avx2",
    "x86-64-v4": "x86-64-avx512",
    "aarch64": "aarch64-neon",
}
