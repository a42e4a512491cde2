"""Convolutions on AMX's tiles, emulated where the CPU has none, against numpy and each other."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blocked_convs import DIRECT, Case, build, from_blocks
from kernel_program import Call, run_calls, vector_target
from quantized_convs import CASES as QUANTIZED
from quantized_convs import expected, model, parts
from tile_convs import (
    AMX,
    FEW_IMAGES,
    ROUNDING,
    check_counted_batches,
    check_counted_images,
    check_own_tiles,
    fed,
    resized,
)

from atc.backends.cpu.amx.conv import (
    ConvTiles,
    ConvTilesBf16,
    ConvTilesBf16x3,
    ConvTilesBf16x6,
    ConvTilesBytes,
    TilesParams,
)
from atc.backends.cpu.conv.bf16 import ConvBf16
from atc.backends.kernel import AnyKernel, Candidate, workload_of
from atc.backends.kernel_source import render_kernel
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked
from atc.passes import run_passes
from atc.program.cuts import Range
from atc.program.partition import Worth, partitions
from support import compile_graph

CASES = {name: case for name, case in DIRECT.items() if not case.plain} | {
    "strided, ragged": Case(40, 50, (9, 12), (5, 4), stride=2, pad=2, epilogue="residual"),
    "stride 3": Case(33, 16, (14, 13), stride=3, epilogue="swish"),
    "7x7": Case(64, 48, (7, 7), epilogue="residual"),
    "deep 1x1": Case(1296, 48, (7, 7), (1, 1), pad=0, epilogue="residual"),
}


FEW = ("ragged", "batch", "groups", "one dimension", "strided, ragged", "7x7", "deep 1x1")
"""Cases that together meet every branch of the template."""
KERNELS = {
    "bf16": (ConvTilesBf16(), 4e-6), "bf16x3": (ConvTilesBf16x3(), 2e-5),
    "bf16x6": (ConvTilesBf16x6(), 1e-6),
}  # fmt: skip


def call_of(case: Case, kernel: ConvTiles, turn: int, feed: Callable[[Array], Array]) -> Call:
    """Return a call with the parameters that come `turn`-th; the input goes through `feed`."""
    w, operands = fed(case, kernel, feed)
    sets = kernel.parameters(w, vector_target(AMX))
    return Call(kernel, sets[turn % len(sets)], w, operands)


def check_sums(precision: str, names: Sequence[str]) -> None:
    """Compare with sums in float64 of operands rounded alike; split ones also with the true sums.

    A split number is off by at most 2^-17 of itself, so that sums of products of two are by less.
    """
    kernel, tolerance = KERNELS[precision]
    cases = [CASES[name] for name in names]
    calls = [call_of(case, kernel, turn, np.asarray) for turn, case in enumerate(cases)]
    results = run_calls(calls, vector_target(AMX))
    for case, call, (got,) in zip(cases, calls, results, strict=True):
        _, _, wanted = build(case, 16, ROUNDING[precision])
        error = np.abs(from_blocks(got, case.filters) - wanted).max()
        assert error <= tolerance * max(np.abs(wanted).max(), 1), f"{call}: {error}"
        if precision == "bf16x3" and case.epilogue == "none":
            _, _, true = build(case, 16)
            off = np.std(from_blocks(got, case.filters) - true)
            assert off < 2**-17 * np.std(true), f"{call}: {off}"


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", KERNELS)
def test_sums_of_products(precision: str) -> None:
    check_sums(precision, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("precision", KERNELS)
def test_sums_of_products_in_all_cases(precision: str) -> None:
    check_sums(precision, list(CASES))


@pytest.mark.parametrize(("name", "tall"), [("7x7", False), ("7x7", True), ("deep 1x1", False)])
def test_weights_are_asked_for_before_they_are_read(name: str, tall: bool) -> None:
    target, kernel = vector_target(AMX), ConvTilesBf16x3()
    w, _ = fed(replace(CASES[name], channels=1296), kernel, np.asarray)
    params = TilesParams(rb=0, tall=tall)
    c, text = kernel.cut(w, params), render_kernel(Candidate(kernel, params), w, target).text
    (further,) = re.findall(r"multiply\(.*, w, w \+ (\d+)", text)
    assert int(further) == min(c.panel_bytes, 1 << 16 if tall else c.panel_bytes)
    asked = [int(k or 0) for k in re.findall(r"v_prefetch_l2\(next(?: \+ (\d+))?\)", text)]
    assert asked == [*range(0, c.step_bytes // c.flat.blocks, 64)]
    near = [int(k) for k in re.findall(r"v_prefetch_l1\(w \+ (\d+)\)", text)]
    once = tall or name == "deep 1x1"
    assert near == [*range(2 * c.step_bytes, 3 * c.step_bytes, 64)] * once


def test_orders_and_shapes_of_blocks_give_the_same_bits() -> None:
    case, target = CASES["7x7"], vector_target(AMX)
    calls = [call_of(case, ConvTilesBf16x3(), turn, np.asarray) for turn in range(3)]
    assert len({str(c) for c in calls}) == 3
    first, *others = (got for (got,) in run_calls(calls, target))
    for got in others:
        np.testing.assert_array_equal(got, first)


def test_images_that_the_run_counts_have_the_same_bits() -> None:
    names = ("batch", "ragged", "7x7", "strided, ragged")
    kernels = [kernel for kernel, _ in KERNELS.values()]
    calls = [call_of(CASES[name], kernels[k % 3], k, np.asarray) for k, name in enumerate(names)]
    check_counted_batches(calls)


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", KERNELS)
def test_rows_and_columns_that_the_run_counts_have_the_same_bits(precision: str) -> None:
    cases = [resized(CASES["strided, ragged"], size) for size in FEW_IMAGES[precision]]
    check_counted_images(cases, KERNELS[precision][0], 41)


def stretch(array: Array, part: Range | None) -> Array:
    """Return the part of an operand that a partition reads."""
    if part is None:
        return array
    return array.ravel()[part.begin :][: part.type.size].reshape(part.type.shape)


@pytest.mark.few(1)
@pytest.mark.parametrize("kernel", [ConvTilesBf16x3(), ConvBf16()], ids=lambda k: k.name)
def test_partitions_for_threads_give_the_same_bits(kernel: AnyKernel) -> None:
    target, case = vector_target(AMX), Case(48, 80, (9, 8), epilogue="residual")
    graph, feeds, _ = build(case, 16)
    w = workload_of(graph, graph.nodes[0], graph.constants)
    candidate = Candidate(kernel, kernel.parameters(w, target)[0])
    given = dict(zip(graph.inputs, feeds, strict=True)) | graph.constants
    arrays = [given[i] for i in graph.nodes[0].inputs]
    cut = partitions(w, candidate, target, 3, Worth(always=True))
    calls = [Call(kernel, candidate.params, w, arrays)]
    for partition in cut:
        own = [stretch(a, partition.operands.get(k)) for k, a in enumerate(arrays)]
        taken = partition.candidate
        calls.append(Call(taken.kernel, taken.params, partition.workload(w), own))
    whole, *rest = (got.ravel() for (got,) in run_calls(calls, target))
    assert len(rest) == 3
    np.testing.assert_array_equal(np.concatenate(rest), whole)


def test_infinities_stay_and_numbers_beside_them_keep_their_bits() -> None:
    case = replace(CASES["ragged"], epilogue="none")

    def with_infinities(x: Array) -> Array:
        changed = x.copy()
        changed[0, 0, 4, 8, 3], changed[0, 1, 4, 8, 3] = np.inf, np.nan
        return changed

    calls = [call_of(case, ConvTilesBf16x3(), 0, f) for f in (np.asarray, with_infinities)]
    (plain,), (got,) = run_calls(calls, vector_target(AMX))
    graph, (x,), _ = build(case, 16)
    w = graph.constants["w"]
    near = np.zeros(plain.shape, bool)
    near[0, :, 3:6, 7:10] = True
    np.testing.assert_array_equal(got[~near], plain[~near])
    assert np.isnan(from_blocks(got, case.filters)[0, :, 3:6, 7:10]).all()

    def infinite(x: Array) -> Array:
        changed = x.copy()
        changed[0, 0, 4, 8, 3] = -np.inf
        return changed

    ((got,),) = run_calls([call_of(case, ConvTilesBf16x3(), 0, infinite)], vector_target(AMX))
    wanted = -np.inf * w[:, 3, ::-1, ::-1]
    np.testing.assert_array_equal(from_blocks(got, case.filters)[0, :, 3:6, 7:10], wanted)
    call = call_of(case, ConvTilesBf16x3(), 0, np.asarray)
    call.inputs[1][2, 5, 1, 1] = np.inf  # type: ignore[index]
    ((got,),) = run_calls([call], vector_target(AMX))
    np.testing.assert_array_equal(got[0, 0, ..., 2], np.inf * x[0, 0, ..., 5])
    np.testing.assert_allclose(got[0, 0, ..., :2], plain[0, 0, ..., :2], rtol=0, atol=3e-5)


def blocked_bytes(x: Array) -> Array:
    """Return [N, C, *spatial] in blocks of 16 channels, the lanes past the last at random."""
    batch, channels, *spatial = x.shape
    rest = np.random.default_rng(3).integers(0, 128, (batch, -channels % 16, *spatial))
    padded = np.concatenate([x, rest.astype(x.dtype)], 1)
    return np.ascontiguousarray(np.moveaxis(padded.reshape(batch, -1, 16, *spatial), 2, -1))


def byte_calls() -> list[tuple[str, Call]]:
    """Return calls of the kernel of bytes for what of the quantized models is blocked."""
    target, kernel, calls = vector_target(AMX), ConvTilesBytes(), []
    for label, case in QUANTIZED.items():
        graph = run_passes(compile_graph(model(case)), width=16)
        node = next((n for n in graph.nodes if isinstance(n.op, ConvBlocked)), None)
        if case.residual or node is None or label in ("signed, padded", "first"):
            continue
        w = workload_of(graph, node, graph.constants)
        if not kernel.accepts(w, target):
            continue
        operands = [graph.constants[i] for i in node.inputs[1:]]
        sets = kernel.parameters(w, target)
        x = blocked_bytes(parts(case)["x"])
        calls += [(label, Call(kernel, params, w, [x, *operands])) for params in sets[:1]]
    return calls


def test_bytes_give_the_exact_sums() -> None:
    calls = byte_calls()
    assert len({label for label, _ in calls}) >= 6
    results = run_calls([c for _, c in calls], vector_target(AMX))
    for (label, call), (got,) in zip(calls, results, strict=True):
        want = expected(QUANTIZED[label])
        plain = np.moveaxis(got, -1, 2).reshape(1, -1, *want.shape[2:])[:, : want.shape[1]]
        np.testing.assert_array_equal(plain, want, err_msg=f"{label}: {call}")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiles_with_the_machines_own_tiles(compiler: str, tmp_path: Path) -> None:
    graph, _, _ = build(CASES["7x7"], 16)
    split = Candidate(ConvTilesBf16x3(), TilesParams(rb=0, tall=False))
    _, call = byte_calls()[0]
    kernels = [
        (split, workload_of(graph, graph.nodes[0], graph.constants)),
        (Candidate(call.kernel, call.params), call.workload),
    ]
    check_own_tiles(compiler, kernels, tmp_path)
