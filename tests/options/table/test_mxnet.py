"""MXNet's variables, a test per row X-01 ... X-42 of the specification."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from branching_models import Sketch, drawn
from call_gate import Gate
from caller_threads import run_at_once
from emulated_memory import runs_in_memory, square_of_floats
from networks import conv_net, save, training_net
from onnx import helper, numpy_helper
from setting_rows import accepted_rows, is_only_a_warning, options, rows_of, variable_of
from stages import project_of

from atc.compile import compile_model
from atc.errors import OptionError
from atc.ir.ops import Map
from atc.memory.arena import Arena
from atc.options.environment import parse_config
from atc.options.options import Options
from atc.options.resolve import resolve
from atc.options.table import SETTINGS
from atc.passes import pass_names
from atc.passes.rematerialize import recomputed_nodes
from atc.pipeline.request import Decisions, resolve_request
from atc.program.steps import CascadeLoop, Fork, Parallel, calls, most_branches
from atc.runtime.load import load
from atc.runtime.queue import CallQueue
from atc.tools.check import check_model

ROWS = [f"X-{k:02}" for k in range(1, 43)]

VALUES = {
    "X-07": "2", "X-08": "0",
    "X-13": "Round", "X-14": "20", "X-15": "4194304",
    "X-19": "1", "X-20": "1", "X-21": "1", "X-22": "1", "X-23": "1", "X-24": "1",
    "X-25": "1", "X-26": "0.5", "X-27": "0",
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
    return compile_model(replace(chosen, output=folder / "net")).folder


def run_module(folder: Path, cwd: Path, code: str, **environ: str) -> str:
    """Run Python in a process of its own, in which `net` is the module of a compiled network."""
    begin = f"import sys; sys.path.insert(0, {str(folder)!r}); import net, numpy; "
    done = subprocess.run(
        [sys.executable, "-P", "-c", begin + code], capture_output=True, text=True, cwd=cwd,
        env={**os.environ, **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
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


def branches(path: Path, size: int = 6) -> Path:
    """Write a model of two branches that are joined."""
    s = Sketch(size=size)
    onnx.save(s.model(s.join(s.conv("x", 4, 3), s.conv(s.pool("x"), 4))), path)
    return path


def at_a_time(model: Path, environ: dict[str, str]) -> int:
    """Return how many operators of a model run at a time."""
    return most_branches(project_of(options(environ, model, target="c99")).program.steps)


@pytest.mark.slow
def test_x_04_operators_run_at_the_same_time(tmp_path: Path) -> None:
    model = branches(tmp_path / "m.onnx")
    assert [at_a_time(model, {"MXNET_CPU_WORKER_NTHREADS": n}) for n in "123"] == [1, 2, 2]
    outputs = []
    for n in "12":
        chosen = options({"MXNET_CPU_WORKER_NTHREADS": n}, model, target="c99", jobs="2")
        folder = compile_model(replace(chosen, output=tmp_path / n / "net")).folder
        with load(folder) as net:
            x = np.random.default_rng(0).standard_normal((1, 4, 6, 6)).astype(np.float32)
            outputs.append(net(x))
    np.testing.assert_array_equal(*outputs)
    (again,), met = run_at_once(folder, [x], [outputs[0]])
    np.testing.assert_array_equal(again, outputs[0])
    assert met == 1
    with pytest.raises(OptionError, match=r"E10013.*MXNET_CPU_WORKER_NTHREADS"):
        options({"MXNET_CPU_WORKER_NTHREADS": "0"})


def test_x_04_a_checked_build_says_that_it_has_one_thread() -> None:
    environ = {"MXNET_CPU_WORKER_NTHREADS": "2", "MXNET_ENGINE_TYPE": "NaiveEngine"}
    (warning,) = options(environ).warnings()
    assert warning == "--parallel_branches=2: a build with checks computes in one thread"


@pytest.mark.parametrize("count", [1, 3])
def test_x_05_urgent_calls_at_the_same_time(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MXNET_CPU_PRIORITY_NTHREADS", str(count))
    queue = CallQueue("net")
    gates = [Gate(queue, urgent=True) for _ in range(count + 1)]
    assert all(gate.begun.wait(20) for gate in gates[:count])
    assert not gates[count].begun.wait(0.05)
    for gate in gates:
        gate.open.set()
    assert [gate.future.result(20) for gate in gates] == ["through"] * (count + 1)
    with pytest.raises(OptionError, match=r"E10013.*MXNET_CPU_PRIORITY_NTHREADS"):
        options({"MXNET_CPU_PRIORITY_NTHREADS": "0"})


def test_x_06_threads() -> None:
    assert options({"MXNET_CPU_NNPACK_NTHREADS": "3"}).num_threads == 3
    assert options({"MXNET_CPU_NNPACK_NTHREADS": "3"}, num_threads="2").num_threads == 2
    with pytest.raises(OptionError, match=r"E10013.*MXNET_CPU_NNPACK_NTHREADS"):
        options({"MXNET_CPU_NNPACK_NTHREADS": "0"})


def arena_of(chosen: Options) -> Arena:
    """Return the memory plan of a compilation without fusion; no C is compiled."""
    return project_of(chosen, decisions=Decisions(skip_passes=frozenset(pass_names()))).arena


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
    own = sum(-(-b.size // 16) * 16 for b in off.buffers)  # what c99 aligns to
    assert off.plan.size == -(-own // 64) * 64
    assert sixteen.plan.size <= one.plan.size < off.plan.size


def test_x_10_the_planner_sweeps_so_many_packings(tmp_path: Path) -> None:
    onnx.save(drawn(45), tmp_path / "m.onnx")
    sizes = [
        project_of(options({"NNVM_EXEC_MATCH_RANGE": str(n)}, tmp_path / "m.onnx", target="x86-64"))
        .arena.plan.size
        for n in (1, 2, 4, 8, 16, 10**9)
    ]  # fmt: skip
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    assert options({"NNVM_EXEC_MATCH_RANGE": "0"}).memory_tries == options({}).memory_tries


def test_x_11_workspaces_side_by_side(tmp_path: Path) -> None:
    """Each branch has scratch of its own; with one workspace there is one branch at a time."""
    model = branches(tmp_path / "m.onnx")
    sizes = []
    for temporary in "12":
        environ = {"MXNET_CPU_WORKER_NTHREADS": "2", "MXNET_EXEC_NUM_TEMP": temporary}
        project = project_of(options(environ, model, target="c99"))
        forks = [s for s in project.program.steps if isinstance(s, Fork)]
        assert len(forks) == int(temporary) - 1
        own = {c.node.outputs[0]: c.source.scratch for c in calls(project.program.steps)}
        areas = sorted((at, at + own[v]) for v, at in project.arena.scratch.items())
        assert len(areas) == 2
        assert not forks or areas[0][1] <= areas[1][0]
        sizes.append(project.arena.plan.size)
    assert sizes[0] < sizes[1]
    with pytest.raises(OptionError, match=r"E10013.*MXNET_EXEC_NUM_TEMP"):
        options({"MXNET_EXEC_NUM_TEMP": "0"})


def test_x_17_in_bulk_or_each_call_by_itself(tmp_path: Path) -> None:
    """In bulk, two calls run stripe by stripe of rows; else each runs to its end."""
    shapes = {"a": (64, 3, 3, 3), "b": (64, 64, 3, 3)}
    known = [numpy_helper.from_array(np.zeros(s, np.float32), n) for n, s in shapes.items()]
    window = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4}
    nodes = [
        helper.make_node("Conv", ["x", "a"], ["p"], **window),
        helper.make_node("MaxPool", ["p"], ["q"], **window),
        helper.make_node("Conv", ["q", "b"], ["y"], pads=[1] * 4),
    ]
    model = save(
        nodes, {"x": [1, 3, 224, 224]}, {"y": [1, 64, 56, 56]}, tmp_path / "m.onnx", known
    )
    for value, bulk in (("0", False), ("1", True)):
        environ = {"MXNET_EXEC_BULK_EXEC_INFERENCE": value}
        blocked = options(environ, model, target="x86-64-avx2", layout_transform="nchw8c")
        steps = project_of(blocked).program.steps
        assert any(isinstance(step, CascadeLoop) for step in steps) == bulk


def test_x_17_each_call_by_itself(profiled: Path) -> None:
    report = json.loads((profiled / "net.report.json").read_text())
    header = (profiled / "include/net.h").read_text()
    assert f"#define NET_PROFILE_COUNT {len(report['nodes'])} " in header
    assert not options({"MXNET_EXEC_BULK_EXEC_INFERENCE": "1"}).profile


def test_x_16_engines() -> None:
    naive = options({"MXNET_ENGINE_TYPE": "NaiveEngine"})
    assert naive.sanity_check == options({}, sanity_check="1").sanity_check is not None
    for engine in ("ThreadedEngine", "ThreadedEnginePerDevice"):
        assert options({"MXNET_ENGINE_TYPE": engine}) == options({})
    with pytest.raises(OptionError, match="E10001.*use one of NaiveEngine, "):
        options({"MXNET_ENGINE_TYPE": "LazyEngine"})


def test_x_16_engines_of_a_running_network(profiled: Path, tmp_path: Path) -> None:
    code = (
        "net = net.load(); x = numpy.ones((1, 3, 8, 8), 'float32'); import threading; "
        "future = net.submit(x); print(threading.active_count() > 1, future.result().shape)"
    )
    for engine, threads in (("NaiveEngine", False), ("ThreadedEngine", True)):
        said = run_module(profiled, tmp_path, code, MXNET_ENGINE_TYPE=engine)
        assert said == f"{threads} (1, 4)\n"


def test_x_18_each_call_of_a_training_step_by_itself() -> None:
    assert options({"MXNET_EXEC_BULK_EXEC_TRAIN": "0"}).profile
    assert not options({"MXNET_EXEC_BULK_EXEC_TRAIN": "1"}).profile


def test_x_28_mirrored_activations(tmp_path: Path) -> None:
    model = training_net(tmp_path / "step.onnx")
    sizes = []
    for value in ("0", "1"):
        chosen = options({"MXNET_BACKWARD_DO_MIRROR": value}, model, target="c99")
        project = project_of(chosen)
        sizes.append(project.arena.plan.size)
        again = recomputed_nodes(project.graph)
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
    assert options({"MXNET_PROFILER_AUTOSTART": "1"}).profile
    assert not options({"MXNET_PROFILER_AUTOSTART": "0"}).profile
    with pytest.raises(OptionError, match=r"E10006.*MXNET_PROFILER_AUTOSTART"):
        options({"MXNET_PROFILER_AUTOSTART": "maybe"})


LOADED = "a = atc.load(sys.argv[1]); x = numpy.ones((1, 3, 8, 8), 'float32'); "


def profile_of(cwd: Path, folder: Path, code: str, **environ: str) -> list[dict[str, Any]]:
    """Return the events of the profile.json of a process that uses `atc.load`."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", "import atc, sys, numpy; " + LOADED + code, str(folder)],
        capture_output=True, text=True, cwd=cwd,
        env={**os.environ, "MXNET_PROFILER_AUTOSTART": "1", **environ},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    path = cwd / "profile.json"
    reported = path.exists()
    assert reported == ("was compiled without --profile" not in done.stderr)
    found: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"] if reported else []
    path.unlink(missing_ok=True)
    return found


def test_x_29_a_profile_of_loaded_networks(profiled: Path, tmp_path: Path) -> None:
    once = profile_of(tmp_path, profiled, "a(x)")
    assert {e["args"]["nodes"] for e in once} >= {"conv1 + relu1"}
    both = profile_of(tmp_path, profiled, "b = atc.load(sys.argv[1]); a(x); b(x)")
    assert len(both) == 2 * len(once)
    bound = profile_of(tmp_path, profiled, "call = a.bind(x); call(); call()")
    assert {e["args"]["runs"] for e in bound} == {2}


def test_x_29_a_network_without_times_is_reported(tmp_path: Path) -> None:
    chosen = options({}, conv_net(tmp_path / "m.onnx"), target="c99", jobs="2")
    folder = compile_model(replace(chosen, output=tmp_path / "net")).folder
    assert profile_of(tmp_path, folder, "a(x)") == []


@pytest.mark.slow
def test_x_29_a_tool_s_own_runs_are_not_reported(profiled: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "atc", "verify", "--model=m.onnx", f"--library={profiled}"],
        capture_output=True, text=True, cwd=profiled.parent,
        env={**os.environ, "MXNET_PROFILER_AUTOSTART": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert not (profiled.parent / "profile.json").exists()


@pytest.mark.slow
def test_x_30_the_model_s_operators_or_all(tmp_path: Path) -> None:
    """An output that is an input as well is copied, which no operator of the model does."""
    nodes = [helper.make_node("Log", ["x"], ["l"], "logarithm"),
             helper.make_node("Identity", ["x"], ["same"], "nothing")]  # fmt: skip
    shape = [1, 3, 8, 8]
    model = save(nodes, {"x": shape}, {"l": shape, "same": shape}, tmp_path / "m.onnx")
    chosen = options({"MXNET_PROFILER_AUTOSTART": "1"}, model, target="c99", jobs="2")
    folder = compile_model(replace(chosen, output=tmp_path / "net")).folder
    reported = {}
    for mode in ("", "1"):
        events = profile_of(tmp_path, folder, "a(x)", MXNET_PROFILER_MODE=mode)
        reported[mode] = sorted(e["args"]["nodes"] for e in events)
    assert reported == {"": ["logarithm"], "1": ["copy", "logarithm"]}
    with pytest.raises(OptionError, match=r"E10013.*MXNET_PROFILER_MODE"):
        options({"MXNET_PROFILER_MODE": "16"})


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
        values = resolve({"model": "x", "output": "y"}, "compile", around).values
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


def test_x_02_operators_that_run_on_a_gpu_at_a_time() -> None:
    assert options({}).gpu_streams == 4
    assert options({"MXNET_GPU_WORKER_NTHREADS": "2"}).gpu_streams == 2


@pytest.mark.slow
def test_x_03_streams_that_copy_to_and_from_a_gpu(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Add", ["a", "b"], ["s"]), helper.make_node("Mul", ["s", "c"], ["p"]),
    ]  # fmt: skip
    shapes = {name: [3, 50] for name in "abcsp"}
    model = save(
        nodes, {n: shapes[n] for n in "abc"}, {n: shapes[n] for n in "sp"}, tmp_path / "m.onnx"
    )  # fmt: skip
    rng = np.random.default_rng(5)
    a, b, c = (rng.normal(size=(3, 50)).astype(np.float32) for _ in range(3))
    for given, streams in (({}, 1), ({"MXNET_GPU_COPY_NTHREADS": "2"}, 2)):
        chosen = options(given, model, target="cuda-emulated")
        assert chosen.gpu_copy_streams == streams
        compile_model(replace(chosen, output=tmp_path / str(streams) / "net"))
        source = (tmp_path / str(streams) / "net/src/net.c").read_text()
        for copy, on_side in (("gpu_to_device(gpu, ", 1), ("gpu_to_host(gpu, ", 1)):
            assert source.count(f"{copy}gpu->sides[0]") == (streams - 1) * on_side
        assert source.count("gpu_join(gpu, stream, 1)") == 2 * (streams - 1)
        found = load(tmp_path / str(streams) / "net").run({"a": a, "b": b, "c": c})
        np.testing.assert_array_equal(found["s"], a + b)
        np.testing.assert_array_equal(found["p"], (a + b) * c)


@pytest.mark.slow
@pytest.mark.parametrize(("percent", "able"), [("10", True), ("90", False)])
def test_x_12_memory_of_the_gpu_is_left_free(
    percent: str, able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = square_of_floats(tmp_path / "m.onnx")
    environ = {"MXNET_GPU_MEM_POOL_RESERVE": percent}
    chosen = options(environ, model, target="cuda-emulated")
    runs_in_memory(replace(chosen, output=tmp_path / "net"), 1 << 15, able, monkeypatch)


@pytest.mark.slow
def test_x_32_tensor_cores_may_be_left_alone(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = save([product], {"x": [96, 96]}, {"y": [96, 96]}, tmp_path / "m.onnx")

    def kernel(value: str) -> str:
        chosen = options({"MXNET_CUDA_ALLOW_TENSOR_CORE": value}, model, target="cuda-emulated")
        (node,) = compile_model(
            replace(chosen, output=tmp_path / value / "net")
        ).report["nodes"]
        return str(node["kernel"])

    assert kernel("1").startswith("cuda_matmul_bf16x3")
    assert kernel("0") == "cuda_matmul"


@pytest.mark.slow
def test_x_33_products_of_floats_may_be_rounded(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = save([product], {"x": [96, 96]}, {"y": [96, 96]}, tmp_path / "m.onnx")

    def kernel(value: str) -> str:
        given = {"MXNET_CUDA_TENSOR_OP_MATH_ALLOW_CONVERSION": value}
        chosen = options(given, model, target="cuda-emulated")
        done = compile_model(replace(chosen, output=tmp_path / value / "net"))
        return str(done.report["nodes"][0]["kernel"])

    assert kernel("1").startswith("cuda_matmul_bf16(")
    assert kernel("0").startswith("cuda_matmul_bf16x3(")


def test_x_36_portable_kernels_only(tmp_path: Path) -> None:
    model = conv_net(tmp_path / "m.onnx")

    def tiers(value: str) -> set[str]:
        chosen = options({"MXNET_MKLDNN_ENABLED": value}, model, target="x86-64-avx2")
        return {f.status for f in check_model(resolve_request(chosen)).findings}

    assert "tuned" in tiers("1")
    assert tiers("0") <= {"portable", "none"}


@pytest.mark.slow
def test_x_36_outputs_of_portable_kernels_are_those_of_all(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = save([product], {"x": [48, 48]}, {"y": [48, 48]}, tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal((48, 48)).astype(np.float32)
    results = []
    for value in "01":
        chosen = options({"MXNET_MKLDNN_ENABLED": value}, model, jobs="2")
        folder = compile_model(replace(chosen, output=tmp_path / value / "net")).folder
        results.append(load(folder)(x))
    np.testing.assert_allclose(*results, rtol=1e-4, atol=1e-4)


@pytest.fixture(scope="module")
def ranged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a network of several shapes; return its folder."""
    folder = tmp_path_factory.mktemp("ranged")
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = save([relu], {"x": ["n", 4]}, {"y": ["n", 4]}, folder / "m.onnx")
    chosen = options({}, model, target="c99", input_shape="x:1~9,4", jobs="2")
    return compile_model(replace(chosen, output=folder / "net")).folder


@pytest.mark.parametrize(
    ("kept", "times"), [("-1", 3), ("3", 3), ("2", 9), ("1", 9), ("0", 9), ("", 3)]
)
@pytest.mark.parametrize("name", ["MXNET_MKLDNN_CACHE_NUM", "MXNET_ONEDNN_CACHE_NUM"])
def test_x_37_shapes_whose_plans_are_kept(
    name: str, kept: str, times: int, ranged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, kept)
    with load(ranged) as net:
        for rows in (2, 9, 5) * 3:
            x = np.arange(-4, 4 * rows - 4, dtype=np.float32).reshape(rows, 4)
            np.testing.assert_array_equal(net(x), np.maximum(x, 0))
        assert net._library is not None
        assert net._library.shapes_set == times
        with pytest.raises(ValueError, match="x"):
            net(np.ones((10, 4), np.float32))
        np.testing.assert_array_equal(net(x), np.maximum(x, 0))
    with pytest.raises(OptionError, match=rf"E10013.*{name}|E10013.*MKLDNN"):
        options({name: "-2"})


def test_x_38_determinism() -> None:
    assert options({"MXNET_ENFORCE_DETERMINISM": "1"}).reproducible
    assert not options({"MXNET_ENFORCE_DETERMINISM": "0"}).reproducible
    with pytest.raises(OptionError, match=r"E10006.*use 1 or 0"):
        options({"MXNET_ENFORCE_DETERMINISM": "2"})


def transposed(path: Path, elements: int) -> Path:
    """Write a model that only copies so many elements, as columns."""
    node = helper.make_node("Transpose", ["x"], ["y"])
    return save([node], {"x": [elements // 7, 7]}, {"y": [7, elements // 7]}, path)


@pytest.mark.parametrize("name", ["MXNET_CPU_PARALLEL_COPY_SIZE", "MXNET_CPU_PARALLEL_SIZE"])
def test_x_39_elements_from_which_on_copies_are_divided(name: str, tmp_path: Path) -> None:
    def partitions(elements: int, environ: dict[str, str]) -> int:
        model = transposed(tmp_path / "m.onnx", elements)
        chosen = options(environ, model, target="c99", num_threads="3")
        (step,) = project_of(chosen).program.steps
        return len(step.partitions) if isinstance(step, Parallel) else 1

    assert [partitions(7 * n, {name: "700"}) for n in (99, 100, 101)] == [1, 3, 3]
    assert [partitions(70, {name: "0"}), partitions(70, {})] == [3, 1]
    assert [partitions(700000, {}), partitions(700000, {name: "700001"})] == [3, 1]


def test_x_40_the_lesser_of_two_is_how_many_run_at_a_time(tmp_path: Path) -> None:
    (row,) = (s for s in SETTINGS if s.row == "X-40")
    assert "the lesser of MXNET_CPU_WORKER_NTHREADS and MXNET_EXEC_NUM_TEMP" in row.meaning
    model = branches(tmp_path / "m.onnx")
    for workers, workspaces, most in (("2", "2", 2), ("2", "1", 1), ("1", "2", 1), ("4", "3", 2)):
        environ = {"MXNET_CPU_WORKER_NTHREADS": workers, "MXNET_EXEC_NUM_TEMP": workspaces}
        assert at_a_time(model, environ) == most
    assert at_a_time(model, {}) == 1


def divided(model: Path, environ: dict[str, str], threads: str) -> list[int]:
    """Return in how many partitions each call of a model is divided."""
    chosen = options(environ, model, target="c99", num_threads=threads, parallel_branches="1")
    steps = project_of(chosen).program.steps
    return [len(s.partitions) if isinstance(s, Parallel) else 1 for s in steps]


def test_x_41_whether_it_is_found_out_what_gains_from_threads(tmp_path: Path) -> None:
    model, name = conv_net(tmp_path / "m.onnx"), "MXNET_USE_OPERATOR_TUNING"
    tuned, always = (divided(model, {name: value}, "2") for value in "10")
    assert tuned == divided(model, {}, "2") == [1] * len(tuned)  # all calls are short
    assert set(always[:2]) == {2}


def test_x_42_cores_that_are_counted_on(tmp_path: Path) -> None:
    s, name = Sketch(size=64), "MXNET_USE_NUM_CORES_OPERATOR_TUNING"
    onnx.save(s.model(s.conv(s.relu(s.conv("x", 16, 3)), 16, 3)), tmp_path / "m.onnx")
    model = tmp_path / "m.onnx"
    assert set(divided(model, {}, "4")) == {4}
    assert set(divided(model, {name: "2"}, "4")) == {2}
    assert set(divided(model, {name: "8"}, "4")) == {4}
    assert set(divided(model, {name: "1"}, "4")) == {1}
