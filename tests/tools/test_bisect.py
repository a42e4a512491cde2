"""`atc bisect` finds the pass or the kernel that changes an output."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from networks import conv_net

from atc import passes
from atc.backends.targets import host_target
from atc.cli.main import main
from atc.compile import compile_model
from atc.fast_run.policy import picks, write_policy
from atc.ir.graph import Array, Graph
from atc.options.options import Options
from atc.select.select import Measurement
from atc.tools.bisect import bisect


def test_a_pass_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "PASSES", with_evil_pass("fold_affine"))
    options = cached(tmp_path)
    off = frozenset({
        "eliminate_common_subexpressions", "fuse_epilogue", "fold_affine", "simplify_matmul"
    })  # fmt: skip
    tried: list[str] = []
    result = bisect(without(options, off), options, os.environ, report=tried.append)
    assert {d.kind for d in result.decisions} == {"pass"}
    assert {d.name for d in result.decisions} == off
    assert result.found is not None
    found = result.decisions[result.found]
    assert (found.name, found.first, found.second) == ("fold_affine", "off", "on")
    assert result.changes[0].output == "y"
    assert 0 < result.changes[0].max_rel < 1
    assert len(tried) <= 3  # log2 of 4 decisions, and the first set once more


def test_a_change_within_the_tolerance_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passes, "PASSES", with_evil_pass("fold_affine"))
    options = cached(tmp_path)
    first = without(options, {"fold_affine"})
    result = bisect(first, options, os.environ, tolerance=10.0)
    assert (result.found, result.changes) == (None, ())


def without(options: Options, passes: Collection[str]) -> Options:
    """Return options that leave out passes."""
    return replace(options, optimization_switch=";".join(f"{name}:off" for name in passes))


def cached(folder: Path) -> Options:
    """Return the options of a small model, with a cache: the libraries share most kernels."""
    return Options(
        model=conv_net(folder / "m.onnx"), output=folder / "net", target="c99",
        op_compiler_cache_mode="enable", op_compiler_cache_dir=folder / "cache",
    )  # fmt: skip


def with_evil_pass(name: str) -> tuple[passes.Pass, ...]:
    """Return the pipeline with one pass that also changes a constant."""

    def evil(each: passes.Pass) -> passes.Pass:
        def run(graph: Graph, outer: Mapping[str, Array]) -> Graph:
            done = each.run(graph, outer)
            constants = dict(done.constants)
            key = next(k for k, a in constants.items() if a.ndim == 4)
            constants[key] = np.asarray(constants[key] + np.float32(0.25))
            return replace(done, constants=constants)

        return passes.Pass(each.name, run)

    return tuple(evil(p) if p.name == name else p for p in passes.PASSES)


@pytest.mark.slow
def test_a_kernel_of_two_policies_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, target = tmp_path / "m.onnx", host_target()
    layout = f"nchw{target.vector_bytes // 4}c"
    given = replace(cached(tmp_path), layout_transform=layout, precision_mode="force_fp32")
    done = compile_model(replace(given, target="host"))
    convolutions = [c for c in done.selection.values() if "Conv" in c.workload.op.kind]
    labels = [[label for label, _ in c.estimates] for c in convolutions]
    if len(labels) != 2 or not any("winograd(m=6" in x for x in labels[1]):
        pytest.skip("this machine's target has one kernel for these convolutions")
    plain = [next(x for x in each if "winograd" not in x) for each in labels]
    other = [labels[0][-1], next(x for x in labels[1] if "winograd(m=6" in x)]  # errs most
    for name, chosen in (("good", plain), ("bad", other)):
        timings = {
            c.workload: (Measurement(label, 1.0),)
            for c, label in zip(convolutions, chosen, strict=True)
        }
        write_policy(tmp_path / f"{name}.policy", picks(timings, target))
    arguments = [f"--model={model}", f"--first={tmp_path}/good.policy",
                 f"--second={tmp_path}/bad.policy", "--json", f"--layout_transform={layout}",
                 "--precision_mode=force_fp32", f"--op_compiler_cache_dir={tmp_path}/cache",
                 "--op_compiler_cache_mode=enable"]  # fmt: skip
    assert main(["bisect", *arguments]) == 1
    reported = json.loads(capsys.readouterr().out)
    assert reported["decision"]["kind"] == "kernel"
    assert reported["decision"]["nodes"] == ["conv2"]
    assert reported["decision"]["second"] == other[1]
    assert reported["changes"][0]["output"] == "y"


@pytest.mark.slow
def test_the_command_reports_what_differs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "m.onnx")
    arguments = [f"--model={model}", "--target=c99", "--second=--disable_reuse_memory=1"]
    assert main(["bisect", *arguments]) == 0
    out = capsys.readouterr().out
    assert "option disable_reuse_memory: False -> True" in out
    assert "no output changes" in out
    assert main(["bisect", f"--model={model}", "--second=no such file"]) == 1
    assert "--second" in capsys.readouterr().err
