"""MXNet's variables, a test per row X-01 ... X-42 of the specification."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from networks import conv_net, save, training_net
from onnx import helper
from setting_rows import accepted_rows, is_only_a_warning, options, rows_of, variable_of

from atc import driver
from atc.backends.target import get_target
from atc.check import check_model
from atc.errors import OptionError
from atc.load import load
from atc.memory import Arena
from atc.ops import Map
from atc.options import Options
from atc.passes import pass_names
from atc.passes.recompute import AGAIN
from atc.select import ANY
from atc.settings import SETTINGS
from atc.settings.resolve import settle
from atc.settings.surroundings import parse_config

ROWS = [f"X-{k:02}" for k in range(1, 43)]

VALUES = {
    "X-02": "2", "X-03": "1", "X-07": "2", "X-08": "0",
    "X-12": "100", "X-13": "Round", "X-14": "20", "X-15": "1",
    "X-19": "1", "X-20": "1", "X-21": "1", "X-22": "1", "X-23": "1", "X-24": "1",
    "X-25": "1", "X-26": "0.5", "X-27": "0", "X-32": "1", "X-33": "1",
    "X-34": "https://example.org/",
}  # fmt: skip
"""For each row that is accepted: a value that asks for something else than what happens."""


def test_every_row_is_in_the_table_and_has_a_test() -> None:
    assert rows_of("X") == set(ROWS)
    assert set(accepted_rows("X")) == set(VALUES)
    tested = {name[5:9].upper().replace("_", "-") for name in globals() if name[:6] == "test_x"}
    assert tested | set(VALUES) == set(ROWS)


@pytest.mark.parametrize("row", VALUES)
def test_accepted_with_one_warning_and_nothing_else(row: str) -> None:
    is_only_a_warning(row, VALUES[row])


@pytest.mark.parametrize("row", VALUES)
def test_what_happens_anyway_needs_no_warning(row: str) -> None:
    for value in variable_of(row).works_for:
        assert not options({variable_of(row).name: str(value)}).notes


@pytest.mark.parametrize(
    ("old", "new", "value"),
    [
        ("MXNET_MKLDNN_ENABLED", "MXNET_ONEDNN_ENABLED", "0"),
        ("MXNET_CPU_PARALLEL_COPY_SIZE", "MXNET_CPU_PARALLEL_SIZE", "3"),
    ],
)
def test_newer_names_mean_the_same(old: str, new: str, value: str) -> None:
    assert options({new: value}) == options({old: value}) != options({})
    assert options({new: value, old: "-1"}) == options({new: value})


# -------------------------------------------------------------------------------- rows that work


@pytest.fixture(scope="module")
def profiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile with MXNET_EXEC_BULK_EXEC_INFERENCE=0 and return the output folder."""
    folder = tmp_path_factory.mktemp("profiled")
    environ = {"MXNET_EXEC_BULK_EXEC_INFERENCE": "0"}
    chosen = options(environ, conv_net(folder / "m.onnx"), target="c99", jobs="2")
    return driver.compile_model(replace(chosen, output=folder / "net")).folder


def run_module(folder: Path, cwd: Path, code: str, **environ: str) -> str:
    """Run Python in a process of its own, in which `net` is the module of a compiled network."""
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); import net, numpy; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", begin + code], capture_output=True, text=True, cwd=cwd,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_x_01_the_library_that_a_module_loads(profiled: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    shutil.copy(profiled / "libnet.so", copy)
    code = "net.load(); print(open('/proc/self/maps').read())"
    if not Path("/proc/self/maps").exists():
        pytest.skip("no /proc")
    beside = str(profiled / "libnet.so")
    assert beside in run_module(profiled, tmp_path, code)
    for name in ("MXNET_LIBRARY_PATH", "ATC_LIBRARY_PATH"):
        maps = run_module(profiled, tmp_path, code, **{name: str(copy)})
        assert str(copy) in maps
        assert beside not in maps
    mxnet = run_module(profiled, tmp_path, code, MXNET_LIBRARY_PATH="/opt/libmxnet.so")
    assert beside in mxnet  # that is MXNet's own library, no compiled network


def test_x_06_threads() -> None:
    assert options({"MXNET_CPU_NNPACK_NTHREADS": "3"}).num_threads == 3
    assert options({"MXNET_CPU_NNPACK_NTHREADS": "3"}, num_threads="2").num_threads == 2
    with pytest.raises(OptionError, match=r"E10013.*MXNET_CPU_NNPACK_NTHREADS"):
        options({"MXNET_CPU_NNPACK_NTHREADS": "0"})


def arena_of(chosen: Options) -> Arena:
    """Return the memory plan of a compilation without fusion; no C is compiled."""
    heard, target = driver.Listener(), get_target(chosen.target)
    plain = replace(chosen, skip_passes=frozenset(pass_names()))
    graph = driver.optimised_graph(driver.read_model(plain, heard), plain, heard)
    return driver.write_project(graph, {}, plain, target, ANY, heard).arena


def taken_over(arena: Arena) -> set[str]:
    """Return the values that lie in their operands' memory: those without a buffer."""
    return set(arena.offsets) - {b.name for b in arena.buffers}


def test_x_09_results_in_their_operands_memory(tmp_path: Path) -> None:
    name, model = "MXNET_EXEC_ENABLE_INPLACE", conv_net(tmp_path / "m.onnx")
    shared, apart = (
        arena_of(options({name: word}, model, target="c99")) for word in ("true", "false")
    )
    assert "r1" in taken_over(shared)
    assert "r1" not in taken_over(apart)
    assert apart.plan.size >= shared.plan.size
    assert arena_of(options({}, model, target="c99")) == shared


def test_x_10_sharing_of_memory(tmp_path: Path) -> None:
    name, model = "NNVM_EXEC_MATCH_RANGE", conv_net(tmp_path / "m.onnx")
    off, one, sixteen = (
        arena_of(options({name: scale}, model, target="c99")) for scale in ("0", "1", "16")
    )
    assert off.plan.size == sum(-(-b.size // 64) * 64 for b in off.buffers)
    assert sixteen.plan.size <= one.plan.size < off.plan.size


def test_x_17_each_call_by_itself(profiled: Path) -> None:
    report = json.loads((profiled / "net.report.json").read_text())
    header = (profiled / "include/net.h").read_text()
    assert f"#define NET_PROFILE_COUNT {len(report['nodes'])} " in header
    assert not options({"MXNET_EXEC_BULK_EXEC_INFERENCE": "1"}).profile


def test_x_16_engines() -> None:
    naive = options({"MXNET_ENGINE_TYPE": "NaiveEngine"})
    assert naive.sanity_check == options({}, sanity_check="1").sanity_check is not None
    assert options({"MXNET_ENGINE_TYPE": "ThreadedEngine"}).sanity_check is None
    with pytest.raises(OptionError, match="E10001.*use one of NaiveEngine, "):
        options({"MXNET_ENGINE_TYPE": "LazyEngine"})


def test_x_18_each_call_of_a_training_step_by_itself() -> None:
    assert options({"MXNET_EXEC_BULK_EXEC_TRAIN": "0"}).profile
    assert not options({"MXNET_EXEC_BULK_EXEC_TRAIN": "1"}).profile


def test_x_28_mirrored_activations(tmp_path: Path) -> None:
    model = training_net(tmp_path / "step.onnx")
    sizes = []
    for value in ("0", "1"):
        chosen = options({"MXNET_BACKWARD_DO_MIRROR": value}, model, target="c99")
        heard, target = driver.Listener(), get_target("c99")
        graph = driver.optimised_graph(driver.read_model(chosen, heard), chosen, heard)
        project = driver.write_project(graph, {}, chosen, target, ANY, heard)
        sizes.append(project.arena.plan.size)
        again = [n for n in project.graph.nodes if AGAIN in n.outputs[0]]
        assert bool(again) == (value == "1")
        assert all(isinstance(n.op, Map) for n in again)
    assert sizes[1] < sizes[0]


def test_x_29_a_profile_at_the_end(profiled: Path, tmp_path: Path) -> None:
    code = "n = net.load(); n(numpy.ones((1, 3, 8, 8), 'float32'))"
    run_module(profiled, tmp_path, code)
    assert not (tmp_path / "profile.json").exists()
    run_module(profiled, tmp_path, code, MXNET_PROFILER_AUTOSTART="1")
    events = json.loads((tmp_path / "profile.json").read_text())["traceEvents"]
    assert {e["args"]["nodes"] for e in events} >= {"conv1 + relu1"}
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["args"]["runs"] == 1 for e in events)
    with pytest.raises(OptionError, match=r"E10006.*MXNET_PROFILER_AUTOSTART"):
        options({"MXNET_PROFILER_AUTOSTART": "maybe"})


def test_x_31_measuring() -> None:
    def chosen(value: str) -> tuple[bool, int]:
        environ = {"MXNET_CUDNN_AUTOTUNE_DEFAULT": value}
        given = options(environ, **({"workspace_limit": "64"} if value == "1" else {}))
        return given.fast_run, given.workspace_limit

    assert [chosen(v) for v in "012"] == [(False, -1), (True, 64), (True, -1)]
    assert not options({"MXNET_CUDNN_AUTOTUNE_DEFAULT": "1"}, fast_run="0").measures
    with pytest.raises(OptionError, match="E10013.*use 0 to 2"):
        chosen("3")


def test_x_31_two_takes_no_limit_of_the_configuration_file() -> None:
    for value, limit in (("1", 64), ("2", -1)):
        around = parse_config("workspace_limit=64", "f", {"MXNET_CUDNN_AUTOTUNE_DEFAULT": value})
        values = settle({"model": "x", "output": "y"}, "compile", around).values
        assert values["workspace_limit"] == limit


def test_x_35_models_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    for folder in (home / "models", here):
        folder.mkdir(parents=True)
    monkeypatch.chdir(here)
    environ = {"MXNET_HOME": str(home)}
    (home / "models/net.onnx").write_bytes(b"")
    (home / "net.params").write_bytes(b"")
    found = options(environ, "net.onnx", weight="net.params")
    assert (found.model, found.weight) == (home / "models/net.onnx", home / "net.params")
    assert options(environ, "sub/net.onnx").model == Path("sub/net.onnx")
    assert options(environ, "other.onnx").model == Path("other.onnx")
    (here / "net.onnx").write_bytes(b"")
    assert options(environ, "net.onnx").model == Path("net.onnx")


def test_x_36_portable_kernels_only(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")

    def tiers(value: str) -> set[str]:
        chosen = options({"MXNET_MKLDNN_ENABLED": value}, model, target="x86-64-avx2")
        return {f.status for f in check_model(chosen).findings}

    assert "tuned" in tiers("1")
    assert tiers("0") <= {"portable", "none"}


def test_x_36_outputs_of_portable_kernels_are_those_of_all(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = save([product], {"x": [48, 48]}, {"y": [48, 48]}, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
    results = []
    for value in "01":
        chosen = options({"MXNET_MKLDNN_ENABLED": value}, model, jobs="2")
        folder = driver.compile_model(replace(chosen, output=tmp_path / value / "net")).folder
        results.append(load(folder)(x))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


def test_x_38_determinism() -> None:
    assert options({"MXNET_ENFORCE_DETERMINISM": "1"}).reproducible
    assert not options({"MXNET_ENFORCE_DETERMINISM": "0"}).reproducible
    with pytest.raises(OptionError, match=r"E10006.*use 1 or 0"):
        options({"MXNET_ENFORCE_DETERMINISM": "2"})


def test_x_40_is_documented() -> None:
    (row,) = (s for s in SETTINGS if s.row == "X-40")
    assert row.kind == "feature"
    assert "the lesser of MXNET_CPU_WORKER_NTHREADS and MXNET_EXEC_NUM_TEMP" in row.meaning
    for name in ("MXNET_CPU_WORKER_NTHREADS", "MXNET_EXEC_NUM_TEMP"):
        assert not options({name: "1"}).notes
        assert options({name: "2"}).notes
