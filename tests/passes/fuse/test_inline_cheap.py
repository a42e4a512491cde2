"""Cheap values that would be kept for long, or are large, are computed by their readers."""

from __future__ import annotations

import pytest
from onnx import parser

from atc.ir.graph import Graph
from atc.passes import run_passes
from atc.passes.fuse.elementwise import LARGE
from support import compile_graph

HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def centred(rows: int, between: int = 0, slope: str = "Sub(x, m)") -> str:
    """Return a model that reads x less its mean at its begin, and after so many products."""
    steps = " ".join(f"p{k + 1} = MatMul(p{k}, w)" for k in range(between))
    return f"""{HEAD} g (float[{rows},64] x, float[64,64] w) =>
        (float[{rows},64] y, float[{rows},64] z) {{
      m = ReduceMean<axes=[0]>(x) d = {slope} q = Mul(d, d) v = ReduceMean<axes=[0]>(q)
      p0 = Div(d, v) {steps} y = Exp(p{between}) z = Tanh(d) }}"""


def graph_of(text: str, **given: frozenset[str]) -> Graph:
    return run_passes(compile_graph(parser.parse_model(text)), **given)


def same_size(graph: Graph) -> int:
    """Return how many values of the input's size are computed."""
    return sum(graph.types[n.outputs[0]].size == graph.types["x"].size for n in graph.nodes)


@pytest.mark.parametrize(
    ("text", "fewer"),
    [
        (centred(LARGE // 256), 1),
        (centred(8, 40), 1),
        (centred(LARGE // 512), 0),
        (centred(8, 4), 0),
        (centred(LARGE // 256, slope="Pow(x, m)"), 0),
    ],
    ids=["large", "long-lived", "small", "soon read", "dear"],
)
def test_what_is_cheaper_to_compute_than_to_keep(text: str, fewer: int) -> None:
    kept = graph_of(text, skip=frozenset({"inline_cheap"}))
    inlined = graph_of(text)
    assert same_size(kept) - same_size(inlined) == fewer
