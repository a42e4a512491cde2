"""Winograd's inner product: against float64, and against ordinary sums."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from blocked_convs import Case, build, from_blocks
from kernel_program import Call, run_calls, vector_target
from matmul_workloads import TRUTH, operands, workload

import atc
from atc.backends.cpu.conv.pointwise_winograd import (
    ConvGatheredWinograd,
    ConvPointwiseWinograd,
    RowParams,
)
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.cpu.matmul.tile import MatMulTile
from atc.backends.cpu.matmul.winograd import (
    BlockParams,
    GroupParams,
    MatMulWinograd,
    MatMulWinogradLeft,
)
from atc.backends.kernel import Workload, workload_of
from atc.backends.machines import MACHINES
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType
from atc.ir.ops import MatMul
from atc.ir.view import View, gather_view
from atc.passes.layout.store_bf16 import typed
from atc.select.select import Limits, candidates
from support import node_model

KERNEL = MatMulWinograd()
LEFT = MatMulWinogradLeft()


def machine(name: str) -> Target:
    return replace(vector_target("x86-64-avx512"), machine=MACHINES[name])


def op_of(w: Workload) -> MatMul:
    assert isinstance(w.op, MatMul)
    return w.op


def product(w: Workload, arrays: list[Any]) -> tuple[Any, Any]:
    """Return A B in float64, and the products of rows' and columns' root mean squares."""
    op = op_of(w)
    a: Any = gather_view(arrays[0], (*op.batch, op.m, op.k), op.a_view).astype(np.float64)
    b: Any = gather_view(arrays[1], (*op.batch, op.k, op.n), op.b_view).astype(np.float64)
    scale = np.sqrt((a**2).mean(-1)[..., :, None] * (b**2).mean(-2)[..., None, :])
    return a @ b, scale


def dense_product(m: int, n: int, k: int, epilogue: str = "none") -> Workload:
    return workload((), m, n, k, View((k, 1)), View((n, 1)), epilogue, True)


def test_sizes_views_blocks_and_epilogues() -> None:
    target = machine("zen4")
    sizes = ((16, 16, 48), (17, 1, 64), (31, 33, 96), (40, 50, 240), (64, 20, 80))
    found = [(e, dense_product(*size, e)) for size, e in zip(sizes, TRUTH, strict=True)]
    found += [
        ("bias, relu", workload((2,), 33, 40, 96, View((33 * 96, 96, 1)), View((0, 40, 1)),
                                "bias, relu", True)),
        ("residual", workload((2, 3), 18, 17, 48, View((18 * 144, 48, 144, 1)),
                              View((17 * 144, 17 * 48, 1, 48)), "residual", True)),
        ("none", workload((), 19, 35, 64, View((70, 1), 3), View((1, 64), 2), "none", True)),
    ]  # fmt: skip
    calls, wanted = [], []
    for seed, (epilogue, w) in enumerate(found):
        assert KERNEL.accepts(w, target)
        arrays, op = operands(w, seed), op_of(w)
        views = zip(arrays[2:], op.epilogue.views, strict=True)
        extra = [gather_view(x, op.loops, v) for x, v in views]
        want = TRUTH[epilogue](product(w, arrays)[0], extra[0] if extra else None)
        for kb in (op.k, *(kb for kb in (48, 80) if kb < op.k and op.k % kb == 0)):
            calls.append(Call(KERNEL, BlockParams(kb=kb), w, arrays))
            wanted.append(want)
    assert len(calls) >= len(found) + 3
    check(calls, wanted, target)


def check(calls: list[Call], wanted: list[Any], target: Target) -> None:
    """Run products and compare them."""
    for each, (got,), want in zip(calls, run_calls(calls, target), wanted, strict=True):
        assert got.shape == want.shape
        assert np.abs(got - want).max() <= 3e-6 * max(1.0, float(np.abs(want).max())), each


def left(w: Workload) -> Workload:
    """Return a product whose first operand is the constant one."""
    return replace(w, constant=(True, False, *w.constant[2:]))


@pytest.mark.slow
def test_constant_first_operands() -> None:
    target = machine("zen4")
    sizes = ((16, 16, 48), (17, 1, 64), (31, 33, 96), (40, 50, 240), (64, 100, 80))
    found = [(e, dense_product(*size, e)) for size, e in zip(sizes, TRUTH, strict=True)]
    found += [
        ("bias, relu", workload((3,), 33, 40, 96, View((0, 96, 1)), View((96 * 40, 40, 1)),
                                "bias, relu")),
        ("residual", workload((2, 3), 18, 17, 48, View((18 * 48, 0, 1, 18)),
                              View((17, 2 * 17, 102, 1), 5), "residual")),
        ("none", workload((), 19, 35, 64, View((70, 1), 3), View((40, 1), 2), "none")),
    ]  # fmt: skip
    calls, wanted = [], []
    for seed, (epilogue, each) in enumerate(found):
        w = left(each)
        assert LEFT.accepts(w, target)
        arrays, op = operands(w, seed), op_of(w)
        views = zip(arrays[2:], op.epilogue.views, strict=True)
        extra = [gather_view(x, op.loops, v) for x, v in views]
        for panels in {1, 2, LEFT.parameters(w, target)[0].panels}:
            calls.append(Call(LEFT, GroupParams(panels=panels), w, arrays))
            wanted.append(TRUTH[epilogue](product(w, arrays)[0], extra[0] if extra else None))
    check(calls, wanted, target)


KINDS: dict[str, Callable[[np.random.Generator, Any, Any], tuple[Any, Any]]] = {
    "of both signs": lambda rng, a, b: (a, b),
    "of one sign": lambda rng, a, b: (np.abs(a), b),
    "of one sign, both": lambda rng, a, b: (np.abs(a), np.abs(b)),
    "of far magnitudes": lambda rng, a, b: (a * 1e15, b * 1e-18),
    "rows of all magnitudes": lambda rng, a, b: (
        a * np.float32(10) ** rng.integers(-30, 30, (len(a), 1)).astype(np.float32), b),
    "columns of all magnitudes": lambda rng, a, b: (
        a, b * np.float32(10) ** rng.integers(-20, 20, b.shape[-1]).astype(np.float32)),
    "a large number in each row": lambda rng, a, b: (
        np.where(np.arange(a.shape[1]) == 5, 100 * a, a), b),
    "mostly zeros": lambda rng, a, b: (a * (rng.random(a.shape) < 0.05), b),
}  # fmt: skip


@pytest.mark.slow
def test_errs_at_most_five_times_as_much_as_ordinary_sums() -> None:
    target, (m, n, k) = machine("zen4"), (32, 48, 768)
    w = dense_product(m, n, k)
    tile, calls = MatMulTile().parameters(w, target)[0], []
    for seed, make in enumerate(KINDS.values()):
        rng = np.random.default_rng(seed)
        a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
        arrays = [np.ascontiguousarray(x, np.float32).reshape(-1) for x in make(rng, a, b)]
        calls.append(Call(KERNEL, BlockParams(kb=k), w, arrays))
        calls.append(Call(LEFT, GroupParams(panels=2), left(w), arrays))
        calls.append(Call(MatMulTile(), tile, w, arrays))
    results = [got for (got,) in run_calls(calls, target)]
    for n, kind in enumerate(KINDS):
        want, scale = product(w, calls[3 * n].inputs)
        errors = [
            np.sqrt((((got - want) / scale) ** 2).mean()) for got in results[3 * n : 3 * n + 3]
        ]
        assert max(errors[:2]) <= 5 * errors[2], (kind, errors)


def test_zeros_denormals_and_nan_stay_in_their_rows_and_columns() -> None:
    target, (m, n, k) = machine("zen4"), (18, 20, 96)
    w, turned = dense_product(m, n, k), left(dense_product(n, m, k))
    a, b = (x.reshape(s) for x, s in zip(operands(w, 0), ((m, k), (k, n)), strict=True))
    a[3], b[:, 7] = 0, 0
    a[5] *= np.float32(2.0**-124)
    a[8, 4], a[17, 95] = np.nan, np.inf
    columns = [np.ascontiguousarray(x.T).reshape(-1) for x in (b, a)]
    calls = [
        Call(KERNEL, BlockParams(kb=48), w, [a.reshape(-1), b.reshape(-1)]),
        Call(LEFT, GroupParams(panels=1), turned, columns),
    ]
    (straight,), (transposed,) = run_calls(calls, target)
    finite = np.ones(m, bool)
    finite[[8, 17]] = False
    want = a[finite].astype(np.float64) @ b.astype(np.float64)
    row = a[5].astype(np.float64) @ b.astype(np.float64)
    for got in (straight, transposed.T):
        assert not got[3].any()
        assert not got[finite][:, 7].any()
        assert np.isnan(got[8]).all()
        assert np.isnan(got[17]).all()
        assert np.allclose(got[finite], want, rtol=1e-4, atol=1e-4)
        assert np.abs(got[5] - row).max() <= 1e-5 * np.abs(row).max() + 2.0**-148


def test_large_numbers_times_small_weights_do_not_overflow() -> None:
    target, (m, n, k) = machine("zen4"), (18, 20, 96)
    w, turned = dense_product(m, n, k), left(dense_product(n, m, k))
    rng = np.random.default_rng(0)
    large, weights = ((1 + rng.random(s)).astype(np.float32) for s in ((m, k), (k, n)))
    large, weights = large * np.float32(1e37), weights * np.float32(1e-2)
    columns = [np.ascontiguousarray(x.T).reshape(-1) for x in (weights, large)]
    calls = [
        Call(KERNEL, BlockParams(kb=k), w, [large.reshape(-1), weights.reshape(-1)]),
        Call(LEFT, GroupParams(panels=1), turned, columns),
    ]
    (straight,), (transposed,) = run_calls(calls, target)
    for got in (straight, transposed.T):
        assert np.allclose(got, large.astype(np.float64) @ weights, rtol=1e-5)


POINTWISE = {
    "whole": Case(48, 32, (8, 8), (1, 1), pad=0),
    "short rows": Case(64, 40, (5, 5), (1, 1), pad=0, epilogue="residual"),
    "17 pixels": Case(96, 16, (17, 1), (1, 1), pad=0, epilogue="swish"),
    "gated": Case(112, 20, (6, 7), (1, 1), pad=0, epilogue="gated"),
    "batch": Case(48, 33, (4, 5), (1, 1), pad=0, batch=3, epilogue="residual"),
    "strided": Case(64, 20, (11, 16), (1, 1), stride=2, pad=0, epilogue="residual"),
    "strided, even": Case(48, 16, (16, 15), (1, 1), stride=3, pad=0, batch=2),
    "strided, one dimension": Case(48, 16, (41,), (1,), stride=2, pad=0),
    "one dimension": Case(80, 16, (31,), (1,), pad=0, epilogue="none"),
}


WINDOWS = {
    "strided": Case(16, 32, (9, 12), stride=2, epilogue="residual"),
    "no pad": Case(32, 20, (8, 9), pad=0, epilogue="gated"),
    "5x5, dilated": Case(16, 16, (13, 11), (5, 5), pad=4, dilation=2, stride=2),
    "batch": Case(48, 33, (7, 6), batch=2, epilogue="swish"),
    "3x1": Case(16, 16, (6, 7), (3, 1), pad=1),
    "one dimension": Case(32, 16, (40,), (4,), stride=2, pad=1),
    "patches": Case(16, 24, (16, 24), (4, 4), stride=4, pad=0, epilogue="none"),
}


@pytest.mark.parametrize(
    ("kernel", "cases"),
    [(ConvPointwiseWinograd(), POINTWISE), (ConvGatheredWinograd(), WINDOWS)],
    ids=lambda x: getattr(x, "name", ""),
)
def test_convolutions(kernel: ConvPointwiseWinograd, cases: dict[str, Case]) -> None:
    target = machine("zen4")
    calls, wanted = [], []
    for case in cases.values():
        graph, feeds, expected = build(case, 16)
        node = graph.nodes[0]
        w = workload_of(graph, node, graph.constants)
        assert kernel.accepts(w, target), case
        known = graph.constants | dict(zip(graph.inputs, feeds, strict=True))
        arrays = [known[i] for i in node.inputs if i]
        pixels = prod(case.out)
        whole = pixels if case.stride == 1 else case.out[0] if len(case.out) == 2 else 1
        whole = whole if kernel.name == ConvPointwiseWinograd.name else case.out[0]
        for rows in {1, *(n for n in (2, 4) if whole % n == 0 and pixels // n >= 16)}:
            calls.append(Call(kernel, RowParams(rows=rows), w, arrays))
            wanted.append((case, expected))
    assert len(calls) > len(cases)
    for (case, expected), (got,) in zip(wanted, run_calls(calls, target), strict=True):
        error = np.abs(from_blocks(got, case.filters) - expected).max()
        assert error <= 3e-6 * max(np.abs(expected).max(), 1), case


def stored(w: Workload, dtype: DType) -> Workload:
    """Return the workload whose second operand is stored in this type."""
    weights = w.input(1)
    narrow = TensorType(dtype, weights.shape)
    return replace(w, inputs=(w.inputs[0], narrow, *w.inputs[2:]))


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
def test_columns_in_16_bits_give_what_they_give_as_floats(dtype: DType) -> None:
    """Powers of two, which balance columns, change no digit; tiny numbers among them may round."""
    target, calls = machine("zen4"), []
    for seed, (size, kb) in enumerate((((17, 40, 96), 96), ((33, 20, 240), 80))):
        w = dense_product(*size)
        a, b = operands(w, seed)
        scale = np.float32(2) ** np.arange(-10, 10, 20 / size[1]).astype(int)
        b = (b.reshape(size[2], -1) * scale.astype(np.float32)).astype(dtype.numpy)
        for each, operand in ((w, b.astype(np.float32)), (stored(w, dtype), b)):
            assert KERNEL.accepts(each, target)
            calls.append(Call(KERNEL, BlockParams(kb=kb), each, [a, operand.reshape(-1)]))
    results = [got for (got,) in run_calls(calls, target)]
    for floats, halves in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(halves, floats)


@pytest.mark.parametrize(
    ("kernel", "case"),
    [(ConvPointwiseWinograd(), POINTWISE["batch"]), (ConvGatheredWinograd(), WINDOWS["strided"])],
    ids=lambda x: getattr(x, "name", ""),
)
@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16], ids=lambda d: d.label)
def test_filters_in_16_bits_give_what_they_give_as_floats(
    kernel: ConvPointwiseWinograd, case: Case, dtype: DType
) -> None:
    target, calls = machine("zen4"), []
    graph, feeds, _ = build(case, 16)
    known = graph.constants | dict(zip(graph.inputs, feeds, strict=True))
    node = graph.nodes[0]
    x, filters, *rest = (known[i] for i in node.inputs if i)
    filters = filters.astype(dtype.numpy)
    w = workload_of(graph, node, graph.constants)
    for each, given in ((w, filters.astype(np.float32)), (stored(w, dtype), filters)):
        assert kernel.accepts(each, target)
        params = kernel.parameters(each, target)[0]
        calls.append(Call(kernel, params, each, [x, given, *rest]))
    (floats,), (halves,) = run_calls(calls, target)
    np.testing.assert_array_equal(halves, floats)


def test_images_that_cut_into_no_rows_are_left_to_others() -> None:
    target, kernel = machine("zen4"), ConvPointwiseWinograd()
    for height, able in ((100, True), (101, False)):  # 101 x 13 pixels: rows of 13 or 101
        case = Case(2048, 16, (height, 13), (1, 1), pad=0)
        graph, _, _ = build(case, 16)
        w = workload_of(graph, graph.nodes[0], graph.constants)
        assert kernel.accepts(w, target) == able
        assert bool(kernel.parameters(w, target)) == able


@pytest.mark.slow
def test_pointwise_convolutions_store_float16() -> None:
    target, kernel, calls = machine("zen4"), ConvPointwiseWinograd(), []
    for case in POINTWISE.values():
        graph, feeds, _ = build(case, 16)
        half = {k: TensorType(DType.FLOAT16, graph.types[k].shape) for k in ("other", "y")}
        types = {**graph.types, **half}
        node = replace(graph.nodes[0], op=typed(graph.nodes[0], graph.types, types))
        known = graph.constants | dict(zip(graph.inputs, feeds, strict=True))
        known |= {"other": known["other"].astype(np.float16)} if "other" in known else {}
        same = {k: known[k].astype(np.float32) for k in known}
        for each, feed, kinds in ((graph.nodes[0], same, graph.types), (node, known, types)):
            w = workload_of(replace(graph, types=kinds), each, graph.constants)
            assert kernel.accepts(w, target), case
            params = kernel.parameters(w, target)[0]
            calls.append(Call(kernel, params, w, [feed[i] for i in each.inputs if i]))
    results = [got for (got,) in run_calls(calls, target)]
    for floats, halves in zip(results[::2], results[1::2], strict=True):
        np.testing.assert_array_equal(halves.view(np.float16), floats.astype(np.float16))


SQUARE = {
    "whole": Case(48, 32, (24, 24)),
    "few tiles": Case(64, 40, (9, 10), epilogue="residual"),
    "a smaller last block": Case(96, 16, (30, 31), epilogue="swish"),
    "batch": Case(48, 33, (12, 13), batch=3, epilogue="residual"),
    "no pad": Case(80, 16, (26, 43), pad=0, epilogue="gated"),
}


@pytest.mark.slow
@pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_products_of_transformed_tiles_err_little_more_than_ordinary_sums(every: bool) -> None:
    """One size of tiles and of blocks of them, or every one, beside the best ordinary set."""
    target, kernel = machine("zen4"), ConvWinograd()
    calls, wanted = [], []
    for turn, case in enumerate(SQUARE.values()):
        graph, feeds, expected = build(case, 16)
        node = graph.nodes[0]
        w = workload_of(graph, node, graph.constants)
        known = graph.constants | dict(zip(graph.inputs, feeds, strict=True))
        ordinary = {p.m: p for p in kernel.parameters(w, target) if not (p.pairs or p.raw)}
        sets = [p for p in kernel.sets(w, target) if p.pairs]
        for paired in sets if every else [sets[turn % len(sets)]]:
            for params in (ordinary[paired.m], paired):
                calls.append(Call(kernel, params, w, [known[i] for i in node.inputs if i]))
            wanted.append((case, expected))
    results = run_calls(calls, target)
    for (case, want), (plain,), (ours,) in zip(wanted, results[::2], results[1::2], strict=True):
        plain, ours = (from_blocks(got, case.filters) - want for got in (plain, ours))
        assert np.abs(ours).max() <= 3e-5 * max(np.abs(want).max(), 1), case
        assert np.sqrt((ours**2).mean()) <= 2 * np.sqrt((plain**2).mean()), case


def test_transformed_tiles_are_paired_only_where_additions_have_units() -> None:
    graph, _, _ = build(SQUARE["whole"], 16)
    w, kernel = workload_of(graph, graph.nodes[0], graph.constants), ConvWinograd()
    for name, paired in (("zen4", True), ("zen5", True), ("sapphirerapids", False)):
        target = replace(get_target("x86-64-avx512"), machine=MACHINES[name])
        assert any(p.pairs for p in kernel.parameters(w, target)) == paired
        assert not any(p.pairs for p in kernel.parameters(w, target) if kernel.exact(p))


def test_only_cores_whose_additions_have_units_choose_it() -> None:
    right = dense_product(256, 256, 768)
    for kernel, w in ((KERNEL, right), (LEFT, left(right))):
        chosen = {}
        for name in ("zen4", "zen5", "sapphirerapids"):
            target = replace(get_target("x86-64-avx512"), machine=MACHINES[name])
            best = min(candidates(w, target), key=lambda c: c.kernel.cost(w, c.params, target))
            chosen[name] = best.kernel.name
            precise = candidates(w, target, Limits(exact=True))
            assert kernel.name not in {c.kernel.name for c in precise}
        assert chosen["zen4"] == kernel.name
        assert kernel.name not in {chosen["zen5"], chosen["sapphirerapids"]}


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [KERNEL, LEFT], ids=lambda k: k.name)
def test_threads_and_one_thread_give_the_same_bits(
    kernel: MatMulWinograd | MatMulWinogradLeft, tmp_path: Path
) -> None:
    machine("zen4")  # skips where programs for it can't run
    weights = np.random.default_rng(0).standard_normal((768, 256)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((1, 100, 768)).astype(np.float32)
    given, place = ([x, weights], 1) if kernel is KERNEL else ([weights.T, x[0].T], 0)
    model = node_model("MatMul", given, constant=(place,))
    onnx.save(model, tmp_path / "m.onnx")
    results = []
    for threads in (1, 2):
        done = atc.compile(
            tmp_path / "m.onnx", tmp_path / str(threads), target="x86-64-avx512", machine="zen4",
            num_threads=threads,
        )  # fmt: skip
        assert kernel.name in {c.candidate.kernel.name for c in done.selection.values()}
        results.append(atc.load(done.folder)(given[1 - place]))
    assert np.array_equal(*results)
    assert np.allclose(results[0], given[0] @ given[1], atol=1e-3)
