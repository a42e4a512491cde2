"""Two linear layers in a row: one, where that takes fewer multiplications."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx.shape_inference
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.graph import Graph
from atc.ir.ops import Conv, MatMul
from atc.passes import run_passes
from support import assert_close, compile_graph, run_models

SHAPES = {"a": (2, 6, 5, 7), "t": (2, 35, 6)}
WEIGHTS = {
    "w6": (32, 6, 1, 1), "w32": (24, 32, 1, 1), "w3": (32, 6, 3, 3), "few": (2, 6, 1, 1),
    "many": (24, 2, 1, 1), "b2": (2,), "b24": (24,), "b32": (32,), "m": (6, 32), "each": (2, 6, 32),
}  # fmt: skip
TOKENS = "r = Transpose<perm=[0, 2, 1]>({})  x = Reshape(r, image)"
COMPOSED = {
    "convolutions": "c = Conv(a, w6)  y = Conv(c, w32)",
    "biases": "c = Conv(a, w6, b32)  d = Conv(c, w32, b24)  y = Relu(d)",
    "tokens": "p = MatMul(t, m)  " + TOKENS.format("p") + "  y = Conv(x, w32, b24)",
    "tokens with a bias": "p = MatMul(t, m)  q = Add(p, b32)  " + TOKENS.format("q")
                          + "  c = Conv(x, w32)  s = Sigmoid(c)  y = Mul(c, s)",
}  # fmt: skip
APART = {
    "a function between": "c = Conv(a, w6)  r = Relu(c)  y = Conv(r, w32)",
    "more multiplications": "c = Conv(a, few, b2)  y = Conv(c, many, b24)",
    "neighbours": "c = Conv<pads=[1, 1, 1, 1]>(a, w3)  y = Conv(c, w32)",
    "read twice": "c = Conv(a, w6)  d = Conv(c, w32)  s = ReduceMax<keepdims=1>(c)  y = Mul(d, s)",
    "a matrix for each image": "p = MatMul(t, each)  " + TOKENS.format("p") + "  y = Conv(x, w32)",
    "in another order": "p = MatMul(t, m)  x = Reshape(p, image)  y = Conv(x, w32)",
}


def model(body: str) -> onnx.ModelProto:
    """Return a network of an image a and tokens t."""
    made = onnx.parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17]>
        g (float[2, 6, 5, 7] a, float[2, 35, 6] t) => (y) {{ {body} }}
    """)
    rng = np.random.default_rng(0)
    arrays: dict[str, Any] = {
        k: (rng.uniform(-1, 1, s) / 2).astype(np.float32) for k, s in WEIGHTS.items()
    }
    arrays["image"] = np.array([2, 32, 5, 7])
    made.graph.initializer.extend(numpy_helper.from_array(v, k) for k, v in arrays.items())
    return onnx.shape_inference.infer_shapes(made)


def layers(body: str) -> int:
    """Return how many products are left."""
    graph: Graph = run_passes(compile_graph(model(body)))
    return sum(isinstance(n.op, Conv | MatMul) for n in graph.nodes)


def test_results_are_those_of_both() -> None:
    models = [model(body) for body in (*COMPOSED.values(), *APART.values())]
    rng = np.random.default_rng(1)
    given = {k: rng.uniform(-1, 1, s).astype(np.float32) for k, s in SHAPES.items()}
    found = run_models(models, [[*given.values()]] * len(models))
    for made, outputs in zip(models, found, strict=True):
        assert not isinstance(outputs, Exception), outputs
        assert_close(outputs, ReferenceEvaluator(made).run(None, given), atol=2e-5)


@pytest.mark.parametrize("case", COMPOSED)
def test_one_is_left(case: str) -> None:
    assert layers(COMPOSED[case]) == 1


@pytest.mark.parametrize("case", APART)
def test_others_stay(case: str) -> None:
    assert layers(APART[case]) == 2
