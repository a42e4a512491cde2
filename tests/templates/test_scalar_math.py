"""The functions of simd_scalar_math.h, and what they build on, against float64."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from projects import require
from simd_program import FOLDER, STRICT, Array, ulp_error

from atc.backends.render.own_math import OWN

Doubles = NDArray[np.float64]
UNARY: dict[str, tuple[Callable[[Doubles], Doubles], float]] = {
    "v_sqrt": (np.sqrt, 0.5), "v_floor": (np.floor, 0), "v_ceil": (np.ceil, 0),
    "v_trunc": (np.trunc, 0), "v_round": (np.rint, 0), "v_sin": (np.sin, 2.9),
    "v_cos": (np.cos, 2.9), "k_tan_f32": (np.tan, 4.3), "k_atan_f32": (np.arctan, 2),
    "k_asin_f32": (np.arcsin, 2.3), "k_acos_f32": (np.arccos, 1.2), "k_sinh_f32": (np.sinh, 2.2),
    "k_cosh_f32": (np.cosh, 1.6), "k_asinh_f32": (np.arcsinh, 1.6),
    "k_acosh_f32": (np.arccosh, 1.9), "k_atanh_f32": (np.arctanh, 1.6),
}  # fmt: skip
"""Functions with the truth, and the largest error in ulp that the documents state."""
BINARY = ("k_pow_f32", "k_fmod_f32", "k_floormod_f32", "k_fmax_f32", "k_fmin_f32")


@pytest.fixture(scope="module", params=["", "-DATC_SOFT_SQRT"], ids=["hard", "soft"])
def library(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("scalar")
    for source, name in (("scalar", "simd"), ("math", "simd_math"),
                         ("scalar_math", "simd_scalar_math")):  # fmt: skip
        (folder / f"{name}.h").write_text((FOLDER / f"{source}.h").read_text())
    lines = ['#include "simd_scalar_math.h"']
    for name in UNARY:
        lines.append(f"void all_{name}(const float *x, float *y, int n);\nvoid all_{name}(const "
                     "float *x, float *y, int n) { for (int i = 0; i < n; i++) "
                     f"y[i] = {name}(x[i]); }}")  # fmt: skip
    for name in BINARY:
        lines.append(f"void all_{name}(const float *a, const float *b, float *y, int n);\n"
                     f"void all_{name}(const float *a, const float *b, float *y, int n) {{ for "
                     f"(int i = 0; i < n; i++) y[i] = {name}(a[i], b[i]); }}")  # fmt: skip
    lines.append("float sum(const float *x, int n);\nfloat sum(const float *x, int n) { float s = "
                 "0, lost = 0; for (int i = 0; i < n; i++) k_add_f32(&s, &lost, x[i]); "
                 "return s; }")  # fmt: skip
    (folder / "all.c").write_text("\n".join(lines) + "\n")
    flags = [*STRICT, "-fno-math-errno", *filter(None, [request.param]), "-fPIC", "-shared"]
    subprocess.run([require("gcc"), *flags, "all.c", "-o", "all.so"], cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "all.so"))


def run(library: ctypes.CDLL, name: str, *operands: Array) -> Array:
    y = np.empty(len(operands[0]), np.float32)
    pointers = [np.ascontiguousarray(x, np.float32) for x in operands]
    getattr(library, f"all_{name}")(*(p.ctypes.data_as(ctypes.c_void_p) for p in (*pointers, y)),
                                    ctypes.c_int(len(y)))  # fmt: skip
    return y


def everywhere() -> Array:
    words = np.arange(0, 2**32, 2**32 // 200_000, dtype=np.uint64).astype(np.uint32)
    ends = np.array([0.0, -0.0, 1, -1, math.inf, -math.inf, math.nan], np.float32)
    x: Array = np.r_[words.view(np.float32), np.linspace(-4, 4, 99991, dtype=np.float32), ends]
    return x


@pytest.mark.parametrize("name", UNARY)
def test_functions_err_as_little_as_they_say(library: ctypes.CDLL, name: str) -> None:
    truth, most = UNARY[name]
    x = everywhere()
    y = run(library, name, x)
    with np.errstate(all="ignore"):
        expected = truth(x.astype(np.float64))
    error = ulp_error(y, expected)
    assert error.max() <= most, x[error.argmax()]
    assert (np.signbit(y) == np.signbit(expected))[~np.isnan(expected)].all()


def pairs() -> tuple[Array, Array]:
    rng = np.random.default_rng(5)
    words = rng.integers(0, 2**32, (2, 60000), dtype=np.uint64).astype(np.uint32).view(np.float32)
    near = 1 + rng.uniform(-1, 1, 60000) * 2.0 ** rng.integers(-23, 0, 60000)
    small = rng.integers(-9, 10, (2, 20000)) / 2
    ends = np.array([0.0, -0.0, 1, -1, 0.5, -2, 3, -3, 1e-41, 3e38, math.inf, -math.inf, math.nan])
    a, b = (m.ravel() for m in np.meshgrid(ends, ends))
    powers = rng.standard_normal(60000) * 2.0 ** rng.integers(0, 30, 60000)
    x = np.r_[words[0], near, small[0], a].astype(np.float32)
    y = np.r_[words[1], powers, small[1], b].astype(np.float32)
    return x, y


def test_powers(library: ctypes.CDLL) -> None:
    x, y = pairs()
    result = run(library, "k_pow_f32", x, y)
    with np.errstate(all="ignore"):
        truth = np.power(x.astype(np.float64), y.astype(np.float64))
    error = ulp_error(result, truth)
    assert error.max() <= 1.1, (x[error.argmax()], y[error.argmax()])
    assert (np.signbit(result) == np.signbit(truth))[~np.isnan(truth)].all()


@pytest.mark.parametrize(
    ("name", "truth"),
    [("k_fmod_f32", np.fmod), ("k_floormod_f32", np.mod), ("k_fmax_f32", np.fmax),
     ("k_fmin_f32", np.fmin)],
)  # fmt: skip
def test_functions_of_two_are_exact(
    library: ctypes.CDLL, name: str, truth: Callable[[Array, Array], Array]
) -> None:
    x, y = pairs()
    finite = np.isfinite(y) | (name != "k_floormod_f32")  # there numpy has another opinion
    x, y = x[finite], y[finite]
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(run(library, name, x, y), truth(x, y))


def test_sums_keep_what_rounding_loses(library: ctypes.CDLL) -> None:
    library.sum.restype = ctypes.c_float
    values = np.r_[np.float32(1e8), np.full(10000, 0.3, np.float32)]
    total = library.sum(values.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(len(values)))
    assert total == np.float32(values.astype(np.float64).sum())
    assert np.cumsum(values, dtype=np.float32)[-1] != total  # as a plain sum would be
    ends = np.array([1, math.inf, 2], np.float32)
    assert library.sum(ends.ctypes.data_as(ctypes.c_void_p), ctypes.c_int(3)) == math.inf


def test_every_function_that_takes_anothers_place_is_defined() -> None:
    text = "".join((FOLDER / f"{h}.h").read_text() for h in ("scalar", "math", "scalar_math"))
    for name in OWN.values():
        assert f" {name}(" in text
    assert (FOLDER / "scalar_math.h").read_text().count("double") == 1  # that it needs none
