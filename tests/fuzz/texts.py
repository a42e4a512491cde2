"""Models written as ONNX's text with constants of their own, beside onnxruntime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx.parser
from fuzz.draw import Array
from onnx import numpy_helper


def parsed(text: str, known: Mapping[str, Any], weights: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model of a graph's text, with its weights and those of the known constants that
    it names."""
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 20]> {text}')
    words = {*re.findall(r"\w+", text)}
    constants = {**weights, **{k: np.asarray(v) for k, v in known.items() if k in words}}
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return model


def session_of(model: onnx.ModelProto) -> Any:
    """Return onnxruntime's session of a model as it is written."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def wrong(got: Array, expected: Array, bound: float) -> str:
    """Return how far a result is off, as a part of the largest magnitude; '' within the bound."""
    if got.shape != expected.shape:
        return f"has the shape {got.shape}, not {expected.shape}"
    error = np.abs(got - expected).max(initial=0) / max(1.0, np.abs(expected).max(initial=0))
    return "" if error <= bound else f"off by {error:.2g}"
