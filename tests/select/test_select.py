"""Selection keeps to its limits and says why a candidate was left out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import atc.select
from atc.backends.cpu.map.portable import MapLoops
from atc.backends.kernel import AnyKernel, Params, Workload
from atc.backends.machines import MACHINES
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.ir.graph import Graph
from atc.ir.ops import ConvBlocked, MatMul
from atc.passes import run_passes
from atc.select.select import ANY, Choice, Limits, Measurement, Timings, select
from support import compile_graph, node_model

TARGET = get_target("c99")


class Greedy(MapLoops):
    """A faster Map that wants scratch."""

    name = "map_greedy"

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        return 1000

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        return super().cost(w, params, target) / 2


class Rough(Greedy):
    """The fastest Map, which rounds more and wants a little scratch."""

    name = "map_rough"

    def scratch(self, w: Workload, params: Params, target: Target) -> int:
        return 10

    def exact(self, params: Params) -> bool:
        return False

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        return super().cost(w, params, target) / 2


GRAPH: Graph = compile_graph(node_model("Exp", [np.zeros(100, np.float32)]))


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: tuple[AnyKernel, ...] = (MapLoops(), Greedy(), Rough())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)


def choose(limits: Limits = ANY, timings: Timings | None = None) -> Choice:
    (choice,) = select(GRAPH, TARGET, timings, limits=limits).values()
    return choice


@pytest.mark.usefixtures("catalogue")
@pytest.mark.parametrize(
    ("limits", "chosen", "excluded"),
    [
        (ANY, "map_rough", []),
        (Limits(exact=True), "map_greedy", ["map_rough"]),
        (Limits(workspace=1000), "map_rough", []),
        (Limits(workspace=999), "map_rough", ["map_greedy"]),
        (Limits(workspace=0), "map", ["map_greedy", "map_rough"]),
        (Limits(exact=True, workspace=999), "map", ["map_greedy", "map_rough"]),
    ],
)
def test_limits(limits: Limits, chosen: str, excluded: list[str]) -> None:
    choice = choose(limits)
    assert choice.candidate.label == chosen
    assert [label for label, _ in choice.excluded] == excluded
    assert not {label for label, _ in choice.estimates} & set(excluded)


@pytest.mark.usefixtures("catalogue")
def test_reasons() -> None:
    reasons = dict(choose(Limits(exact=True, workspace=999)).excluded)
    assert reasons == {
        "map_greedy": "needs 1000 bytes of workspace",
        "map_rough": "is less accurate than the operator's definition",
    }


def test_high_precision_leaves_out_large_winograd_tiles() -> None:
    target = get_target("x86-64-avx512")
    x, w = np.zeros((1, 64, 28, 28), np.float32), np.zeros((64, 64, 3, 3), np.float32)
    model = node_model("Conv", [x, w], constant=[1], pads=[1, 1, 1, 1])
    graph = run_passes(compile_graph(model), width=16)
    (choice,) = (
        c for c in select(graph, target, limits=Limits(exact=True)).values()
        if isinstance(c.workload.op, ConvBlocked)
    )  # fmt: skip
    left = {label for label, _ in choice.estimates if label.startswith("conv_winograd")}
    out = {label for label, _ in choice.excluded}
    assert left
    assert out
    assert all("m=2" in label and "pairs" not in label for label in left)
    large = ("conv_winograd(m=4", "conv_winograd(m=6", "conv_gathered_winograd(")
    assert all(label.startswith(large) or "pairs=True" in label for label in out)


@pytest.mark.parametrize(("op_type", "place"), [("Conv", 1), ("MatMul", 1), ("MatMul", 0)])
@pytest.mark.parametrize(
    ("weights", "whole"),
    [
        (lambda n: n % 7 - 3, True),
        (lambda n: (n % 2000) / 1024, True),
        (lambda n: np.where(n < 500, 0, n % 5), True),
        (lambda n: np.where(n == 600, 0.3, n % 7), False),
        (lambda n: np.sin(n), False),
        (lambda n: np.where(n == 600, np.inf, n % 7), False),
        (lambda n: 0 * n, False),
    ],
)
def test_whole_weights_are_not_added_to_what_they_multiply(
    op_type: str, place: int, weights: Callable[[Any], Any], whole: bool
) -> None:
    target = replace(get_target("x86-64-avx512"), machine=MACHINES["zen4"])
    shape = (64, 64, 3, 3) if op_type == "Conv" else (768, 64)
    w = np.asarray(weights(np.arange(np.prod(shape))), np.float32).reshape(shape)
    x = np.zeros((1, 64, 28, 28) if op_type == "Conv" else (128, 768), np.float32)
    operands = [x, w] if place else [w.T, x.T]
    pads = {"pads": [1] * 4} if op_type == "Conv" else {}
    model = node_model(op_type, operands, constant=[place], **pads)
    graph = run_passes(compile_graph(model), width=16)
    selection = select(graph, target)
    (choice,) = (c for c in selection.values() if isinstance(c.workload.op, ConvBlocked | MatMul))
    excluded = {label for label, _ in choice.excluded if "winograd" in label and "m=2" not in label}
    considered = {label for label, _ in choice.estimates if "winograd" in label}
    assert choice.workload.whole == whole
    assert bool(excluded) == whole
    assert any("m=2" not in label for label in considered) != whole


def test_the_least_scratch_is_taken_where_none_is_little_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels = (Greedy(), Rough())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    assert choose(Limits(workspace=0)).candidate.label == "map_rough"


@pytest.mark.usefixtures("catalogue")
def test_a_time_of_what_is_no_candidate_is_passed_over() -> None:
    choice = choose()
    timings = {choice.workload: (Measurement("gone", 1.0), Measurement("map_rough", None, "bad"))}
    assert choose(timings=timings).candidate.label == choice.candidate.label
    timings = {choice.workload: (Measurement("map_rough", 1.0), Measurement("map", 2.0))}
    assert choose(Limits(exact=True), timings).candidate.label == "map"
