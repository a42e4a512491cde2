"""Bounds on bytes and on work: plans of programs, whatever they recompute, are above them."""

from __future__ import annotations

from pathlib import Path

import pytest
from networks import training_net
from setting_rows import options
from stages import project_of

from atc.memory.bounds import least_bytes, least_work, moments
from atc.pipeline.writing import Project
from atc.program.steps import calls


def project(model: Path, **given: object) -> Project:
    return project_of(options({}, model, target="c99", **given))


@pytest.fixture(scope="module", params=[(16, 8, 16, 32, 8), (64, 64, 16, 32, 32, 8)])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return training_net(tmp_path_factory.mktemp("net") / "step.onnx", widths=request.param)


@pytest.mark.few(1)
def test_no_plan_is_below_its_bounds(model: Path) -> None:
    plain = project(model)
    whole = plain.arena.plan.size
    call, least = least_bytes(plain.program, plain.arena)
    assert call
    assert 0 < least < whole
    assert least_work(plain.program, plain.arena, whole) == 0
    before = 0.0
    for part in (0.9, 0.7):
        found = project(model, recompute="all", memory_budget=int(whole * part))
        size = found.arena.plan.size
        bound = least_work(plain.program, plain.arena, size)
        again = sum(c.work for c in calls(found.program.steps)) - sum(
            c.work for c in calls(plain.program.steps)
        )  # fmt: skip
        assert size >= least
        assert before <= bound <= again * (1 + 1e-9)
        before = bound
    assert before > 0


def test_a_moment_lists_all_that_is_there(model: Path) -> None:
    plain = project(model)
    at = moments(plain.program, plain.arena)
    assert len(at) == len(list(calls(plain.program.steps)))
    most = max(m.needed + sum(m.waiting.values()) for m in at)
    assert most <= plain.arena.plan.lower_bound
    assert most >= plain.arena.plan.lower_bound * 3 // 4
