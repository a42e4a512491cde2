"""Movement that turns rows into columns, against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.map.transpose import MapTranspose
from atc.backends.kernel import Workload
from atc.ir.expr import Input, cast
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Map
from atc.ir.view import View, gather_view

F = DType.FLOAT
CASES = (
    ((32, 48), View((1, 32))),
    ((17, 19), View((1, 17))),
    ((2, 3, 16, 33), View((1600, 500, 1, 15), 7)),
    ((20, 2, 31), View((1, 620, 20))),
    ((16, 5, 16), View((1, 0, 16))),
    ((40, 40), View((1, 90), 3)),
)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", [F, DType.FLOAT16, DType.BFLOAT16], ids=lambda t: t.label)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_rows_become_columns(target: str, dtype: DType) -> None:
    record = vector_target(target)
    calls = []
    for shape, view in CASES:
        x = np.random.default_rng(1).standard_normal(view.bounds(shape)[1] + 1).astype(np.float32)
        w = Workload(
            Map(shape, cast(Input(F, 0), dtype), (view,)), (TensorType(F, x.shape),),
            (TensorType(dtype, shape),), (False,),
        )  # fmt: skip
        assert MapTranspose().accepts(w, record)
        calls.append(Call(MapTranspose(), {}, w, [x]))
    for each, (got,), (shape, view) in zip(calls, run_calls(calls, record), CASES, strict=True):
        (x,) = each.inputs
        assert x is not None
        expected = gather_view(x, shape, view).astype(dtype.numpy)
        np.testing.assert_array_equal(got, expected, err_msg=str(each))


@pytest.mark.parametrize("view", [View((33, 1)), View((0, 1)), View((2, 64)), View((1, -32), 2000)])
def test_takes_only_what_it_can_turn(view: View) -> None:
    shape = (32, 33)
    types = (TensorType(F, (2113,)),), (TensorType(F, shape),)
    w = Workload(Map(shape, Input(F, 0), (view,)), *types, (False,))
    assert not MapTranspose().accepts(w, vector_target("x86-64-avx2"))
