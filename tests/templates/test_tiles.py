"""bf16.h and tiles.h against numpy: products of bfloat16, numbers in two halves, AMX's tiles.

Without AMX the tiles are those of tiles_emulated.h; the real header is compiled in any case.
"""

from __future__ import annotations

import ctypes
import platform
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from simd_program import FOLDER, STRICT, Array, find

from atc.backends.target import host_features
from atc.backends.targets import get_target

AMX = get_target("x86-64-amx")
BF16 = get_target("x86-64-avx512-bf16")
TILES = {"amx_tile", "amx_bf16", "amx_int8"}

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 compiler")

SOURCE = """
#include "simd.h"
#include "simd_bf16.h"
#include "simd_tiles.h"

void pairs(const float *x, float *y)
{
  v_store(y, v_pairs(v_load(x), v_load(x + 16)));
  v_store(y + 16, v_pairs_in_order(v_load(x), v_load(x + 16)));
  v_store(y + 32, v_firsts(v_load(y)));
  v_store(y + 48, v_seconds(v_load(y)));
}

void split(const float *x, float *y)
{
  vf32 high, low, a, b;
  v_split_pairs(v_load(x), v_load(x + 16), &high, &low);
  v_join_pairs(high, low, &a, &b);
  v_store(y, high);
  v_store(y + 16, low);
  v_store(y + 32, a);
  v_store(y + 48, b);
}

void dot_pairs(const float *acc, const float *a, const float *b, float *y)
{
  v_store(y, v_dot_pairs_acc(v_load(acc), v_load(a), v_load(b)));
}

void dot(int kind, void *c, const void *a, const void *b)
{
  tiles_begin();
  TILE_ZERO(2);
  TILE_STORE(2, c, 64);
  TILE_LOAD(0, a, 80);
  TILE_STREAM(7, b, 64);
  TILE_LOAD(3, (const char *)c + 1024, 64);
  if (kind == 0) TILE_DOT_BF16(3, 0, 7);
  if (kind == 1) TILE_DOT_U8S8(3, 0, 7);
  if (kind == 2) TILE_DOT_S8S8(3, 0, 7);
  TILE_STORE(3, c, 64);
  tiles_end();
}
"""


def write(folder: Path, emulated: bool) -> None:
    (folder / "program.c").write_text(SOURCE)
    for name in ("bf16", "tiles"):
        text = (FOLDER / f"{name}.h").read_text()
        if name == "tiles" and emulated:
            text = Path(__file__).parents[1].joinpath("support", "tiles_emulated.h").read_text()
        (folder / f"simd_{name}.h").write_text(text)
    (folder / "simd.h").write_text((FOLDER / "avx512.h").read_text())


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    if missing := BF16.features - host_features():
        pytest.skip(f"this CPU lacks {', '.join(sorted(missing))}")
    folder = tmp_path_factory.mktemp("tiles")
    write(folder, emulated=True)
    command = [find("gcc"), *STRICT, *AMX.cflags, "-shared", "-fPIC", "program.c", "-o", "p.so"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "p.so"))


@pytest.mark.few(1)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_machines_own_instructions_compile(compiler: str, tmp_path: Path) -> None:
    write(tmp_path, emulated=False)
    program = find("gcc") if compiler == "gcc" else find("clang", "clang-19")
    command = [program, *STRICT, *AMX.cflags, "-c", "program.c"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = subprocess.run(
        [find("objdump"), "-d", "program.o"], cwd=tmp_path, capture_output=True, text=True
    ).stdout
    for word in ("ldtilecfg", "tileloadd ", "tileloaddt1", "tdpbf16ps", "tdpbusd", "tdpbssd",
                 "tilestored", "tilerelease", "vdpbf16ps"):  # fmt: skip
        assert word in text
    (first,) = (line for line in text.splitlines() if "tdpbf16ps" in line)
    assert first.split("tdpbf16ps")[1].split() == ["%tmm7,%tmm0,%tmm3"]


def call(library: ctypes.CDLL, name: str, *arrays: Array) -> None:
    getattr(library, name)(*(a.ctypes.data_as(ctypes.c_void_p) for a in arrays))


def numbers(seed: int) -> Array:
    """Return 32 floats of all sizes, and some that are special."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(32) * 2.0 ** rng.integers(-100, 100, 32)
    x[:8] = [0.0, -0.0, 3.3961e38, -3.4e38, 1.00390625, 65535.0, 2.0**-100, 1 / 3]
    return rng.permutation(x).astype(np.float32)


SPECIAL = np.array(
    [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFFFFFFF, 0x7F800001, 0x7FFFFFFF, 0xFF800001, 0x7F7FC000]
    * 4, np.uint32,
).view(np.float32)  # fmt: skip
"""Infinities, NaN with the least and the most bits, and 3.3996e38, near the largest float."""


def as_float(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.few(1)
@pytest.mark.parametrize("x", [numbers(0), numbers(1), SPECIAL], ids=["0", "1", "special"])
def test_pairs_are_rounded_to_nearest(library: ctypes.CDLL, x: Array) -> None:
    y = np.zeros(64, np.float32)
    call(library, "pairs", x, y)
    with np.errstate(over="ignore", invalid="ignore"):
        truth = x.astype(ml_dtypes.bfloat16).astype(np.float32)
    interleaved, in_order = as_float(y[:16].view(np.uint16)), as_float(y[16:32].view(np.uint16))
    np.testing.assert_array_equal(interleaved, truth.reshape(2, 16).T.ravel())
    np.testing.assert_array_equal(in_order, truth)
    np.testing.assert_array_equal(y[32:48], truth[:16])
    np.testing.assert_array_equal(y[48:], truth[16:])


@pytest.mark.parametrize("seed", range(4))
def test_two_halves_hold_sixteen_bits(library: ctypes.CDLL, seed: int) -> None:
    x, y = numbers(seed), np.zeros(64, np.float32)
    call(library, "split", x, y)
    high = as_float(y[:16].view(np.uint16)).reshape(16, 2).T.ravel()
    low = as_float(y[16:32].view(np.uint16)).reshape(16, 2).T.ravel()
    exact = x.astype(np.float64)
    assert np.all(np.isfinite(high))
    assert np.all(np.abs(high - exact) <= 2.0**-7 * np.abs(exact))
    assert np.all(np.abs(high + low.astype(np.float64) - exact) <= 2.0**-16 * np.abs(exact))
    np.testing.assert_array_equal(y[32:], high + low)


def test_halves_of_infinities_and_nan(library: ctypes.CDLL) -> None:
    y = np.zeros(64, np.float32)
    call(library, "split", SPECIAL, y)
    joined = y[32:]
    np.testing.assert_array_equal(np.isnan(joined), np.isnan(SPECIAL))
    infinite = np.isinf(SPECIAL)
    np.testing.assert_array_equal(joined[infinite], SPECIAL[infinite])
    assert np.all(np.isfinite(joined[np.isfinite(SPECIAL)]))


def test_denormals_keep_their_upper_bits(library: ctypes.CDLL) -> None:
    x = np.full(32, 2.0**-130 * 1.5, np.float32)
    y = np.zeros(64, np.float32)
    call(library, "split", x, y)
    np.testing.assert_array_equal(y[32:], x)


def bf16(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(ml_dtypes.bfloat16)


def test_products_of_pairs(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(1)
    a, b, acc = bf16(rng, 16, 2), bf16(rng, 16, 2), rng.standard_normal(16).astype(np.float32)
    y = np.zeros(16, np.float32)
    call(library, "dot_pairs", acc, a, b, y)
    truth = (a.astype(np.float64) * b.astype(np.float64)).sum(1) + acc
    np.testing.assert_allclose(y, truth, rtol=0, atol=2e-6)


def tile_dot(library: ctypes.CDLL, kind: int, c: Array, a: Array, b: Array) -> Array:
    """Return c + a b as a tile operation sums it; rows of a lie apart."""
    memory = np.concatenate([np.full((16, 16), 7, c.dtype), c])
    spaced = np.zeros((16, 80), np.uint8)
    spaced[:, :64] = np.ascontiguousarray(a).view(np.uint8)
    words = b.reshape(16, -1, 16).transpose(0, 2, 1)
    library.dot(kind, *(np.ascontiguousarray(v).ctypes.data_as(ctypes.c_void_p)
                        for v in (memory,)), spaced.ctypes.data_as(ctypes.c_void_p),
                np.ascontiguousarray(words).ctypes.data_as(ctypes.c_void_p))  # fmt: skip
    return memory[:16]


def test_tiles_of_bfloat16_are_summed_as_documented(library: ctypes.CDLL) -> None:
    rng = np.random.default_rng(2)
    a, b = bf16(rng, 16, 32), bf16(rng, 32, 16)
    c = rng.standard_normal((16, 16)).astype(np.float32)
    got = tile_dot(library, 0, c, a, b)
    x, y = a.astype(np.float64), b.astype(np.float64)
    sums = [np.zeros((16, 16), np.float32) for _ in range(2)]
    for k in range(32):  # a product of two bfloat16 is exact in float32, so this rounds once
        sums[k % 2] = (sums[k % 2] + np.outer(x[:, k], y[k])).astype(np.float32)
    np.testing.assert_array_equal(got, c + (sums[0] + sums[1]))


def test_tiles_flush_denormals_and_keep_infinities(library: ctypes.CDLL) -> None:
    a, b = np.zeros((16, 32), ml_dtypes.bfloat16), np.zeros((32, 16), ml_dtypes.bfloat16)
    a[0, 0], b[0, 0] = 2.0**-130, 2.0**20
    a[1, 1], b[1, 1] = 2.0**-100, 2.0**-40
    a[2, 2], b[2, :] = np.inf, 1
    a[3, 3] = np.nan
    got = tile_dot(library, 0, np.zeros((16, 16), np.float32), a, b)
    assert got[0, 0] == got[1, 1] == 0
    assert np.all(np.isinf(got[2]))
    assert np.all(np.isnan(got[3]))
    assert not got[4:].any()


@pytest.mark.parametrize("kind", [1, 2])
def test_tiles_of_bytes_are_exact(library: ctypes.CDLL, kind: int) -> None:
    rng = np.random.default_rng(3)
    a = rng.integers(-128, 128, (16, 64)).astype(np.int8).view(np.uint8 if kind == 1 else np.int8)
    b = rng.integers(-128, 128, (64, 16)).astype(np.int8)
    c = rng.integers(-(2**31), 2**31, (16, 16)).astype(np.int32)
    got = tile_dot(library, kind, c, a, b)
    truth = c.astype(np.int64) + a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(got, truth.astype(np.int32))
