"""Builds and runs a small C program for each vector table, as a generated project would.

The program is generated from calls: each runs one name of the vocabulary over arrays of 32-bit
words, read from standard input. So a table is also tested where only an emulator runs it, and a
crash fails one test.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from c_compiler import compile_in
from numpy.typing import NDArray

import atc.templates
from atc.backends.targets import get_target

Array = NDArray[Any]
Inputs = tuple[Array, Array, Array]
"""Arrays a, b, c of 32-bit words."""

FOLDER = Path(atc.templates.__file__).parent / "simd"
STRICT = (
    *("-std=c99", "-ffp-contract=off", "-O2"),
    *("-Wall", "-Wextra", "-Wpedantic", "-Wconversion", "-Wshadow", "-Werror"),
)


"""What runs programs of WebAssembly."""


@dataclass(frozen=True)
class Table:
    """A table of templates/simd: its lanes, whether v_fma rounds once, the machine it needs.

    `label` tells it from another test of the same table.

    `flushes` is whether denormal floats may count as zero, and be stored so.

    Where that isn't this machine, `target` has the compiler and what runs its programs.
    """

    name: str
    lanes: int
    fused: bool
    machine: str = ""
    features: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    target: str = ""
    flushes: bool = False
    label: str = ""

    def cross(self) -> list[str]:
        """Return the command of the target's own compiler, or skip the test."""
        target = get_target(self.target)
        return [find(target.compiler), *target.compiler_words, *target.cflags, *self.flags]

    def runner(self) -> list[str]:
        """Return the command that runs a program of the target here, or skip the test."""
        program, *words = get_target(self.target).runner
        return [find(program), *words]

    def __str__(self) -> str:
        return self.label or self.name


TABLES = (
    Table("scalar", 1, fused=False),
    Table("sse2", 4, False, "x86_64", ("sse2",)),
    Table("avx2", 8, True, "x86_64", ("avx2", "fma", "f16c")),
    Table("avx512", 16, True, "x86_64", ("avx512f", "avx512bw", "avx512dq", "avx512vl"),
          ("-mprefer-vector-width=512",)),
    Table("avx512", 16, True, "x86_64",
          ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_fp16"), label="avx512-fp16"),
    Table("avx512", 16, True, "x86_64",
          ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_bf16"), label="avx512-bf16"),
    Table("neon", 4, True, "aarch64", target="aarch64-neon"),
    Table("neon", 4, True, "aarch64", target="aarch64-neon-dotprod", label="neon-fp16"),
    Table("neon", 4, True, "arm", target="armv7-neon", flushes=True, label="armv7-neon"),
    Table("wasm_simd128", 4, False, "wasm32", target="wasm32-simd128"),
    Table("rvv", 8, True, "riscv64", target="riscv64-rvv"),
    Table("rvv", 8, True, "riscv64", flags=("-march=rv64gc_zve32f_zvl128b",),
          target="riscv64-rvv", label="rvv-zve32f"),
)  # fmt: skip


BY_DEFAULT = ("scalar", "sse2", "avx2", "avx512", "avx512-bf16", "neon")
"""Of a table with and without float16, and of those that emulators run, one is enough."""

CASES = [
    pytest.param(t, id=str(t), marks=[pytest.mark.slow] * (str(t) not in BY_DEFAULT))
    for t in TABLES
]  # fmt: skip
"""The tables as parameters."""


@dataclass(frozen=True)
class Op:
    """A call in C, and its truth.

    arguments: of the C function, with {a} {b} {c} for vectors of the inputs, {i} {j} for a and b
    as integers. truth: of the inputs named there; "float" results get rows of V_LANES.
    result: f32, i32 or mask, a vector; float, one number per vector; bytes, stored by the call.
    """

    name: str
    arguments: str
    truth: Callable[..., Any]
    result: str
    inputs: Callable[[], Inputs]

    def __str__(self) -> str:
        return self.name

    def operands(self) -> list[Array]:
        """Return the inputs that the arguments name."""
        named = sorted({"abcij".index(v) % 3 for v in re.findall(r"\{(\w)\}", self.arguments)})
        return [self.inputs()[k] for k in named]


def ulp_error(y: Array, truth: Array) -> Array:
    """Return |y - truth| in units of the float32 spacing at the truth; NaN must meet NaN."""
    top = 2.0**128  # what infinity stands for, one step above the largest float
    held = np.clip(truth, -top, top)
    unit = np.spacing(np.minimum(np.abs(held), 3.4e38).astype(np.float32))
    error = np.abs(np.clip(y.astype(np.float64), -top, top) - held) / unit
    return np.where(np.isnan(y) & np.isnan(truth), 0, np.where(np.isnan(error), np.inf, error))


def flushed(x: Array) -> Array:
    """Return an array with zeros, signs kept, for denormal floats."""
    small = np.abs(x) < 2.0**-126 if np.issubdtype(x.dtype, np.floating) else np.zeros(1, bool)
    return np.where(small, np.copysign(0, x), x).astype(x.dtype)


def truths(table: Table, truth: Callable[..., Any], operands: Sequence[Array]) -> list[Array]:
    """Return what is right, or, of a table that may flush denormals, all that is."""
    found = [np.asarray(truth(*operands))]
    if table.flushes:
        found += [np.asarray(truth(*map(flushed, operands)))]
        found += [flushed(x) for x in found]
    return found


def right(y: Array, truth: Sequence[Array]) -> Array:
    """Return the first of several truths, but the others where y has their values."""
    found = truth[0]
    for other in truth[1:]:
        own = y[: len(found)]
        found = np.where((own == other) | np.isnan(own) & np.isnan(other), other, found)
    return found


def least_ulp_error(y: Array, truth: Sequence[Array]) -> Array:
    """Return the errors against the nearest of several truths."""
    least: Array = np.min([ulp_error(y, x) for x in truth], axis=0)
    return least


VECTORS = {
    **{name: f"v_load({name} + at)" for name in "abc"},
    "i": "v_i32_load((const int32_t *)(const void *)(a + at))",
    "j": "v_i32_load((const int32_t *)(const void *)(b + at))",
}
RESULTS = {
    "f32": "v_store(y + at, {});",
    "i32": "v_i32_store((int32_t *)(void *)(y + at), {});",
    "mask": "v_store(y + at, v_select({}, v_set1(1.0f), v_zero()));",
    "float": "y[at] = (float){};",
    "f16": "v_store(y + at, v_f16_widen({}));",
    "bytes": "uint8_t *bytes = (uint8_t *)(void *)y; {};",
}

PROGRAM = """
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if !defined(__wasm__)
#include <sys/mman.h>
#endif
#include "simd_exact.h"

/* The end of memory that may be touched. */
static char *end_of_memory(void) {
  const size_t page = 65536;
#if defined(__wasm__)
  return (char *)(__builtin_wasm_memory_grow(0, 1) * page + page);
#else
  char *memory = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory + page, page, PROT_NONE)) exit(3);
  return memory + page;
#endif
}

static const float *opaque(const float *p) {
  const void *const wild = (const void *)(uintptr_t)64;
  V_OPAQUE(p);
  v_prefetch_l1(wild);
  v_prefetch_l2(wild);
  return p;
}

/* A function of doubles, of both halves of vectors. */
#define OF_TWO(name, f) \
  static inline vf32 name(vf32 a, vf32 b) { \
    return v_f64_join(f(v_f64_low(a), v_f64_low(b)), f(v_f64_high(a), v_f64_high(b))); \
  }
#define OF_THREE(name, f) \
  static inline vf32 name(vf32 a, vf32 b, vf32 c) { \
    return v_f64_join(f(v_f64_low(a), v_f64_low(b), v_f64_low(c)), \
                      f(v_f64_high(a), v_f64_high(b), v_f64_high(c))); \
  }

/* 2^-30 + a * b, whose last bits no float has, less 2^-30. */
static inline vf64 narrow(vf64 a, vf64 b) {
  const vf64 small = v_f64_set1(9.313225746154785e-10);
  return v_f64_sub(v_f64_fma(a, b, small), small);
}
/* c - a * b, added twice. */
static inline vf64 twice(vf64 a, vf64 b, vf64 c) {
  return v_f64_add(v_f64_fnma(a, b, c), v_f64_fnma(a, b, c));
}
static inline vf64 product(vf64 a, vf64 b) { return v_f64_mul(a, b); }
static inline vf64 quotient(vf64 a, vf64 b) { return v_f64_div(a, b); }
/* a * 2^b for whole b. */
static inline vf64 scaled(vf64 a, vf64 b) {
  return v_f64_ldexp(a, v_f64_add(b, v_f64_set1(6755399441055744.0)));
}
/* a + b + c as parts of one sum. */
static inline vf32 sum_of_parts(vf32 a, vf32 b, vf32 c) {
  float total[V_LANES];
  v_store(total, a);
  const vf32 lost = v_add_part(total, b);
  const vf32 rest = v_add_part(total, v_add(lost, c));
  return v_add(v_load(total), rest);
}
/* What is stored as bfloat16, whole and in part, as floats. */
static inline vf32 stored_bf16(vf32 a) {
  uint16_t halves[V_LANES], part[V_LANES] = {0};
  v_store_bf16(halves, a);
  v_store_bf16_n(part, a, V_LANES - 1);
  memcpy(part + V_LANES - 1, halves + V_LANES - 1, sizeof *part);
  return memcmp(part, halves, sizeof part) ? v_zero() : v_load_bf16(halves);
}
/* The same of float16. */
static inline vf32 stored_f16(vf32 a) {
  uint16_t halves[V_LANES], part[V_LANES] = {0};
  v_store_f16(halves, a);
  v_store_f16_n(part, a, V_LANES - 1);
  memcpy(part + V_LANES - 1, halves + V_LANES - 1, sizeof *part);
  if (memcmp(part, halves, sizeof part)) return v_zero();
  const vf32 last = v_load_f16_n(halves, V_LANES);
  return v_mask_any(v_lt(last, v_load_f16(halves))) ? v_zero() : last;
}
OF_TWO(f64_narrow, narrow)
OF_THREE(f64_twice, twice)
OF_TWO(f64_product, product)
OF_TWO(f64_quotient, quotient)
OF_TWO(f64_scaled, scaled)

@FUNCTIONS@
/* Stores n numbers where the compiler knows how many. */
static void store_known(float *p, vf32 a, size_t n) {
#define KNOWN(k) case k: v_store_n(p, a, k <= V_LANES ? k : V_LANES); break;
  switch (n) {
    KNOWN(0) KNOWN(1) KNOWN(2) KNOWN(3) KNOWN(4) KNOWN(5) KNOWN(6) KNOWN(7) KNOWN(8)
    KNOWN(9) KNOWN(10) KNOWN(11) KNOWN(12) KNOWN(13) KNOWN(14) KNOWN(15) KNOWN(16)
    default: v_store_n(p, a, n);
  }
}

/* For n of 0 to V_LANES: v_load_n, a buffer after v_store_n, v_mask_n; with the n-th float the last
 * before memory that must not be touched. Last the buffer again, where the compiler knows n. */
static void tails(const float *a, float *y) {
  char *const end = end_of_memory();
  for (size_t n = 0; n <= V_LANES; n++, y += 4 * V_LANES) {
    float *const last = (float *)(void *)end - n;
    memcpy(last, a, n * sizeof *a);
    v_store(y, v_load_n(last, n));
    for (size_t i = 1; i <= V_LANES - n; i++) *(last - i) = -1.0f;
    v_store_n(last, v_load(opaque(a) + V_LANES), n);
    memcpy(y + V_LANES, last - (V_LANES - n), V_LANES * sizeof *y);
    v_store(y + 2 * V_LANES, v_select(v_mask_n(n), v_set1(1.0f), v_zero()));
    for (size_t i = 0; i < V_LANES; i++) *((float *)(void *)end - 1 - i) = -1.0f;
    store_known(last, v_load(opaque(a) + V_LANES), n);
    memcpy(y + 3 * V_LANES, last - (V_LANES - n), V_LANES * sizeof *y);
  }
}

/* The same of bytes and integers: for n, rows of what v_load_u8_n, v_load_i8_n, v_i32_load_n read
 * from just before such memory, and of what lies there after v_store_u8_n, v_store_i8_n and
 * v_i32_store_n of V_LANES numbers from a; then of halves, v_load_bf16_n and v_store_halves_n. */
static void typed_tails(const float *a, float *y) {
  char *const end = end_of_memory();
  for (size_t n = 0; n <= V_LANES; n++, y += 8 * V_LANES) {
    uint8_t *const u = (uint8_t *)end - n;
    int8_t *const s = (int8_t *)end - n;
    int32_t *const i = (int32_t *)(void *)end - n;
    uint16_t *const h = (uint16_t *)(void *)end - n;
    for (size_t k = 0; k < n; k++) u[k] = (uint8_t)(200 + k);
    v_store(y, v_load_u8_n(u, n));
    v_store(y + V_LANES, v_load_i8_n(s, n));
    for (size_t k = 0; k < n; k++) i[k] = (int32_t)k - 5;
    v_store(y + 2 * V_LANES, v_cvt_f32(v_i32_load_n(i, n)));
    memset(end - 4 * V_LANES, 7, 4 * V_LANES);
    v_store_u8_n(u, v_load(opaque(a)), n);
    for (size_t k = 0; k < V_LANES; k++) y[3 * V_LANES + k] = ((uint8_t *)end - V_LANES)[k];
    memset(end - 4 * V_LANES, 7, 4 * V_LANES);
    v_store_i8_n(s, v_neg(v_load(opaque(a))), n);
    for (size_t k = 0; k < V_LANES; k++) y[4 * V_LANES + k] = ((int8_t *)end - V_LANES)[k];
    memset(end - 4 * V_LANES, 0, 4 * V_LANES);
    v_i32_store_n(i, v_cvt_i32(v_load(opaque(a))), n);
    for (size_t k = 0; k < V_LANES; k++) {
      y[5 * V_LANES + k] = (float)((int32_t *)(void *)end - V_LANES)[k];
    }
    for (size_t k = 0; k < n; k++) h[k] = (uint16_t)((123 + k % 8) << 7);
    v_store(y + 6 * V_LANES, v_load_bf16_n(h, n));
    for (size_t k = 0; k < V_LANES; k++) ((uint16_t *)(void *)end - V_LANES)[k] = 7;
    v_store_halves_n(h, v_load(opaque(a)), n);
    for (size_t k = 0; k < V_LANES; k++) {
      y[7 * V_LANES + k] = (float)((uint16_t *)(void *)end - V_LANES)[k];
    }
  }
}

/* Bytes of a as places in a table of the bytes of b, in two parts: one in place, one not. */
static void lookup(const float *a, const float *b, float *y, size_t n) {
  const uint8_t *const x = (const uint8_t *)a, *const table = (const uint8_t *)b;
  uint8_t *const to = (uint8_t *)y;
  const size_t half = n / 2 + 3;
  v_lookup(to, x, half, table);
  memcpy(to + half, x + half, n - half);
  v_lookup(to + half, to + half, n - half - 1, table);
}

/* Lanes of a at places in the words of b. */
static void permute(const float *a, const float *b, float *y, size_t n) {
  const vi32 within = v_i32_set1(V_LANES - 1);
  for (size_t at = 0; at < n; at += V_LANES) {
    const vi32 places = v_i32_and(v_cast_i32(v_load(b + at)), within);
    v_store(y + at, v_permute(v_load(a + at), places));
  }
}

/* Numbers of a two by two: a vector of the first ones, one of the second ones. */
static void load_pairs(const float *a, float *y, size_t n) {
  for (size_t at = 0; at + 2 * V_LANES <= n; at += 2 * V_LANES) {
    vf32 even, odd;
    v_load_pairs(a + at, &even, &odd);
    v_store(y + at, even);
    v_store(y + at + V_LANES, odd);
  }
}

int main(int count, char **arguments) {
  const size_t n = count > 2 ? (size_t)strtoul(arguments[2], NULL, 10) : 0;
  float *const a = malloc(4 * n * sizeof *a);
  if (!n || !a || fread(a, sizeof *a, 3 * n, stdin) != 3 * n) return 2;
  const float *const b = a + n, *const c = b + n;
  float *const y = a + 3 * n;
  memset(y, 0, n * sizeof *y);
  const char *const name = arguments[1];
  (void)sum_of_parts, (void)stored_bf16, (void)stored_f16, (void)f64_narrow, (void)f64_twice;
  (void)f64_product, (void)f64_quotient, (void)f64_scaled; /* not all of them in each program */
@CALLS@
  if (strcmp(name, "tails") == 0) tails(a, y);
  if (strcmp(name, "typed_tails") == 0) typed_tails(a, y);
  if (strcmp(name, "v_lookup") == 0) lookup(a, b, y, 4 * n);
  if (strcmp(name, "v_permute") == 0) permute(a, b, y, n);
  if (strcmp(name, "v_load_pairs") == 0) load_pairs(a, y, n);
  if (strcmp(name, "v_reduce_add_each") == 0) v_store(y, v_reduce_add_each(a));
  if (strcmp(name, "v_transpose") == 0) v_transpose(y, V_LANES + 1, a, V_LANES + 3);
  if (strcmp(name, "transpose_dense") == 0) v_transpose(y, V_LANES + 1, a, V_LANES);
  if (strcmp(name, "transpose_to_dense") == 0) v_transpose(y, V_LANES, a, V_LANES + 3);
  if (strcmp(name, "constants") == 0) {
    y[0] = V_LANES, y[1] = V_REGISTERS, y[2] = V_ROUNDS_BF16;
    y[3] = V_ROUNDS_F16, y[4] = V_PARTS_32, y[5] = V_PARTS_16, y[6] = V_FACTORS;
    y[7] = V_SCALES, y[8] = V_READS_FACTORS, y[9] = V_HALVES, y[10] = V_EXP_LEAST, y[11] = V_TABLES;
  }
  return fwrite(y, sizeof *y, n, stdout) == n ? 0 : 2;
}
"""

FUNCTION = """
static void test_@NAME@(const float *a, const float *b, const float *c, float *y, size_t n) {
  (void)a, (void)b, (void)c;
  for (size_t at = 0; at < n; at += V_LANES) {
    @BODY@
  }
}
"""


def program_text(ops: Sequence[Op]) -> str:
    """Return the program: a function per call, chosen by the first argument."""
    functions, calls = "", ""
    for op in ops:
        call = f"{op.name}({op.arguments.format(**VECTORS)})"
        body = RESULTS[op.result].format(call)
        functions += FUNCTION.replace("@NAME@", op.name).replace("@BODY@", body)
        calls += f'  if (strcmp(name, "{op.name}") == 0) test_{op.name}(a, b, c, y, n);\n'
    return PROGRAM.replace("@FUNCTIONS@", functions).replace("@CALLS@", calls)


def find(*programs: str) -> str:
    """Return the first of the programs that is installed, or skip the test."""
    for program in programs:
        if shutil.which(program):
            return program
    pytest.skip(f"{' or '.join(programs)} isn't installed")


def compile_table(table: Table, folder: Path, text: str, *command: str) -> None:
    """Compile the program with the table; a warning fails the test."""
    shutil.copy(FOLDER / f"{table.name}.h", folder / "simd.h")
    shutil.copy(FOLDER / "math.h", folder / "simd_math.h")
    exact = (FOLDER / "exact.h").read_text()  # beside the functions whose names it takes
    (folder / "simd_exact.h").write_text(re.sub(r"(?m)^#define v_\w+ v_exact_\w+\n", "", exact))
    (folder / "program.c").write_text(text)
    flags = [*STRICT, *(f"-m{f.replace('_', '')}" for f in table.features), *table.flags]
    result = command[command.index("-o") + 1] if "-o" in command else None
    compile_in(folder, [command[0], *flags, "program.c", *command[1:]], result)


@dataclass(frozen=True)
class Program:
    """A compiled program; `emulated` if it runs slowly."""

    table: Table
    command: tuple[str, ...]
    emulated: bool

    def run(self, name: str, inputs: Inputs, dtype: type = np.float32) -> Array:
        """Return what the call stores, given the inputs."""
        words = b"".join(np.ascontiguousarray(v).tobytes() for v in inputs)
        command = [*self.command, name, str(len(inputs[0]))]
        done = subprocess.run(command, input=words, capture_output=True, check=True)
        return np.frombuffer(done.stdout, dtype)


def build(table: Table, ops: Sequence[Op], folder: Path) -> Program:
    """Compile the program of the calls, or skip the test where this machine can't run it."""
    text = program_text(ops)
    if table.machine in ("", platform.machine()):
        if table.features:
            cpu = set(Path("/proc/cpuinfo").read_text().split())
            if missing := sorted(set(table.features) - cpu):
                pytest.skip(f"this CPU lacks {', '.join(missing)}")
        compile_table(table, folder, text, find("cc", "gcc", "clang"), "-o", "program", "-lm")
        return Program(table, (str(folder / "program"),), emulated=False)
    if not table.target:
        pytest.skip(f"needs a CPU of {table.machine}")
    runner = table.runner()
    compile_table(table, folder, text, *table.cross(), "-static", "-o", "program", "-lm")
    return Program(table, (*runner, str(folder / "program")), emulated=True)


def defined_names(header: str) -> set[str]:
    """Return the functions and macros that a header defines for its users."""
    text = (FOLDER / header).read_text()
    functions = re.findall(r"^static inline [\w ]+?\*?\b(v_\w+)\(", text, re.MULTILINE)
    return {*functions, *re.findall(r"#define ([vV]_\w+)", text)}
