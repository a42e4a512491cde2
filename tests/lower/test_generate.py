"""Operators that make values of positions against the standard's tests and numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError, UnsupportedError
from atc.ir.graph import Array, DType
from atc.lower.generate import MAX_STORED
from support import NUMBERS, Batch, assert_close, node_cases, node_model, random_array, run_model

OPERATORS = ["Range", "Trilu", "EyeLike", "OneHot"]
STANDARD = {name: (model, runs) for name, model, runs in node_cases(OPERATORS)}


@pytest.fixture(scope="module", params=[True, False], ids=["folded", "computed"])
def standard(request: pytest.FixtureRequest) -> Batch:
    return Batch({n: model for n, (model, _) in STANDARD.items()}, fold=request.param)


@pytest.mark.parametrize("name", STANDARD)
def test_standard(name: str, standard: Batch) -> None:
    for inputs, outputs in STANDARD[name][1]:
        assert_close(standard[name](inputs), outputs)


# ---- Range --------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [5, MAX_STORED + 3], ids=["stored", "computed"])
@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.DOUBLE, DType.INT32, DType.INT64])
def test_range(dtype: DType, length: int) -> None:
    given = [np.array(v, dtype.numpy) for v in (-7, -7 + 3 * length - 1, 3)]
    got = run_model(node_model("Range", given), [])
    assert_close(got, [(np.arange(length) * 3 - 7).astype(dtype.numpy)], rtol=0, atol=0)


@pytest.mark.parametrize(("first", "last", "step"), [(5, 0, -2), (0, 5, -1), (3, 3, 1)])
def test_range_backwards_and_empty(first: int, last: int, step: int) -> None:
    given = [np.array(v, np.int64) for v in (first, last, step)]
    assert_close(run_model(node_model("Range", given), []), [np.arange(first, last, step)])


def test_range_by_fractions() -> None:
    given = [np.array(v, np.float32) for v in (0.5, 2.0, 0.25)]
    expected = np.arange(0.5, 2.0, 0.25, np.float32)
    assert_close(run_model(node_model("Range", given), []), [expected])


def test_range_refuses_a_step_of_0() -> None:
    given = [np.array(v, np.int64) for v in (0, 5, 0)]
    with pytest.raises(ModelError, match="step"):
        run_model(node_model("Range", given), [])


def test_range_to_a_limit_of_run_time_is_refused() -> None:
    given = [np.array(v, np.int64) for v in (0, 5, 1)]
    with pytest.raises(UnsupportedError, match="limit"):
        run_model(node_model("Range", given, constant=[0, 2]), given[1:2])


# ---- Trilu, EyeLike -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def triangles() -> Batch:
    return Batch({
        f"{d.label} {upper}": node_model(
            "Trilu", [random_array(d, (2, 3, 4)), np.array(0)], upper=upper, constant=[]
        )
        for d in NUMBERS
        for upper in (0, 1)
    })  # fmt: skip


@pytest.mark.few(13)
@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.label)
@pytest.mark.parametrize("k", [-5, -1, 0, 2, 5])
def test_trilu_by_k_of_run_time(k: int, dtype: DType, triangles: Batch) -> None:
    x = random_array(dtype, (2, 3, 4))
    kept = np.tri(3, 4, k, dtype=np.bool_)
    lower = triangles[f"{dtype.label} 0"]([x, np.array(k)])
    assert lower[0].tobytes() == np.where(kept, x, np.zeros((), x.dtype)).tobytes()
    kept = ~np.tri(3, 4, k - 1, dtype=np.bool_)
    upper = triangles[f"{dtype.label} 1"]([x, np.array(k)])
    assert upper[0].tobytes() == np.where(kept, x, np.zeros((), x.dtype)).tobytes()


def test_trilu_of_no_matrix_is_refused() -> None:
    with pytest.raises(ModelError, match="Trilu"):
        run_model(node_model("Trilu", [np.zeros(3, np.float32)]), [np.zeros(3, np.float32)])


@pytest.mark.parametrize("shape", [(3, 5), (300, 301)], ids=["stored", "computed"])
@pytest.mark.parametrize("k", [0, 2, -1])
def test_eye_like(shape: tuple[int, int], k: int) -> None:
    x = np.zeros(shape, np.float32)
    got = run_model(node_model("EyeLike", [x], k=k, dtype=DType.INT8.code), [x])
    assert_close(got, [np.eye(*shape, k, dtype=np.int8)])


# ---- OneHot -------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("axis", [0, 1, -1, -2])
@pytest.mark.parametrize("dtype", [DType.INT32, DType.FLOAT, DType.UINT8], ids=lambda d: d.label)
def test_one_hot(dtype: DType, axis: int) -> None:
    indices = np.array([[0, 3, 2], [1, 7, 0]]).astype(dtype.numpy)  # 7 is none of the 4
    values = np.array([-1.5, 2.5], np.float32)
    model = node_model("OneHot", [indices, np.array(4), values], axis=axis)
    hot = np.where(indices.astype(int)[..., None] == np.arange(4), values[1], values[0])
    expected = np.moveaxis(hot, -1, axis)
    assert_close(run_model(model, [indices, values]), [expected])


def test_one_hot_of_negative_indices() -> None:
    indices, values = np.array([-1, -4, -5]), np.array([0, 1])
    model = node_model("OneHot", [indices, np.array([4]), values])
    expected = np.array([[0, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert_close(run_model(model, [indices, values]), [expected])


@pytest.mark.parametrize(
    ("depth", "values"), [(-1, np.zeros(2, np.float32)), (3, np.zeros(3, np.float32))]
)
def test_one_hot_refuses_nonsense(depth: int, values: Array) -> None:
    indices = np.array([0, 1])
    with pytest.raises(ModelError, match="OneHot"):
        run_model(node_model("OneHot", [indices, np.array(depth), values]), [indices, values])


@pytest.fixture(scope="module")
def hot_of_dtypes() -> Batch:
    indices = np.array([2, 0])
    return Batch({
        d.label: node_model("OneHot", [indices, np.array(3), random_array(d, (2,))])
        for d in NUMBERS
    })  # fmt: skip


@pytest.mark.parametrize("dtype", NUMBERS, ids=lambda d: d.label)
def test_one_hot_of_every_type(dtype: DType, hot_of_dtypes: Batch) -> None:
    indices, values = np.array([2, 0]), random_array(dtype, (2,), 3)
    (got,) = hot_of_dtypes[dtype.label]([indices, values])
    assert got.tobytes() == values[np.array([[0, 0, 1], [1, 0, 0]])].tobytes()


def test_one_hot_of_a_scalar() -> None:
    index, values = np.array(1), np.array([5, 6])
    model = node_model("OneHot", [index, np.array(3), values])
    assert_close(run_model(model, [index, values]), [np.array([5, 6, 5])])


def test_one_hot_of_nothing() -> None:
    indices, values = np.zeros((0, 2), np.int64), np.array([5, 6])
    model = node_model("OneHot", [indices, np.array(3), values], axis=0)
    assert run_model(model, [indices, values])[0].shape == (3, 0, 2)
