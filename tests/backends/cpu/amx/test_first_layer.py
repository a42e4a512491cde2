"""First layers on AMX's tiles, emulated where the CPU has none, against float64 and each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blocked_convs import DIRECT, Case, build, convolve, from_blocks
from kernel_program import Call, run_calls, vector_target
from quantized_convs import Case as Quantized
from quantized_convs import expected, model, parts
from tile_convs import (
    AMX,
    FEW_IMAGES,
    IMAGES,
    ROUNDING,
    check_counted_batches,
    check_counted_images,
    check_own_tiles,
    fed,
    resized,
    rounded,
)

from atc.backends.cpu.amx.first_layer import (
    FirstTiles,
    FirstTilesBf16,
    FirstTilesBf16x3,
    FirstTilesBf16x6,
    FirstTilesBytes,
)
from atc.backends.kernel import Candidate, workload_of
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked, Window
from atc.passes import run_passes
from atc.select.layout_costs import LayoutCosts
from atc.select.select import ANY
from support import compile_graph

CASES = {name: case for name, case in DIRECT.items() if case.plain} | {
    "stem": Case(3, 64, (37, 70), (7, 7), stride=2, pad=3, plain=True),
    "patches": Case(3, 48, (40, 56), (8, 8), stride=8, pad=0, plain=True, epilogue="none"),
    "small patches": Case(3, 40, (13, 18), (4, 4), stride=4, pad=0, batch=2, plain=True),
    "one block": Case(3, 16, (40, 70), stride=2, plain=True, epilogue="swish"),
    "four channels": Case(4, 33, (21, 23), (5, 5), pad=2, plain=True, epilogue="residual"),
    "dilated rows": Case(2, 20, (19, 17), (3, 1), pad=2, dilation=2, plain=True),
    "one dimension": Case(1, 24, (300,), (25,), stride=5, pad=12, plain=True, epilogue="none"),
    "more pad than kernel": Case(3, 8, (2, 2), pad=4, plain=True, epilogue="none"),
    "libm": Case(2, 16, (5, 6), plain=True, epilogue="libm"),
}
FEW = {"bf16": "small patches", "bf16x3": "four channels", "bf16x6": "stem"}
"""Cases that together meet most branches of the template."""
KERNELS = {
    "bf16": (FirstTilesBf16(), 4e-6), "bf16x3": (FirstTilesBf16x3(), 2e-5),
    "bf16x6": (FirstTilesBf16x6(), 1e-6),
}  # fmt: skip


def calls_of(
    case: Case, kernel: FirstTiles, most: int, feed: Callable[[Array], Array] = np.asarray
) -> list[Call]:
    """Return calls with the first parameter sets; the input goes through `feed`."""
    w, operands = fed(case, kernel, feed)
    sets = kernel.parameters(w, vector_target(AMX))[:most]
    return [Call(kernel, each, w, operands) for each in sets]


Check = tuple[Call, Callable[[Array], None]]
"""A call, and what its result must be."""


def checked_sums(precision: str, name: str, most: int) -> list[Check]:
    """Compare with sums in float64 of operands rounded alike.

    Split numbers are off by at most 2^-17 of themselves, so sums of their products by less.
    """
    (kernel, tolerance), case = KERNELS[precision], CASES[name]
    _, _, wanted = build(case, 16, ROUNDING[precision])
    _, _, true = build(case, 16)

    def check(got: Array) -> None:
        plain = from_blocks(got, case.filters)
        error = np.abs(plain - wanted).max()
        assert error <= tolerance * max(np.abs(wanted).max(), 1), f"{name}: {error}"
        if precision == "bf16x3" and case.epilogue == "none":
            assert np.std(plain - true) < 2**-17 * np.std(true), name

    return [(call, check) for call in calls_of(case, kernel, most)]


def run_checks(checks: Sequence[Check]) -> None:
    """Run the calls together, and check their results."""
    results = run_calls([call for call, _ in checks], vector_target(AMX))
    for (_, check), (got,) in zip(checks, results, strict=True):
        check(got)


@pytest.mark.slow
@pytest.mark.parametrize("precision", KERNELS)
def test_sums_of_products_in_all_cases(precision: str) -> None:
    run_checks([c for name in CASES for c in checked_sums(precision, name, 4)])


def test_images_that_the_run_counts_have_the_same_bits() -> None:
    calls = [c for name in list(CASES)[:4] for c in calls_of(CASES[name], FirstTilesBf16x3(), 1)]
    check_counted_batches(calls)


@pytest.mark.few(1)
@pytest.mark.parametrize("precision", KERNELS)
def test_rows_and_columns_that_the_run_counts_have_the_same_bits(precision: str) -> None:
    cases = [resized(CASES["stem"], size) for size in FEW_IMAGES[precision]]
    check_counted_images(cases, KERNELS[precision][0], 41)


@pytest.mark.slow
@pytest.mark.parametrize("precision", KERNELS)
def test_rows_and_columns_that_the_run_counts_in_all_cases(precision: str) -> None:
    sizes = dict(zip(CASES, 9 * IMAGES, strict=False))
    cases = [resized(c, size) for name, c in CASES.items() for size in (c.size, sizes[name])]
    check_counted_images(cases, KERNELS[precision][0], 310)


def test_operands_of_other_types_are_refused() -> None:
    target = vector_target(AMX)
    (call,) = calls_of(CASES["libm"], FirstTilesBf16(), 1)
    x, *others = call.workload.inputs
    assert x is not None
    stored = replace(x, dtype=DType.BFLOAT16)
    assert not call.kernel.accepts(replace(call.workload, inputs=(stored, *others)), target)
    results = tuple(replace(t, dtype=DType.BFLOAT16) for t in call.workload.outputs)
    assert not call.kernel.accepts(replace(call.workload, outputs=results), target)


@pytest.mark.slow
@pytest.mark.parametrize("precision", KERNELS)
def test_infinities_and_nan_stay_where_windows_meet_them(precision: str) -> None:
    case, kernel = replace(CASES["stem"], epilogue="none"), KERNELS[precision][0]

    def with_infinities(x: Array) -> Array:
        changed = x.copy()
        changed[0, 0, 20, 23], changed[0, 1, 3, 0], changed[0, 2, 36, 69] = np.inf, np.nan, -np.inf
        changed[0, 1, 9, 40] = 3.4e38
        return changed

    calls = calls_of(case, kernel, 2, with_infinities)
    graph, (x,), _ = build(case, 16)
    with np.errstate(invalid="ignore", over="ignore"):
        feed = with_infinities(x)
        feed = rounded(feed) if precision == "bf16" else feed
        wanted = convolve(feed, ROUNDING[precision](graph.constants["w"]), case)
        wanted = wanted.astype(np.float32)
    assert np.isnan(wanted).any()
    assert np.isinf(wanted).any()
    for (got,) in run_calls(calls, vector_target(AMX)):
        plain = from_blocks(got, case.filters)
        np.testing.assert_allclose(plain, wanted, rtol=1e-4, atol=1e-4)


QUANTIZED = {
    "stem": Quantized(3, 48, 7, 2, 3, zero=0, size=40),
    "zero point": Quantized(3, 33, 5, 2, 2, zero=113, size=23),
    "signed": Quantized(4, 16, 3, 1, 1, x=np.int8, y=np.int8, zero=-7, size=19),
    "grey": Quantized(1, 20, 3, 2, 1, zero=9, size=14, bias="float"),
    "patches": Quantized(3, 40, 8, 8, 0, zero=128, size=32, per=False),
}


def byte_calls(case: Quantized, most: int) -> list[Call]:
    """Return calls for what is blocked of a quantized model, which pads in the kernel."""
    target, kernel = vector_target(AMX), FirstTilesBytes()
    layouts = LayoutCosts(target, ANY).layouts("auto")
    graph = run_passes(compile_graph(model(case)), width=16, layouts=layouts)
    node = next(n for n in graph.nodes if isinstance(n.op, ConvBlocked))
    x = parts(case)["x"]
    w = workload_of(graph, node, graph.constants)
    assert w.inputs[0] is not None
    kernels, steps = (case.kernel,) * 2, (case.stride,) * 2
    window = Window(kernels, steps, (case.dilation,) * 2, (case.pad,) * 2)
    types = (replace(w.inputs[0], shape=x.shape), *w.inputs[1:])
    w = replace(w, op=replace(node.op, window=window), inputs=types)
    assert kernel.accepts(w, target)
    operands = [x, *(graph.constants[i] for i in node.inputs[1:])]
    return [Call(kernel, s, w, operands) for s in kernel.parameters(w, target)[:most]]


def checked_bytes(name: str, most: int) -> list[Check]:
    """Compare with the exact sums."""
    want = expected(QUANTIZED[name])

    def check(got: Array) -> None:
        np.testing.assert_array_equal(from_blocks(got, want.shape[1]), want, err_msg=name)

    return [(call, check) for call in byte_calls(QUANTIZED[name], most)]


@pytest.mark.slow
def test_bytes_give_the_exact_sums_in_all_cases() -> None:
    run_checks([c for name in QUANTIZED for c in checked_bytes(name, 4)])


def test_sums_of_products() -> None:
    few = [c for precision, name in FEW.items() for c in checked_sums(precision, name, 1)]
    run_checks([*few, *checked_bytes("zero point", 1)])


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_compiles_with_the_machines_own_tiles(compiler: str, tmp_path: Path) -> None:
    calls = [call for kernel, _ in KERNELS.values() for call in calls_of(CASES["stem"], kernel, 2)]
    calls += byte_calls(QUANTIZED["zero point"], 2)
    kernels = [(Candidate(c.kernel, c.params), c.workload) for c in calls]
    check_own_tiles(compiler, kernels, tmp_path)
