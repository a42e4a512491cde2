"""Drawn networks over ranges of shapes, at some of them beside onnxruntime.

One by default; `-m fuzz` runs three hundred.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fuzz.ranges import PARTS, draw_ranged, outcome


@pytest.mark.parametrize(
    ("seeds", "target"),
    [
        pytest.param(range(1), "host"),
        pytest.param(range(6), "c99", marks=pytest.mark.slow),
        pytest.param(range(10, 16), "host", marks=pytest.mark.slow),
        pytest.param(range(100, 200), "c99", marks=pytest.mark.fuzz),
        pytest.param(range(200, 300), "host", marks=pytest.mark.fuzz),
        pytest.param(range(300, 400), "x86-64", marks=pytest.mark.fuzz),
    ],
)
def test_results_are_right_at_every_shape(seeds: range, target: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    wrong = {seed: text for seed in seeds if (text := outcome(seed, target, tmp_path))}
    assert not wrong


def test_some_seeds_draw_every_part() -> None:
    assert {name for seed in range(80) for name in draw_ranged(seed).parts} == {*PARTS}
