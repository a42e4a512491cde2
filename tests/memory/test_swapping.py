"""Values swapped to the host's memory: what is chosen, what it costs, and that plans are proved."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import onnx
import pytest
from drawn_networks import unet
from networks import training_net
from setting_rows import options
from stages import project_of

from atc.backends.targets import get_target
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import InternalError, OptionError
from atc.memory.audit import audit_memory
from atc.passes.rematerialize import recomputed_nodes
from atc.pipeline.writing import Project
from atc.program.steps import Call, Copy, Step, Wait, calls
from atc.program.swap import SwapModel
from atc.tools.explain import read_report

MODEL = SwapModel(get_target("cuda-emulated"))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_net(tmp_path_factory.mktemp("net") / "step.onnx", (64,) * 9)


def project(model: Path, said: list[str] | None = None, **given: object) -> Project:
    chosen = options({}, model, target="cuda-emulated", **given)
    return project_of(chosen, Diagnostics(stage=[].append if said is None else said.append))


@cache
def plain(model: Path) -> Project:
    return project(model)


def run_ns(done: Project) -> float:
    return MODEL.times(done.program).run


@pytest.mark.few(1)
@pytest.mark.parametrize("part", [0.4, 0.6, 0.8])
def test_swaps_keep_an_arena_within_a_budget(model: Path, part: float) -> None:
    whole, said = plain(model).arena.plan.size, list[str]()
    budget = int(whole * part)
    done = project(model, said, gpu_swap=True, memory_budget=budget)
    assert done.arena.plan.size <= budget
    assert not recomputed_nodes(done.graph)
    copies = [step for step in done.program.steps if isinstance(step, Copy)]
    sizes = [done.program.types[c.source].nbytes for c in copies if c.to_host]
    assert whole - done.arena.plan.size <= sum(sizes)
    assert max(sizes) <= done.arena.host_size <= sum(sizes)
    assert len(copies) == 2 * len(sizes)  # each of them comes back once
    times = MODEL.times(done.program)
    assert times.waiting < times.copies  # some are hidden by the kernels beside them
    assert times.kernels == pytest.approx(run_ns(plain(model)))
    (text,) = (text for text in said if text.startswith("the arena needs"))
    found = re.fullmatch(
        rf"the arena needs {done.arena.plan.size} bytes, and {done.arena.host_size} bytes of the "
        r"host's memory; the copies take (\d+) us, the run waits ([\d.]+) % of its time for them; "
        r"no arena is below \d+, which .+ alone needs", text,
    )  # fmt: skip
    assert found is not None
    assert int(found[1]) == round(times.copies / 1e3)
    assert float(found[2]) == pytest.approx(100 * times.waiting / times.run, abs=0.05)


@pytest.mark.slow
def test_a_smaller_budget_costs_no_less(model: Path) -> None:
    whole = plain(model).arena.plan.size
    times = [
        run_ns(project(model, gpu_swap=True, memory_budget=whole * k // 8)) for k in range(3, 9)
    ]
    assert times == sorted(times, reverse=True)
    assert times[-1] == pytest.approx(run_ns(plain(model)))


@pytest.mark.slow
@pytest.mark.parametrize("part", [0.3, 0.5, 0.8])
def test_the_faster_of_swaps_and_recomputation_is_taken(model: Path, part: float) -> None:
    """With both allowed no plan is slower than with either alone."""
    budget = int(plain(model).arena.plan.size * part)
    both = project(model, gpu_swap=True, recompute="all", memory_budget=budget)
    assert both.arena.plan.size <= budget
    for given in ({"gpu_swap": True}, {"recompute": "all"}):
        assert run_ns(both) <= run_ns(project(model, memory_budget=budget, **given))


def test_a_pool_is_a_limit(model: Path) -> None:
    """One context's tensors and arena fit into it, each with what its parts are rounded up to."""
    done = plain(model)
    ports = (*done.program.inputs, *done.program.outputs)
    others = sum(done.program.types[v].nbytes for v in ports)
    whole = done.arena.plan.size + others
    assert not project(model, gpu_swap=True, gpu_pool=str(whole)).program.on_host
    less = project(model, gpu_swap=True, gpu_pool=str(whole - 1))
    assert less.program.on_host
    assert less.arena.plan.size + others < whole
    assert not project(model, gpu_swap=True, gpu_pool="all").program.on_host
    said: list[str] = []
    least = project(model, said, gpu_swap=True, gpu_pool=str(others + 512)).arena.plan.size
    assert f"the arena needs {least} bytes, more than the 512 that --gpu_pool leaves it" in said
    assert not project(model, gpu_pool=str(whole - 1)).program.on_host


def test_without_a_need_nothing_is_swapped(model: Path) -> None:
    whole = plain(model).arena.plan.size
    assert not project(model, gpu_swap=True, memory_budget=whole).program.on_host
    assert not project(model, gpu_swap=True).program.on_host
    assert not plain(model).program.on_host


def test_a_budget_that_swaps_cannot_reach_is_an_error_that_names_the_least(model: Path) -> None:
    whole = plain(model).arena.plan.size
    with pytest.raises(OptionError, match=r"allow --recompute=all or --gpu_swap=1; no arena"):
        project(model, memory_budget=whole // 2)
    bound = r"E10013: the arena needs (\d+) bytes, more than 64.* no arena is below (\d+), which "
    with pytest.raises(OptionError, match=bound + "gradient alone needs") as caught:
        project(model, gpu_swap=True, memory_budget=64)
    found = re.search(bound, str(caught.value))
    assert found is not None
    least, below = map(int, found.groups())
    assert below <= least < whole // 2
    assert project(model, gpu_swap=True, memory_budget=least).arena.plan.size == least
    with pytest.raises(OptionError, match=f"needs {least} bytes, more than {least - 1}"):
        project(model, gpu_swap=True, memory_budget=least - 1)
    with pytest.raises(OptionError, match="--recompute_minimum keeps values below"):
        project(
            model, gpu_swap=True, recompute="all", memory_budget=64, recompute_minimum=1 << 30
        )


def test_a_part_needs_no_room_for_the_whole_before_that_is_joined(tmp_path: Path) -> None:
    """The first part of a Concat, made long before the others, comes back to its place in it."""
    onnx.save(unet(16, 16), tmp_path / "unet.onnx")
    given = {"input_shape": "x:1,3,16,16"}
    whole = project(tmp_path / "unet.onnx", **given).arena.plan.size
    done = project(tmp_path / "unet.onnx", gpu_swap=True, memory_budget=whole * 4 // 5, **given)
    there, back = (step for step in done.program.steps if isinstance(step, Copy))
    assert there.source not in done.program.storage
    joined = done.program.base(back.result)
    assert done.program.types[joined].nbytes > done.program.types[back.result].nbytes
    made = [c.node.outputs[0] for c in calls(done.program.steps)]
    parts = [v for v in made if done.program.base(v) == joined]
    assert parts  # the others
    assert there.source not in parts


def test_without_a_gpu_there_is_nothing_to_swap_to(model: Path) -> None:
    warned: list[str] = []
    for given, end in (
        ({"target": "c99"}, ": c99 has no memory but the host's, where swaps would go"),
        ({"target": "cuda-emulated"}, " without --memory_budget or bytes for --gpu_pool"),
    ):
        chosen = options({}, model, gpu_swap=True, **given)
        with pytest.raises(KeyboardInterrupt):
            compile_model(chosen, diagnostics=Diagnostics(warn=warned.append, stage=_stop))
        assert warned.pop() == f"--gpu_swap has no effect{end}"
        assert not warned


@pytest.mark.slow
@pytest.mark.parametrize("recompute", ["none", "all"])
def test_beside_swaps_the_budget_is_the_gpus(recompute: str, model: Path, tmp_path: Path) -> None:
    """The host's part recomputes what it may; if it needs more, nonetheless, a warning says so."""
    warned: list[str] = []
    budget = plain(model).arena.plan.size // 3
    chosen = options(
        {}, model, output=tmp_path / "net", target="cuda-emulated,c99", gpu_swap=True,
        recompute=recompute, memory_budget=budget,
    )  # fmt: skip
    compile_model(chosen, diagnostics=Diagnostics(warn=warned.append))
    paths = read_report(tmp_path / "net")["targets"].values()
    own, host = (
        read_report((tmp_path / "net" / path).parent)["memory"]["arena_bytes"] for path in paths
    )
    assert own <= budget
    assert (host <= budget) == (recompute == "all")
    said = f"the part for c99 needs {host} bytes, more than --memory_budget: without a GPU nothing"
    assert warned == [f"{said} is swapped"] * (recompute == "none")


def _stop(text: str) -> None:
    raise KeyboardInterrupt(text)


# ---------------------------------------------------------------------- what the audit must notice


def halved(model: Path) -> Project:
    return project(model, gpu_swap=True, memory_budget=plain(model).arena.plan.size // 2)


def audited(done: Project, steps: tuple[Step, ...]) -> None:
    """Audit a program with other steps on the arena that is there."""
    arena, size = done.arena, done.arena.plan.size
    places = {**arena.offsets, **{v: size + at for v, at in arena.on_host.items()}}
    program = replace(done.program, steps=steps)
    audit_memory(program, places, arena.scratch, size + arena.host_size)


def test_what_is_not_waited_for_is_noticed(model: Path) -> None:
    done = halved(model)
    audited(done, done.program.steps)
    waits = [k for k, step in enumerate(done.program.steps) if isinstance(step, Wait)]
    assert len(waits) > 4
    for k in waits:
        steps = (*done.program.steps[:k], *done.program.steps[k + 1 :])
        if done.program.steps[k].copy.to_host:  # type: ignore[union-attr]
            later = next(j for j in range(len(steps)) if j >= k and _overwrites(done, steps[j], k))
            steps = (*steps[: later + 1], done.program.steps[k], *steps[later + 1 :])
        with pytest.raises(InternalError, match="memory plan: .*overwritten"):
            audited(done, steps)


def _overwrites(done: Project, step: Step, wait: int) -> bool:
    """Return whether a step writes where the source of a copy lies."""
    awaited = done.program.steps[wait]
    assert isinstance(awaited, Wait)
    results = step.node.outputs if isinstance(step, Call) else ()
    if isinstance(step, Copy) and not step.to_host:
        results = (step.result,)
    own = _span(done, awaited.copy.source)
    spans = [_span(done, r) for r in results if r in done.arena.offsets]
    return any(a < own[1] and own[0] < b for a, b in spans)


def _span(done: Project, value: str) -> tuple[int, int]:
    begin = done.arena.offsets[value]
    return begin, begin + done.program.types[value].nbytes


def test_copies_back_that_begin_too_early_are_noticed(model: Path) -> None:
    """A place that another value still has can't be written to yet."""
    done = halved(model)
    steps = done.program.steps
    back = [k for k, step in enumerate(steps) if isinstance(step, Copy) and not step.to_host]
    first = next(k for k, step in enumerate(steps) if isinstance(step, Wait))
    for k in back:
        early = (*steps[: first + 1], steps[k], *steps[first + 1 : k], *steps[k + 1 :])
        with pytest.raises(InternalError, match="memory plan: "):
            audited(done, early)
