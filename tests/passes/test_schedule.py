"""The order of nodes: memory is freed early, inputs aren't overwritten too early."""

from __future__ import annotations

import pytest
from onnx import parser

from atc.ir.graph import Graph
from atc.ir.verify import verify
from atc.passes import run_passes
from atc.passes.lifetimes import Lifetimes
from atc.passes.schedule import free_early
from support import compile_graph

HEAD = '<ir_version: 8, opset_import: ["": 17]>'

SUMS = f"""{HEAD} g (float[64,64] x, float[64,64] w) => 
  (float[64,64] y, float[64] s, float[64] t) {{
  a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, w) y = MatMul(c, w)
  s = ReduceSum<keepdims=0>(a, axis) p = ReduceMean<axes=[1], keepdims=0>(b) u = Exp(p)
  q = ReduceMean<axes=[0], keepdims=0>(b) t = Mul(u, q) }}"""
"""Sums of values of the beginning, which stand at the end."""


def graph_of(text: str) -> Graph:
    model = parser.parse_model(text.replace("ReduceSum<keepdims=0>(a, axis)",
                                            "ReduceMax<axes=[1], keepdims=0>(a)"))  # fmt: skip
    return run_passes(compile_graph(model))


def order(graph: Graph) -> list[str]:
    return [n.outputs[0] for n in graph.nodes]


def test_sums_come_where_their_operands_are() -> None:
    graph = graph_of(SUMS)
    moved = free_early(graph)
    verify(moved, "schedule")
    assert {n.outputs: n for n in moved.nodes} == {n.outputs: n for n in graph.nodes}
    assert Lifetimes(graph).peak == 3 * 64 * 64 * 4
    assert Lifetimes(moved).peak == 2 * 64 * 64 * 4
    assert order(moved).index("s") == 2
    assert order(moved)[-1] == "t"


UPDATED = f"""{HEAD} g (float[64,64] x, float[64,64] w) => (float[64,64] y, float[64,64] v) {{
  a = MatMul(x, w) b = MatMul(a, w) c = MatMul(b, OTHER) y = MatMul(c, x) v = Max(a, w) }}"""
"""A new weight `v`, which may be written over the old one where nobody reads that later."""


@pytest.mark.parametrize("other", ["w", "x"])
def test_a_result_does_not_overtake_readers_of_its_input(other: str) -> None:
    moved = order(free_early(graph_of(UPDATED.replace("OTHER", other))))
    assert moved.index("v") == (4 if other == "w" else 2)
    assert moved.index("c") == (2 if other == "w" else 3)


@pytest.mark.parametrize("text", ["y = Exp(x)", "a = MatMul(x, x) b = Exp(a) y = MatMul(b, a)"])
def test_a_graph_without_need_stays(text: str) -> None:
    graph = graph_of(f"{HEAD} g (float[64,64] x) => (float[64,64] y) {{ {text} }}")
    assert free_early(graph) is graph
