"""Computing values again: less memory, the same graph otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from networks import training_net
from onnx import parser

from atc.ir.graph import Graph, reads
from atc.ir.ops import Map, Reshape
from atc.ir.verify import verify
from atc.passes import run_passes
from atc.passes.rematerialize import (
    RematerializationGoal,
    Rematerializer,
    recomputed_nodes,
    recomputed_work,
    rematerialize,
)
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


def checked(graph: Graph, goal: int, **aim: Any) -> Graph | None:
    changed = rematerialize(graph, RematerializationGoal(goal, **aim))
    if changed is None:
        return None
    verify(changed, "recompute")
    assert (changed.inputs, changed.outputs) == (graph.inputs, graph.outputs)
    assert peak_bytes(changed) <= goal
    kept = [n.outputs for n in changed.nodes if n not in recomputed_nodes(changed)]
    assert kept == [n.outputs for n in graph.nodes]
    return changed


def least(graph: Graph, **aim: Any) -> Graph:
    """Return the graph of the least goal that is kept, to a hundredth of its peak."""
    whole = peak_bytes(graph)
    for part in range(1, 101):
        found = checked(graph, whole * part // 100, **aim)
        if found is not None:
            return found
    raise AssertionError("the graph's own peak isn't kept")


@pytest.mark.parametrize("text", [SKIP, RESHAPED], ids=["skip", "reshaped"])
def test_a_value_that_waits_is_made_again(text: str) -> None:
    graph = graph_of(text)
    changed = checked(graph, peak_bytes(graph) - 1)
    assert changed is not None
    assert peak_bytes(changed) < peak_bytes(graph)
    assert copies(changed)


@pytest.mark.parametrize("part", [0.9, 0.75, 0.6])
def test_a_training_step_keeps_its_goal(training: Graph, part: float) -> None:
    changed = checked(training, int(peak_bytes(training) * part))
    assert changed is not None
    assert copies(changed)


def test_cheap_ones_only(training: Graph) -> None:
    changed = least(training, cheap=True)
    again = recomputed_nodes(changed)
    assert again
    assert all(isinstance(n.op, Map) for n in again)
    assert peak_bytes(least(training)) <= peak_bytes(changed) < peak_bytes(training)


def test_no_more_than_the_goal_takes(training: Graph) -> None:
    whole = peak_bytes(training)
    assert rematerialize(training, RematerializationGoal(whole)) is training
    some = checked(training, whole - 1)
    assert some is not None
    assert 0 < recomputed_work(some) < recomputed_work(least(training)) / 2


def test_what_can_not_be_is_none(training: Graph) -> None:
    bound = Rematerializer(training).least
    assert checked(training, bound - 1) is None
    assert bound <= peak_bytes(least(training))


def test_what_is_small_is_kept(training: Graph) -> None:
    assert checked(training, peak_bytes(training) - 1, minimum=1 << 30) is None
    for minimum in (1, 2048, 4096):
        droppable = Rematerializer(training, minimum=minimum).droppable
        assert droppable
        assert all(training.types[n].nbytes > minimum - 64 for n in droppable)


def test_costs_are_the_callers(training: Graph) -> None:
    goal = peak_bytes(least(training, cheap=True))
    dear = checked(
        training, goal, cost=lambda g, n: 1.0 if isinstance(n.op, Map) else 1e9
    )
    assert dear is not None
    assert {type(n.op) for n in recomputed_nodes(dear)} == {Map}


def test_it_is_the_same_every_time(training: Graph) -> None:
    goal = peak_bytes(training) * 3 // 5
    one, two = checked(training, goal), checked(training, goal)
    assert one is not None
    assert two is not None
    assert one.nodes == two.nodes
