"""What is compared: each engine turns a model into a function from inputs to outputs.

This file runs in the engines' own processes and imports nothing of the compiler, so that what a
process takes is the engine's.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Inputs = Mapping[str, np.ndarray[Any, Any]]
Run = Callable[[], list[np.ndarray[Any, Any]]]
Prepare = Callable[[Path, Inputs, int], Run]


def prepare_atc(folder: Path, inputs: Inputs, threads: int) -> Run:
    """Load a compiled network, which knows its number of threads, by its folder's Python module."""
    del threads
    (path,) = folder.glob("*.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    net = module.load()
    bound = net.bind(*(np.ascontiguousarray(inputs[t.name]) for t in net.inputs))

    def run() -> list[np.ndarray[Any, Any]]:
        bound()
        return list(bound.outputs)

    return run


def prepare_onnxruntime(model: Path, inputs: Inputs, threads: int) -> Run:
    """Load a model with all of onnxruntime's optimisations."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feeds = dict(inputs)
    return lambda: session.run(None, feeds)


def prepare_openvino(model: Path, inputs: Inputs, threads: int) -> Run:
    """Load a model for single runs in float32."""
    return _openvino(model, inputs, threads, "f32")


def prepare_openvino_bf16(model: Path, inputs: Inputs, threads: int) -> Run:
    """Load a model for single runs in bfloat16, where the CPU has products of it."""
    return _openvino(model, inputs, threads, "bf16")


def _openvino(model: Path, inputs: Inputs, threads: int, precision: str) -> Run:
    import openvino

    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": threads,
    }
    compiled = openvino.Core().compile_model(model, "CPU", config)
    request = compiled.create_infer_request()
    tensors = {name: openvino.Tensor(array) for name, array in inputs.items()}  # copies: shared
    for name, tensor in tensors.items():  # memory would have to outlive what it is shared with
        request.set_tensor(name, tensor)

    def run() -> list[np.ndarray[Any, Any]]:
        request.infer()
        return [request.get_output_tensor(k).data for k in range(len(compiled.outputs))]

    return run


ENGINES: Mapping[str, Prepare] = {
    "atc": prepare_atc,
    "onnxruntime": prepare_onnxruntime,
    "openvino": prepare_openvino,
    "openvino_bf16": prepare_openvino_bf16,
}
_BF16 = "_bf16"


def installed(name: str) -> bool:
    """Whether an engine can be imported."""
    return name == "atc" or find_spec(name.removesuffix(_BF16)) is not None


def described(name: str) -> str:
    """Return an engine's name and version."""
    return name if name == "atc" else f"{name} {version(name.removesuffix(_BF16))}"


def precision_of(name: str) -> str:
    """Return what a peer is told to compute in."""
    return "bf16" if name.endswith(_BF16) else "float32"
