"""The functions of simd_math.h, with each vector table, against float64."""

from __future__ import annotations

import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from simd_program import (
    CASES,
    FOLDER,
    Array,
    Inputs,
    Op,
    Program,
    build,
    defined_names,
    flushed,
    ulp_error,
)

SOURCES = Path(__file__).parents[2] / "templates" / "simd"

Doubles = NDArray[np.float64]


def sigmoid(x: Doubles) -> Doubles:
    z = np.exp(-np.abs(x))
    y: Doubles = np.where(x < 0, z, 1) / (1 + z)
    return y


def silu(x: Doubles) -> Doubles:
    held = np.maximum(x, -800)
    return held * sigmoid(held)


def mish(x: Doubles) -> Doubles:
    held = np.maximum(x, -800)
    e = np.exp(np.minimum(held, 40))
    y: Doubles = held * (e * (e + 2) / (e * (e + 2) + 2))
    return y


def hardswish(x: Doubles) -> Doubles:
    held = np.maximum(x, -3)
    y: Doubles = held * np.minimum(held + 3, 6) / 6
    return y


def gelu(x: Doubles) -> Doubles:
    held = np.maximum(x, -40)
    y: Doubles = 0.5 * held * np.vectorize(math.erfc)(-held / math.sqrt(2))
    return y


def softplus(x: Doubles) -> Doubles:
    y: Doubles = np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))
    return y


MATH: dict[str, Callable[[Doubles], Doubles]] = {
    "v_exp": np.exp, "v_expm1": np.expm1, "v_log": np.log, "v_log1p": np.log1p,
    "v_sigmoid": sigmoid, "v_silu": silu, "v_softplus": softplus, "v_mish": mish,
    "v_hardswish": hardswish, "v_tanh": np.tanh, "v_erf": np.vectorize(math.erf), "v_gelu": gelu,
    "v_sin": np.sin, "v_cos": np.cos,
}  # fmt: skip
ODD = ("v_expm1", "v_log1p", "v_tanh", "v_erf", "v_sin", "v_silu", "v_gelu", "v_mish")
"""Functions that keep the sign of zero."""

LIMITS = np.resize(np.array([0.0, -0.0, -1, 1, -math.inf, math.inf, math.nan], np.float32), 16)


@cache
def all_over() -> Array:
    """A million floats: every exponent and sign, NaN, and the ordinary range more densely."""
    words = np.arange(0, 2**32, 2**32 // 600_000, dtype=np.uint64).astype(np.uint32)
    dense = np.linspace(-110, 110, 2**20 - len(words) - len(LIMITS), dtype=np.float32)
    x: Array = np.r_[words.view(np.float32), dense, LIMITS]
    return x


@cache
def true_math(name: str) -> Doubles:
    """Return the function at all_over()."""
    with np.errstate(all="ignore"):
        return MATH[name](all_over().astype(np.float64))


@cache
def inputs() -> Inputs:
    return (all_over(),) * 3


def exact(name: str) -> str:
    """Return the name of a function of simd_exact.h."""
    return name.replace("v_", "v_exact_")


OPS = [
    Op(called, "{a}", truth, "f32", inputs)
    for name, truth in MATH.items() for called in (name, exact(name))
]  # fmt: skip


def rounded(dtype: type) -> Callable[[Array], Array]:
    def round_to(x: Array) -> Array:
        with np.errstate(over="ignore", invalid="ignore"):
            return x.astype(dtype).astype(np.float32)

    return round_to


ROUND = [
    Op("v_round_bf16", "{a}", rounded(ml_dtypes.bfloat16), "f32", inputs),
    Op("stored_bf16", "{a}", rounded(ml_dtypes.bfloat16), "f32", inputs),
    Op("v_round_f16", "{a}", rounded(np.float16), "f32", inputs),
    Op("stored_f16", "{a}", rounded(np.float16), "f32", inputs),
]


NEARLY = [
    Op("v_gelu_near", "{a}", gelu, "f32", inputs), Op("v_silu_near", "{a}", silu, "f32", inputs),
]  # fmt: skip
"""Functions whose results are rounded to float16 next."""


BY_TABLES = {"v_gelu": (-4.0, 5e-11)}
"""Errors that functions looked up in tables may have below a number, whatever they are in ulp."""


HUGE, INF, NAN = 3e38, math.inf, math.nan
ROWS = [(1e8, 3, 3), (-1e8, -3, -3), (HUGE, HUGE, 1), (-HUGE, -HUGE, 1), (INF, 1, 1), (1, -INF, 1),
        (1, 1, INF), (INF, -INF, 1), (NAN, 1, 1), (1, 1, NAN)]  # fmt: skip
TOTALS = [100000008, -100000008, INF, -INF, INF, -INF, INF, NAN, NAN, NAN]
"""Of parts of sums: the first two lose what is added where nothing is carried."""


def parts() -> Inputs:
    a, b, c = np.resize(np.array(ROWS, np.float32), (32, 3)).T.copy()
    return a, b, c


SUM = Op("sum_of_parts", "{a}, {b}, {c}", np.add, "f32", parts)


@pytest.fixture(scope="module", params=CASES)
def program(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Program:
    return build(request.param, [*OPS, *ROUND, *NEARLY, SUM], tmp_path_factory.mktemp("simd"))


@pytest.mark.few(1)
@pytest.mark.parametrize("op", ROUND, ids=str)
def test_rounding_to_16_bits(program: Program, op: Op) -> None:
    x = inputs()
    y, truth = program.run(op.name, x), op.truth(x[0])
    if op.name == "stored_bf16" and "avx512_bf16" in program.table.features:
        least = np.finfo(np.float32).smallest_normal  # the instruction takes no denormals
        truth = np.where(np.abs(x[0]) < least, np.copysign(np.float32(0), x[0]), truth)
    np.testing.assert_array_equal(y, truth)
    signless = program.table.machine in ("arm", "riscv64")  # where a NaN of a sum has no sign
    signed = ~np.isnan(truth) | (not signless)
    np.testing.assert_array_equal(np.signbit(y[signed]), np.signbit(truth[signed]))


@pytest.mark.few(1)
@pytest.mark.parametrize("op", NEARLY, ids=str)
def test_what_is_rounded_to_float16_next_is_the_nearest(program: Program, op: Op) -> None:
    """But for few of all float16, whose results are near the middle between two."""
    x = np.resize(np.arange(1 << 16, dtype=np.uint16).view(np.float16), len(all_over()))
    y = program.run(op.name, (x.astype(np.float32),) * 3)[: 1 << 16].astype(np.float16)
    with np.errstate(all="ignore"):
        nearest = op.truth(x[: 1 << 16].astype(np.float64)).astype(np.float16)
    steps = np.abs(y.view(np.int16).astype(int) - nearest.view(np.int16))[~np.isnan(nearest)]
    np.testing.assert_array_equal(np.isnan(y), np.isnan(nearest))
    np.testing.assert_array_equal(np.signbit(y[~np.isnan(y)]), np.signbit(nearest[~np.isnan(y)]))
    assert steps.max() <= 1
    assert (steps != 0).mean() < 0.01


def test_math_is_written_in_the_vocabulary_alone() -> None:
    text = (FOLDER / "math.h").read_text()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    used = set(re.findall(r"\b([A-Za-z_]\w*)\(", text))
    used -= {"if", "for", "defined", "volatile", "fabsf", "memcpy", "UINT64_C"}
    assert used <= defined_names("scalar.h") | defined_names("math.h")


def test_every_function_is_tested() -> None:
    text = (FOLDER / "math.h").read_text()
    names = set(re.findall(r"^static inline vf32 (v_\w+)\(vf32 x\)", text, re.MULTILINE))
    assert names == {*MATH, *(op.name for op in NEARLY)}


@pytest.mark.slow
def test_coefficients_are_the_fitted_ones() -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, str(SOURCES / "fit.py")]
    fitted = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    for line in fitted.splitlines():
        if line.startswith("pieces"):
            continue  # what one coefficient rounds off moves the others: see the next test
        headers = ("math.h", "scalar_math.h") if line.endswith("f") else ("exact.h",)
        text = "".join((FOLDER / header).read_text() for header in headers)
        literals = re.findall(r"-?\d\.\d+(?:e-\d+)?", text.replace("- 0.", "+ -0."))
        written = np.array(literals, dtype=float)
        for text in re.findall(r"(-?[\d.]+(?:e-\d+)?)(?:f|,|$)", line):
            # Another linear algebra library rounds differently; high coefficients move most.
            assert np.isclose(written, float(text), rtol=1e-3, atol=0).any(), (line, text)


PIECES = {"v_tanh": (np.tanh, 1), "v_erf": (np.vectorize(math.erf), 1), "v_gelu": (gelu, -1)}
"""Functions whose coefficients are looked up, of a or of -a."""


@pytest.mark.parametrize("name", PIECES)
def test_pieces_fit(name: str) -> None:
    """Each polynomial around its multiple of the width: 4e-7 of the result, or of 1e-3."""
    text = (FOLDER / "math.h").read_text().split(f"static inline vf32 {name}(vf32 x)")[1]
    text = text.split("\n}\n")[0]
    truth, sign = PIECES[name]
    widths = re.findall(r"float width = ([\d.]+)f;", text)
    tables = re.findall(r"pieces\[(\d+)\]\[(\d+)\] = \{(.*?)\};", text, re.DOTALL)
    assert len(widths) == len(tables) >= 1
    for width, (rows, count, numbers) in zip(map(float, widths), tables, strict=True):
        found = [float(n) for n in re.findall(r"-?[\d.]+(?:e-\d+)?(?=f)", numbers)]
        table = np.array(found).reshape(int(rows), int(count))
        for k, own in enumerate(table.T):
            r = np.linspace(0 if k == 0 else -width / 2, width / 2, 301)
            want = truth(sign * (k * width + r))
            error = np.abs(np.polyval(own[::-1], r) - want)
            assert (error <= 4e-7 * np.maximum(np.abs(want), 1e-3)).all(), (width, k)


def errors(program: Program, called: str, name: str, x: Array, stride: int) -> Array:
    """Return the errors in ulp of a function at some of all_over().

    Where denormals are flushed those of operands do not count, nor do a few in a result.
    """
    y, known = program.run(called, (x, x, x)), true_math(name)[::stride]
    error = ulp_error(y, known)
    if called in BY_TABLES and program.table.name in ("avx2", "avx512"):
        below, least = BY_TABLES[called]
        error = np.where((x < below) & (np.abs(y - known) <= least), 0, error)
    if not program.table.flushes:
        return error
    with np.errstate(invalid="ignore"):
        small = (flushed(x) != x) & ~np.isnan(x) | (np.abs(y - known) <= 2.0**-123)
    return np.where(small, 0, error)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", MATH)
def test_error_is_at_most_4_ulp(program: Program, name: str) -> None:
    stride = 8 if program.emulated else 1
    x = all_over()[::stride]
    error = errors(program, name, name, x, stride)
    worst = int(error.argmax())
    assert error[worst] <= 4, x[worst]


@pytest.mark.few(4)
@pytest.mark.parametrize("name", MATH)
def test_exact_ones_are_rounded_once(program: Program, name: str) -> None:
    stride = 8 if program.emulated else 1
    x = all_over()[::stride]
    error = errors(program, exact(name), name, x, stride)
    worst = int(np.where(np.abs(x) > 8192, 0, error).argmax())
    assert error[worst] <= 0.51, x[worst]
    assert error.max() <= 1  # libm's sine of large arguments


def test_what_a_part_of_a_sum_loses_is_carried(program: Program) -> None:
    np.testing.assert_array_equal(program.run(SUM.name, parts())[: len(TOTALS)], TOTALS)


def test_the_exact_functions_take_the_names_of_all() -> None:
    text = (FOLDER / "exact.h").read_text()
    names = set(re.findall(r"^#define (v_\w+) v_exact_\w+$", text, re.MULTILINE))
    assert names == {*MATH, "v_f16_erf", *(op.name for op in NEARLY)}


@pytest.mark.parametrize("called", [str, exact])
@pytest.mark.parametrize("name", MATH)
def test_limits(program: Program, name: str, called: Callable[[str], str]) -> None:
    y = program.run(called(name), (LIMITS, LIMITS, LIMITS))
    with np.errstate(all="ignore"):
        truth = MATH[name](LIMITS.astype(np.float64)).astype(np.float32)
    np.testing.assert_allclose(y, truth, rtol=1e-6)
    if name in ODD:
        np.testing.assert_array_equal(np.signbit(y[:2]), [False, True])
