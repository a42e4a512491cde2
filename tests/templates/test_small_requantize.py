"""Sums that become bytes on small cores: in floats and without any, the same whole numbers."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atc.templates import FOLDER

Array = NDArray[Any]
CODE = """#include "small.h"
void requantize(int n, const int32_t *sums, const float *scales, int32_t *y);
void requantize(int n, const int32_t *sums, const float *scales, int32_t *y)
{
  for (int k = 0; k < n; k++) y[k] = q_requantize(sums[k], scales[k], -383, 383);
}
void high(int n, const int32_t *x, const int32_t *y, int32_t *z);
void high(int n, const int32_t *x, const int32_t *y, int32_t *z)
{
  for (int k = 0; k < n; k++) z[k] = q_high_word(x[k], y[k]);
}
void rounded(int n, const float *x, int32_t *whole, float *near);
void rounded(int n, const float *x, int32_t *whole, float *near)
{
  for (int k = 0; k < n; k++) {
    whole[k] = q_round(x[k]);
    near[k] = q_rounded(x[k]);
  }
}
void quantized(int n, const float *x, int32_t zero, int32_t *s, int32_t *u);
void quantized(int n, const float *x, int32_t zero, int32_t *s, int32_t *u)
{
  for (int k = 0; k < n; k++) {
    s[k] = q_quantize_s(x[k], zero);
    u[k] = q_quantize_u(x[k], zero + 128);
  }
}
"""


def library(folder: Path, *flags: str) -> Any:
    (folder / "a.c").write_text(CODE)
    options = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared")
    place = (f"-I{FOLDER / 'simd'}", "-o", "a.so", "a.c")
    subprocess.run(["cc", *options, *flags, *place], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "a.so"))


@pytest.mark.parametrize(
    ("compiler", "flags"),
    [("aarch64-linux-gnu-gcc", ()), ("arm-linux-gnueabihf-gcc", ("-march=armv7-a+simd",)),
     ("riscv64-linux-gnu-gcc", ()),
     ("arm-none-eabi-gcc", ("-mcpu=cortex-m4", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16")),
     ("arm-none-eabi-gcc", ("-mcpu=cortex-m55", "-mfloat-abi=hard"))],
)  # fmt: skip
def test_other_compilers_have_no_complaint(
    compiler: str, flags: tuple[str, ...], tmp_path: Path
) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} isn't installed")
    (tmp_path / "a.c").write_text(CODE)
    options = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wconversion", "-Wsign-conversion",
               "-Wpedantic", "-Werror", "-c")  # fmt: skip
    place = (f"-I{FOLDER / 'simd'}", "-o", "a.o", "a.c")
    subprocess.run([compiler, *options, *flags, *place], cwd=tmp_path, check=True)


def pointers(*arrays: Array) -> list[Any]:
    return [ctypes.c_void_p(a.ctypes.data) for a in arrays]


def cases() -> tuple[Array, Array]:
    """Return sums and scales: anything, products near the middle of two numbers, and extremes."""
    rng = np.random.default_rng(5)
    n = 200_000
    anything = (rng.integers(-(2**31), 2**31, n) >> rng.integers(0, 31, n)).astype(np.int32)
    scales = np.exp2(rng.uniform(-34, 12, n)).astype(np.float32)
    sums = rng.integers(1, 2**24, n).astype(np.int32)
    middle = (rng.integers(-380, 380, n) + 0.5) / sums
    near = middle.astype(np.float32)
    for step in (1, -1):  # the floats around, whose products lie on either side of the middle
        far = np.nextafter(near, np.float32(step * np.inf))
        anything, scales = np.append(anything, sums), np.append(scales, np.abs(far))
    halves = rng.integers(-(2**20), 2**20, n).astype(np.int32)
    anything, scales = np.append(anything, sums), np.append(scales, np.abs(near))
    anything, scales = np.append(anything, halves), np.append(scales, np.full(n, 0.5, np.float32))
    whole = rng.integers(1, 2**23, n).astype(np.int32)  # products close to any point of a fraction
    anything = np.append(anything, whole * rng.choice(np.array([-1, 1], np.int32), n))
    scales = np.append(scales, (rng.uniform(0, 520, n) / whole).astype(np.float32))
    ends = np.array([0, 1, -1, 2**31 - 1, -(2**31), 2**24 + 1, 2**24 + 3], np.int32)
    edges = np.array([1e-45, 1e-38, 2**-24, 1, 255.5, 3e38], np.float32)
    every = [a.reshape(-1) for a in np.meshgrid(ends, edges)]
    return np.append(anything, every[0]).astype(np.int32), np.append(scales, every[1])


@pytest.mark.parametrize(
    "flags",
    [(), ("-DATC_EMULATE_SOFT",), ("-DATC_EMULATE_SOFT", "-DATC_EMULATE_SHORT")],
    ids=["floats", "integers", "products of 32 bits"],
)
def test_requantization_rounds_as_floats_do(flags: tuple[str, ...], tmp_path: Path) -> None:
    sums, scales = (np.ascontiguousarray(a) for a in cases())
    got = np.empty_like(sums)
    library(tmp_path, *flags).requantize(len(sums), *pointers(sums, scales, got))
    with np.errstate(over="ignore"):
        product = sums.astype(np.float32) * scales
    want = np.clip(np.rint(product), -383, 383).astype(np.int32)
    differ = np.flatnonzero(got != want)
    assert not differ.size, (sums[differ[:5]], scales[differ[:5]], got[differ[:5]])
    exact = np.clip(np.rint(sums.astype(np.float64) * scales), -383, 383)
    assert (exact != want).sum() > 100, "no case needs the first rounding"


@pytest.mark.parametrize("flags", [(), ("-DATC_EMULATE_SHORT",)], ids=["64 bits", "32 bits"])
def test_the_upper_word_of_a_product(flags: tuple[str, ...], tmp_path: Path) -> None:
    bits = np.random.default_rng(3).integers(-(2**31), 2**31, (2, 200_000)).astype(np.int32)
    ends = np.array([0, 1, -1, 2**31 - 1, -(2**31), 32767, 32768, -32768, 65535, 65536], np.int32)
    pairs = [a.reshape(-1) for a in np.meshgrid(ends, ends)]
    x, y = (np.append(a, b).astype(np.int32) for a, b in zip(bits, pairs, strict=True))
    z = np.empty_like(x)
    sanitize = ("-fsanitize=undefined", "-fno-sanitize-recover=all")
    library(tmp_path, *flags, *sanitize).high(len(x), *pointers(x, y, z))
    np.testing.assert_array_equal(z, (x.astype(np.int64) * y >> 32).astype(np.int32))


@pytest.mark.parametrize("flags", [(), ("-DATC_EMULATE_SOFT",)], ids=["floats", "integers"])
def test_whole_numbers_next_to_floats(flags: tuple[str, ...], tmp_path: Path) -> None:
    bits = np.random.default_rng(2).integers(0, 2**32, 300_000, np.uint32)
    large = [8388607.5, 4194304.5, -4194305.5, 8388609, 2147483648, -3e9, -0.0, 0.5, -1.5]
    x = np.append(bits.view(np.float32), np.float32(large))
    whole, near = np.empty(x.shape, np.int32), np.empty_like(x)
    made = library(tmp_path, *flags)
    made.rounded(len(x), *pointers(x, whole, near))
    real = ~np.isnan(x)
    want = np.zeros(x.shape, np.float32)
    want[real] = np.rint(x[real])
    np.testing.assert_array_equal(near.view(np.uint32)[real], want.view(np.uint32)[real])
    want = np.clip(want.astype(np.float64), -(2**31), 2**31 - 1)
    np.testing.assert_array_equal(whole, want.astype(np.int32))
    small = np.random.default_rng(3).integers(-700, 700, 9999) / 2
    x = np.concatenate([x, small, np.nextafter(small, 0)], dtype=np.float32)
    real = ~np.isnan(x)
    for zero in (-128, 3, 127):
        s, u = np.empty((2, len(x)), np.int32)
        made.quantized(len(x), *pointers(x), zero, *pointers(s, u))
        for got, low, point in ((s, -128, zero), (u, 0, zero + 128)):
            want = np.clip(np.rint(np.where(real, x, 0).astype(np.float64)) + point, low, low + 255)
            np.testing.assert_array_equal(got, np.where(real, want, 0).astype(np.int32))
