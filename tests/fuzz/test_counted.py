"""Drawn graphs whose extents the data say, at several inputs: lengths change from run to run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from fuzz.compare import Case, difference, text
from fuzz.counted import draw_counted
from whole.test_dynamic import compiled

RUNS = 4


def model_of(seed: int) -> onnx.ModelProto:
    d = draw_counted(seed)
    read = {name for node in d.nodes for name in node.input}
    made = {name for node in d.nodes for name in node.output}
    ends = [v.name for v in d.pool if v.name in made and (v.name not in read or d.chance(0.3))]
    return d.model(ends)


def check(seed: int, folder: Path) -> None:
    model = model_of(seed)
    shapes = {
        i.name: tuple(n.dim_value for n in i.type.tensor_type.shape.dim) for i in model.graph.input
    }
    folder.mkdir(exist_ok=True)
    network = compiled(model, dict(shapes), folder)
    for run in range(RUNS):
        rng = np.random.default_rng((seed, run))
        feeds = {name: rng.normal(size=n).astype(np.float32) for name, n in shapes.items()}
        case = Case(f"counted {seed}, run {run}", model, feeds)
        wrong = difference(case, list(network.run(feeds).values()))
        assert not wrong, f"{case.name}: {wrong}\n{text(model)}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", [*range(8), 35, 77])
def test_some_graphs(seed: int, tmp_path: Path) -> None:
    check(seed, tmp_path)


@pytest.mark.fuzz
def test_four_hundred_graphs(tmp_path: Path) -> None:
    for seed in range(1000, 1400):
        check(seed, tmp_path / str(seed))
