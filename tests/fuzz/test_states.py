"""Drawn networks with states, for some steps beside onnxruntime, which is given them each time.

Two by default; `-m fuzz` runs two hundred.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from fuzz.states import PARTS, draw_stateful, outcome


@pytest.mark.parametrize(
    ("seeds", "target"),
    [
        pytest.param(range(2), "host"),
        pytest.param(range(6), "c99", marks=pytest.mark.slow),
        pytest.param(range(10, 16), "host", marks=pytest.mark.slow),
        pytest.param((2, 13, 35, 307), "cuda-emulated", marks=pytest.mark.slow),
        pytest.param(range(100, 200), "c99", marks=pytest.mark.fuzz),
        pytest.param(range(200, 300), "host", marks=pytest.mark.fuzz),
        pytest.param(range(300, 400), "cuda-emulated", marks=pytest.mark.fuzz),
    ],
)
def test_states_are_carried_from_call_to_call(
    seeds: Iterable[int], target: str, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    wrong = {seed: text for seed in seeds if (text := outcome(seed, target, tmp_path))}
    assert not wrong


def test_some_seeds_draw_every_part() -> None:
    assert {name for seed in range(40) for name in draw_stateful(seed).parts} == {*PARTS}
