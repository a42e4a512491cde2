"""Products on tensor cores: imitated, all tiles of all forms; compiled, what is in the code."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pytest
from cuda_cases import TARGET
from product_cases import (
    BF16,
    F16,
    F32,
    LIMITS,
    Case,
    Lowered,
    check_code,
    check_on_gpu,
    check_results,
    check_there,
    compile_by_label,
    largest,
    lowered_case,
    needs_nvcc,
    on_gpu,
    sources,
    survives,
)

from atc.backends.cuda.targets import ARCHITECTURES
from atc.backends.kernel_source import render_kernel
from atc.backends.targets import get_target
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import consider, select
from support import node_model

CONV = (("pads", [1, 2, 0, 1]), ("strides", [2, 1]))
CASES = {
    "float16": Case("cuda_matmul_tensor", "MatMul", (F16, F16), ((70, 104), (104, 40))),
    "float16, odd": Case("cuda_matmul_tensor", "MatMul", (F16, F16), ((2, 33, 41), (41, 40))),
    "float16, transposed": Case("cuda_matmul_tensor", "Gemm", (F16, F16, F16),
                                ((24, 72), (40, 24), (40,)), (("transA", 1), ("transB", 1))),
    "bfloat16": Case("cuda_matmul_tensor", "MatMul", (BF16, BF16), ((70, 104), (104, 40))),
    "int8": Case("cuda_matmul_tensor", "MatMulInteger", (np.int8, np.int8), ((70, 144), (144, 40))),
    "uint8 and int8": Case("cuda_matmul_tensor", "MatMulInteger", (np.uint8, np.int8),
                           ((33, 50), (50, 24))),
    "halves": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "halves of batches": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32),
                              ((2, 33, 40), (2, 40, 24))),
    "halves, transposed": Case("cuda_matmul_bf16x3", "Gemm", (F32, F32, F32),
                               ((33, 66), (70, 33), (70,)), (("transA", 1), ("transB", 1))),
    "rounded": Case("cuda_matmul_bf16", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "short": Case("cuda_matmul_tf32", "MatMul", (F32, F32), ((70, 100), (100, 40))),
    "short, transposed": Case("cuda_matmul_tf32", "Gemm", (F32, F32, F32),
                              ((33, 66), (70, 33), (70,)), (("transA", 1), ("transB", 1))),
    "conv, short": Case("cuda_conv_tf32", "Conv", (F32, F32), ((1, 8, 6, 7), (16, 8, 3, 3))),
    "conv": Case("cuda_conv_bf16x3", "Conv", (F32, F32, F32), ((2, 3, 9, 11), (12, 3, 3, 3), (12,)),
                 CONV),
    "conv of groups": Case("cuda_conv_bf16x3", "Conv", (F32, F32), ((1, 16, 12), (16, 8, 3)),
                           (("group", 2), ("dilations", [2]))),
    "conv, rounded": Case("cuda_conv_bf16", "Conv", (F32, F32), ((1, 8, 6, 7), (16, 8, 1, 1))),
    "conv of float16": Case("cuda_conv_tensor", "Conv", (F16, F16), ((1, 8, 9, 9), (16, 8, 3, 3)),
                            (("pads", [1, 1, 1, 1]),)),
    "halves of long sums": Case("cuda_matmul_bf16x3", "Gemm", (F32, F32, F32),
                                ((600, 40), (72, 600), (72,)), (("transA", 1), ("transB", 1))),
    "bytes of long sums": Case("cuda_matmul_tensor", "MatMulInteger", (np.uint8, np.int8),
                               ((40, 1700), (1700, 72))),
    "conv in floats": Case("cuda_conv_tiles", "Conv", (F32, F32, F32),
                           ((2, 3, 9, 11), (12, 3, 3, 3), (12,)), CONV),
}  # fmt: skip
CASES |= {
    "packed float16": Case("cuda_matmul_tensor", "MatMul", (F16, F16),
                           ((3, 65, 72), (3, 72, 67)), constant=(1,)),
    "packed bytes": Case("cuda_matmul_tensor", "MatMulInteger", (np.uint8, np.int8),
                         ((33, 50), (50, 24)), constant=(1,)),
    "packed halves": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32), ((70, 100), (100, 40)),
                          constant=(1,)),
    "packed halves, batches": Case("cuda_matmul_bf16x3", "MatMul", (F32, F32),
                                   ((2, 3, 33, 40), (3, 40, 24)), constant=(1,)),
    "packed and rounded": Case("cuda_matmul_bf16", "MatMul", (F32, F32), ((70, 100), (100, 40)),
                               constant=(1,)),
    "packed and short": Case("cuda_matmul_tf32", "MatMul", (F32, F32), ((70, 100), (100, 40)),
                             constant=(1,)),
    "packed filters": Case("cuda_conv_bf16x3", "Conv", (F32, F32), ((1, 16, 12), (16, 8, 3)),
                           (("group", 2), ("dilations", [2])), constant=(1,)),
    "packed filters of float16": Case("cuda_conv_tensor", "Conv", (F16, F16, F16),
                                      ((2, 3, 9, 11), (12, 3, 3, 3), (12,)), CONV, constant=(1,)),
    "filters by taps": Case("cuda_conv_bf16x3", "Conv", (F32, F32, F32),
                            ((2, 16, 9, 11), (12, 16, 3, 3), (12,)), CONV, constant=(1, 2)),
    "filters of float16 by taps": Case("cuda_conv_tensor", "Conv", (F16, F16),
                                       ((1, 96, 12), (40, 48, 3)),
                                       (("group", 2), ("dilations", [2])), constant=(1,)),
    "filters of bytes by taps": Case("cuda_conv_tensor", "ConvInteger", (np.uint8, np.int8),
                                     ((1, 48, 6, 7), (20, 48, 2, 2)),
                                     (("pads", [1, 0, 0, 1]),), constant=(1,)),
    "short filters by taps": Case("cuda_conv_tf32", "Conv", (F32, F32),
                                  ((1, 32, 5, 6, 4), (16, 32, 1, 2, 3)), (), constant=(1,)),
    "wgmma of float16": Case("cuda_matmul_wgmma", "MatMul", (F16, F16), ((70, 104), (104, 40))),
    "wgmma of bfloat16, batches": Case("cuda_matmul_wgmma", "MatMul", (BF16, BF16),
                                       ((2, 3, 34, 40), (3, 40, 72))),
    "wgmma of float16, transposed": Case("cuda_matmul_wgmma", "Gemm", (F16, F16, F16),
                                         ((72, 200), (136, 72), (136,)),
                                         (("transA", 1), ("transB", 1))),
    "wgmma of packed float16": Case("cuda_matmul_wgmma", "MatMul", (F16, F16),
                                    ((3, 65, 72), (3, 72, 67)), constant=(1,)),
    "wgmma of bytes": Case("cuda_matmul_wgmma", "MatMulInteger", (np.uint8, np.int8),
                           ((70, 144), (144, 67)), constant=(1,)),
    "wgmma of halves": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                            ((70, 100), (100, 67)), constant=(1,)),
    "wgmma of halves, batches": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                                     ((2, 33, 40), (2, 40, 24)), constant=(1,)),
    "wgmma of rounded": Case("cuda_matmul_wgmma_bf16", "Gemm", (F32, F32, F32),
                             ((70, 100), (67, 100), (67,)), (("transB", 1),), constant=(1, 2)),
    "wgmma of short": Case("cuda_matmul_wgmma_tf32", "MatMul", (F32, F32), ((70, 100), (100, 67)),
                           constant=(1,)),
    "wgmma of single pixels": Case("cuda_conv_wgmma", "Conv", (F16, F16, F16),
                                   ((2, 72, 8, 9), (67, 72, 1, 1), (67,))),
    "wgmma of pixels in halves": Case("cuda_conv_wgmma_bf16x3", "Conv", (F32, F32, F32),
                                      ((2, 40, 10, 10), (67, 40, 1, 1), (67,)), constant=(1, 2)),
    "wgmma of rounded pixels": Case("cuda_conv_wgmma_bf16", "Conv", (F32, F32),
                                    ((1, 70, 36), (24, 70, 1)), constant=(1,)),
    "wgmma of halves, transposed": Case("cuda_matmul_wgmma_bf16x3", "Gemm", (F32, F32, F32),
                                        ((33, 68), (70, 33), (70,)),
                                        (("transA", 1), ("transB", 1)), constant=(1,)),
    "wgmma of shared sums": Case("cuda_conv_wgmma_bf16x3", "Conv", (F32, F32, F32),
                                 ((1, 200, 8, 9), (67, 200, 1, 1), (67,)), constant=(1, 2)),
    "wgmma of long sums": Case("cuda_matmul_wgmma", "MatMul", (F16, F16),
                               ((70, 328), (328, 72))),
}  # fmt: skip
U8, S8 = np.uint8, np.int8
CASES |= {
    "bytes and a zero point": Case("cuda_matmul_tensor", "MatMulInteger", (U8, S8, U8),
                                   ((70, 144), (144, 40), ()), constant=(1, 2)),
    "batches and a zero point": Case("cuda_matmul_tensor", "MatMulInteger", (S8, S8, S8),
                                     ((2, 3, 33, 40), (3, 40, 24), ()), constant=(1, 2)),
    "two zero points": Case("cuda_matmul_tensor", "MatMulInteger", (U8, U8, U8, U8),
                            ((33, 50), (50, 24), (), ()), constant=(1, 2, 3)),
    "two zero points of the run": Case("cuda_matmul_tensor", "MatMulInteger", (U8, S8, U8, S8),
                                       ((2, 33, 64), (2, 64, 40), (), ()), constant=(2, 3)),
    "zero points of long sums": Case("cuda_matmul_tensor", "MatMulInteger", (S8, U8, S8, U8),
                                     ((40, 1700), (1700, 72), (), ()), constant=(2, 3)),
    "padding is the zero point": Case("cuda_conv_tensor", "ConvInteger", (U8, S8, U8),
                                      ((2, 3, 9, 11), (12, 3, 3, 3), ()), CONV, constant=(1, 2)),
    "zero points by taps": Case("cuda_conv_tensor", "ConvInteger", (S8, S8, S8),
                                ((1, 96, 9, 7), (40, 48, 3, 2), ()), (*CONV, ("group", 2)),
                                constant=(1, 2)),
    "zero points of filters": Case("cuda_conv_tensor", "ConvInteger", (U8, U8, U8, U8),
                                   ((1, 16, 6, 7), (24, 8, 3, 3), (), (24,)),
                                   (*CONV, ("group", 2)), constant=(1, 2)),
    "zero points of filters of the run": Case("cuda_conv_tensor", "ConvInteger", (U8, S8, U8, S8),
                                              ((1, 16, 6, 7), (12, 16, 3, 3), (), (12,)), CONV,
                                              constant=(2,)),
    "wgmma of bytes and a zero point": Case("cuda_matmul_wgmma", "MatMulInteger", (U8, S8, U8),
                                            ((70, 144), (144, 67), ()), constant=(1, 2)),
    "wgmma of batches and a zero point": Case("cuda_matmul_wgmma", "MatMulInteger", (S8, U8, S8),
                                              ((2, 3, 34, 48), (3, 48, 72), ()), constant=(1, 2)),
    "wgmma of long sums and a zero point": Case("cuda_matmul_wgmma", "MatMulInteger",
                                                (U8, S8, U8), ((70, 656), (656, 72), ()),
                                                constant=(1, 2)),
}  # fmt: skip
CASES |= {
    "wgmma of halves of the run": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                                       ((2, 70, 100), (2, 100, 67))),
    "wgmma of halves of the run, transposed": Case("cuda_matmul_wgmma_bf16x3", "Gemm",
                                                   (F32, F32, F32), ((33, 68), (70, 33), (70,)),
                                                   (("transA", 1), ("transB", 1))),
    "wgmma of halves of the run, broadcast": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                                                  ((2, 3, 33, 40), (3, 40, 24))),
    "wgmma of long halves of the run": Case("cuda_matmul_wgmma_bf16x3", "MatMul", (F32, F32),
                                            ((70, 328), (328, 72))),
    "wgmma of rounded of the run": Case("cuda_matmul_wgmma_bf16", "MatMul", (F32, F32),
                                        ((70, 100), (100, 67))),
    "wgmma of short of the run": Case("cuda_matmul_wgmma_tf32", "MatMul", (F32, F32),
                                      ((70, 100), (100, 67))),
    "wgmma of odd float16 of the run": Case("cuda_matmul_wgmma", "MatMul", (F16, F16),
                                            ((2, 33, 40), (2, 40, 67))),
    "wgmma of bytes of the run": Case("cuda_matmul_wgmma", "MatMulInteger", (S8, U8),
                                      ((70, 144), (144, 67))),
    "wgmma of pixels and filters of the run": Case("cuda_conv_wgmma_bf16x3", "Conv",
                                                   (F32, F32, F32),
                                                   ((2, 40, 10, 10), (67, 40, 1, 1), (67,))),
    "wgmma of two zero points": Case("cuda_matmul_wgmma", "MatMulInteger", (U8, U8, U8, U8),
                                     ((70, 144), (144, 67), (), ()), constant=(1, 2, 3)),
    "wgmma of a zero point of constants": Case("cuda_matmul_wgmma", "MatMulInteger",
                                               (U8, U8, U8, U8), ((2, 33, 64), (64, 40), (), ()),
                                               constant=(1, 3)),
    "wgmma of two zero points of the run": Case("cuda_matmul_wgmma", "MatMulInteger",
                                                (U8, S8, U8, S8),
                                                ((2, 3, 33, 64), (3, 64, 40), (), ())),
    "wgmma of long sums and two zero points": Case("cuda_matmul_wgmma", "MatMulInteger",
                                                   (S8, U8, S8, U8), ((70, 656), (656, 72), (), ()),
                                                   constant=(2, 3)),
}  # fmt: skip
CASES |= {
    "few results": Case("cuda_conv_shared", "Conv", (F32, F32, F32),
                        ((2, 16, 5, 5), (6, 8, 3, 3), (6,)), (*CONV, ("group", 2))),
    "few results of a pixel": Case("cuda_conv_shared", "Conv", (F16, F16), ((3, 200, 1, 1),
                                   (24, 200, 1, 1)), constant=(1,)),
    "few results of bytes": Case("cuda_conv_shared", "ConvInteger", (U8, U8, U8, U8),
                                 ((1, 16, 6, 7), (24, 8, 3, 3), (), (24,)),
                                 (*CONV, ("group", 2)), constant=(1, 2)),
}  # fmt: skip
QUICK = (
    "float16", "uint8 and int8", "two zero points", "zero points of filters",
    "wgmma of bytes and a zero point", "wgmma of halves of the run",
    "wgmma of two zero points of the run", "few results", "halves", "conv", "conv in floats",
    "short",
    "wgmma of float16", "wgmma of halves", "packed halves", "filters by taps",
)  # fmt: skip


def lowered(name: str) -> Lowered:
    return lowered_case(CASES[name])


@cache
def compiled(quick: bool) -> dict[tuple[str, str], Network]:
    """Return networks in which a candidate was chosen, all in one library."""
    names = [n for n in CASES if (n in QUICK) == quick]
    chosen = [(n, c) for n in names for c in lowered(n).candidates(CASES[n].kernel)]
    chosen = [pair for k, pair in enumerate(chosen) if not quick or pair[0] not in
              [n for n, _ in chosen[:k]]]  # fmt: skip
    return compile_by_label(CASES, chosen)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in CASES]
)
def test_every_tile_gives_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {label: w for (n, label), w in compiled(name in QUICK).items() if n == name}
    check_results(CASES[name], own, monkeypatch)


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_every_tile_gives_the_product_on_a_gpu(name: str) -> None:
    check_on_gpu(CASES[name], get_target("cuda"))


@pytest.mark.slow
def test_what_is_checked_on_a_gpu_can_be_imitated() -> None:
    check_there(CASES["short"], TARGET)


@pytest.mark.parametrize("name", ["halves", "wgmma of halves of the run"])
def test_what_is_not_finite_is_as_in_floats(name: str) -> None:
    network = next(w for (n, _), w in compiled(True).items() if n == name)
    a, b = (array.copy() for array in lowered(name).feeds.values())
    rows = a.reshape(-1, a.shape[-1])  # of the first batch
    rows[0, 3], rows[1, 5], rows[2, 7] = np.inf, np.nan, 3e38
    b[..., 7, :] *= 100
    found = next(iter(network.run({"x0": a, "x1": b}).values()))
    with np.errstate(all="ignore"):
        right = (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float32)
    found, right = (y.reshape(-1, y.shape[-1]) for y in (found, right))
    for row in range(3):
        np.testing.assert_array_equal(np.isnan(found[row]), np.isnan(right[row]))
        np.testing.assert_array_equal(np.isinf(found[row]), np.isinf(right[row]))
    assert np.isfinite(found[3:]).all()


def test_what_is_not_finite_is_as_in_floats_of_packed_constants() -> None:
    network = next(w for (n, _), w in compiled(True).items() if n == "wgmma of halves")
    a, b = (array.copy() for array in lowered("wgmma of halves").arrays)
    a[0, 3], a[1, 5], a[2, 7], a[3, :] = np.inf, np.nan, 3.4e38, -3.4e38
    found = next(iter(network.run({"x0": a}).values()))
    with np.errstate(all="ignore"):
        right = (a @ b).astype(np.float32)
    assert not np.isfinite(right[0]).any()
    for row in range(2):
        np.testing.assert_array_equal(np.isnan(found[row]), np.isnan(right[row]))
        np.testing.assert_array_equal(np.isinf(found[row]), np.isinf(right[row]))
    some = np.isfinite(found[2]) & np.isfinite(right[2])
    assert some.any()  # in halves all of them would be infinite
    np.testing.assert_allclose(found[2][some], right[2][some], rtol=1e-4)
    assert np.isfinite(found[4:]).all()


@pytest.mark.few(2)
@pytest.mark.parametrize("constant", [(1,), ()])
@pytest.mark.parametrize("dtype", [F16, F32])
def test_warpgroups_multiply_what_is_large_enough(dtype: Any, constant: tuple[int, ...]) -> None:
    target = get_target("cuda-sm90")
    chosen = []
    for rows in (8, 1024):
        shapes = ((rows, 1024), (1024, 1024))
        own = lowered_case(Case("", "MatMul", (dtype, dtype), shapes, constant=constant))
        graph = run_passes(own.graph, width=1, device=True)
        chosen += [c.candidate.kernel.name for c in select(graph, target).values()]
        others = consider(own.workload, get_target("cuda-sm100"), LIMITS).found
        assert not any("wgmma" in c.kernel.name for c in others)
    assert ["wgmma" in name for name in chosen] == [False, True]


@pytest.mark.parametrize(
    ("kernel", "dtype"), [("cuda_matmul_bf16x3", F32), ("cuda_matmul_tensor", F16)]
)
def test_blocks_share_long_sums_of_few_tiles(kernel: str, dtype: Any) -> None:
    own = lowered_case(Case(kernel, "MatMul", (dtype, dtype), ((100, 20000), (20000, 90))))
    assert own.candidates(kernel)[0].params.blocks
    wide = lowered_case(Case(kernel, "MatMul", (dtype, dtype), ((4000, 64), (64, 4000))))
    assert not any(c.params.blocks for c in wide.candidates(kernel))


def test_warpgroups_share_long_sums_of_few_tiles() -> None:
    for name in ("wgmma of long sums", "wgmma of shared sums"):  # both ways are compared there
        tried = lowered(name).candidates(CASES[name].kernel)
        assert {c.params.shared for c in tried} == {True, False}
    target = get_target("cuda-sm90")
    for rows, depth, shared in ((128, 8192, True), (128, 256, False), (4096, 1024, False)):
        case = Case("cuda_matmul_wgmma", "MatMul", (F16, F16), ((rows, depth), (depth, 1024)))
        assert lowered_case(case).candidates(case.kernel, target)[0].params.shared == shared


def test_blocks_share_tiles_evenly_or_begin_in_the_middle_of_one() -> None:
    """Both ways are among those whose products are compared."""
    found = lowered("halves of long sums").candidates("cuda_matmul_bf16x3")
    params = [c.params for c in found if c.params.blocks]
    rests = {p.blocks % (-(-40 // p.m) * -(-72 // p.n)) == 0 for p in params}
    assert rests == {True, False}


FAULTS = {
    "as it should be": ("", ""),
    "tiles aren't waited for": ("      w_await(filled", "      if (step < 0) w_await(filled"),
    "sums aren't waited for": ("    w_finish<0>();", ""),
    "a stage is given back early": ("w_arrive(read + (iteration - 1)", "w_arrive(read + iteration"),
    "stages aren't waited for": ("if (iteration >= 4) w_await", "if (iteration >= 400) w_await"),
    "a stage is never given back": ("if (lane == 0) w_arrive", "if (lane == 32) w_arrive"),
    "bytes are missing": ("w_expect(filled + stage, 16384)", "w_expect(filled + stage, 16400)"),
    "another order of chunks": ("b + k * 128", "b + k * 64"),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_shows_faults_of_warpgroups(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two blocks take four tiles, more steps than stages."""
    name = "wgmma of long sums"
    own = lowered(name)
    alone = [c for c in own.candidates("cuda_matmul_wgmma") if not c.params.shared]
    least = min(alone, key=lambda c: c.params.m * c.params.n)
    chosen = replace(least, params=replace(least.params, blocks=2))
    was, is_now = FAULTS[fault]
    assert survives(CASES[name], chosen, was, is_now, monkeypatch) == (not was)


def test_tiles_are_chosen_by_what_they_cost() -> None:
    for name in ("float16", "halves"):
        costs = [c.kernel.cost(lowered(name).workload, c.params, TARGET)
                 for c in lowered(name).candidates(CASES[name].kernel)]  # fmt: skip
        assert costs == sorted(costs)
        assert 0 < costs[0] < 1  # seconds: less than any cycles of the host


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("packed")])
def test_packed_constants_are_copied_beside_products(name: str) -> None:
    own = lowered(name)
    for each in own.candidates(CASES[name].kernel):
        assert list(each.kernel.packs(own.workload, each.params, TARGET)) == [1]
        side = "a" if CASES[name].op == "Conv" else "b"
        text = render_kernel(each, own.workload, TARGET).text
        assert f"t_copy({side}_tile[filled][0]" in text
        assert f"t_store({side}_tile" not in text


@pytest.mark.parametrize("name", [n for n in CASES if n.endswith("by taps")])
def test_places_of_channels_are_found_once_for_a_chunk(name: str) -> None:
    own = lowered(name)
    for each in own.candidates(CASES[name].kernel):
        text = render_kernel(each, own.workload, TARGET).text
        loads = text[text.index("b_from = x0 + (inside ?") :].partition("t_commit()")[0]
        assert re.search(r"= (\w+\(|\(\w+\))?b_from\[e \* \d+\]\)?;", loads)
        assert "x0[" not in loads


def test_what_is_not_finite_is_as_in_floats_of_filters_by_taps() -> None:
    network = next(w for (n, _), w in compiled(True).items() if n == "filters by taps")
    x, filters, bias = (array.copy() for array in lowered("filters by taps").arrays)
    x[0, 3, 2, 1], x[1, 15, 5, 10] = np.inf, np.nan
    found = next(iter(network.run({"x0": x}).values()))
    model = node_model("Conv", [x, filters, bias], opset=23, **dict(CONV))
    (right,) = onnx.reference.ReferenceEvaluator(model).run(
        None, {"x0": x, "x1": filters, "x2": bias}
    )
    for kind in (np.isnan, np.isinf):
        assert 0 < kind(right).sum() < right.size / 2
        np.testing.assert_array_equal(kind(found), kind(right))


@pytest.mark.parametrize("zero", [False, True])
def test_quantized_convolutions_are_computed_on_tensor_cores(zero: bool) -> None:
    """A first layer's filters are no whole steps: what fills them up costs little."""
    for target in map(get_target, ("cuda-sm80", "cuda-sm90")):
        for x, filters in (((1, 64, 56, 56), (64, 64, 3, 3)), ((1, 3, 224, 224), (64, 3, 7, 7))):
            case = Case("", "ConvInteger", (U8, S8, U8)[: 2 + zero], (x, filters, ())[: 2 + zero],
                        CONV, constant=(1, 2)[: 1 + zero])  # fmt: skip
            graph = run_passes(lowered_case(case).graph, width=1, device=True)
            chosen = {c.candidate.kernel.name for c in select(graph, target).values()}
            assert "cuda_conv_tensor" in chosen or "cuda_conv_wgmma_im2col" in chosen


def test_devices_without_such_cores_do_without() -> None:
    own = get_target("cuda-sm75")
    assert not lowered("float16").candidates("cuda_matmul_tensor", own)
    assert lowered("float16").candidates("cuda_matmul", own)


@pytest.mark.slow
@needs_nvcc
def test_compiled_products_use_tensor_cores(tmp_path: Path) -> None:
    check_code("sm_80", sources("sm_80", CASES["halves"])[:1], tmp_path)


@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("device", ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120"])
def test_the_largest_tiles_compile_without_spills(device: str, tmp_path: Path) -> None:
    check_code(device, largest(sources(device, *CASES.values())), tmp_path)


@pytest.mark.slow
@needs_nvcc
def test_warpgroups_that_share_steps_compile_without_spills(tmp_path: Path) -> None:
    shapes = ((128, 8192), (8192, 1024))
    cases = [Case(f"cuda_matmul_wgmma{end}", "MatMul", (dtype, dtype), shapes, constant=(1,))
             for dtype, end in ((F16, ""), (F32, "_bf16x3"))]  # fmt: skip
    shared = [each for each in sources("sm_90", *cases) if each[1].params.shared]
    assert len({candidate.kernel.name for _, candidate, _ in shared}) == len(cases)
    check_code("sm_90", largest(shared), tmp_path)


@pytest.mark.fuzz
@needs_nvcc
@pytest.mark.parametrize("device", ARCHITECTURES)
def test_all_tiles_compile_without_spills(device: str, tmp_path: Path) -> None:
    check_code(device, sources(device, *CASES.values()), tmp_path)


@pytest.mark.parametrize("device", ["sm_80", "sm_90"])
def test_threads_share_the_few_results_of_a_gate(device: str) -> None:
    """As squeeze-and-excitation has: 48 results of 1152 channels, of one pixel."""
    for shapes, few in (
        (((1, 1152, 1, 1), (48, 1152, 1, 1)), True), (((1, 512, 9, 9), (512, 512, 3, 3)), False)
    ):  # fmt: skip
        case = Case("", "Conv", (F32, F32), shapes, constant=(1,))
        graph = run_passes(lowered_case(case).graph, width=1, device=True)
        target = get_target(f"cuda-{device.replace('_', '')}")
        chosen = {c.candidate.kernel.name for c in select(graph, target).values()}
        assert ("cuda_conv_shared" in chosen) == few
