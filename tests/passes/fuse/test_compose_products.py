"""Two linear layers in a row: one, where that takes fewer multiplications."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from written_models import check_written, drawn, written

from atc.ir.graph import Graph
from atc.ir.ops import Conv, MatMul
from atc.passes import run_passes
from support import compile_graph

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
ROUNDED = {
    "convolutions": "c = Conv(a, w6, b32)  h = Cast<to=10>(c)  f = Cast<to=1>(h)  y = Conv(f, w32)",
    "tokens": "p = MatMul(t, m)  h = Cast<to=16>(p)  f = Cast<to=1>(h)  "
              + TOKENS.format("f") + "  y = Conv(x, w32, b24)",
}
"""What is rounded to 16 bits between the layers."""
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
    constants = {**drawn(WEIGHTS, 0.5), "image": np.array([2, 32, 5, 7])}
    return written("(float[2, 6, 5, 7] a, float[2, 35, 6] t) => (y)", body, constants)


def layers(body: str) -> int:
    """Return how many products are left."""
    graph: Graph = run_passes(compile_graph(model(body)))
    return sum(isinstance(n.op, Conv | MatMul) for n in graph.nodes)


def test_results_are_those_of_both() -> None:
    models = [model(body) for body in (*COMPOSED.values(), *APART.values())]
    check_written(models, drawn(SHAPES, 1.0, seed=1), atol=2e-5)


@pytest.mark.parametrize("case", COMPOSED)
def test_one_is_left(case: str) -> None:
    assert layers(COMPOSED[case]) == 1


@pytest.mark.parametrize("case", APART)
def test_others_stay(case: str) -> None:
    assert layers(APART[case]) == 2


@pytest.mark.parametrize("case", ROUNDED)
def test_a_rounding_to_16_bits_between_them_is_left_out(case: str) -> None:
    assert layers(ROUNDED[case]) == 1
    check_written([model(ROUNDED[case])], drawn(SHAPES, 1.0, seed=1), atol=0.1)
