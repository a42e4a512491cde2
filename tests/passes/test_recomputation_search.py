"""The search for what to recompute: never worse for more of it, always the same."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import pytest
from networks import training_net

from atc.ir.graph import Graph, reads
from atc.ir.ops import Reshape
from atc.ir.verify import verify
from atc.passes import run_passes
from atc.passes.lifetimes import Lifetimes
from atc.passes.recomputation_search import Found, Search, frontier
from atc.passes.rematerialize import (
    RematerializationGoal,
    bytes_moved,
    recomputed_nodes,
    recomputed_work,
)
from support import compile_graph

WISH = RematerializationGoal()


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path: Path = training_net(
        tmp_path_factory.mktemp("net") / "step.onnx", widths=(16, 8, 16, 32, 8, 8, 32, 8)
    )
    return run_passes(compile_graph(onnx.load(path)))


def reported(found: Sequence[Found]) -> list[tuple[object, ...]]:
    return [(f.graph.nodes, f.need, f.work) for f in found]


def least_work(found: Sequence[Found], need: int) -> float:
    return min((f.work for f in found if f.need <= need), default=float("inf"))


@pytest.mark.few(1)
@pytest.mark.parametrize("search", [Search(), Search(2, 2, 4), Search(tries=1)])
def test_plans_are_legal_and_each_costs_more_and_needs_less(step: Graph, search: Search) -> None:
    plain, *found = frontier(step, WISH, search)
    assert plain.graph is step
    assert plain.work == 0
    assert found
    for before, each in pairwise([plain, *found]):
        assert before.work < each.work == recomputed_work(each.graph)
        assert before.need > each.need == Lifetimes(each.graph).peak
        verify(each.graph, "search")
        again = recomputed_nodes(each.graph)
        kept = [n.outputs for n in each.graph.nodes if n not in again]
        assert kept == [n.outputs for n in step.nodes]


def test_none_without_tries(step: Graph) -> None:
    assert [f.graph for f in frontier(step, WISH, Search(tries=0, rounds=2))] == [step]


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("fewer", "more"),
    [(Search(1), Search(3)), (Search(3), Search(10)), (Search(2, 0, 4), Search(2, 1, 4)),
     (Search(2, 1, 4), Search(2, 3, 4))],
)  # fmt: skip
def test_more_of_a_search_is_never_worse(step: Graph, fewer: Search, more: Search) -> None:
    before, after = (frontier(step, WISH, search) for search in (fewer, more))
    assert after[-1].need <= before[-1].need
    for found in before:
        assert least_work(after, found.need) <= least_work(before, found.need)


def test_rules_and_rounds_find_better_plans(step: Graph) -> None:
    one, ten, bred = (frontier(step, WISH, s) for s in (Search(1), Search(10), Search(1, 3, 6)))
    for more in (ten, bred):
        assert any(least_work(more, f.need) < f.work for f in one)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("search", [Search(4), Search(2, 2, 4)])
def test_threads_change_nothing(step: Graph, search: Search) -> None:
    alone = reported(frontier(step, WISH, search))
    for workers in (2, 5):
        assert reported(frontier(step, WISH, replace(search, workers=workers))) == alone


def least_of_all(graph: Graph, goal: int) -> float:
    """Return the least work again of all ways to run a graph within a goal (Dijkstra's search).

    A state is how many of the graph's own nodes have run, and the values that are there.
    """
    lives = Lifetimes(graph)
    made = {n.outputs[0]: n for n in graph.nodes}
    needs = {v: {p for r in reads(n) if (p := lives.base(r)) in made} for v, n in made.items()}
    order = list(made)
    count = itertools.count()
    start = (0, frozenset[str]())
    best: dict[tuple[int, frozenset[str]], float] = {start: 0.0}
    heap = [(0.0, next(count), start)]
    while heap:
        work, _, state = heapq.heappop(heap)
        done, there = state
        if best[state] < work:
            continue
        if done == len(order):
            return work
        used = sum(lives.sizes.get(v, 0) for v in there)
        moves = [(there - {v}, done, 0.0) for v in there]
        for k, value in enumerate(order[: done + 1]):
            fits = used + lives.sizes.get(value, 0) <= goal
            if value not in there and needs[value] <= there and fits:
                again = 0.0 if k == done else bytes_moved(graph, made[value])
                moves.append((there | {value}, max(done, k + 1), again))
        for left, position, cost in moves:
            following = (position, frozenset(left))
            if work + cost < best.get(following, float("inf")):
                best[following] = work + cost
                heapq.heappush(heap, (work + cost, next(count), following))
    return float("inf")


@pytest.mark.few(2)
@pytest.mark.parametrize("widths", [(16, 32, 8), (8, 32, 16), (32, 8, 32), (16, 8, 8, 32)])
def test_small_graphs_get_the_best_of_all_plans(tmp_path: Path, widths: Any) -> None:
    model = onnx.load(training_net(tmp_path / "step.onnx", widths=widths))
    graph = run_passes(compile_graph(model))
    assert not any(isinstance(n.op, Reshape) or len(n.outputs) > 1 for n in graph.nodes)
    plain, *found = frontier(graph, WISH, Search())
    assert found
    assert least_of_all(graph, plain.need) == 0
    for each in found:
        assert each.work == pytest.approx(least_of_all(graph, each.need))
    assert least_of_all(graph, found[-1].need * 9 // 10) == float("inf")
