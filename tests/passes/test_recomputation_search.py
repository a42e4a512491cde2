"""The search for what to compute again: never worse than its first row, always the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from networks import training_net

from atc.ir.graph import Graph
from atc.ir.verify import verify
from atc.passes import run_passes
from atc.passes.recomputation_search import Found, Search, plans
from atc.passes.rematerialize import REMATERIALIZED, RematerializationGoal, recomputed, work_again
from support import compile_graph

WISH = RematerializationGoal()


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Graph:
    path: Path = training_net(
        tmp_path_factory.mktemp("net") / "step.onnx", widths=(16, 8, 16, 32, 8, 8, 32, 8)
    )
    return run_passes(compile_graph(onnx.load(path)))


def told(found: list[Found]) -> list[tuple[object, ...]]:
    return [(f.graph.nodes, f.need, f.work, f.end) for f in found]


def least_work(found: list[Found], need: int) -> float:
    return min((f.work for f in found if f.need <= need), default=float("inf"))


@pytest.mark.parametrize("search", [Search(), Search(2, 2, 4), Search(tries=1)])
def test_plans_are_legal_and_come_in_the_order_of_their_work(step: Graph, search: Search) -> None:
    found = list(plans(step, WISH, search))
    assert [f.work for f in found] == sorted(f.work for f in found)
    for each in found:
        verify(each.graph, "search")
        assert each.work == work_again(each.graph) > 0
        kept = [n.outputs for n in each.graph.nodes if REMATERIALIZED not in n.outputs[0]]
        assert kept == [n.outputs for n in step.nodes]


def test_one_try_is_the_rule_of_dynamic_rematerialization(step: Graph) -> None:
    row = [(graph.nodes, need) for graph, need in recomputed(step, WISH)][1:]
    assert [(f.graph.nodes, f.need) for f in plans(step, WISH, Search(tries=1))] == row


def test_none_without_tries(step: Graph) -> None:
    assert not list(plans(step, WISH, Search(tries=0, rounds=2)))


@pytest.mark.parametrize(
    ("fewer", "more"),
    [(Search(1), Search(3)), (Search(3), Search(10)), (Search(2, 0, 4), Search(2, 1, 4)),
     (Search(2, 1, 4), Search(2, 3, 4))],
)  # fmt: skip
def test_more_of_a_search_is_never_worse(step: Graph, fewer: Search, more: Search) -> None:
    before, after = (list(plans(step, WISH, search)) for search in (fewer, more))
    for found in before:
        assert least_work(after, found.need) <= least_work(before, found.need)
    ends = {(f.need, f.work) for f in after if f.end}
    assert {(f.need, f.work) for f in before if f.end} <= ends


def test_rules_and_rounds_find_better_plans(step: Graph) -> None:
    one, ten, bred = (
        list(plans(step, WISH, s)) for s in (Search(1), Search(10), Search(1, 3, 6))
    )
    need = min(f.need for f in one)
    assert least_work(ten, need) < least_work(one, need)
    assert least_work(bred, need) < least_work(one, need)


@pytest.mark.parametrize("search", [Search(4), Search(2, 2, 4)])
def test_threads_change_nothing(step: Graph, search: Search) -> None:
    alone = told(list(plans(step, WISH, search)))
    for workers in (1, 2, 5):
        several = replace(search, workers=workers)
        assert told(list(plans(step, WISH, several, complete=True))) == alone
