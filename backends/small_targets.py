"""Targets for small cores: microcontrollers without an operating system, and 32-bit relatives.

Their code is that of the portable tier, and of kernels for `dsp` and `mve`, or, where a record
names a table of vectors, of all tuned kernels. qemu runs a program for a Cortex-M on a board that
has the core, or the next one that it knows: M3 for M0+, M55 for M85. Node.js runs WebAssembly's.
"""

from __future__ import annotations

from pathlib import Path

from atc.backends.machines import MACHINES
from atc.backends.target import Target

_AS_NEWLIB = ("-fshort-enums", "-fno-pic", "-fno-unwind-tables", "-fno-asynchronous-unwind-tables")
"""What makes zig's objects for musl such as link with those of arm-none-eabi-gcc."""

_SEMIHOSTING = (
    *("-display", "none", "-monitor", "none", "-serial", "none"),
    *("-semihosting-config", "enable=on,target=native", "-kernel"),
)


def _cortex_m(
    name: str, machine: str, flags: tuple[str, ...], board: str, zig_cpu: str, *features: str,
    float_bits: int = 0,
) -> Target:  # fmt: skip
    return Target(
        name=f"cortex-{name}",
        arch="arm",
        simd="scalar",
        vector_bytes=4,
        vector_registers=16,
        machine=MACHINES[machine],
        features=frozenset(features),
        cflags=("-mthumb", *flags),
        compiler="arm-none-eabi-gcc",
        runner=("qemu-system-arm", "-M", board, *_SEMIHOSTING),
        zig=f"thumb-linux-musleabi{'hf' if 'fpu' in features else ''}",
        zig_flags=(f"-mcpu={zig_cpu}", *_AS_NEWLIB),
        bare=True,
        own_math=True,
        float_bits=float_bits,
        alignment=16 if "mve" in features else 8,
        bytes_last=True,
    )


_PICOLIBC = "/usr/lib/picolibc/riscv64-unknown-elf"
"""Where Debian has the C library for RISC-V without an operating system, for both widths."""

_WASI = Path(__file__).parents[1] / "templates/starter/wasi.mjs"

SMALL_TARGETS: tuple[Target, ...] = (
    _cortex_m("m0plus", "cortex_m0plus", ("-mcpu=cortex-m0plus",), "mps2-an385", "cortex_m0plus"),
    _cortex_m("m3", "cortex_m3", ("-mcpu=cortex-m3",), "mps2-an385", "cortex_m3"),
    _cortex_m("m4f", "cortex_m4",
              ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"),
              "mps2-an386", "cortex_m4+vfp4d16sp", "dsp", "fpu", float_bits=32),
    _cortex_m("m7", "cortex_m7", ("-mcpu=cortex-m7", "-mfloat-abi=hard", "-mfpu=fpv5-d16"),
              "mps2-an500", "cortex_m7+fp_armv8d16", "dsp", "fpu", float_bits=64),
    _cortex_m("m33", "cortex_m33",
              ("-mcpu=cortex-m33", "-mfloat-abi=hard", "-mfpu=fpv5-sp-d16"),
              "mps2-an505", "cortex_m33+fp_armv8d16sp+dsp", "dsp", "fpu", float_bits=32),
    _cortex_m("m55", "cortex_m55", ("-mcpu=cortex-m55", "-mfloat-abi=hard"),
              "mps3-an547", "cortex_m55+mve_fp+fp_armv8d16", "dsp", "mve", "fpu", float_bits=64),
    # By its architecture: GCC 12 doesn't know the name.
    _cortex_m("m85", "cortex_m85",
              ("-march=armv8.1-m.main+mve.fp+fp.dp", "-mfloat-abi=hard"),
              "mps3-an547", "cortex_m85+mve_fp+fp_armv8d16", "dsp", "mve", "fpu", float_bits=64),
    Target(
        name="riscv32",
        arch="riscv32",
        simd="scalar",
        vector_bytes=4,
        vector_registers=16,
        machine=MACHINES["esp32c3"],
        cflags=("-march=rv32imac", "-mabi=ilp32"),
        compiler="riscv64-unknown-elf-gcc",  # which serves both widths
        compiler_words=("--specs=picolibc.specs",),  # Debian's, which has no other C library for it
        runner=("qemu-system-riscv32", "-M", "virt", "-bios", "none", *_SEMIHOSTING),
        zig="riscv32-linux-musl",
        zig_flags=("-mcpu=generic_rv32+m+a+c",),
        bare=True,
        own_math=True,
        float_bits=0,
        alignment=8,
        bytes_last=True,
    ),
    Target(
        name="armv7-neon",
        arch="arm",
        simd="neon",
        vector_bytes=16,
        vector_registers=16,
        machine=MACHINES["cortex_a53"],
        features=frozenset({"neon", "fma"}),
        cflags=("-march=armv7-a", "-mfpu=neon-vfpv4", "-mfloat-abi=hard"),
        compiler="arm-linux-gnueabihf-gcc",
        runner=("qemu-arm-static",),
        zig="arm-linux-gnueabihf",
        zig_flags=("-mcpu=generic+v7a+neon+vfp4",),
        alignment=16,
    ),
    Target(
        name="riscv64-rvv",
        arch="riscv64",
        simd="rvv",
        vector_bytes=32,
        vector_registers=16,
        machine=MACHINES["spacemit_x60"],
        features=frozenset({"v"}),
        cflags=("-march=rv64gcv",),
        compiler="clang-19",  # GCC 12 has no vectors
        compiler_words=("--target=riscv64-linux-gnu",),
        runner=("qemu-riscv64-static", "-cpu", "rv64,v=true,vlen=256,vext_spec=v1.0"),
        zig="riscv64-linux-gnu",
        zig_flags=("-mcpu=generic_rv64+m+a+f+d+c+v",),
    ),
    Target(
        name="riscv32-rvv",  # the least that has vectors of floats: no doubles, no 64-bit elements
        arch="riscv32",
        simd="rvv",
        vector_bytes=32,
        vector_registers=16,
        machine=MACHINES["spacemit_x60"],
        features=frozenset({"v"}),
        cflags=("-march=rv32imafc_zve32f_zvl128b", "-mabi=ilp32f"),
        compiler="clang-19",  # GCC 12 has no vectors, but the libraries
        compiler_words=("--target=riscv64-unknown-elf", "--gcc-toolchain=/usr",
                        f"--sysroot={_PICOLIBC}"),
        link_words=("-nodefaultlibs", "-L=/lib/rv32imafc/ilp32f"),
        libraries=("-lc", "-lgcc"),
        runner=("qemu-system-riscv32", "-M", "virt", "-bios", "none",
                "-cpu", "rv32,v=true,vlen=128,vext_spec=v1.0", *_SEMIHOSTING),
        zig="riscv32-linux-musl",
        zig_flags=("-mcpu=generic_rv32+m+a+f+c+zve32f+zvl128b",),
        bare=True,
        own_math=True,
        float_bits=32,
        alignment=16,
    ),
    Target(
        name="wasm32-simd128",
        arch="wasm32",
        simd="wasm_simd128",
        vector_bytes=16,
        vector_registers=16,
        machine=MACHINES["zen3"],
        features=frozenset({"simd128"}),
        cflags=("-msimd128",),
        compiler="clang-19",
        compiler_words=("--target=wasm32-wasi",),
        runner=("node", "--no-warnings", str(_WASI)),
        zig="wasm32-wasi",
        bare=True,
        own_math=True,
        alignment=16,
    ),
)  # fmt: skip
