"""Scalar conversions of float16 in kernel.h, in plain C and by instructions, against numpy's."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
from projects import require

from atc.backends.target import host_features
from atc.templates import FOLDER

CODE = """#include "kernel.h"
void load(int n, const uint16_t *x, float *y);
void load(int n, const uint16_t *x, float *y)
{
  for (int k = 0; k < n; k++) y[k] = k_load_f16(x[k]);
}
void store(int n, const float *x, uint16_t *y);
void store(int n, const float *x, uint16_t *y)
{
  for (int k = 0; k < n; k++) y[k] = k_store_f16(x[k]);
}
"""
STRICT = ("-std=c99", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-fPIC", "-shared")


@pytest.mark.few(2)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("feature", ["", "f16c"])
def test_scalars_of_float16_are_read_and_rounded_as_numpy_does(
    compiler: str, feature: str, tmp_path: Path
) -> None:
    if feature and feature not in host_features():
        pytest.skip(f"this processor has no {feature}")
    (tmp_path / "a.c").write_text(CODE)
    command = (require(compiler), *STRICT, *[f"-m{feature}"] * bool(feature), f"-I{FOLDER / 'cpu'}")
    subprocess.run([*command, "a.c", "-o", "a.so"], cwd=tmp_path, check=True)
    library = ctypes.CDLL(str(tmp_path / "a.so"))
    halves = np.arange(2**16, dtype=np.uint16)
    floats = np.empty(2**16, np.float32)
    library.load(halves.size, halves.ctypes, floats.ctypes)
    truth = halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(floats, truth)
    np.testing.assert_array_equal(np.signbit(floats), np.signbit(truth))

    words = np.arange(0, 2**32, 2**32 // 200_000, dtype=np.uint64).astype(np.uint32)
    with np.errstate(invalid="ignore"):
        between = (truth[:-1] + truth[1:]) / np.float32(2)  # ties, exactly
    x = np.r_[words.view(np.float32), truth, between, np.nextafter(between, np.float32(0)),
              np.nextafter(between, np.float32(9e9))].astype(np.float32)  # fmt: skip
    y = np.empty(x.size, np.uint16)
    library.store(x.size, x.ctypes, y.ctypes)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = x.astype(np.float16)
    np.testing.assert_array_equal(y.view(np.float16), rounded)
    np.testing.assert_array_equal(np.signbit(y.view(np.float16)), np.signbit(rounded))
