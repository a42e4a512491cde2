"""Largest and smallest bytes of rows and columns, against numpy."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.map.reduce_int8 import KERNELS, ReduceByteColumns, ReduceByteRows
from atc.backends.kernel import Kernel, Workload
from atc.ir.expr import Input, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Epilogue, Reduce, identity_epilogue
from atc.ir.view import View, gather_view

Case = tuple[Kernel[Reduce], tuple[int, ...], tuple[int, ...], View]
CASES: tuple[Case, ...] = (
    (ReduceByteRows(), (5,), (2,), View((2, 1))),
    (ReduceByteRows(), (9,), (28,), View((31, 1), 3)),
    (ReduceByteRows(), (3, 4), (384,), View((1536, 384, 1))),
    (ReduceByteRows(), (2,), (1100,), View((1100, 1))),
    (ReduceByteRows(), (6,), (7, 33), View((33, 198, 1))),
    (ReduceByteRows(), (2,), (3, 1030), View((1030, 2060, 1))),
    (ReduceByteRows(), (), (1025,), View((1,))),
    (ReduceByteColumns(), (28,), (17,), View((1, 28))),
    (ReduceByteColumns(), (3, 50), (8,), View((400, 1, 50))),
    (ReduceByteColumns(), (2, 8), (5, 3), View((120, 1, 24, 8))),
    (ReduceByteColumns(), (130,), (2,), View((1, 140), 7)),
)


def workload(how: str, dtype: DType, case: Case, dequantized: bool) -> Workload:
    """Return the extremes of a tensor's bytes, or the numbers that they stand for."""
    _, shape, reduced, view = case
    source = TensorType(dtype, (view.bounds((*shape, *reduced))[1] + 1,))
    epilogue = identity_epilogue(dtype)
    if dequantized:
        value = cast(Input(dtype, 0), DType.FLOAT)
        epilogue = Epilogue(call("Mul", value, const(0.5, DType.FLOAT)))
    op = Reduce(how, shape, reduced, Input(dtype, 0), (view,), epilogue)
    return Workload(op, (source,), (TensorType(epilogue.expr.dtype, shape),), (False,))


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "x86-64-avx512" else pytest.mark.slow)
     for n in VECTOR_TARGETS],
)  # fmt: skip
def test_extremes_are_exact(name: str) -> None:
    target, rng = vector_target(name), np.random.default_rng(1)
    calls, wanted = list[Call](), list[Any]()
    for number, case in enumerate(CASES):
        kernel, shape, reduced, view = case
        dtype = (DType.UINT8, DType.INT8)[number % 2]
        for how in ("Max", "Min"):
            w = workload(how, dtype, case, dequantized=number % 3 == 0)
            assert [k.name for k in KERNELS if k.accepts(w, target)] == [kernel.name]
            info = np.iinfo(dtype.numpy)
            x = rng.integers(info.min, info.max + 1, w.input(0).shape).astype(dtype.numpy)
            loops = gather_view(x, (*shape, *reduced), view)
            calls.append(Call(kernel, kernel.parameters(w, target)[0], w, [x]))
            extreme = loops.max if how == "Max" else loops.min
            found = extreme(axis=tuple(range(len(shape), len(shape) + len(reduced))))
            wanted.append(found * np.float32(0.5) if number % 3 == 0 else found)
    for made, want, (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        assert got.size == prod(want.shape)
        np.testing.assert_array_equal(got.reshape(want.shape), want, err_msg=str(made.workload))
