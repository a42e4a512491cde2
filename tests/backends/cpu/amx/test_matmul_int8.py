"""Matrix products of bytes in tiles: the exact sums, whatever their epilogue makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernel_program import Call, run_calls, vector_target
from matmul_workloads import counted_rows

from atc.backends.cpu.amx.matmul_int8 import MatMulAmxBytes
from atc.backends.cpu.matmul.portable import MatMulRows
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.expr import Input, call, cast, const
from atc.ir.graph import DType, type_of
from atc.ir.ops import Epilogue, MatMul, identity_epilogue
from atc.ir.view import View, dense

I32, F32 = DType.INT32, DType.FLOAT
SHAPES = [(1, 33, 70), (16, 16, 64), (17, 70, 130), (33, 5, 3), (70, 64, 200), (48, 45, 65),
          (130, 70, 1536)]  # fmt: skip


def requantized(n: int, loops: tuple[int, ...]) -> tuple[Epilogue, list[Any]]:
    """Return round(sum * scale) + 5 in saturated bytes, and the scales."""
    scale = (2.0 ** np.random.default_rng(5).integers(-12, -6, n)).astype(np.float32)
    value = call("Mul", cast(Input(I32, 0), F32), Input(F32, 1))
    moved = call("Add", call("Round", value), const(5.0, F32))
    column = View((0,) * (len(loops) - 1) + (1,))
    return Epilogue(cast(moved, DType.UINT8, saturate=True), (column,)), [scale]


def prepared(
    m: int, n: int, k: int, a: Any, b: Any, zeros: tuple[int, int], batch: tuple[int, ...],
    finished: bool,
) -> tuple[Workload, list[Any]]:  # fmt: skip
    """Return the workload and random operands, extreme values among them."""
    rng = np.random.default_rng(m * n + k)
    arrays = []
    for dtype, shape in ((a, (*batch, m, k)), (b, (*batch, k, n))):
        info = np.iinfo(dtype)
        arrays.append(rng.integers(info.min, info.max + 1, shape).astype(dtype))
        arrays[-1][..., 0, :] = info.max
    loops = (*batch, m, n)
    after, more = requantized(n, loops) if finished else (identity_epilogue(I32), [])
    views = [dense(x.shape) for x in arrays]
    op = MatMul(batch, m, n, k, *views, after, I32, *zeros)
    out = type_of(np.zeros(loops, after.expr.dtype.numpy))
    types = tuple(type_of(x) for x in (*arrays, *more))
    return Workload(op, types, (out,), (False, True, *[True] * len(more))), [*arrays, *more]


def cases() -> list[tuple[Workload, list[Any]]]:
    found = []
    for number, (m, n, k) in enumerate(SHAPES):
        signed = bool(number % 2)
        a, b = (np.int8 if signed else np.uint8), (np.uint8 if number == 2 else np.int8)
        zeros = (-3 if signed else 9, 128 if number == 2 else 0) if number else (0, 0)
        batch = (2,) if number == 3 else ()
        found += [prepared(m, n, k, a, b, zeros, batch, done) for done in (False, True)]
    return found


def test_sums_are_exact_and_finished_as_by_the_portable_kernel() -> None:
    record, kernel = vector_target("x86-64-amx"), MatMulAmxBytes()
    found = cases()
    assert all(kernel.accepts(w, record) for w, _ in found)
    tiles = [Call(kernel, {}, w, arrays) for w, arrays in found]
    plain = [Call(MatMulRows(), {}, w, arrays) for w, arrays in found]
    results = run_calls([*tiles, *plain], record)
    for each, (got,), (want,) in zip(tiles, results, results[len(tiles) :], strict=False):
        np.testing.assert_array_equal(got, want, str(each))


def test_rows_that_the_run_counts_have_the_same_sums() -> None:
    record, kernel = vector_target("x86-64-amx"), MatMulAmxBytes()
    found = [prepared(m, 40, 130, np.int8, np.int8, (-3, 0), (), True) for m in (1, 16, 33, 70)]
    found += [prepared(m, 40, 1536, np.int8, np.int8, (-3, 0), (), True) for m in (1, 33, 130)]
    known = [Call(kernel, {}, w, arrays) for w, arrays in found]
    open_ = [Call(kernel, {}, counted_rows(w, 140), arrays) for w, arrays in found]
    results = run_calls([*known, *open_], record)
    for each, (want,), (got,) in zip(known, results, results[len(known) :], strict=False):
        np.testing.assert_array_equal(got[: len(want)], want, str(each))


def test_what_tiles_cannot_do_is_left_to_others() -> None:
    w, _ = prepared(4, 8, 16, np.uint8, np.int8, (0, 0), (), False)
    kernel = MatMulAmxBytes()
    assert kernel.accepts(w, get_target("x86-64-amx"))
    assert not kernel.accepts(w, get_target("x86-64-avx512-bf16"))
    computed = Workload(w.op, w.inputs, w.outputs, (False, False))
    moved, _ = prepared(4, 8, 16, np.uint8, np.int8, (0, 3), (), False)
    for other in (computed, moved):
        assert not kernel.accepts(other, get_target("x86-64-amx"))
