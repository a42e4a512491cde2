"""TopK and running sums against numpy."""

from __future__ import annotations

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import Array, DType
from support import NUMBERS, Batch, assert_close, node_model, random_array, run_model

ORDERED = [d for d in NUMBERS if d is not DType.BOOL]


def test_an_axis_that_only_the_run_knows() -> None:
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    model = node_model("CumSum", [x, np.array(0)], constant=[])
    for axis in (0, 1, -1):
        assert_close(run_model(model, [x, np.array(axis)]), [np.cumsum(x, axis)])


# ---- TopK ---------------------------------------------------------------------------------------


def ordered(x: Array, k: int, axis: int, largest: bool) -> list[Array]:
    """The first k of a stable sort; equals keep their order."""
    key = x.astype(object) if x.dtype.kind in "ui" else x.astype(np.float64)
    order = np.argsort(-key if largest else key, axis=axis, kind="stable")
    order = np.take(order, np.arange(k), axis)
    return [np.take_along_axis(x, order, axis), order.astype(np.int64)]


SHAPES = [((7,), 0), ((3, 8), 1), ((8, 3), 0), ((2, 9, 3), -2)]


@pytest.fixture(scope="module")
def tops() -> Batch:
    return Batch({
        f"{shape} {k} {largest}": node_model(
            "TopK", [np.zeros(shape, np.int16), np.array([k])], 2, axis=axis, largest=largest
        )
        for shape, axis in SHAPES
        for k in range(1, shape[axis] + 1)
        for largest in (0, 1)
    })  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_top_k_of_every_k(shape: tuple[int, ...], axis: int, largest: int, tops: Batch) -> None:
    x = np.random.default_rng(1).integers(0, 5, shape).astype(np.int16)  # many equals
    for k in range(1, shape[axis] + 1):
        got = tops[f"{shape} {k} {largest}"]([x])
        assert_close(got, ordered(x, k, axis, bool(largest)))


@pytest.fixture(scope="module")
def tops_of_dtypes() -> Batch:
    return Batch({
        d.label: node_model("TopK", [random_array(d, (4, 9)), np.array([5])], 2)
        for d in ORDERED
    })  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", ORDERED, ids=lambda d: d.label)
def test_top_k_of_every_type(dtype: DType, tops_of_dtypes: Batch) -> None:
    x = random_array(dtype, (4, 9), 2)
    got = tops_of_dtypes[dtype.label]([x])
    assert_close(got, ordered(x, 5, 1, True), rtol=0, atol=0)


@pytest.mark.parametrize("largest", [0, 1])
def test_nan_is_the_largest(largest: int) -> None:
    x = np.array([1, np.nan, -np.inf, np.inf, np.nan, 0], np.float32)
    model = node_model("TopK", [x, np.array([6])], 2, largest=largest)
    order = [1, 4, 3, 0, 5, 2] if largest else [2, 5, 0, 3, 1, 4]
    assert_close(run_model(model, [x]), [x[order], np.array(order)])


def test_extremes_of_unsigned_64_bits() -> None:
    x = np.array([2**63, 1, 2**64 - 1, 2**53, 2**53 + 1], np.uint64)
    model = node_model("TopK", [x, np.array([5])], 2)
    order = [2, 0, 4, 3, 1]
    assert_close(run_model(model, [x]), [x[order], np.array(order)])


@pytest.mark.parametrize("opset", [1, 9])
def test_k_was_an_attribute(opset: int) -> None:
    x = random_array(DType.FLOAT, (2, 5))
    assert_close(
        run_model(node_model("TopK", [x], 2, opset=opset, k=3), [x]), ordered(x, 3, 1, True)
    )


def test_none_of_them() -> None:
    x = random_array(DType.FLOAT, (2, 5))
    values, indices = run_model(node_model("TopK", [x, np.array([0])], 2), [x])
    assert values.shape == indices.shape == (2, 0)


@pytest.mark.parametrize("k", [6, -1])
def test_k_must_fit(k: int) -> None:
    x = np.zeros((2, 5), np.float32)
    with pytest.raises(ModelError, match="TopK"):
        run_model(node_model("TopK", [x, np.array([k])], 2), [x])


# ---- running sums -------------------------------------------------------------------------------


def running(x: Array, axis: int, exclusive: int, reverse: int, how: str) -> Array:
    steps = np.flip(x, axis) if reverse else x
    function = np.cumsum if how == "CumSum" else np.cumprod
    total = function(steps, axis, dtype=x.dtype)
    if exclusive:
        shifted = np.full_like(total, 0 if how == "CumSum" else 1)
        last = x.shape[axis]
        inner = [slice(None)] * x.ndim
        inner[axis] = slice(1, None)
        shifted[tuple(inner)] = np.take(total, range(last - 1), axis)
        total = shifted
    return np.flip(total, axis) if reverse else total


SUMMED = [d for d in NUMBERS if not d.is_half and d is not DType.BOOL]
WAYS = [
    (how, axis, exclusive, reverse)
    for how in ("CumSum", "CumProd")
    for axis in (0, 1, -1)
    for exclusive in (0, 1)
    for reverse in (0, 1)
]


@pytest.fixture(scope="module")
def sums() -> Batch:
    x = np.zeros((2, 3, 4), np.int64)
    return Batch({
        f"{how} {axis} {exclusive} {reverse}": node_model(
            how, [x, np.array(axis)], opset=26, exclusive=exclusive, reverse=reverse
        )
        for how, axis, exclusive, reverse in WAYS
    })  # fmt: skip


@pytest.mark.few(8)
@pytest.mark.parametrize(("how", "axis", "exclusive", "reverse"), WAYS)
def test_running(how: str, axis: int, exclusive: int, reverse: int, sums: Batch) -> None:
    x = random_array(DType.INT64, (2, 3, 4))
    got = sums[f"{how} {axis} {exclusive} {reverse}"]([x])
    assert_close(got, [running(x, axis, exclusive, reverse, how)])


@pytest.fixture(scope="module")
def sums_of_dtypes() -> Batch:
    return Batch({
        d.label: node_model("CumSum", [random_array(d, (3, 40)), np.array([1])])
        for d in NUMBERS
        if d is not DType.BOOL
    })  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", SUMMED, ids=lambda d: d.label)
def test_running_sum_of_every_type(dtype: DType, sums_of_dtypes: Batch) -> None:
    x = random_array(dtype, (3, 40), 4)
    got = sums_of_dtypes[dtype.label]([x])
    assert_close(got, [np.cumsum(x, 1, dtype=x.dtype)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [d for d in DType if d.is_half], ids=lambda d: d.label)
def test_halves_are_summed_in_float(dtype: DType, sums_of_dtypes: Batch) -> None:
    x = random_array(dtype, (3, 40), 4)
    expected = np.cumsum(x.astype(np.float32), 1).astype(dtype.numpy)
    assert_close(sums_of_dtypes[dtype.label]([x]), [expected], rtol=1e-3, atol=1e-3)


def test_running_sum_of_nothing() -> None:
    x = np.zeros((2, 0), np.float32)
    assert run_model(node_model("CumSum", [x, np.array([1])]), [x])[0].shape == (2, 0)
