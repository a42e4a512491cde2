"""Fast-run measures candidates, remembers the times, and never lets a bad one be chosen."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc.select
from atc.backends.cpu.catalogue import KERNELS
from atc.backends.cpu.map.portable import MapLoops
from atc.backends.kernel import Candidate, Kernel, Params, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.target import Target
from atc.backends.targets import get_target
from atc.backends.toolchain.find_compiler import find_compiler
from atc.build.library import library_flags
from atc.build.objects import BuildContext, compile_units, kernel_unit
from atc.cache import Cache, open_cache
from atc.cache.algo import open_algo_cache
from atc.codegen.sources import kernel_tree
from atc.fast_run.harness import operands
from atc.fast_run.measure import Bench, bench_files, fast_run, unknown_tasks
from atc.fast_run.task import workloads
from atc.ir.graph import Graph
from atc.select.select import Timings, select
from support import compile_graph

TARGET = get_target("c99")


class Slow(MapLoops):
    """The portable Map under another name, thirty times over: right, but slow."""

    name = "map_slow"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        repeat = ("again", 30)
        loops = values["loops"]
        assert isinstance(loops, list)
        return {**values, "loops": [repeat, *loops]}

    def cost(self, w: Workload, params: Params, target: Target) -> float:
        return super().cost(w, params, target) / 2  # wrong: only measuring shows it


class Wrong(MapLoops):
    """A Map that is off by one half."""

    name = "map_wrong"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        return {**values, "value": f"{values['value']} + 0.5f"}


class Crashing(MapLoops):
    """A Map that ends the process."""

    name = "map_crashing"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        return {**values, "value": f"{values['value']} + *(volatile float *)0"}


class Endless(MapLoops):
    """A Map that begins anew again and again."""

    name = "map_endless"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        values = super().values(w, params, target)
        loops = values["loops"]
        assert isinstance(loops, list)
        repeats = [(f"again{k}", 30000) for k in range(2)]
        return {**values, "loops": [*repeats, *loops]}


class Broken(MapLoops):
    """A Map that doesn't compile."""

    name = "map_broken"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        return {**super().values(w, params, target), "value": "no_such_name"}


def graph_of(seed: int = 0, size: int = 20000) -> Graph:
    """Return exp(x) + w over so many numbers."""
    w = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    graph = helper.make_graph(
        [helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Add", ["e", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [size])],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return compile_graph(model)


class Started:
    """Counts the processes that a bench starts."""

    def __init__(self) -> None:
        self.commands: list[tuple[str, ...]] = []

    def __call__(self, command: tuple[str, ...]) -> None:
        self.commands.append(command)

    def programs(self) -> int:
        """Return how many programs that measure were compiled."""
        return sum(word.endswith("/harness.c") for command in self.commands for word in command)


def op_cache(folder: Path | None) -> Cache:
    return open_cache(
        "disable" if folder is None else "enable", folder, TARGET.name,
        versions={}, environ=os.environ, warn=pytest.fail,
    )  # fmt: skip


def bench(folder: Path | None, started: Started | None = None) -> Bench:
    """Return a bench with an algo cache in the folder, and no op compiler cache."""
    compiler = find_compiler(TARGET, os.environ)
    flags = library_flags(compiler, TARGET)
    context = BuildContext(TARGET, compiler, flags, op_cache(None), 2, started or Started())
    return Bench(context, open_algo_cache(folder, "this machine", pytest.fail))


def run(graph: Graph, where: Bench) -> Timings:
    return fast_run(workloads(graph, {}), where)


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels: Sequence[Kernel] = (*KERNELS, Slow(), Wrong(), Crashing(), Broken())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)


@pytest.mark.parametrize(("warm", "copies"), [(False, 12), (True, 1)])
def test_weights_that_stay_in_a_near_cache_are_measured_there(warm: bool, copies: int) -> None:
    where = replace(bench(None), alone=True, warm=warm)
    adds = [w for w in workloads(graph_of(), {}) if any(w.constant)]
    (task,), (other,) = (
        unknown_tasks(adds, b) for b in (where, replace(where, warm=not warm))
    )
    assert f"COPIES = {copies}," in bench_files(task, where)["harness.c"].decode()
    assert task.key != other.key  # one isn't taken for the other


def by_label(timings: Timings) -> list[Mapping[str, tuple[float | None, str]]]:
    return [{m.label: (m.time_ns, m.reason) for m in row} for row in timings.values()]


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_bad_candidates_are_recorded_with_their_reason() -> None:
    for row in by_label(run(graph_of(), bench(None))):
        assert row["map"][0] is not None
        assert row["map_slow"][0] is not None
        assert row["map_wrong"][0] is None
        assert "differs" in row["map_wrong"][1]
        assert "crashed" in row["map_crashing"][1]
        assert "no_such_name" in row["map_broken"][1]


@pytest.mark.usefixtures("catalogue")
def test_the_measured_time_overrules_the_estimate() -> None:
    graph = graph_of()
    assert {c.candidate.label for c in select(graph, TARGET).values()} == {"map_slow"}
    timings = run(graph, bench(None))
    chosen = select(graph, TARGET, timings)
    assert {c.candidate.label for c in chosen.values()} == {"map"}
    assert all(c.measurements for c in chosen.values())


def slopes(*values: float) -> Graph:
    """Return a chain of LeakyRelus over 5000 numbers."""
    nodes = [helper.make_node("LeakyRelu", [f"v{k}"], [f"v{k + 1}"], alpha=a)
             for k, a in enumerate(values)]  # fmt: skip
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("v0", TensorProto.FLOAT, [5000])],
        [onnx.ValueInfoProto(name=f"v{len(values)}")],
    )  # fmt: skip
    return compile_graph(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]))


def test_workloads_that_differ_in_constants_are_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels: Sequence[Kernel] = (*KERNELS, Slow())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    started, seen = Started(), []
    found = [*workloads(slopes(0.1, -0.25, 1e-7), {})]
    timings = fast_run(found, bench(tmp_path, started), lambda *done: seen.append(done))
    assert len({*found}) == len(timings) == 3
    assert len({*timings.values()}) == 1
    assert started.programs() == 1
    assert seen == [(0, 3), (3, 3)]
    again = Started()
    assert fast_run(found, bench(tmp_path, again)) == timings
    assert not again.commands


def test_workloads_that_differ_in_anything_else_are_each_measured(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kernels: Sequence[Kernel] = (*KERNELS, Slow())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    started = Started()
    found = [w for size in (5000, 5001) for w in [*workloads(graph_of(size=size), {})][:1]]
    fast_run(found, bench(None, started))
    assert started.programs() == 2


@pytest.mark.slow
def test_workloads_built_together_are_each_measured_when_one_does_not_compile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class BrokenForOne(Broken):
        def accepts(self, w: Workload, target: Target) -> bool:
            return w.outputs[0].shape == (20000,) and super().accepts(w, target)

    kernels: Sequence[Kernel] = (*KERNELS, Slow(), BrokenForOne())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    found = [w for size in (20000, 10000) for w in workloads(graph_of(size=size), {})]
    rows = by_label(fast_run(found, bench(None)))
    assert [row["map"][0] is not None for row in rows] == [True] * 4
    assert ["map_broken" in row for row in rows] == [True, True, False, False]


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_nothing_is_measured_twice(tmp_path: Path) -> None:
    first = run(graph_of(), bench(tmp_path))
    started = Started()
    second = run(graph_of(seed=5), bench(tmp_path, started))
    assert not started.commands
    assert [[m.time_ns for m in row] for row in second.values()] == [
        [m.time_ns for m in row] for row in first.values()
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_other_flags_are_measured_anew(tmp_path: Path) -> None:
    run(graph_of(), bench(tmp_path))
    started = Started()
    other = bench(tmp_path, started)
    context = replace(other.context, flags=(*other.context.flags, "-O1"))
    run(graph_of(), replace(other, context=context))
    assert started.commands


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_objects_go_through_the_op_compiler_cache(tmp_path: Path) -> None:
    started = Started()
    where = bench(None, started)
    with op_cache(tmp_path) as cache:
        run(graph_of(), replace(where, context=replace(where.context, cache=cache)))
    chosen = select(graph_of(), TARGET)
    kernels = [render_kernel(c.candidate, c.workload, TARGET) for c in chosen.values()]
    files = {p: t.encode() for p, t in kernel_tree(kernels, TARGET).items()}
    with op_cache(tmp_path) as cache:
        context = replace(where.context, cache=cache)
        (tmp_path / "src" / "kernels").mkdir(parents=True)
        compiled, _ = compile_units(tmp_path, files, [kernel_unit(k) for k in kernels], context)
    assert kernels
    assert compiled == 0


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_hopeless_candidates_are_left_out_unless_all_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Wrong, "cost", lambda self, w, params, target: 1e9)
    monkeypatch.setattr(Slow, "cost", lambda self, w, params, target: 1.0)
    for every in (False, True):
        rows = by_label(run(graph_of(), replace(bench(None), every=every)))
        assert rows
        assert all(("map_wrong" in row) == every for row in rows)
        assert all("map_slow" in row for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_a_candidate_that_never_ends_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels = (MapLoops(), Endless())
    monkeypatch.setattr(atc.select.select, "kernels_for", lambda target: kernels)
    for patience in (1.0, 10.0, 100.0):  # where others work, what ends takes longer, too
        reported: list[str] = []
        place = tmp_path / str(patience)
        limited = replace(bench(place), timeout=patience, warn=reported.append)
        rows = by_label(run(graph_of(), limited))
        if all(row["map"][0] is not None for row in rows):
            break
    assert rows
    for row in rows:
        assert row["map"][0] is not None
        assert row["map_endless"] == (None, f"took longer than {patience:g} s")
    assert by_label(run(graph_of(), replace(limited, algo=bench(place).algo))) == rows
    assert len(reported) == 2
    for text in reported:
        assert f"--fast_run_timeout: 2 candidate kernels took longer than {patience:g} s" in text
        assert "map_endless of Map to f32" in text


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_what_took_too_long_is_measured_again_when_it_may_take_longer(tmp_path: Path) -> None:
    first = bench(tmp_path)
    run(graph_of(), first)
    (file,) = (tmp_path / "algo_cache").glob("*.json")
    kept = json.loads(file.read_text())
    for row in kept["ns"].values():
        row |= {name: -2e9 for name in row if "slow" in name}
    file.write_text(json.dumps(kept))
    for timeout, again in ((1.0, False), (2.0, False), (300.0, True)):
        started, reported = Started(), list[str]()
        limited = replace(bench(tmp_path, started), timeout=timeout, warn=reported.append)
        for row in by_label(run(graph_of(), limited)):
            assert (row["map_slow"][0] is None) == (not again)
        assert bool(started.commands) == again
        assert len(reported) == (not again)


@pytest.mark.slow
@pytest.mark.usefixtures("catalogue")
def test_progress_counts_what_is_measured(tmp_path: Path) -> None:
    reported: list[tuple[int, int]] = []
    for _ in range(2):
        todo = workloads(graph_of(), {})
        fast_run(todo, bench(tmp_path), lambda done, total: reported.append((done, total)))
    assert reported == [(0, 2), (1, 2), (2, 2), (0, 0)]


def test_a_damaged_file_of_times_counts_as_empty(tmp_path: Path) -> None:
    algo = open_algo_cache(tmp_path, "m", pytest.fail)
    algo.put("w", {"a": 1.0, "b": None})
    algo.save()
    assert open_algo_cache(tmp_path, "m", pytest.fail).get("w", "a") == (True, 1.0)
    assert open_algo_cache(tmp_path, "m", pytest.fail).get("w", "b") == (True, None)
    assert open_algo_cache(tmp_path, "other", pytest.fail).get("w", "a") == (False, None)
    (file,) = (tmp_path / "algo_cache").glob("*.json")
    for text in ("", "[]", '{"schema": 1, "ns": 3}', '{"schema": 1, "ns": {"w": {"a": "x"}}}'):
        file.write_text(text)
        assert open_algo_cache(tmp_path, "m", pytest.fail).get("w", "a") == (False, None)


def test_writers_keep_each_others_times(tmp_path: Path) -> None:
    one, two = (open_algo_cache(tmp_path, "m", pytest.fail) for _ in range(2))
    one.put("w1", {"a": 1.0})
    two.put("w2", {"a": 2.0})
    one.save()
    two.save()
    both = open_algo_cache(tmp_path, "m", pytest.fail)
    assert both.get("w1", "a") == (True, 1.0)
    assert both.get("w2", "a") == (True, 2.0)


def test_what_is_written_at_once_is_all_kept(tmp_path: Path) -> None:
    def write(k: int) -> None:
        algo = open_algo_cache(tmp_path, "m", pytest.fail)
        algo.put(f"w{k}", {"a": float(k)})
        algo.save()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(40)))
    found = open_algo_cache(tmp_path, "m", pytest.fail)
    assert [found.get(f"w{k}", "a") for k in range(40)] == [(True, float(k)) for k in range(40)]


def test_a_disk_that_refuses_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "algo_cache").write_text("a file in the way")
    warnings: list[str] = []
    algo = open_algo_cache(tmp_path, "m", warnings.append)
    algo.put("w", {"a": 1.0})
    algo.save()
    assert len(warnings) == 1


def test_workloads_are_found_in_subgraphs() -> None:
    assert len(list(workloads(graph_of(), {}))) == 2


def test_candidates_have_readable_labels() -> None:
    assert Candidate(MapLoops(), {"nv": 2, "mr": 6}).label == "map(mr=6, nv=2)"


@pytest.mark.parametrize(
    ("op", "x", "weights", "length"),
    [("MatMul", (50, 400), (400, 30), 400), ("Conv", (1, 40, 12, 12), (30, 40, 3, 3), 360)],
)
def test_sums_of_what_is_measured_are_about_1(
    op: str, x: tuple[int, ...], weights: tuple[int, ...], length: int
) -> None:
    """Larger ones bring functions behind them to subnormal numbers, which take longer."""
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "w"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(np.ones(weights, np.float32), "w")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    (w,) = workloads(compile_graph(model), {})
    of_x, of_w = (a for a in operands(w)[:2] if a is not None)
    assert np.sqrt(length) * of_x.std() * of_w.std() == pytest.approx(1, rel=0.1)
