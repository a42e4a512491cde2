"""Branches that run at the same time: the same bits, memory of their own, and where it pays."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from branching_models import Sketch, drawn
from caller_threads import run_at_once, run_with
from default_run import unoptimised
from networks import save
from onnx import TensorProto, helper, numpy_helper
from projects import compile_c, sources, write_project
from setting_rows import options
from stages import project_of

import atc
from atc.backends.targets import get_target
from atc.codegen.emit import emit
from atc.codegen.project_options import ProjectOptions
from atc.diagnostics import Diagnostics
from atc.errors import InternalError
from atc.ir.graph import Graph
from atc.memory.arena import Arena, plan_memory
from atc.memory.audit import audit_memory
from atc.passes import run_passes
from atc.pipeline.writing import Project
from atc.program.build import build_program
from atc.program.forks import Workers, forked
from atc.program.steps import Fork, Program, calls
from atc.select.select import select
from support import compile_graph

TARGET = get_target("c99")
ALWAYS = Workers(2, always=True)


def inception(size: int = 6, width: int = 4) -> onnx.ModelProto:
    """Return two blocks of four branches that are joined, a residual sum, and a second output."""
    s = Sketch(size=size)
    x = s.relu(s.conv("x", width, 3))
    for _ in range(2):
        deep = s.relu(s.conv(s.relu(s.conv(s.relu(s.conv(x, width)), width, 3)), width, 3))
        wide = s.relu(s.conv(s.relu(s.conv(x, width)), width, 3))
        joined = s.join(s.relu(s.conv(x, width)), wide, deep, s.conv(s.pool(x), width))
        x = s.add(s.relu(s.conv(joined, width)), x)
    return s.model(x, joined)


def towers() -> onnx.ModelProto:
    """Return two chains that only meet at the end, with residual sums inside."""
    s = Sketch()
    ends = []
    for k in range(2):
        x = s.relu(s.conv("x", 4, 3 - 2 * k))
        for _ in range(3):
            x = s.add(s.relu(s.conv(s.relu(s.conv(x, 4, 3)), 4)), x)
        ends.append(x)
    return s.model(s.add(*ends))


def program_of(model: onnx.ModelProto, workers: Workers = ALWAYS) -> Program:
    graph = run_passes(compile_graph(model))
    return build_program(graph, select(graph, TARGET), TARGET, workers=workers)


def forks_of(program: Program) -> list[Fork]:
    return [step for step in program.steps if isinstance(step, Fork)]


def one_by_one(program: Program) -> Program:
    """Return a program whose forks run one branch after the other."""
    steps = []
    for step in program.steps:
        steps += [s for b in step.branches for s in b] if isinstance(step, Fork) else [step]
    return replace(program, steps=tuple(steps))


def audit(program: Program, arena: Arena) -> None:
    audit_memory(program, arena.offsets, arena.scratch, arena.plan.size)


# ---- what is forked ------------------------------------------------------------------------------


def test_the_branches_of_each_block_are_a_fork() -> None:
    program = program_of(inception())
    forks = forks_of(program)
    assert [len(f.branches) for f in forks] == [2, 2]
    for fork in forks:
        kinds = [c.node.op.kind for c in fork.calls]
        assert kinds.count("Pool") == 1
        assert len(kinds) == 8


def test_towers_are_one_fork() -> None:
    (fork,) = forks_of(program_of(towers()))
    origins = [{o for c in calls(b) for o in c.node.origin} for b in fork.branches]
    assert len(origins) == 2
    assert not origins[0] & origins[1]
    assert min(map(len, origins)) > 6


def test_more_workers_take_more_branches() -> None:
    for most in (2, 3, 4, 9):
        forks = forks_of(program_of(inception(), Workers(most, always=True)))
        assert [len(f.branches) for f in forks] == [min(most, 4)] * 2


def test_without_workers_there_are_no_forks() -> None:
    assert not forks_of(program_of(inception(), Workers(1, 2)))


@pytest.mark.parametrize(("size", "width", "gains"), [(2, 4, False), (40, 16, True)])
def test_estimates_fork_what_is_long_enough(size: int, width: int, gains: bool) -> None:
    model = inception(size, width)
    assert bool(forks_of(program_of(model, Workers(2, 1)))) == gains


def test_a_call_that_threads_share_as_well_is_no_branch() -> None:
    """A long and a short branch: to divide the long one takes less time than to wait for it."""
    s = Sketch(size=48)
    long = s.conv(s.conv("x", 24, 3), 24, 3)
    model = s.model(s.join(long, s.pool("x")))
    assert forks_of(program_of(model, Workers(2, 1, always=True)))
    assert not forks_of(program_of(model, Workers(2, 2)))


def test_every_node_is_there_once_and_after_what_it_reads() -> None:
    for seed in range(20):
        graph = run_passes(compile_graph(drawn(seed)))
        known = {*graph.inputs, *graph.constants}
        count = 0
        for branches in forked(graph, select(graph, TARGET), TARGET, Workers(3, always=True)):
            made: list[set[str]] = []
            for nodes in branches:
                own: set[str] = set()
                for node in nodes:
                    assert {i for i in node.inputs if i} <= known | own
                    own.update(node.outputs)
                    count += 1
                made.append(own)
            known.update(*made)
        assert count == len(graph.nodes)


def test_the_search_takes_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long two chains are beside each other, a node is looked at so many times at most."""
    from atc.program import forks

    added = 0
    add = forks._Components.add

    def counted(self: Any, k: int, time: float) -> None:
        nonlocal added
        added += 1
        add(self, k, time)

    monkeypatch.setattr(forks._Components, "add", counted)
    s = Sketch(size=2)
    a = b = "x"
    for _ in range(100):
        a, b = s.conv(a), s.conv(b)
    graph = compile_graph(s.model(s.add(a, b)))
    list(forked(graph, select(graph, TARGET), TARGET, ALWAYS, reach=20))
    assert added <= 2 * 20 * len(graph.nodes)


# ---- memory --------------------------------------------------------------------------------------


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(40))
def test_plans_of_drawn_graphs_hold(seed: int) -> None:
    """`plan_memory` audits; here also that branches one by one never need more."""
    program = program_of(drawn(seed), Workers(3, always=True))
    arena = plan_memory(program)
    assert arena.plan.lower_bound <= arena.plan.size
    assert len(arena.steps) == len(list(calls(program.steps)))
    audit(one_by_one(program), arena)
    audit(program, plan_memory(program, reuse=False))


def test_a_plan_for_one_branch_after_the_other_is_refused() -> None:
    refused = 0
    for model in (inception(), towers(), *map(drawn, range(12))):
        program = program_of(model)
        if not forks_of(program):
            continue
        arena = plan_memory(one_by_one(program))
        try:
            audit(program, arena)
        except InternalError:
            refused += 1
    assert refused > 4


@pytest.mark.parametrize("what", ["value", "scratch"])
def test_the_audit_catches_bytes_that_two_branches_share(what: str) -> None:
    program = program_of(inception())
    arena = plan_memory(program)
    audit(program, arena)
    one, other = forks_of(program)[0].branches
    of_one, of_other = ([c for c in calls(b)] for b in (one, other))
    place = arena.offsets[of_one[0].node.outputs[0]]
    if what == "value":
        moved = of_other[0].node.outputs[0]
        bad = replace(arena, offsets={**arena.offsets, moved: place})
    else:
        moved = next(c.node.outputs[0] for c in of_other if c.source.scratch)
        bad = replace(arena, scratch={**arena.scratch, moved: place})
    with pytest.raises(InternalError, match="meets another one"):
        audit(program, bad)


def test_the_audit_catches_a_branch_that_reads_what_another_one_writes() -> None:
    program = program_of(towers())
    at = next(k for k, step in enumerate(program.steps) if isinstance(step, Fork))
    fork = forks_of(program)[0]
    chain = fork.branches[0]
    torn = Fork((chain[:1], chain[1:]))
    steps = (*program.steps[:at], torn, *program.steps[at + 1 :])
    broken = replace(program, steps=steps, outputs=(chain[-1].node.outputs[0],))
    arena = plan_memory(replace(program, steps=(*program.steps[:at], *chain)), reuse=False)
    with pytest.raises(InternalError, match="meets another one"):
        audit(broken, arena)


def test_a_branch_reuses_its_own_memory() -> None:
    """A longer tower needs no more memory."""

    def arena(length: int) -> int:
        s = Sketch(size=16)
        ends = []
        for _ in range(2):
            x = "x"
            for _ in range(length):
                x = s.relu(s.conv(x))
            ends.append(x)
        program = program_of(s.model(s.add(*ends)))
        assert forks_of(program)
        return plan_memory(program).plan.size

    assert arena(4) == arena(12)


def planned(model: Path, **given: object) -> Project:
    return project_of(options({}, model, target="c99", **given))


def test_a_budget_comes_before_branches(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(inception(), path)
    plain, forks = planned(path), planned(path, parallel_branches="4")
    least, most = plain.arena.plan.size, forks.arena.plan.size
    assert least < most
    assert not forks_of(planned(path, parallel_branches="4", memory_budget=str(least)).program)
    assert forks_of(planned(path, parallel_branches="4", memory_budget=str(most)).program)


def test_networks_of_several_shapes_say_that_they_use_one_thread(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = save([relu], {"x": ["n", 4]}, {"y": ["n", 4]}, tmp_path / "m.onnx")
    chosen = options({}, model, target="c99", input_shape="x:1~3,4", parallel_branches="2")
    reported: list[str] = []
    project_of(chosen, Diagnostics(warn=reported.append))
    assert reported == ["--parallel_branches=2: networks of several shapes use one"]


# ---- what runs -----------------------------------------------------------------------------------


BUILDS: dict[str, dict[str, Any]] = {
    "c99": {"target": "c99"}, "c99, two": {"target": "c99", "parallel_branches": 2},
    "c99, three": {"target": "c99", "parallel_branches": 3, "num_threads": 2},
    "host": {}, "host, two": {"parallel_branches": 2},
}  # fmt: skip


class Built(dict[str, Path]):
    """The folders of one model compiled in several ways, when asked for."""

    def __init__(self, root: Path) -> None:
        self.root = root
        onnx.save(inception(9, 8), root / "model.onnx")

    def __missing__(self, name: str) -> Path:
        self[name] = folder = self.root / name.replace(", ", "-") / "net"
        given = {"build_config": unoptimised(), **BUILDS[name]}
        atc.compile(self.root / "model.onnx", folder, **given)
        return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return Built(tmp_path_factory.mktemp("forks"))


def feed(net: Any) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.standard_normal(t.shape).astype(np.float32) for t in net.inputs]


@pytest.mark.parametrize(
    "name", ["c99, three", pytest.param("host, two", marks=pytest.mark.slow)]
)
def test_the_bits_are_those_of_one_call_after_the_other(built: Built, name: str) -> None:
    with atc.load(built[name.partition(",")[0]]) as one, atc.load(built[name]) as many:
        want = one(*feed(one))
        for _ in range(20):
            for a, b in zip(want, many(*feed(many)), strict=True):
                assert a.tobytes() == b.tobytes()
    assert "run_partitions(ctx, branches_" in (built[name] / "src/net.c").read_text()


def test_branches_really_run_at_the_same_time(built: Built) -> None:
    """Each branch waits until the other one has begun: one after the other they would never."""
    with atc.load(built["c99"]) as net:
        given = feed(net)
        want = net(*given)
    got, met = run_at_once(built["c99, two"], given, want)
    assert [a.tobytes() for a in want] == [a.tobytes() for a in got]
    assert met == 2  # the forks of the model


def test_branches_may_run_in_any_order(built: Built) -> None:
    with atc.load(built["c99"]) as net:
        given = feed(net)
        want = net(*given)

    def backwards(run: Any, partitions: int) -> None:
        for k in reversed(range(partitions)):
            run(k)

    got = run_with(built["c99, three"], given, want, backwards)
    assert [a.tobytes() for a in want] == [a.tobytes() for a in got]


@pytest.mark.slow
def test_forks_inside_a_loop_run_again_and_again(tmp_path: Path) -> None:
    s = Sketch()
    s.channels["state"] = 4
    body_out = s.add(s.relu(s.conv("state", 4, 3)), s.relu(s.conv(s.pool("state"), 4)))
    shape = [1, 4, 6, 6]
    info = helper.make_tensor_value_info
    s.nodes.append(helper.make_node("Identity", ["going"], ["still"]))
    body = helper.make_graph(
        s.nodes, "body",
        [info("i", TensorProto.INT64, []), info("going", TensorProto.BOOL, []),
         info("state", TensorProto.FLOAT, shape)],
        [info("still", TensorProto.BOOL, []), info(body_out, TensorProto.FLOAT, shape)], s.weights,
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Loop", ["count", "", "x"], ["y"], body=body)], "g",
        [info("x", TensorProto.FLOAT, shape)], [info("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.array(5), "count")],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=10), tmp_path / "m.onnx")
    results = []
    for name, given in {"one": {}, "two": {"parallel_branches": 2}}.items():
        folder = tmp_path / name / "net"
        atc.compile(tmp_path / "m.onnx", folder, build_config=unoptimised(), **given)
        forks = (folder / "src/net.c").read_text().count("run_partitions(ctx, branches_")
        assert (forks > 0) == (name == "two")
        with atc.load(folder) as net:
            results.append(net(*feed(net)).tobytes())
    assert results[0] == results[1]


MAIN = """
#include <stdio.h>
#include "net.h"
static _Alignas(64) unsigned char arena[NET_ARENA_SIZE];
static float x[4 * 9 * 9], y[8 * 9 * 9], z[32 * 9 * 9];
static net_context ctx;
int main(void)
{
  for (int k = 0; k < 4 * 9 * 9; k++) x[k] = (float)(k % 7);
  if (net_init(&ctx, arena, sizeof arena) != NET_OK) return 1;
  if (net_start_threads(&ctx) != NET_OK) return 2;
  for (int k = 0; k < 50; k++)
    if (net_run(&ctx, x, y, z) != NET_OK) return 3;
  net_stop_threads(&ctx);
  puts("done");
  return 0;
}
"""


@pytest.mark.slow
def test_no_race_is_seen_by_the_thread_sanitizer(tmp_path: Path) -> None:
    graph: Graph = run_passes(compile_graph(inception(9, 8)))
    program = build_program(graph, select(graph, TARGET), TARGET, workers=ALWAYS, threads=2)
    options = ProjectOptions(name="net", model="m", threads=2)
    made = emit(program, plan_memory(program), TARGET, options)
    write_project(tmp_path, made)
    (tmp_path / "main.c").write_text(MAIN)
    flags = ("-std=c11", "-O1", "-g", "-fsanitize=thread", "-pthread")
    compile_c(tmp_path, *flags, "main.c", *sources(tmp_path), "-o", "run", "-lm")
    done = subprocess.run([str(tmp_path / "run")], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
