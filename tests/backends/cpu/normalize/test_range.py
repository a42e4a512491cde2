"""Normalizations of the very large and the very small, where floats alone are to be had."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls
from numpy.typing import NDArray

from atc.backends.cpu.normalize.portable import NormalizeColumns, NormalizeRows
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Normalize, identity_epilogue

Array = NDArray[Any]
SIZES = (1e-38, 1e-25, 1e-19, 1e-6, 1.0, 1e14, 1e19, 1e25, 3e37)
OUTER, AXIS = 3, 40


def truth(how: str, epsilon: float, x: Array) -> Array:
    """Return the definition's results in float64; x is [outer, axis, inner]."""
    x = x.astype(np.float64)
    if how == "Variance":
        x = x - x.mean(1, keepdims=True)
    match how:
        case "L1":
            return np.asarray(x / np.abs(x).sum(1, keepdims=True))
        case "L2":
            return np.asarray(x / np.sqrt((x * x).sum(1, keepdims=True)))
        case _:
            return np.asarray(x / np.sqrt((x * x).mean(1, keepdims=True) + epsilon))


def call_for(how: str, epsilon: float, x: Array) -> Call:
    """Return the call of rows, or of columns where there are several."""
    inner = x.shape[2]
    op = Normalize(how, (OUTER,), (AXIS,), (inner,), epsilon, identity_epilogue(DType.FLOAT))
    type_ = TensorType(DType.FLOAT, x.shape)
    kernel = NormalizeRows() if inner == 1 else NormalizeColumns()
    return Call(kernel, {}, Workload(op, (type_,), (type_,), (False,)), [x])


@pytest.mark.parametrize("own_math", [True, False], ids=["floats", "double"])
def test_results_are_those_of_the_definition_for_numbers_of_any_size(own_math: bool) -> None:
    rng = np.random.default_rng(6)
    ways = [("L1", 0.0), ("L2", 0.0), ("Variance", 1e-5), ("Variance", 0.0), ("MeanSquare", 1e-5),
            ("MeanSquare", 0.0)]  # fmt: skip
    calls, wanted = [], []
    for how, epsilon in ways:
        for size in SIZES:
            for inner in (1, 3):
                x = rng.uniform(-1, 1, (OUTER, AXIS, inner)) * size
                x[:, 5, 0] *= 1e-3  # among others that are larger
                if how == "L1":
                    x = np.clip(x, -8e36, 8e36)  # the sum itself is a float
                calls.append(call_for(how, epsilon, x.astype(np.float32)))
                wanted.append(truth(how, epsilon, x.astype(np.float32)))
    target = replace(get_target("c99"), own_math=own_math)
    for call, want, (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        atol = 3e-7 * float(np.abs(want).max())  # of what is near to the mean little is left
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=atol, err_msg=str(call))


def test_what_is_infinite_or_no_number_stays_so_and_rows_of_zeros_are_zero() -> None:
    x = np.zeros((OUTER, AXIS, 1), np.float32)
    x[0, 3], x[1, 3] = np.inf, np.nan
    target = replace(get_target("c99"), own_math=True)
    ways = ("L2", "Variance", "MeanSquare")
    calls = [call_for(how, 1e-5, x) for how in ways]
    for how, (got,) in zip(ways, run_calls(calls, target), strict=True):
        assert np.isnan(got[0, 3]), how  # infinity times 0
        assert np.isnan(got[1, 3]), how
        np.testing.assert_array_equal(got[2], 0)
