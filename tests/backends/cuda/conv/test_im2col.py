"""Convolutions by warpgroups whose windows the copy engine gathers: imitated, and compiled."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx.reference
import pytest
from product_cases import (
    BF16,
    F16,
    F32,
    LIMITS,
    Case,
    check_code,
    check_on_gpu,
    check_results,
    compile_by_label,
    largest,
    lowered_case,
    needs_nvcc,
    on_gpu,
    sources,
    survives,
)

from atc.backends.targets import get_target
from atc.passes import run_passes
from atc.runtime.network import Network
from atc.select.select import consider, select
from support import node_model

WINDOWS = (("pads", [1, 2, 0, 1]), ("strides", [2, 1]), ("dilations", [1, 2]))
CASES = {
    "windows of float16": Case("cuda_conv_wgmma_im2col", "Conv", (F16, F16, F16),
                               ((3, 40, 8, 6), (67, 40, 3, 2), (67,)), WINDOWS, (1, 2)),
    "windows of groups": Case("cuda_conv_wgmma_im2col", "Conv", (BF16, BF16),
                              ((2, 48, 7, 5), (40, 24, 2, 2)), (("group", 2),), (1,)),
    "windows of bytes": Case("cuda_conv_wgmma_im2col", "ConvInteger", (np.uint8, np.int8),
                             ((1, 40, 9, 9), (20, 40, 2, 2)), (("pads", [1, 0, 0, 1]),), (1,)),
    "windows of bytes and a zero point": Case(
        "cuda_conv_wgmma_im2col", "ConvInteger", (np.uint8, np.int8, np.uint8),
        ((2, 40, 9, 8), (20, 40, 3, 2), ()), WINDOWS, (1, 2)),
    "windows of groups and a zero point": Case(
        "cuda_conv_wgmma_im2col", "ConvInteger", (np.int8, np.int8, np.int8),
        ((3, 64, 7), (40, 32, 2), ()), (("group", 2), ("pads", [0, 1])), (1, 2)),
    "windows of long sums": Case("cuda_conv_wgmma_im2col", "Conv", (F16, F16, F16),
                                 ((1, 160, 5, 6), (24, 160, 3, 3), (24,)),
                                 (("pads", [1, 1, 1, 1]),), (1, 2)),
    "windows of halves": Case("cuda_conv_wgmma_im2col_bf16x3", "Conv", (F32, F32, F32),
                              ((2, 40, 9, 8), (24, 40, 2, 3), (24,)),
                              (("pads", [1, 1, 1, 1]), ("strides", [1, 2])), (1, 2)),
    "rounded windows along one axis": Case("cuda_conv_wgmma_im2col_bf16", "Conv", (F32, F32),
                                           ((2, 40, 50), (24, 40, 3)), (("dilations", [2]),),
                                           (1,)),
    "short windows along three axes": Case("cuda_conv_wgmma_im2col_tf32", "Conv", (F32, F32),
                                           ((2, 18, 3, 6, 5), (16, 18, 2, 1, 2)),
                                           (("pads", [0, 1, 1, 1, 0, 0]), ("strides", [1, 2, 1])),
                                           (1,)),
}  # fmt: skip
QUICK = "windows of halves"


@cache
def compiled(quick: bool) -> dict[tuple[str, str], Network]:
    """Return networks by case and candidate, all in one library; of the quick case only one."""
    names = [QUICK] if quick else [*CASES]
    every = [(n, c) for n in names for c in lowered_case(CASES[n]).candidates(CASES[n].kernel)]
    chosen = every[:1] if quick else every
    return compile_by_label(CASES, chosen)


def test_windows_are_convolved(monkeypatch: pytest.MonkeyPatch) -> None:
    ((_, label), network), = compiled(True).items()
    check_results(CASES[QUICK], {label: network}, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_tile_convolves_windows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {label: w for (n, label), w in compiled(False).items() if n == name}
    assert len([label for label in own if "shared" not in label]) == 8
    check_results(CASES[name], own, monkeypatch)


@on_gpu
@pytest.mark.parametrize("name", CASES)
def test_every_tile_convolves_windows_on_a_gpu(name: str) -> None:
    check_on_gpu(CASES[name], get_target("cuda"))


def test_what_is_not_finite_is_as_in_floats() -> None:
    (network,) = compiled(True).values()
    x, filters, bias = (array.copy() for array in lowered_case(CASES[QUICK]).arrays)
    x[0, 3, 2, 1], x[0, 5, 7, 6], x[1, 7, 0, 0] = np.inf, np.nan, 3.4e38
    found = next(iter(network.run({"x0": x}).values()))
    model = node_model("Conv", [x, filters, bias], opset=23, **dict(CASES[QUICK].attributes))
    with np.errstate(all="ignore"):
        (right,) = onnx.reference.ReferenceEvaluator(model).run(
            None, {"x0": x, "x1": filters, "x2": bias}
        )
    assert 0 < np.isinf(right).sum() < right.size / 2
    assert 0 < np.isnan(right).sum() < right.size / 2
    np.testing.assert_array_equal(np.isnan(found), np.isnan(right))
    np.testing.assert_array_equal(np.isinf(found[0]), np.isinf(right[0]))
    some = np.isfinite(found) & np.isfinite(right)
    np.testing.assert_allclose(found[some], right[some], rtol=1e-3, atol=1e-3)


FAULTS = {
    "as it should be": ("", ""),
    "a box of neighbours": ("w_load_windows(a_tile", "w_load(a_tile"),
    "windows begin too early": ("(int)(o1 - 2)", "(int)(o1 - 3)"),
    "taps are too far away": ("(int)(k1 * 2)", "(int)(k1 * 256)"),
    "taps are mixed up": ("(int)(k1 * 2), (int)(k0)", "(int)k0, (int)k1"),
    "bytes are missing": ("w_expect(filled + stage, 16384)", "w_expect(filled + stage, 16400)"),
    "the input isn't copied": ("if (phase == 0)", "if (phase == 0) return; else if (phase < 0)"),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_the_emulation_shows_faults_of_windows(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["windows of float16"]
    found = lowered_case(case).candidates(case.kernel)
    least = min(found, key=lambda c: c.params.m * c.params.n)
    was, is_now = FAULTS[fault]
    assert survives(case, least, was, is_now, monkeypatch) == (not was)


def kernels(target: str, dtype: Any, *shapes: tuple[int, ...], constant: bool = True,
            **attributes: Any) -> set[str]:  # fmt: skip
    """Return the names of kernels that a convolution may be computed by."""
    case = Case("", "Conv", (dtype, dtype), shapes, tuple(attributes.items()), (1,) * constant)
    found = consider(lowered_case(case).workload, get_target(target), LIMITS).found
    return {c.kernel.name for c in found}


def test_windows_are_those_that_the_copy_engine_can_go_through() -> None:
    """The driver says how far corners, taps and strides may go, which others is ours."""
    name = "cuda_conv_wgmma_im2col"
    image, filters = (1, 16, 20, 20), (16, 16, 3, 3)
    assert name in kernels("cuda-sm90", F16, image, filters, strides=[8, 1])
    assert name not in kernels("cuda-sm90", F16, image, filters, strides=[9, 1])
    assert name not in kernels("cuda-sm100", F16, image, filters)
    assert name not in kernels("cuda-sm90", F16, image, filters, constant=False)
    assert name not in kernels("cuda-sm90", F16, (1, 8, 20, 20), (16, 8, 3, 3))
    line, three = (1, 16, 300), (16, 16, 3)
    assert name in kernels("cuda-sm90", F16, line, three, pads=[200, 200], dilations=[140])
    plane, nine = (1, 16, 2, 300), (16, 16, 1, 3)
    assert name in kernels("cuda-sm90", F16, plane, nine, pads=[0, 128, 0, 128], dilations=[1, 127])
    for pad, dilation in ((129, 100), (128, 128), (0, 70)):
        assert name not in kernels("cuda-sm90", F16, plane, nine, pads=[0, pad, 0, pad],
                                   dilations=[1, dilation])  # fmt: skip
    assert f"{name}_bf16x3" in kernels("cuda-sm90", F32, image, filters)
    grouped = [kernels("cuda-sm90", F16, (1, 2 * c, 20, 20), (32, c, 3, 3), group=2)
               for c in (24, 20)]  # fmt: skip
    assert [name in found for found in grouped] == [True, False]


def test_large_convolutions_are_of_windows() -> None:
    target, chosen = get_target("cuda-sm90"), []
    for images in (1, 32):
        case = Case("", "Conv", (F16, F16), ((images, 64, 56, 56), (64, 64, 3, 3)),
                    (("pads", [1, 1, 1, 1]),), (1,))  # fmt: skip
        graph = run_passes(lowered_case(case).graph, width=1, device=True)
        chosen += [c.candidate.kernel.name for c in select(graph, target).values()]
    assert ["im2col" in name for name in chosen] == [False, True]


def test_blocks_share_long_sums_of_few_windows() -> None:
    """As in the last stages of ResNet-50 with one image."""
    case = CASES["windows of long sums"]
    tried = {c.params.shared for c in lowered_case(case).candidates(case.kernel)}
    assert tried == {True, False}
    target = get_target("cuda-sm90")
    for images, shared in ((1, True), (64, False)):
        own = Case(case.kernel, "Conv", (F16, F16), ((images, 512, 7, 7), (512, 512, 3, 3)),
                   (("pads", [1, 1, 1, 1]),), (1,))  # fmt: skip
        assert lowered_case(own).candidates(case.kernel, target)[0].params.shared == shared


@pytest.mark.slow
@needs_nvcc
def test_the_largest_tiles_compile_without_spills(tmp_path: Path) -> None:
    check_code("sm_90", largest(sources("sm_90", *CASES.values())), tmp_path)


@pytest.mark.fuzz
@needs_nvcc
def test_all_tiles_compile_without_spills(tmp_path: Path) -> None:
    check_code("sm_90", sources("sm_90", *CASES.values()), tmp_path)
