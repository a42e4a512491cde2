"""Quantised, comparing and mixed modes, and conversions between element types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Quant, assert_close, build, check, load, run
from importers.megengine_truth import TRUTH, half_away, operands
from importers.megengine_writer import write_v2

from atc.importers.megengine.modes import MODES
from atc.importers.megengine.schema import PARAM_TABLES
from atc.importers.megengine.types import DType

MULTI = PARAM_TABLES[18][1][0].names
QUANTIZED = [name for name in MULTI if name.startswith("Q")]


@pytest.mark.few(40)
@pytest.mark.parametrize("kind", ["QuantizedS8", "Quantized8Asymm"])
@pytest.mark.parametrize("mode", QUANTIZED)
def test_quantized_mode(mode: str, kind: str, tmp_path: Path) -> None:
    base = mode[1:]
    zero = 120 if kind == "Quantized8Asymm" else 0
    types = [DType(kind, 0.0173 * (1 + 0.31 * i), zero) for i in range(MODES[base][0])]
    reals = operands(base, len(types), 3)
    positive = base in ("MOD", "FLOOR_DIV", "TRUE_DIV", "POW")
    reals = [np.abs(x) + 0.3 if positive else x for x in reals]
    stored = [quantized(x, t) for x, t in zip(reals, types, strict=True)]
    out = DType(kind, 0.0211, zero)
    values = [real(q, t) for q, t in zip(stored, types, strict=True)]
    with np.errstate(all="ignore"):
        truth = TRUTH[base](*values)
    inputs = [Quant(q, t) for q, t in zip(stored, types, strict=True)]
    params = {"ElemwiseMultiType": {"mode": mode}}
    case = Case("ElemwiseMultiType", inputs, params, lambda *qs: qs[0], output_dtype=out)
    dump, feeds, _ = build(case)
    result = run(load(write_v2(dump), tmp_path), feeds)[0].astype(np.int64)
    sure = np.isfinite(truth) & (np.abs(np.abs(truth / out.scale % 1) - 0.5) > 1e-3)
    sure &= ~near_step(base, values)
    assert sure.mean() > 0.5
    np.testing.assert_array_equal(result[sure], quantized(truth, out).astype(np.int64)[sure])


def near_step(base: str, values: list[np.ndarray]) -> np.ndarray:
    """Find operands where a function jumps, so that a rounding error decides."""
    steps = {"CEIL": 0, "FLOOR": 0, "ROUND": 1}
    if base in ("MOD", "FLOOR_DIV"):
        quotient = values[0] / values[1]
        return np.asarray(np.abs(quotient - np.round(quotient)) < 1e-4)
    if base in steps:
        shifted = values[0] + 0.5 * steps[base]
        return np.asarray(np.abs(shifted - np.round(shifted)) < 1e-4)
    return np.zeros(values[0].shape, bool)


def quantized(values: np.ndarray, dtype: DType) -> np.ndarray:
    with np.errstate(invalid="ignore"):
        rounded = half_away(values / dtype.scale) + dtype.zero_point
        return np.clip(rounded, *dtype.limits).astype(dtype.numpy)


def real(stored: np.ndarray, dtype: DType) -> np.ndarray:
    return (stored.astype(np.float64) - dtype.zero_point) * dtype.scale


@pytest.mark.parametrize("mode", ["EQ", "NEQ", "LT", "LEQ", "ISNAN", "ISINF"])
def test_comparison_gives_booleans(mode: str, tmp_path: Path) -> None:
    xs = operands(mode, MODES[mode][0])
    case = Case("ElemwiseMultiType", xs, {"ElemwiseMultiType": {"mode": mode}}, TRUTH[mode])
    dump, feeds, _ = build(case)
    result = run(load(write_v2(dump), tmp_path), feeds)[0]
    assert result.dtype == bool
    np.testing.assert_array_equal(result, TRUTH[mode](*xs))


def saturate(x: np.ndarray, low: int = -128, high: int = 127) -> np.ndarray:
    return np.clip(x, low, high)


def rounding_shift(x: np.ndarray, shift: int) -> np.ndarray:
    return half_away(x.astype(np.float64) / 2.0**shift)


RNG = np.random.default_rng(4)
SHORT = RNG.integers(-90, 90, (2, 4, 5)).astype(np.int16)
COLUMN = [RNG.integers(-99, 99, (1, 4, 1)).astype(np.int32) for _ in range(2)]
REAL = [RNG.uniform(-2, 2, (1, 4, 1)).astype(np.float32) for _ in range(2)]
WIDE = RNG.integers(-70000, 70000, (3, 7)).astype(np.int32)
BYTES = [np.array([n], np.int8) for n in (5, -100, 90)]


def multiply_shift(x, bias, factor, shift, low, high):
    bits = 8 * x.dtype.itemsize
    product = (x.astype(object) + bias) * factor
    high_half = np.vectorize(lambda p: (int(p) + (1 << (bits - 2))) >> (bits - 1))(product)
    return np.clip(saturate(rounding_shift(high_half, int(shift[0]))), low, high)


MIXED = [
    ("FUSE_MUL_ADD3_INT16x32x32x32", [SHORT, *COLUMN], lambda x, y, z: x * y + z),
    ("FUSE_MUL_ADD3_IXxF32xF32xI8", [SHORT, *REAL], lambda x, y, z: saturate(np.rint(x * y + z))),
    ("FUSE_MUL_ADD3_INT16xF32xF32xF32", [SHORT, *REAL], lambda x, y, z: x * y + z),
    (
        "FUSE_MUL_ADD3_UINT8xF32xF32xF32",
        [np.abs(SHORT).astype(np.uint8), *REAL],
        lambda x, y, z: x * y + z,
    ),
    ("MUL_INT16xF32xF32", [SHORT, REAL[0]], lambda x, y: x * y),
    ("ROUND_SHR_SATURATE_IXxI8xI8", [WIDE, BYTES[0]], lambda x, s: saturate(rounding_shift(x, 5))),
    (
        "ROUND_SHR_SATURATE_IXxI8xI16",
        [WIDE, np.array([1], np.int8)],
        lambda x, s: saturate(rounding_shift(x, 1), -(2**15), 2**15 - 1),
    ),
    (
        "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT16x16x16x8",
        [SHORT * 30, COLUMN[0].astype(np.int16), np.array([9999], np.int16), *BYTES],
        multiply_shift,
    ),
    (
        "FUSE_ADD_RMULH_ROUND_SHR_SATURATE_INT32x32x32x8",
        [WIDE, WIDE[:, :1].copy(), np.array([2**27 + 1], np.int32), *BYTES],
        multiply_shift,
    ),
]


@pytest.mark.parametrize(("mode", "xs", "truth"), MIXED, ids=[case[0] for case in MIXED])
def test_mixed_mode(mode: str, xs: list[np.ndarray], truth, tmp_path: Path) -> None:
    check(Case("ElemwiseMultiType", xs, {"ElemwiseMultiType": {"mode": mode}}, truth), tmp_path)


def test_every_multi_type_mode_is_tested() -> None:
    compared = {"EQ", "NEQ", "LT", "LEQ", "ISNAN", "ISINF"}
    assert {case[0] for case in MIXED} | set(QUANTIZED) | compared == set(MULTI)


TYPES = {
    "s8": DType("QuantizedS8", 0.0251),
    "u8": DType("Quantized8Asymm", 0.0317, 110),
    "s32": DType("QuantizedS32", 0.00011),
    "s16": DType("QuantizedS16", 0.0007),
}


@pytest.mark.parametrize("target", sorted(TYPES))
@pytest.mark.parametrize("source", ["float", *sorted(TYPES)])
def test_quantized_conversion(source: str, target: str, tmp_path: Path) -> None:
    line = np.linspace(-4.7, 4.3, 77).astype(np.float32)
    out = TYPES[target]
    if source == "float":
        operand, values = line, line.astype(np.float64)
    else:
        stored = quantized(line, TYPES[source])
        operand, values = Quant(stored, TYPES[source]), real(stored, TYPES[source])
    case = Case("TypeCvt", [operand], {"DType": {"dtype": out}}, lambda x: x)
    dump, feeds, _ = build(case)
    result = run(load(write_v2(dump), tmp_path), feeds)[0].astype(np.int64)
    truth = quantized(values, out).astype(np.int64)
    sure = np.abs(np.abs(values / out.scale % 1) - 0.5) > 1e-2
    assert np.abs(result - truth).max() <= 1
    np.testing.assert_array_equal(result[sure], truth[sure])


@pytest.mark.parametrize("name", ["Float16", "Int32", "Int16", "Int8", "Uint8", "Bool"])
def test_plain_conversion(name: str, tmp_path: Path) -> None:
    x = np.array([0, 0.4, 1.9, 100.7, 3], np.float32)
    out = DType(name)
    truth = lambda x: x.astype(out.numpy)  # noqa: E731
    check(Case("TypeCvt", [x], {"DType": {"dtype": out}}, truth, tolerance=1e-3), tmp_path)


def test_dequantization_subtracts_the_zero_point(tmp_path: Path) -> None:
    stored = np.arange(0, 256, 17).astype(np.uint8)
    quant = Quant(stored, DType("Quantized8Asymm", 0.5, 100))
    truth = lambda q: (q.astype(np.float64) - 100) * 0.5  # noqa: E731
    check(Case("TypeCvt", [quant], {"DType": {"dtype": DType("Float32")}}, truth), tmp_path)


X = np.linspace(-3.1, 2.9, 40).astype(np.float32)


SCALAR = [
    Case("PowC", [np.abs(X)], {"PowC": {"exp": 2.5}}, lambda x: x**2.5),
    Case(
        "FakeQuant",
        [X, np.array([0.021], np.float32), np.array([3], np.float32)],
        {"FakeQuant": {"qmin": -128, "qmax": 127}},
        lambda x, s, z: (np.clip(half_away(x / s) + z, -128, 127) - z) * s,
    ),
    Case(
        "TQT",
        [X, np.array([-5], np.float32)],
        {"TQT": {"qmin": -64, "qmax": 63}},
        lambda x, e: np.clip(half_away(x * 32), -64, 63) / 32,
    ),
    Case(
        "LSQ",
        [
            X,
            np.array([0.021], np.float32),
            np.array([2], np.float32),
            np.array([1], np.float32),
        ],
        {"LSQ": {"qmin": -128, "qmax": 127}},
        lambda x, s, z, g: (half_away(np.clip(x / s + z, -128, 127)) - z) * s,
    ),
]


@pytest.mark.parametrize("case", SCALAR, ids=str)
def test_scalar_operator(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_quantized_sum_of_two_layers_stays_integer(tmp_path: Path) -> None:
    dtype = DType("QuantizedS32", 1e-4)
    xs = [Quant(np.array([70000, -3], np.int32), dtype), Quant(np.array([5, 9], np.int32), dtype)]
    case = Case("Elemwise", xs, {"Elemwise": {"mode": "ADD"}}, np.add)
    dump, feeds, expected = build(case)
    assert_close(run(load(write_v2(dump), tmp_path), feeds)[0], expected[0], 0)
