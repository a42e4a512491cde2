"""Computing values again: less memory, the same graph otherwise."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from networks import training_net
from onnx import parser

from atc.ir.graph import Graph, original, reads
from atc.ir.ops import Map, Reshape
from atc.ir.verify import verify
from atc.passes import run_passes
from atc.passes.rematerialize import RematerializationGoal, recomputed_nodes, rematerialize
from support import compile_graph

HEAD = '<ir_version: 8, opset_import: ["": 17]>'

SKIP = f"""{HEAD} g (float[64,64] x, float[64,64] w) => (float[64,64] y) {{
  a = Exp(x) b = MatMul(a, w) c = Tanh(b) d = MatMul(c, w) e = MatMul(d, w) y = MatMul(e, a) }}"""
"""A value of the beginning, which waits for the end."""

RESHAPED = f"""{HEAD} g (float[64,64] x, float[64,64] w) => (float[64,64] y)
  <int64[3] s = {{8, 8, 64}}, int64[2] t = {{64, 64}}> {{
  a = Exp(x) r = Reshape(a, s) n = CumSum(r, zero) z = Reshape(n, t)
  b = MatMul(z, w) c = MatMul(b, w) d = MatMul(c, w)
  q = Reshape(r, t) m = MatMul(d, q) y = Add(m, q) }}"""
"""The same, seen through reshapes on both sides of the worst step."""


def graph_of(text: str) -> Graph:
    model = parser.parse_model(text.replace("CumSum(r, zero)", "Softmax(r)"))
    return run_passes(compile_graph(model))


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path: Path = training_net(tmp_path_factory.mktemp("net") / "step.onnx")
    return run_passes(compile_graph(onnx.load(path)))


def peak_bytes(graph: Graph) -> int:
    """Return the most bytes that values need at any step, outside of inputs and outputs."""
    home: dict[str, str] = {}
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for step, node in enumerate(graph.nodes):
        for name in reads(node):
            last[home.get(name, name)] = step
        for name in node.outputs:
            if isinstance(node.op, Reshape):
                home[name] = home.get(node.inputs[0], node.inputs[0])
            else:
                made[name] = step
    outside = {home.get(n, n) for n in (*graph.inputs, *graph.constants, *graph.outputs)}
    live = [0] * len(graph.nodes)
    for name in made.keys() - outside:
        for step in range(made[name], last.get(name, made[name]) + 1):
            live[step] += graph.types[name].nbytes
    return max(live)


def copies(graph: Graph) -> list[str]:
    return [n.outputs[0] for n in recomputed_nodes(graph)]


def checked(graph: Graph, aim: RematerializationGoal = RematerializationGoal()) -> Graph:  # noqa: B008
    changed = rematerialize(graph, aim)
    verify(changed, "recompute")
    assert (changed.inputs, changed.outputs) == (graph.inputs, graph.outputs)
    assert peak_bytes(changed) <= peak_bytes(graph)
    kept = [n.outputs for n in changed.nodes if n not in recomputed_nodes(changed)]
    assert kept == [n.outputs for n in graph.nodes]
    return changed


@pytest.mark.parametrize("text", [SKIP, RESHAPED], ids=["skip", "reshaped"])
def test_a_value_that_waits_is_made_again(text: str) -> None:
    graph = graph_of(text)
    changed = checked(graph)
    assert peak_bytes(changed) < peak_bytes(graph)
    assert copies(changed)


def test_a_training_step_needs_less(training: Graph) -> None:
    changed = checked(training)
    assert peak_bytes(changed) < peak_bytes(training)


def test_cheap_ones_only(training: Graph) -> None:
    changed = checked(training, RematerializationGoal(cheap=True))
    again = recomputed_nodes(changed)
    assert again
    assert all(isinstance(n.op, Map) for n in again)
    assert peak_bytes(checked(training)) <= peak_bytes(changed) < peak_bytes(training)


def test_no_more_than_the_goal_takes(training: Graph) -> None:
    whole = peak_bytes(training)
    least = peak_bytes(checked(training))
    assert rematerialize(training, RematerializationGoal(goal=whole)) is training
    some = checked(training, RematerializationGoal(goal=whole - 1))
    assert least <= peak_bytes(some) < whole
    assert len(copies(some)) <= len(copies(checked(training)))


def test_what_is_small_is_kept(training: Graph) -> None:
    assert rematerialize(training, RematerializationGoal(minimum=1 << 30)) is training
    changed = checked(training, RematerializationGoal(minimum=5000))
    for name in copies(changed):
        assert training.types[original(name, changed.aliases)].nbytes > 0


def test_more_tries_find_no_worse(training: Graph) -> None:
    assert rematerialize(training, RematerializationGoal(tries=0)) is training
    few, many = (peak_bytes(checked(training, RematerializationGoal(tries=n))) for n in (1, 50))
    assert many <= few


def test_it_is_the_same_every_time(training: Graph) -> None:
    assert checked(training).nodes == checked(training).nodes
