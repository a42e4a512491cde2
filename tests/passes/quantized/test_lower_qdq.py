"""Quantized convolutions against exact integer sums and one scaling in float, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from quantized_convs import CASES, expected, model, parts, sums

from atc.ir.graph import DType
from atc.ir.ops import Conv
from atc.passes import run_passes
from support import compile_graph, run_models, runnable

TARGETS = ("c99", "x86-64-sse2", "x86-64-avx2", "x86-64-avx2-vnni", "x86-64-avx512",
           "x86-64-avx512-vnni")  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("target", TARGETS)
def test_sums_are_exact_and_results_rounded_once(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    models = [model(case) for case in CASES.values()]
    results = run_models(models, [[parts(case)["x"]] for case in CASES.values()], target)
    for (name, case), (got,) in zip(CASES.items(), results, strict=True):
        np.testing.assert_array_equal(got, expected(case), err_msg=name)


@pytest.mark.parametrize("name", CASES)
def test_every_convolution_sums_integers(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])))
    ops = [n.op for n in graph.nodes if isinstance(n.op, Conv)]
    assert [op.accumulator for op in ops] == [DType.INT32]


@pytest.mark.parametrize(
    "name", ["fewer bits", "fewer bits, signed", "depthwise, dilated", "depthwise, large"]
)
def test_bounds_gaps_and_large_windows_have_kernels_of_vectors(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])), width=16)
    (conv,) = (n for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked"))
    assert conv.op.kind == "ConvBlocked"


@pytest.mark.parametrize("name", CASES)
def test_results_are_within_one_step_of_onnxruntime(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    case = CASES[name]
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model(case).SerializeToString(), options)
    (want,) = session.run(None, {"x": parts(case)["x"]})
    assert np.abs(want.astype(int) - expected(case).astype(int)).max() <= 1


def test_there_are_ties_and_saturated_results() -> None:
    case = CASES["ties"]
    p = parts(case)
    total = sums(case) + p["bias"].reshape(1, -1, 1, 1)
    value = total * np.float64(p["x_scale"]) * p["w_scale"][0] / np.float64(p["y_scale"])
    assert (np.abs(value - np.floor(value) - 0.5) == 0).any()
    results = expected(CASES["saturating"])
    assert (results == 0).any()
    assert (results == 255).any()
