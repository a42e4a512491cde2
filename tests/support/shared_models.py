"""The shared models: their files, their stored inputs and outputs, and what may differ."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from atc.backends.targets import get_target
from atc.importers import load_model
from atc.ir.graph import Graph
from atc.lower import lower_model
from atc.onnx_backend import compile_networks
from atc.passes import run_passes
from atc.select.select import Limits, select
from support import compile_models

MODELS = Path(__file__).parents[3] / "shared" / "models"
FILES = {
    str(path.parent.relative_to(MODELS)): path
    for pattern in ("*/model.onnx", "mge/*/model.mge", "mxnet/*/model-symbol.json")
    for path in sorted(MODELS.glob(pattern))
}

STEPS = 3
"""By which quantised outputs may differ."""


Run = Callable[[Sequence[np.ndarray]], Sequence[np.ndarray]]

ALLOWED = 1e-4
"""The part of an output's scale that it may be off by."""


def _load(path: Path, prefix: str) -> list[np.ndarray]:
    with np.load(path) as data:
        return [data[f"{prefix}{k}"] for k in range(len(data.files))]


def check_model(model: str, compiled: Callable[[Graph], Run]) -> None:
    """Compare a model with its stored outputs; it is compiled once for the shapes of each case."""
    file, folder = FILES[model], FILES[model].parent
    meta = json.loads((folder / "meta.json").read_text())
    runners: dict[object, Run] = {}
    for k, case in enumerate(meta["cases"]):
        path = folder / f"case{k}_in.npz"
        inputs = _load(path, "i")
        expected = _load(path.with_name(path.name.replace("_in", "_out")), "o")
        shapes = tuple(x.shape for x in inputs)
        if shapes not in runners:
            pins = dict(zip(meta["inputs"], shapes, strict=True))
            graph = lower_model(load_model(file, "", pins, None), model)
            runners[shapes] = compiled(graph)
        outputs = runners[shapes](inputs)
        steps = quantisation_steps(file) or [0.0] * len(expected)
        noises = [max(n, s) for n, s in zip(case["noise_floor"], steps, strict=True)]
        for got, want, noise in zip(outputs, expected, noises, strict=True):
            assert got.shape == want.shape
            _assert_within_noise(got, want, noise, f"case {k}")


def check_on_cpu(model: str, target: str) -> None:
    """Check a model's code for a CPU."""

    def compiled(graph: Graph) -> Run:
        (runner,) = compile_models([graph], target)
        assert not isinstance(runner, Exception), runner
        return runner

    check_model(model, compiled)


def check_on_device(model: str, target: str, tensor_cores: bool) -> None:
    """Check a model's code for a GPU, in floats or with what tensor cores multiply."""
    record, limits = get_target(target), Limits(tensor_cores=tensor_cores)

    def compiled(graph: Graph) -> Run:
        own = run_passes(graph, width=1, device=True)
        (network,) = compile_networks([own], record, choose=partial(select, limits=limits))
        return lambda inputs: [*network.run(dict(zip(own.inputs, inputs, strict=True))).values()]

    check_model(model, compiled)


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
    """Within a part of the output's scale, or the reference's own noise where that is larger."""
    got64, want64 = got.astype(np.float64), want.astype(np.float64)
    scale = max(np.abs(want64).max(initial=0.0), 1e-30)
    error = np.abs(got64 - want64).max(initial=0.0)
    words = f"{label} is off by {error / scale:.2e} of its scale"
    assert error <= max(ALLOWED * scale, noise), words
