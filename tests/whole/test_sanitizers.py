"""Whole networks under AddressSanitizer and UndefinedBehaviorSanitizer, as their examples run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from projects import build_example, emit_graph, reference, run_example, write_project

from atc.backends.targets import get_target
from atc.importers.onnx import load_onnx, pin_inputs
from atc.ir.graph import Array
from atc.lower import lower_model

SAMPLES = Path(__file__).parents[2] / "samples"
MODELS = Path(__file__).parents[3] / "shared" / "models"
REAL = sorted(p.parent.name for p in MODELS.glob("*/model.onnx"))
FLAGS = ("-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def run_sanitized(
    model: Path, inputs: list[Array], names: list[str], target: str, folder: Path
) -> list[Array]:
    """Build the example of a model for inputs of these shapes, run it, return what it prints."""
    shapes = {n: a.shape for n, a in zip(names, inputs, strict=True)}
    graph = lower_model(pin_inputs(load_onnx(model), shapes, model.name), model.name)
    write_project(folder, emit_graph(graph, target=target))
    program = build_example(folder, *FLAGS, *get_target(target).cflags)
    files = []
    for k, array in enumerate(inputs):
        files.append(folder / f"{k}.bin")
        array.tofile(files[-1])
    return [np.array(values) for values in run_example(program, *files).values()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("digits", "host"),
        pytest.param("keywords", "c99", marks=pytest.mark.slow),
        pytest.param("digits", "c99", marks=pytest.mark.slow),
        pytest.param("keywords", "host", marks=pytest.mark.slow),
    ],
)
def test_samples(name: str, target: str, tmp_path: Path) -> None:
    model = onnx.load(SAMPLES / f"{name}.onnx")
    random = np.random.default_rng(0)
    shapes = [[d.dim_value for d in v.type.tensor_type.shape.dim] for v in model.graph.input]
    inputs = [random.random(shape).astype(np.float32) for shape in shapes]
    names = [v.name for v in model.graph.input]
    printed = run_sanitized(SAMPLES / f"{name}.onnx", inputs, names, target, tmp_path)
    for got, expected in zip(printed, reference(model, *inputs), strict=True):
        np.testing.assert_allclose(got, expected.ravel(), atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not REAL, reason="../shared/models is not there")
@pytest.mark.parametrize("target", ["c99", "host"])
@pytest.mark.parametrize("name", REAL)
def test_real_models(name: str, target: str, tmp_path: Path) -> None:
    folder = MODELS / name
    names = json.loads((folder / "meta.json").read_text())["inputs"]
    with np.load(folder / "case0_in.npz") as data:
        inputs = [data[f"i{k}"] for k in range(len(data.files))]
    printed = run_sanitized(folder / "model.onnx", inputs, names, target, tmp_path)
    with np.load(folder / "case0_out.npz") as data:
        for k, got in enumerate(printed):
            expected = data[f"o{k}"].astype(np.float64).ravel()
            scale = np.abs(expected).max(initial=0.0)
            np.testing.assert_allclose(got, expected, atol=max(1e-2 * scale, 1e-6))
