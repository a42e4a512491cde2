"""Elementwise modes of MegEngine dumps against numpy in double precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Const, build, check, load, run
from importers.megengine_truth import BOOLEAN, INTEGER, TRUTH, half_away, operands
from importers.megengine_writer import write_v2

from atc.importers.megengine.modes import MODES


def test_every_mode_has_a_truth() -> None:
    assert set(TRUTH) | set(INTEGER) | set(BOOLEAN) == set(MODES)


@pytest.mark.parametrize("mode", sorted(TRUTH))
def test_float_mode(mode: str, tmp_path: Path) -> None:
    xs = operands(mode, MODES[mode][0])
    truth = lambda *ys: TRUTH[mode](*(y.astype(np.float64) for y in ys))  # noqa: E731
    check(Case("Elemwise", xs, {"Elemwise": {"mode": mode}}, truth), tmp_path)


@pytest.mark.parametrize("mode", ["ADD", "POW", "FUSE_MUL_ADD3", "COND_LEQ_MOV", "ATAN2"])
def test_operands_broadcast(mode: str, tmp_path: Path) -> None:
    shapes = [(2, 3, 4), (4,), (3, 1)][: MODES[mode][0]]
    rng = np.random.default_rng(1)
    xs = [rng.uniform(0.1, 2, shape).astype(np.float32) for shape in shapes]
    check(Case("Elemwise", xs, {"Elemwise": {"mode": mode}}, TRUTH[mode]), tmp_path)


@pytest.mark.parametrize("value", [0.5, 1.5, 2.5, -0.5, -2.5, 0.49999997, 3.4999998])
def test_round_takes_ties_away_from_zero(value: float, tmp_path: Path) -> None:
    x = np.array([value], np.float32)
    check(Case("Elemwise", [x], {"Elemwise": {"mode": "ROUND"}}, half_away), tmp_path)


@pytest.mark.parametrize("value", [1e-7, -3e-6, 1e-3, 5.0, 60.0])
@pytest.mark.parametrize("mode", ["EXPM1", "LOG1P"])
def test_small_arguments_keep_their_precision(mode: str, value: float, tmp_path: Path) -> None:
    case = Case("Elemwise", [np.array([value], np.float32)], {"Elemwise": {"mode": mode}}, np.abs)
    dump, feeds, _ = build(case)
    result = run(load(write_v2(dump), tmp_path), feeds)[0]
    truth = TRUTH[mode](np.float64(np.float32(value)))
    np.testing.assert_allclose(result, [truth], rtol=2e-6)


@pytest.mark.parametrize("point", [(0, 1), (0, -1), (1, 0), (-1, 0), (-1, -1), (2, -3), (0, 0)])
def test_atan2_in_every_quadrant(point: tuple[int, int], tmp_path: Path) -> None:
    y, x = (np.array([n], np.float32) for n in point)
    check(Case("Elemwise", [y, x], {"Elemwise": {"mode": "ATAN2"}}, np.arctan2), tmp_path)


def test_atan2_of_one_is_a_single_node(tmp_path: Path) -> None:
    xs = [np.array([0.3], np.float32), Const(np.array([1], np.float32))]
    dump, _, _ = build(Case("Elemwise", xs, {"Elemwise": {"mode": "ATAN2"}}, np.arctan2))
    assert [node.op_type for node in load(write_v2(dump), tmp_path).graph] == ["Atan"]


@pytest.mark.parametrize("dtype", ["int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("mode", sorted({*INTEGER, "ADD", "MUL", "RELU", "MAX", "LT", "ABS"}))
def test_integer_mode(mode: str, dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    low, high = (0, 200) if dtype == "uint8" else (-100, 100)
    xs = [rng.integers(low, high, (4, 9)).astype(dtype) for _ in range(MODES[mode][0])]
    if mode in ("MOD", "FLOOR_DIV"):
        xs[1] = np.where(xs[1] == 0, np.array(3, dtype), xs[1])
    if mode in ("SHL", "SHR"):
        xs[1] = rng.integers(0, 4, (4, 9)).astype(dtype)
    with np.errstate(over="ignore"):
        truth = integer_truth(mode, xs).astype(dtype)
    check(Case("Elemwise", xs, {"Elemwise": {"mode": mode}}, lambda *_: truth), tmp_path)


def integer_truth(mode: str, xs: list[np.ndarray]) -> np.ndarray:
    if mode != "RMULH":
        return np.asarray((INTEGER.get(mode) or TRUTH[mode])(*xs))
    info = np.iinfo(xs[0].dtype)
    shift = info.bits - (info.min < 0)
    product = xs[0].astype(object) * xs[1].astype(object)
    return np.array([min((int(p) + (1 << (shift - 1))) >> shift, info.max) for p in product.flat]
                    ).reshape(xs[0].shape)  # fmt: skip


@pytest.mark.parametrize("mode", sorted(BOOLEAN))
def test_boolean_mode(mode: str, tmp_path: Path) -> None:
    pairs = np.array([[False, False, True, True], [False, True, False, True]])
    xs = [np.ascontiguousarray(x) for x in pairs[: MODES[mode][0]]]
    check(Case("Elemwise", xs, {"Elemwise": {"mode": mode}}, BOOLEAN[mode]), tmp_path)
