"""Every real model, of all three formats, compiles and gives its stored outputs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from atc.backends.target import host_features
from atc.importers import load_model
from atc.lower import lower_model
from support import compile_models

MODELS = Path(__file__).parents[3] / "shared" / "models"
FILES = {
    str(path.parent.relative_to(MODELS)): path
    for pattern in ("*/model.onnx", "mge/*/model.mge", "mxnet/*/model-symbol.json")
    for path in sorted(MODELS.glob(pattern))
}

LONG = {"mge/mobile", "mxnet/mobilenetv2", "mxnet/squeezenet", "ppocr_cls", "ultraface_rfb320"}
"""Models whose vector kernels take a compiler long: by default they run on portable ones."""

LIKE_OTHERS = {"fastestdet", "mxnet/mobilenetv2", "ort_superres", "ppocr_cls", "yunet_s_320"}
"""Networks of convolutions, as some that are run by default are."""

FLOATS = "x86-64-avx512-bf16" if "amx_tile" in host_features() else "host"
"""The machine's own vectors, without products in bf16x3, which err more than the stored noise."""

CASES = [
    pytest.param(
        m, t, marks=() if (m in LONG) is (t == "c99") and m not in LIKE_OTHERS else pytest.mark.slow
    )
    for m in FILES
    for t in ("c99", FLOATS)
]


STEPS = 3
"""By which quantised outputs may differ."""


def _load(path: Path, prefix: str) -> list[np.ndarray]:
    with np.load(path) as data:
        return [data[f"{prefix}{k}"] for k in range(len(data.files))]


@pytest.mark.slow
@pytest.mark.skipif(not FILES, reason="../shared/models is not there")
@pytest.mark.parametrize(("model", "target"), CASES)
def test_a_real_model_gives_its_stored_outputs(model: str, target: str) -> None:
    file, folder = FILES[model], FILES[model].parent
    meta = json.loads((folder / "meta.json").read_text())
    runners = {}
    for k, case in enumerate(meta["cases"]):
        path = folder / f"case{k}_in.npz"
        inputs = _load(path, "i")
        expected = _load(path.with_name(path.name.replace("_in", "_out")), "o")
        shapes = tuple(x.shape for x in inputs)
        if shapes not in runners:
            pins = dict(zip(meta["inputs"], shapes, strict=True))
            graph = lower_model(load_model(file, "", pins, None), model)
            (runners[shapes],) = compile_models([graph], target)
        outputs = runners[shapes](inputs)
        steps = quantisation_steps(file) or [0.0] * len(expected)
        allowed = [max(n, s) for n, s in zip(case["noise_floor"], steps, strict=True)]
        for got, want, noise in zip(outputs, expected, allowed, strict=True):
            assert got.shape == want.shape
            _assert_within_noise(got, want, noise, f"case {k}")


def quantisation_steps(path: Path) -> list[float]:
    """Return STEPS of each output: of the scale of the DequantizeLinear that makes it, 0 elsewhere.

    Averages of bytes often lie in the middle between two integers. Which of them a sum of floats
    gives follows from its order: onnxruntime, with and without its optimisations, differs from
    itself by as much.
    """
    if path.suffix != ".onnx":
        return []
    graph = onnx.load(path).graph
    known = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    scales = {
        n.output[0]: float(known[n.input[1]].max())
        for n in graph.node
        if n.op_type == "DequantizeLinear" and n.input[1] in known
    }
    return [1.001 * STEPS * scales.get(o.name, 0.0) for o in graph.output]


def _assert_within_noise(got: np.ndarray, want: np.ndarray, noise: float, label: str) -> None:
    """Within 1e-4 of the output's scale, or the reference's own noise where that is larger."""
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    scale = max(np.abs(want64).max(initial=0.0), 1e-30)
    error = np.abs(got64 - want64).max(initial=0.0)
    assert error <= max(1e-4 * scale, noise), f"{label} is off by {error / scale:.2e} of its scale"
