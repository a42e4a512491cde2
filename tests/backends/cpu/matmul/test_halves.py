"""Products of rows of 16-bit floats by constants: the same numbers as of floats that these hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.matmul.halves import MatMulHalves
from atc.backends.cpu.matmul.tile import MatMulTile
from atc.backends.kernel import Workload
from atc.ir.expr import Input, call, cast
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Epilogue, MatMul
from atc.ir.view import View, dense

F = DType.FLOAT
TARGETS = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse2")
SHAPES = (((), 45, 37, 70, 0), ((), 1, 64, 33, 0), ((2,), 21, 130, 64, 3), ((), 200, 48, 5, 0))
"""Batch, rows, columns, depth, and numbers between rows of A."""


def calls_of(shape: tuple[tuple[int, ...], int, int, int, int], half: DType) -> list[Call]:
    """Return products of floats and of halves, of A and the results, by float weights and halves.

    The kernels' parameters are missing.
    """
    batch, m, n, k, gap = shape
    rng = np.random.default_rng(k)
    a = rng.standard_normal((*batch, m, k + gap), np.float32).astype(half.numpy)
    b = rng.standard_normal((k, n), np.float32).astype(half.numpy)
    bias = rng.standard_normal(n, np.float32)
    a_view = View((*(m * (k + gap) for _ in batch), k + gap, 1))
    b_view = View((*(0 for _ in batch), n, 1))
    views = (View((*(0 for _ in batch), 0, 1)),)
    sums = call("Max", call("Add", Input(F, 0), Input(F, 1)), Input(F, 1))
    found = []
    for kernel, x in ((MatMulTile(), a.astype(np.float32)), (MatMulHalves(), a)):
        for y in (F, half):
            for w in (b.astype(np.float32), b):
                expr = cast(sums, half)
                epilogue = Epilogue(expr if y is half else cast(expr, F), views)
                op = MatMul(batch, m, n, k, a_view, b_view, epilogue)
                types = tuple(map(type_of, (x, w, bias)))
                result = TensorType(y, (*batch, m, n))
                workload = Workload(op, types, (result,), (False, True, False))
                found.append(Call(kernel, None, workload, [x, w, bias]))
    return found


@pytest.mark.few(6)
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("half", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_16_bits_give_the_numbers_of_floats(
    shape: tuple[tuple[int, ...], int, int, int, int], half: DType, target_name: str
) -> None:
    target, calls = vector_target(target_name), []
    for each in calls_of(shape, half):
        assert each.kernel.accepts(each.workload, target), each
        kinds = each.kernel.parameters(each.workload, target)
        calls += [replace(each, params=p) for p in (*kinds[:2], *kinds[-2:])]
    results = run_calls(calls, target)
    a, w, bias = (np.asarray(x, np.float64) for x in calls[0].inputs)
    expected = np.maximum(a[..., : shape[3]] @ w + bias, bias)
    first = results[0][0]
    assert np.abs(first - expected).max() <= 2.0**-7 * np.abs(expected).max()
    for made, (got,) in zip(calls, results, strict=True):
        numbers = got.view(half.numpy) if got.dtype.itemsize == 2 else got
        np.testing.assert_array_equal(numbers.astype(np.float32), first, str(made))


def test_a_block_of_rows_is_a_small_part_of_a_large_matrix() -> None:
    target = vector_target("x86-64-avx512")
    call_ = calls_of(((), 1500, 384, 1536, 0), DType.FLOAT16)[-1]
    kernel, w = MatMulHalves(), call_.workload
    most = max(kernel.scratch(w, p, target) for p in kernel.parameters(w, target))
    assert most <= w.input(0).nbytes / 2


def test_views_that_are_not_rows_are_left_to_others() -> None:
    target = vector_target("x86-64-avx512")
    w = calls_of(((), 45, 37, 70, 0), DType.FLOAT16)[-1].workload
    columns = replace(w, op=replace(w.op, a_view=View((1, 45))))
    assert MatMulHalves().accepts(w, target)
    assert not MatMulHalves().accepts(columns, target)
    assert dense((45, 70)) == w.op.a_view
