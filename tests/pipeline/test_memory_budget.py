"""Plans within a budget of memory: the same bits from less, or an error that names the least."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from networks import training_net
from onnx import TensorProto, helper
from projects import make_model
from setting_rows import options
from stages import project_of

from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import OptionError
from atc.passes.rematerialize import bytes_moved, recomputed_nodes, recomputed_work
from atc.runtime.load import load


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_net(tmp_path_factory.mktemp("net") / "step.onnx")


def arena(model: Path, **given: object) -> int:
    return project_of(options({}, model, target="c99", **given)).arena.plan.size


@pytest.mark.slow
def test_gradients_have_the_same_bits(model: Path, tmp_path: Path) -> None:
    chosen = options({}, model, target="c99", jobs="2")
    random = np.random.default_rng(0)
    results, sizes = [], []
    said: list[str] = []
    for word, rounds in (("none", 0), ("all", 0), ("all", 2)):
        folder = tmp_path / f"{word}{rounds}" / "net"
        own = replace(chosen, output=folder, recompute=word, recompute_rounds=rounds)
        done = compile_model(own, diagnostics=Diagnostics(stage=said.append))
        net = load(done.folder)
        feeds = [random.standard_normal(t.shape).astype(t.dtype) for t in net.inputs]
        random = np.random.default_rng(0)
        results.append(net(*feeds))
        sizes.append(done.arena.plan.size)
    assert sizes[2] <= sizes[1] < sizes[0]
    for plain, again, searched in zip(*results, strict=True):
        np.testing.assert_array_equal(plain, again)
        np.testing.assert_array_equal(plain, searched)
    assert [text for text in said if text.startswith("recomputed: ")]


@pytest.mark.slow
def test_a_budget_is_kept_or_the_least_is_named(model: Path) -> None:
    whole, least = arena(model), arena(model, recompute="all")
    assert least < whole
    assert arena(model, recompute="all", memory_budget=whole) == whole
    between = arena(model, recompute="all", memory_budget=(whole + least) // 2)
    assert least <= between <= (whole + least) // 2
    assert arena(model, recompute="all", memory_budget=least) <= least
    with pytest.raises(OptionError, match=r"E10013: the arena needs .*allow --recompute=all"):
        arena(model, memory_budget=whole - 1)
    with pytest.raises(OptionError, match=r"this is the least") as caught:
        arena(model, recompute="all", memory_budget=64)
    found = re.search(r"needs (\d+) bytes, more than 64", str(caught.value))
    assert found is not None
    assert int(found[1]) == least
    with pytest.raises(OptionError, match=r"--recompute_minimum keeps values below"):
        arena(model, recompute="all", memory_budget=64, recompute_minimum=1 << 30)
    with pytest.raises(OptionError, match="this is the least"):  # nothing is smaller than a byte
        arena(model, recompute="all", memory_budget=64, recompute_minimum=1)


@pytest.mark.parametrize("target", ["c99", "cuda-emulated"])
def test_no_way_out_is_named_where_one_call_needs_it_all(target: str, tmp_path: Path) -> None:
    shape = (TensorProto.FLOAT, (8, 64))
    nodes = [helper.make_node("MatMul", ["xa"[k], "w"], ["ay"[k]]) for k in range(2)]
    weights = {"w": np.ones((64, 64), np.float32)}
    onnx.save(make_model(nodes, [("x", *shape)], [("y", *shape)], weights), tmp_path / "net.onnx")
    with pytest.raises(OptionError, match=r"hint: this is the least that was found; no arena"):
        project_of(options({}, tmp_path / "net.onnx", target=target, memory_budget=64))


@pytest.mark.parametrize("target", ["c99", "cuda-emulated"])
def test_ranges_ask_for_less_where_a_budget_is_too_small(target: str, tmp_path: Path) -> None:
    """Neither recomputation nor swaps, which other hints name, would change their arena."""
    shape = (TensorProto.FLOAT, ("n", 64))
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    weights = {"w": np.ones((64, 64), np.float32)}
    onnx.save(make_model(nodes, [("x", *shape)], [("y", *shape)], weights), tmp_path / "net.onnx")
    chosen = options({}, tmp_path / "net.onnx", target=target, input_shape="x:1~8,64",
                     memory_budget=64)  # fmt: skip
    with pytest.raises(OptionError, match=r"E10013: .*hint: nothing is recomputed or swapped .*;"):
        project_of(chosen)


WIDTHS = [
    (64, 32, 16),
    *(pytest.param(widths, marks=pytest.mark.slow) for widths in (
        (16, 8, 16, 32, 8, 8, 32, 8), (64, 64, 16, 32, 32, 8), (8, 64, 8, 64, 8, 64),
    )),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("widths", WIDTHS, ids=str)
def test_less_memory_never_costs_less(widths: tuple[int, ...], tmp_path: Path) -> None:
    """For budgets in any order: work falls as they grow, and no plan costs more than a tighter."""
    model = training_net(tmp_path / "step.onnx", widths=widths)
    whole, least = arena(model), arena(model, recompute="all")
    plans = []
    for budget in np.linspace(least, whole, 6).astype(int).tolist():
        done = project_of(options({}, model, target="c99", recompute="all", memory_budget=budget))
        assert done.arena.plan.size <= budget
        plans.append((done.arena.plan.size, recomputed_work(done.graph)))
    work = [w for _, w in plans]
    assert work == sorted(work, reverse=True)
    assert work[-1] == 0
    assert work[0] > 0
    with pytest.raises(OptionError, match="this is the least"):
        arena(model, recompute="all", memory_budget=least - 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("batch", "part", "given"), [(192, 0.2, {}), (288, 0.4, {"recompute_minimum": 1 << 12})],
    ids=["three times", "four and a half times"],
)  # fmt: skip
def test_larger_batches_fit_in_the_same_bytes(
    batch: int, part: float, given: dict[str, int], tmp_path: Path
) -> None:
    widths = (64,) * 24
    whole = arena(training_net(tmp_path / "step.onnx", widths))
    model = training_net(tmp_path / "large.onnx", widths, batch)
    assert arena(model) > batch // 64 * whole * 0.9
    done = project_of(
        options({}, model, target="c99", recompute="all", memory_budget=whole, **given)
    )
    assert done.arena.plan.size <= whole
    work = sum(bytes_moved(done.graph, node) for node in done.graph.nodes)
    assert 0 < recomputed_work(done.graph) <= part * work


def reported(model: Path, part: float) -> tuple[int, int, int, float, float]:
    """Plan a model in a part of its arena; return the size of the arena, then what is reported:

    that size, the least of any, the work and the least work in percent.
    """
    said: list[str] = []
    budget = int(arena(model) * part)
    given = options({}, model, target="c99", recompute="all", memory_budget=budget)
    done = project_of(given, Diagnostics(stage=said.append))
    (text,) = (text for text in said if text.startswith("the arena needs"))
    found = re.fullmatch(
        r"the arena needs (\d+) bytes; no arena is below (\d+), which .+ alone needs; "
        r"([\d.]+) % more work, where no plan of that size takes less than ([\d.]+) %", text,
    )  # fmt: skip
    assert found is not None
    size, least, work, least_work = found.groups()
    return done.arena.plan.size, int(size), int(least), float(work), float(least_work)


def test_what_it_costs_is_reported_beside_what_no_plan_is_below(model: Path) -> None:
    size, said, least, work, least_work = reported(model, 0.75)
    assert size == said >= least > 0
    assert work >= least_work > 0


def test_the_least_work_is_that_of_the_better_order(model: Path, tmp_path: Path) -> None:
    """Values that a model reads once more at its end don't have to wait, nor to be recomputed."""
    late = onnx.load(model)
    for k in range(3):
        late.graph.node.append(helper.make_node("ReduceMax", [f"h{k}"], [f"max{k}"], keepdims=0))
        late.graph.output.append(helper.make_tensor_value_info(f"max{k}", TensorProto.FLOAT, []))
    onnx.save(late, tmp_path / "late.onnx")
    *_, work, least_work = reported(tmp_path / "late.onnx", 0.75)
    assert work >= least_work > 0


@pytest.mark.parametrize(
    ("environ", "line", "named"),
    [
        ({"MEGENGINE_DTR_EVICTION_THRESHOLD": "64"}, {}, "MEGENGINE_DTR_EVICTION_THRESHOLD"),
        ({}, {"memory_budget": "64"}, "--memory_budget"),
    ],
    ids=["variable", "option"],
)
def test_what_gave_the_budget_is_named(
    model: Path, environ: dict[str, str], line: dict[str, str], named: str
) -> None:
    with pytest.raises(OptionError) as caught:
        project_of(options(environ, model, target="c99", **line))
    assert caught.value.where == named


def test_without_need_nothing_is_made_again(model: Path) -> None:
    whole = arena(model)
    until = project_of(options({}, model, target="c99", recompute="all", recompute_until=whole))
    assert not recomputed_nodes(until.graph)
