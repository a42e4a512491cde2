"""Maximum pooling with the places of the maxima: every target's vectors against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.conv.pool_places import PoolPlaces
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Pool, Window

SHAPE = (2, 3)
CASES = {  # sizes, kernel, strides, dilations, pads
    "3x3/2": ((9, 40), (3, 3), (2, 2), (1, 1), (1, 1)),
    "even": ((8, 36), (2, 2), (2, 2), (1, 1), (0, 0)),
    "one axis": ((90,), (4,), (3,), (2,), (2,)),
    "dilated": ((11, 47), (2, 3), (1, 2), (3, 2), (2, 1)),
}


def image(sizes: tuple[int, ...]) -> NDArray[np.float32]:
    """Return numbers among which are equal ones, infinities and NaN."""
    x = np.random.default_rng(0).integers(-4, 4, (*SHAPE, *sizes)).astype(np.float32)
    x.flat[::17], x.flat[5::23] = np.nan, -np.inf
    x[0, 1] = -np.inf
    return x


def pooled(x: NDArray[np.float32], op: Pool, out: tuple[int, ...]) -> tuple[object, object]:
    """Return the maxima and their indices: of equal ones the first, of NaN the first, too."""
    y, places, window = np.empty(out, np.float32), np.empty(out, np.int64), op.window
    for n, c, *at in np.ndindex(*out):
        found = []
        for tap in np.ndindex(*window.kernel):
            each = zip(at, tap, window.strides, window.dilations, window.pads, strict=True)
            place = (n, c, *(a * s + t * d - p for a, t, s, d, p in each))
            if all(0 <= i < size for i, size in zip(place, x.shape, strict=True)):
                found.append((x[place], np.ravel_multi_index(place, x.shape)))
        best = int(np.argmax([value for value, _ in found]))  # NaN counts as the largest
        y[n, c, *at], places[n, c, *at] = found[best]
    return y, places


@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_maxima_and_their_places_are_numpys(target: str) -> None:
    record, kernel = vector_target(target), PoolPlaces()
    calls, wanted = [], []
    for sizes, kernel_shape, strides, dilations, pads in CASES.values():
        window = Window(kernel_shape, strides, dilations, pads)
        spans = zip(sizes, kernel_shape, strides, dilations, pads, strict=True)
        out = (*SHAPE, *((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, d, p in spans))
        op, x = Pool("Max", window, pads), image(sizes)
        types = (TensorType(DType.FLOAT, out), TensorType(DType.INT64, out))
        w = Workload(op, (type_of(x),), types, (False,))
        assert kernel.accepts(w, record)
        calls.append(Call(kernel, {}, w, [x]))
        wanted.append(pooled(x, op, out))
    for call, found, truth in zip(calls, run_calls(calls, record), wanted, strict=True):
        for got, true in zip(found, truth, strict=True):
            np.testing.assert_array_equal(got, true, err_msg=str(call))


def test_rows_shorter_than_a_vector_are_left_to_plain_c() -> None:
    op = Pool("Max", Window((3, 3), (2, 2), (1, 1), (1, 1)), (1, 1))
    types = (TensorType(DType.FLOAT, (1, 1, 4, 4)), TensorType(DType.INT64, (1, 1, 4, 4)))
    w = Workload(op, (TensorType(DType.FLOAT, (1, 1, 8, 8)),), types, (False,))
    assert not PoolPlaces().accepts(w, get_target("x86-64-avx2"))
