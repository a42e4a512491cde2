"""Matrix products in bf16, bf16x3 and bf16x6 against float64, within what the formats may err."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target
from matmul_workloads import TRUTH, counted_rows, operands, workload

from atc.backends.cpu.amx.matmul import MatMulAmx, MatMulAmxSplit, MatMulAmxWhole
from atc.backends.cpu.matmul.bf16 import MatMulBf16
from atc.backends.cpu.matmul.operands import read_mode
from atc.backends.kernel import AnyKernel, Candidate, Kernel, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul
from atc.ir.view import View, gather_view
from atc.program.partition import Worth, partitions
from atc.select.select import Limits, candidates

KERNELS: tuple[tuple[str, Kernel], ...] = (
    ("x86-64-avx512-bf16", MatMulBf16()),
    ("x86-64-amx", MatMulAmx()),
    ("x86-64-amx", MatMulAmxSplit()),
    ("x86-64-amx", MatMulAmxWhole()),
)
EVERY = pytest.mark.parametrize(
    ("target", "kernel"),
    [
        pytest.param(t, k, marks=pytest.mark.slow if k.name == "matmul_amx_bf16" else ())
        for t, k in KERNELS
    ],
    ids=lambda v: getattr(v, "name", v),
)
"""Tiles of rounded values are a part of what tiles of two halves do."""
ROUNDED = {
    "bf16": 2 * 2.0**-8 + 2.0**-16, "bf16x3": 3.5 * 2.0**-16, "bf16x6": 2.0**-24 + 2.0**-33,
}  # fmt: skip
"""The largest error of a product by precision: both operands rounded; or both to the bits of two
halves, and the product of the lower halves left out; or, of three parts, the least products."""


STEEPEST = {"gelu": 1.13}


def workloads(m: int, n: int, k: int) -> Iterator[tuple[str, Workload]]:
    """Yield ways to read operands of one size, each with an epilogue."""
    rows, columns = View((k, 1)), View((1, m))
    yield "bias, relu", workload((), m, n, k, rows, View((n, 1)), "bias, relu", True)
    yield "none", workload((), m, n, k, rows, View((1, k)), "none", True)
    yield "residual", workload((), m, n, k, View((k + 3, 1), 2), View((n + 5, 1), 1), "residual")
    yield "none", workload((), m, n, k, columns, View((1, k + 1)), "none")
    heads = (2, 3)  # of [rows, heads, numbers]: batches interleaved with the rows
    a, b = View((m * 3 * k, k, 3 * k, 1)), View((n * 3 * k, k, 1, 3 * k))
    yield "residual", workload(heads, m, n, k, a, b, "residual")
    yield "gelu", workload((2,), m, n, k, View((m * k, k, 1)), View((0, n, 1)), "gelu", True)
    each = View((m * k, k, 1)), View((n * k, n, 1))
    yield "none", workload((2,), m, n, k, *each, "none", True)
    yield "none", workload((2,), m, n, k, View((0, k, 1)), View((k * n, 1, 2 * k)), "none")
    yield "none", workload((), m, n, k, View((2 * k, 2)), View((2 * n, 2)), "none")


def matrices(w: Workload, arrays: Sequence[Any]) -> tuple[Any, Any]:
    op = w.op
    assert isinstance(op, MatMul)
    a: Any = gather_view(arrays[0], (*op.batch, op.m, op.k), op.a_view).astype(np.float64)
    b: Any = gather_view(arrays[1], (*op.batch, op.k, op.n), op.b_view).astype(np.float64)
    return a, b


def check(found: Sequence[tuple[str, Call]], target: str) -> None:
    results = run_calls([c for _, c in found], vector_target(target))
    for (epilogue, each), (got,) in zip(found, results, strict=True):
        op = each.workload.op
        assert isinstance(op, MatMul)
        a, b = matrices(each.workload, each.inputs)
        views = zip(each.inputs[2:], op.epilogue.views, strict=True)
        extra = [gather_view(x, op.loops, v) for x, v in views if x is not None]
        want = TRUTH[epilogue](a @ b, extra[0] if extra else None)
        relative = ROUNDED[each.kernel.precision] + (op.k + 8) * 2.0**-23
        allowed = relative * STEEPEST.get(epilogue, 1) * (np.abs(a) @ np.abs(b)) + 1e-6
        assert np.all(np.abs(got - want) <= allowed), f"{each}: {np.abs(got - want).max()}"


SHAPES = [(1, 1, 1), (1, 5, 40), (1, 100, 7), (2, 33, 64), (3, 16, 5), (13, 64, 31), (15, 17, 16),
          (33, 40, 70), (70, 2, 48), (31, 100, 33)]  # fmt: skip
"""(m, n, k) below, at and above the tiles, few that they divide."""


def every_call(shapes: Sequence[tuple[int, int, int]], target: str, kernel: AnyKernel) -> list[Any]:
    record = vector_target(target)
    found = []
    for m, n, k in shapes:
        for seed, (epilogue, w) in enumerate(workloads(m, n, k)):
            assert kernel.accepts(w, record)
            parameters = kernel.parameters(w, record)
            assert parameters
            found += [(epilogue, Call(kernel, p, w, operands(w, seed))) for p in parameters]
    return found


@pytest.mark.few(1)
@EVERY
def test_sizes_around_the_tiles_and_ways_to_read_them(target: str, kernel: AnyKernel) -> None:
    kinds = len(list(workloads(2, 2, 2)))
    each = [every_call([shape], target, kernel) for shape in SHAPES]
    found = [calls[(4 * k) % kinds * (len(calls) // kinds)] for k, calls in enumerate(each)]
    found += [calls[-1 - k] for k, calls in enumerate(each[-4:])]
    assert {read_mode(c.workload) for _, c in found} == {"packed", "rows", "columns", "any"}
    check(found, target)


@pytest.mark.slow
@EVERY
def test_every_parameter_set_of_every_shape_and_view(target: str, kernel: AnyKernel) -> None:
    check(every_call(SHAPES, target, kernel), target)


@pytest.mark.slow
@EVERY
def test_large_products_in_blocks_with_prefetch(target: str, kernel: AnyKernel) -> None:
    record = vector_target(target)
    found = []
    for m, n, k in ((1, 300, 900), (40, 140, 2000), (560, 20, 1000), (720, 20, 1536)):
        w = workload((), m, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
        parameters = kernel.parameters(w, record)
        found += [("bias, relu", Call(kernel, p, w, operands(w, m))) for p in parameters[:1]]
    check(found, target)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "kernel", [k for t, k in KERNELS if t == "x86-64-amx"], ids=lambda k: k.name
)
def test_rows_that_the_run_counts_have_the_same_bits(kernel: AnyKernel) -> None:
    record = vector_target("x86-64-amx")
    known = [workload((), m, 70, 40, View((40, 1)), View((70, 1)), "residual", True)
             for m in (1, 15, 16, 17, 31, 32, 33, 64, 65, 100, 380)]  # fmt: skip
    known += [workload((), m, 40, 1280, View((1280, 1)), View((40, 1)), "bias, relu", True)
              for m in (1, 33, 400)]  # fmt: skip
    rows, columns = View((13 * 70, 70, 1)), View((70 * 33, 1, 70))
    known += [workload((), 33, 13, 48, View((48, 1)), View((1, 48)), "none"),
              workload((3,), 13, 33, 70, rows, columns, "residual"),
              workload((3,), 13, 33, 70, rows, View((0, 33, 1)), "none", True)]  # fmt: skip
    open_ = [counted_rows(w, 500 if not w.op.batch else 9) for w in known]
    for w in open_:
        assert kernel.supports_extents(w)
        assert kernel.accepts(w, record)
    arrays = [operands(w, 3) for w in known]
    calls = [Call(kernel, {}, w, x) for w, x in zip([*known, *open_], arrays * 2, strict=True)]
    results = run_calls(calls, record)
    for each, (want,), (got,) in zip(calls, results, results[len(known) :], strict=False):
        np.testing.assert_array_equal(got.ravel()[: want.size], want.ravel(), str(each))


def test_weights_are_read_once_where_the_rows_of_a_block_of_the_depth_stay_in_the_cache() -> None:
    target, kernel = get_target("x86-64-amx"), MatMulAmxSplit()
    w = workload((), 128, 768, 3072, View((3072, 1)), View((768, 1)), "none", True)
    shape = kernel.shape(w, target)
    assert 1 < shape.deep < shape.steps
    assert [(block.count, block.rows) for block in shape.blocks] == [(1, 128)]


@pytest.mark.parametrize(("rows", "k", "parts"), [(512, 3072, 6), (512, 512, 1), (32, 3072, 1)])
def test_a_panel_of_weights_stays_in_the_first_cache_while_rows_pass_by(
    rows: int, k: int, parts: int
) -> None:
    target, kernel = get_target("x86-64-amx"), MatMulAmx()
    w = workload((), rows, 768, k, View((k, 1)), View((768, 1)), "none", True)
    shape = kernel.shape(w, target)
    assert shape.steps // shape.deep == parts
    (params,) = kernel.parameters(w, target)
    text = render_kernel(Candidate(kernel, params), w, target).text
    assert ("TILE_STREAM(" in text) == (rows > 32)


@EVERY
def test_nan_and_infinity_reach_the_results_they_belong_to(target: str, kernel: AnyKernel) -> None:
    record = vector_target(target)
    w = workload((), 6, 20, 19, View((19, 1)), View((1, 19)), "none")
    a, b = operands(w, 3)
    a.reshape(6, 19)[2, 18] = np.nan
    a.reshape(6, 19)[4, 3] = np.inf
    b.reshape(20, 19)[7, 0] = -np.inf
    calls = [Call(kernel, p, w, [a, b]) for p in kernel.parameters(w, record)]
    with np.errstate(invalid="ignore"):
        want = a.reshape(6, 19) @ b.reshape(20, 19).T
    for each, (got,) in zip(calls, run_calls(calls, record), strict=True):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want), str(each))
        np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)], str(each))
        assert np.all(np.isfinite(got[np.isfinite(want)]))


@pytest.mark.parametrize("kernel", [MatMulAmxSplit(), MatMulAmxWhole()], ids=lambda k: k.name)
@pytest.mark.parametrize("deep", [40, pytest.param(1600, marks=pytest.mark.slow)])
def test_infinite_weights_and_sums_that_only_rounding_overflows(
    deep: int, kernel: MatMulAmx
) -> None:
    record = vector_target("x86-64-amx")
    w = workload((), 5, 40, deep, View((deep, 1)), View((40, 1)), "none", True)
    a, b = operands(w, 4)
    a, b = np.abs(a), np.abs(b)
    b.reshape(deep, 40)[3, 35] = -np.inf
    b.reshape(deep, 40)[deep - 2, 7] = np.nan
    a.reshape(5, deep)[1, 1] = 3.399e38  # rounds to infinity in bfloat16
    a.reshape(5, deep)[2, :] = 0
    b.reshape(deep, 40)[1] = 0.5
    (got,) = run_calls([Call(kernel, {}, w, [a, b])], record)[0]
    with np.errstate(invalid="ignore"):
        want = a.reshape(5, deep) @ b.reshape(deep, 40)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    np.testing.assert_array_equal(np.isinf(got), np.isinf(want))
    usual = np.isfinite(want)
    np.testing.assert_allclose(got[usual], want[usual], rtol=2e-4)


@pytest.mark.few(1)
@EVERY
def test_partitions_for_threads_give_the_same_bits(target: str, kernel: AnyKernel) -> None:
    record = vector_target(target)
    calls: list[Call] = []
    counts: list[int] = []
    for m, n in ((45, 40), (1, 190)):
        w = workload((), m, n, 90, View((90, 1)), View((n, 1)), "bias, relu", True)
        arrays = operands(w, 1)
        candidate = Candidate(kernel, kernel.parameters(w, record)[0])
        for threads in (1, 2, 3):
            cut = partitions(w, candidate, record, threads, Worth(always=True))
            assert len(cut) == threads or threads == 1
            own = [(p.candidate, p.workload(w)) for p in cut] or [(candidate, w)]
            calls += [Call(c.kernel, c.params, each, arrays) for c, each in own]
            counts.append(len(own))
    results = iter(r.ravel() for (r,) in run_calls(calls, record))
    found = [np.concatenate([next(results) for _ in range(count)]) for count in counts]
    for first, *others in (found[:3], found[3:]):
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_what_the_target_lacks_is_refused() -> None:
    w = workload((), 4, 8, 8, View((8, 1)), View((8, 1)), "none")
    for _, kernel in KERNELS:
        assert not kernel.accepts(w, get_target("x86-64-avx512-vnni"))
        half = TensorType(DType.FLOAT16, (32,))
        other = Workload(w.op, (half, w.inputs[1]), w.outputs, w.constant)
        assert not kernel.accepts(other, get_target("x86-64-amx"))


@EVERY
def test_bigger_products_cost_more(target: str, kernel: AnyKernel) -> None:
    record = get_target(target)
    costs = []
    for m, n, k in ((8, 16, 16), (8, 64, 64), (64, 64, 64), (128, 768, 768)):
        w = workload((), m, n, k, View((k, 1)), View((n, 1)), "none", True)
        costs.append(min(kernel.cost(w, p, record) for p in kernel.parameters(w, record)))
    assert costs == sorted(costs)
    assert prod(costs) > 0


@pytest.mark.parametrize(
    ("precisions", "rows"),
    [(("float32", "bf16x3"), {16, 128}), (("float32", "bf16x3", "bf16"), {2, 4, 8, 16, 128})],
)
def test_few_rows_stay_in_vectors(precisions: Sequence[str], rows: set[int]) -> None:
    """A tile product takes as long for few rows as for 16, and vectors of floats read no more bytes
    than tiles do of two parts.

    Those multiply pairs of bfloat16 so slowly that tiles may be faster for few rows, but for one.
    """
    record, limits = get_target("x86-64-amx"), Limits(precisions=frozenset(precisions))
    for n, k in ((768, 768), (1000, 2048), (4096, 4096)):
        chosen = {}
        for m in (1, 2, 4, 8, 16, 128):
            w = workload((), m, n, k, View((k, 1)), View((n, 1)), "bias, relu", True)
            found = candidates(w, record, limits)
            best = min(found, key=lambda c: c.kernel.cost(w, c.params, record))
            chosen[m] = best.kernel.name.startswith("matmul_amx")
        in_tiles = {m for m, tiles in chosen.items() if tiles}
        assert {16, 128} <= in_tiles <= rows, (n, k)
