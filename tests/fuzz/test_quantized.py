"""Drawn quantized networks beside onnxruntime.

A few by default; `-m fuzz` runs a thousand.
"""

from __future__ import annotations

import pytest
from fuzz.quantized import PARTS, draw_quantized, outcome

from support import compile_models


@pytest.mark.parametrize(
    ("seeds", "target"),
    [
        pytest.param(range(3), "c99"),
        pytest.param(range(3, 6), "host"),
        pytest.param(range(10, 40), "c99", marks=pytest.mark.slow),
        pytest.param(range(40, 70), "host", marks=pytest.mark.slow),
        pytest.param(range(1000, 1500), "c99", marks=pytest.mark.fuzz),
        pytest.param(range(1500, 2000), "host", marks=pytest.mark.fuzz),
    ],
)
def test_results_are_those_of_quantized_operators(seeds: range, target: str) -> None:
    pytest.importorskip("onnxruntime")
    cases = [draw_quantized(seed) for seed in seeds]
    runs = compile_models([case.model for case in cases], target, flags=["-O0"])
    wrong = [text for c, run in zip(cases, runs, strict=True) if (text := outcome(c, run))]
    assert not wrong


@pytest.mark.slow
def test_some_seeds_draw_every_part() -> None:
    pytest.importorskip("onnxruntime")
    drawn = [draw_quantized(seed).name.split()[-1].split("+") for seed in range(80)]
    assert {part for parts in drawn for part in parts} == {*PARTS}
