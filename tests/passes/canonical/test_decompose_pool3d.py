"""Pooling over three axes by way of two and one gives what onnxruntime gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, integers, noise

from atc.ir.ops import Pool
from atc.passes import run_passes
from support import assert_close, compile_graph, pinned, runnable

TARGET = "x86-64-avx2"
POOLS: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "whole": ("MaxPool", (6, 8, 8), {"kernel_shape": [2, 2, 2], "strides": [2, 2, 2]}),
    "padded": ("MaxPool", (7, 9, 6), {"kernel_shape": [3, 3, 3], "pads": [1] * 6}),
    "ceil": ("MaxPool", (7, 9, 6), {
        "kernel_shape": [3, 2, 3], "strides": [2, 2, 2], "ceil_mode": 1}),
    "dilated": ("MaxPool", (9, 9, 9), {"kernel_shape": [2, 3, 2], "dilations": [3, 2, 2]}),
    "average": ("AveragePool", (6, 8, 8), {"kernel_shape": [2, 2, 2], "strides": [1, 2, 2]}),
    "average inside": ("AveragePool", (5, 6, 7), {"kernel_shape": [3, 3, 3], "pads": [1] * 6}),
    "average padded": ("AveragePool", (5, 6, 7), {
        "kernel_shape": [3, 2, 3], "pads": [1, 0, 1, 1, 1, 0], "count_include_pad": 1}),
}  # fmt: skip
CASES = {
    name: Case(op, [noise(2, 3, *size)], (), attributes, 18)
    for name, (op, size, attributes) in POOLS.items()
}
CASES["bytes"] = Case("MaxPool", [integers("uint8", 2, 3, 7, 9, 6)], (), POOLS["padded"][2], 18,
                      outputs=(np.uint8,))  # fmt: skip
COMPILED = compiled(CASES, TARGET)


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str) -> None:
    if not runnable(TARGET):
        pytest.skip(f"this CPU can't run {TARGET}")
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_no_window_has_three_axes(name: str) -> None:
    graph = run_passes(compile_graph(pinned(CASES[name].model, CASES[name].feeds)), width=8)
    windows = [n.op.window.kernel for n in graph.nodes if isinstance(n.op, Pool)]
    assert windows
    assert all(sum(k > 1 for k in kernel) < 3 for kernel in windows)


def test_indices_are_those_of_the_whole() -> None:
    case = Case("MaxPool", [noise(1, 2, 4, 4, 4)], (), POOLS["whole"][2], 18,
                outputs=(np.float32, np.int64))  # fmt: skip
    graph = run_passes(compile_graph(pinned(case.model, case.feeds)), width=8)
    assert [len(n.outputs) for n in graph.nodes if isinstance(n.op, Pool)] == [2]
