"""Networks written in ONNX's text, and their results by the standard's reference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx.parser
import onnx.printer
import onnx.shape_inference
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.graph import Array
from support import assert_close, run_models


def written(signature: str, body: str, constants: Mapping[str, Array]) -> onnx.ModelProto:
    """Return the model of a graph `(inputs) => (outputs)` and its nodes, with shapes inferred."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 18]> g {signature} {{ {body} }}
    """)
    model.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in constants.items())
    return onnx.shape_inference.infer_shapes(model)


def drawn(shapes: Mapping[str, tuple[int, ...]], scale: float, seed: int = 0) -> dict[str, Array]:
    """Return floats between -scale and scale of each shape."""
    rng = np.random.default_rng(seed)
    return {k: (rng.uniform(-1, 1, s) * scale).astype(np.float32) for k, s in shapes.items()}


def check_written(
    models: Sequence[onnx.ModelProto], given: Mapping[str, Array], atol: float
) -> None:
    """Compare models' results with the reference's, all of them compiled together."""
    found = run_models(models, [[*given.values()]] * len(models))
    for model, outputs in zip(models, found, strict=True):
        text = onnx.printer.to_text(model.graph.node[-1])
        assert not isinstance(outputs, Exception), (text, outputs)
        assert_close(outputs, ReferenceEvaluator(model).run(None, dict(given)), atol=atol)
