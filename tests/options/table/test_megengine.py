"""MegEngine's variables, a test per row M-01 ... M-38 of the specification."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from cuda_networks import compiled, mixed_model
from emulated_memory import runs_in_memory, square_of_floats
from networks import conv_net, save, training_net
from onnx import TensorProto, helper, numpy_helper, parser
from setting_rows import accepted_rows, is_only_a_warning, options, rows_of, variable_of
from stages import graph_of, project_of

from atc.backends.toolchain.nvcc import find_nvcc
from atc.cli.main import main
from atc.compile import compile_model
from atc.diagnostics import Diagnostics
from atc.errors import AtcError, OptionError
from atc.fast_run.timings import times_root
from atc.options.environment import ConfigEnvironment
from atc.options.resolve import resolve
from atc.options.table import VARIABLES
from atc.passes import recomputation_search
from atc.passes.rematerialize import recomputed_nodes
from atc.pipeline.request import resolve_request
from atc.runtime.load import load
from atc.tools.check import check_model
from atc.tools.version import version_text
from atc.tracing import TrainingStep

ROWS = [f"M-{k:02}" for k in range(1, 39)]

VALUES = {
    "M-06": "1", "M-07": "1000000", "M-08": "0", "M-09": "1",
    "M-12": "1",
    "M-32": "HALIDE",
}  # fmt: skip
"""For each row that is accepted: a value that asks for something else than what happens."""

UNLISTED = [
    "MEGENGINE_MAX_RECOMP_TIME", "MEGENGINE_DISABLE_MEMORY_FORWARDING",
    "MEGENGINE_DTR_SQRT_SAMPLING", "MGB_COMP_GRAPH_OPT", "MGE_FASTRUN_CACHE_URL",
]  # fmt: skip


def test_every_row_is_in_the_table_and_has_a_test() -> None:
    assert rows_of("M") == set(ROWS)
    assert set(accepted_rows("M")) == set(VALUES)
    tested = {name[5:9].upper().replace("_", "-") for name in globals() if name[:6] == "test_m"}
    assert tested | set(VALUES) == set(ROWS)


@pytest.mark.parametrize("row", VALUES)
def test_accepted_with_one_warning_and_nothing_else(row: str) -> None:
    is_only_a_warning(row, VALUES[row])


@pytest.mark.parametrize("row", VALUES)
def test_what_happens_anyway_needs_no_warning(row: str) -> None:
    for value in variable_of(row).works_for:
        assert not options({variable_of(row).name: str(value)}).notes


@pytest.mark.parametrize("name", UNLISTED)
def test_variables_of_the_source_alone_are_accepted_too(name: str) -> None:
    (warning,) = options({name: "1"}).notes
    assert warning.startswith(f"{name}=1 has no effect")
    assert [v.system for v in VARIABLES if v.name == name] == ["MegEngine"]


# -------------------------------------------------------------------------------- rows that work


@pytest.mark.few(1)
@pytest.mark.parametrize("value", ["0", "1"])
def test_m_10_weights_are_updated_in_place_or_after_the_step(
    value: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = parser.parse_model("""<ir_version: 8, opset_import: ["": 17]>
        line (double[8,3] x) => (double[8,2] y) { y = MatMul(x, w) }""")
    model.graph.initializer.append(numpy_helper.from_array(np.ones((3, 2)), "w"))
    path, output = tmp_path / "line.onnx", tmp_path / "step"
    onnx.save(model, path)
    monkeypatch.setenv("MEGENGINE_INPLACE_UPDATE", value)
    line = [f"--model={path}", f"--output={output}", "--mode=train", "--loss=square_loss"]
    assert main([*line, "--target=c99", "--oo_level=O0"]) == 0
    header = (output / "include/step_step.h").read_text()
    assert f"{value} of 1 tensors are updated where they lie" in header
    assert f"STEP_STATE_SIZE {64 * (2 - int(value))}u" in header
    step, x, y = TrainingStep(output), np.eye(8, 3), np.zeros((8, 2))
    for _ in range(3):
        step(x, y)
    w = np.ones((3, 2))
    for _ in range(3):
        w -= 0.01 * 2 * x.T @ (x @ w - y) / y.size
    np.testing.assert_allclose(step.get("w"), w, rtol=1e-12)


def test_m_01_device_is_the_default_target() -> None:
    name = "MGE_DEFAULT_DEVICE"
    for word in ("cpu0", "cpux", "xpux", "xpu0:1"):
        assert options({name: word}).target == "host"
    assert options({name: "gpu0"}, target="c99").target == "c99"
    assert options({name: "gpu0"}, soc_version="c99").target == "c99"
    for word, number in (("gpu0", 0), ("gpu3", 3), ("cuda1", 1), ("gpu2:1", 2), ("gpux", 0)):
        found = options({name: word})
        assert (found.target, found.device_id) == ("cuda", number)
    assert options({name: "gpu1"}, device_id="2").device_id == 2
    with pytest.raises(OptionError, match=r"E10001: unknown device 'tpu0' .*use xpux, cpux"):
        options({name: "tpu0"})


@pytest.mark.parametrize("word", ["multithread2", "multithread2:0", "multithread:default:2"])
def test_m_01_devices_of_several_threads(word: str) -> None:
    name = "MGE_DEFAULT_DEVICE"
    found = options({name: word})
    assert (found.target, found.num_threads) == ("host", 2)
    assert options({name: word}, num_threads="3").num_threads == 3
    assert options({name: word}, target="c99").num_threads == 2
    assert options({name: "cpu0", "MXNET_CPU_NNPACK_NTHREADS": "4"}).num_threads == 4
    for wrong in ("multithread", "multithreadx", "multithread0", "multithread9999"):
        with pytest.raises(OptionError, match=f"unknown device '{wrong}'"):
            options({name: wrong})


@pytest.mark.parametrize(
    ("word", "level"), [("DEBUG", "debug"), ("INFO", "info"), ("ERROR", "error")]
)
def test_m_03_level_of_the_log(word: str, level: str) -> None:
    name = "MEGENGINE_LOGGING_LEVEL"
    assert log({name: word}) == level
    assert log({name: word}, log="warning") == "warning"
    with pytest.raises(OptionError, match="E10010: .*use one of DEBUG, INFO"):
        log({name: "LOUD"})


@pytest.mark.parametrize("number", range(5))
def test_m_04_level_of_the_log_beats_that_of_a_program(number: int) -> None:
    name = "RUNTIME_OVERRIDE_LOG_LEVEL"
    level = ("debug", "info", "warning", "error", "null")[number]
    assert log({name: str(number), "MEGENGINE_LOGGING_LEVEL": "INFO"}) == level
    assert log({name: str(number)}, program=True, log="info") == level
    assert log({name: str(number)}, log="info") == "info"  # the command line's own is no program
    with pytest.raises(OptionError, match="E10013"):
        log({name: "5"})


@pytest.fixture(scope="module")
def logging(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a build with a log that checks for NaN."""
    folder = tmp_path_factory.mktemp("logging")
    relu = helper.make_node("Relu", ["x"], ["y"], "the relu")
    model = save([relu], {"x": [2]}, {"y": [2]}, folder / "m.onnx")
    chosen = options({}, model, target="c99", runtime_log="1", sanity_check="nan")
    return compile_model(replace(chosen, output=folder / "out/net")).folder


LOGGED = [
    ("DEBUG", "net: step 0, Map of node 'the relu'"), ("INFO", "net: init: ok"),
    ("INFO", "net: run: ok"), ("ERROR", "net: run: NaN in input 'x', at element 1"),
]  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("value", "levels"),
    [
        ("0", {"DEBUG", "INFO", "ERROR"}), ("1", {"INFO", "ERROR"}), ("2", {"ERROR"}),
        ("3", {"ERROR"}), ("", {"ERROR"}), ("4", set()),
    ],
)  # fmt: skip
@pytest.mark.parametrize("code", [-1, 1])
def test_m_04_level_of_a_networks_own_log(
    logging: Path, value: str, levels: set[str], code: int
) -> None:
    """Run well and then with a NaN; with `code` of 0 or more the program sets a level, too."""
    program = (
        "import ctypes, sys, numpy as np; from atc.runtime.load import load\n"
        "net = load(sys.argv[1])\n"
        "context = int(net._library.ffi.cast('size_t', net._library.idle[0].arguments[0]))\n"
        "c = ctypes.CDLL(f'{sys.argv[1]}/libnet.so').net_set_log_level\n"
        "if int(sys.argv[2]) >= 0: c(ctypes.c_void_p(context), int(sys.argv[2]))\n"
        "net(np.float32([1, 2]))\n"
        "try: net(np.float32([1, np.nan]))\n"
        "except RuntimeError: pass\n"
    )
    environ = {**os.environ, "RUNTIME_OVERRIDE_LOG_LEVEL": value}
    command = [sys.executable, "-P", "-c", program, str(logging), str(code)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    lines = done.stderr.splitlines()
    if not value and code == 1:  # the program's level counts, from when it is set
        levels = {"INFO", "ERROR"}
    expected = [f"[{level}] {text}" for level, text in LOGGED if level in levels]
    if not value and code == 1:
        expected.remove("[INFO] net: init: ok")
    assert list(dict.fromkeys(lines)) == sorted(expected, key=lines.index)


def test_m_04_shapes_out_of_range_are_reported(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = save([relu], {"x": ["n", 4]}, {"y": ["n", 4]}, tmp_path / "m.onnx")
    chosen = options({}, model, target="c99", runtime_log="1", input_shape="x:1~3,4")
    done = compile_model(replace(chosen, output=tmp_path / "net"))
    program = (
        "import sys; from atc.load_and_run.engine import open_engine\n"
        "e = open_engine(sys.argv[1])\n"
        "size = e.call('arena_size') + 64; ctx = e.ffi.new('uint64_t[]', e.call('context_size'))\n"
        "arena = e.ffi.new('char[]', size); at = int(e.ffi.cast('size_t', arena)); at += -at % 64\n"
        "assert e.call('init', ctx, e.ffi.cast('void *', at), size - 64) == 0\n"
        "dims = e.ffi.new('int64_t[]', [9, 4])\n"
        "assert e.call('set_input_shapes', ctx, [dims]) != 0\n"
    )
    environ = {**os.environ, "RUNTIME_OVERRIDE_LOG_LEVEL": ""}
    command = [sys.executable, "-P", "-c", program, str(done.folder)]
    said = subprocess.run(command, capture_output=True, text=True, env=environ, check=True).stderr
    assert said.startswith("[ERROR] net: set_input_shapes: a shape is out of its range")


def test_m_04_a_wrong_level_is_reported(logging: Path) -> None:
    environ = {**os.environ, "RUNTIME_OVERRIDE_LOG_LEVEL": "7"}
    command = [sys.executable, "-P", "-c", "import sys; from atc.runtime.load import load; "
               "load(sys.argv[1])", str(logging)]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    assert done.stderr == (
        "[ERROR] net: RUNTIME_OVERRIDE_LOG_LEVEL is not a number from 0 to 4: 7\n"
    )


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a checked build of y = cumsum(exp(x)), from which z is made, too."""
    folder = tmp_path_factory.mktemp("checked")
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["y"], "the sum"),
             helper.make_node("Softmax", ["y"], ["z"], "the softmax")]  # fmt: skip
    model = save(nodes, {"x": [1, 3]}, {"y": [1, 3], "z": [1, 3]}, folder / "m.onnx",
                 [numpy_helper.from_array(np.array(1, np.int64), "axis")])  # fmt: skip
    chosen = options({}, model, target="c99", sanity_check="1")
    return compile_model(replace(chosen, output=folder / "out/net")).folder


def logged_calls(folder: Path, value: str) -> list[str]:
    """Return what a process says on standard error that runs a library twice."""
    code = ("import atc, numpy as np, sys; net = atc.load(sys.argv[1]); x = np.float32([[1, 2, 3]])"
            "; net(x); net(x)")  # fmt: skip
    environ = {**os.environ, "MGB_DEBUG_VAR_SANITY_CHECK_LOG": value}
    command = [sys.executable, "-P", "-c", code, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, check=True)
    return done.stderr.splitlines()


@pytest.mark.slow
def test_m_05_one_variable_is_watched(checked: Path) -> None:
    report = json.loads((checked / "net.report.json").read_text())
    numbers = dict(zip(report["outputs"], report["output_variables"], strict=True))
    lines = logged_calls(checked, str(numbers["y"]))
    assert len(lines) == 4
    assert lines[:2] == lines[2:]
    written, read = lines[:2]
    last = np.float32(6).view(np.uint32)
    assert written.startswith(f"sanity check: var{numbers['y']} 'y' written by node 'the sum' (")
    assert "12 bytes, checksum" in written
    assert written.endswith(f"last word {last:08x}")
    assert "'y' read by node 'the softmax' (" in read
    assert read.endswith(f"last word {last:08x}, unchanged")
    (line, _) = logged_calls(checked, str(numbers["z"]))
    assert "'z' written by node 'the softmax' (" in line


@pytest.mark.few(1)
@pytest.mark.parametrize("value", ["", "99", "one", "1x"])
def test_m_05_other_values_log_nothing(checked: Path, value: str) -> None:
    assert logged_calls(checked, value) == []


def test_m_05_without_checks_there_is_a_warning() -> None:
    environ = {"MGB_DEBUG_VAR_SANITY_CHECK_LOG": "7"}
    (warning,) = options(environ).notes
    assert "compiled with --sanity_check" in warning
    assert options(environ, sanity_check="memory").notes == ()
    with pytest.raises(OptionError, match="not a whole number .*SANITY_CHECK_LOG"):
        options({"MGB_DEBUG_VAR_SANITY_CHECK_LOG": "y"})


def test_m_09_collective_operators_are_refused_by_name(tmp_path: Path) -> None:
    node = helper.make_node("AllReduce", ["x"], ["y"], "sum over devices")
    model = save([node], {"x": [1]}, {"y": [1]}, tmp_path / "m.onnx")
    (error,) = check_model(resolve_request(options({}, model, target="c99"))).errors
    assert "AllReduce" in str(error)
    assert "sum over devices" in str(error)


@pytest.fixture(scope="module")
def step(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of a training step."""
    return training_net(tmp_path_factory.mktemp("step") / "step.onnx")


def memory(step: Path, **environ: str) -> tuple[int, int]:
    """Return the bytes of the arena and how many calls compute something again."""
    chosen = options(environ, step, target="c99")
    project = project_of(chosen)
    return project.arena.plan.size, len(recomputed_nodes(project.graph))


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the model of a training step of layers for which rules lead to other plans."""
    folder = tmp_path_factory.mktemp("deep")
    return training_net(folder / "deep.onnx", widths=(64, 64, 16, 32, 32, 8))


DROP = {"MEGENGINE_ENABLE_DROP": "1"}


@pytest.mark.slow
def test_m_13_rules_that_are_tried(deep: Path) -> None:
    none, few, many = (
        memory(deep, **DROP, MGB_SUBLINEAR_MEMORY_THRESH_NR_TRY=tries) for tries in ("0", "1", "10")
    )
    assert none == memory(deep)
    assert many[0] <= few[0] < none[0]
    assert many[1] < few[1]
    assert many == memory(deep, **DROP)


@pytest.mark.slow
def test_m_14_rounds_of_the_genetic_search(deep: Path) -> None:
    one = {**DROP, "MGB_SUBLINEAR_MEMORY_THRESH_NR_TRY": "1",
           "MGB_SUBLINEAR_MEMORY_GENETIC_POOL_SIZE": "6"}  # fmt: skip
    none, more = (
        memory(deep, **one, MGB_SUBLINEAR_MEMORY_GENETIC_NR_ITER=rounds) for rounds in ("0", "3")
    )
    assert none == memory(deep, **one)
    assert more[0] <= none[0]
    assert more[1] < none[1]
    assert more == memory(deep, **one, MGB_SUBLINEAR_MEMORY_GENETIC_NR_ITER="3")


def test_m_15_population_of_the_genetic_search(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, bred = "MGB_SUBLINEAR_MEMORY_GENETIC_POOL_SIZE", []
    child = recomputation_search._child

    def counted(pool: Sequence[Any], *rest: Any) -> Any:
        bred.append(len(pool))
        return child(pool, *rest)

    monkeypatch.setattr(recomputation_search, "_child", counted)
    rounds = {**DROP, "MGB_SUBLINEAR_MEMORY_THRESH_NR_TRY": "1",
              "MGB_SUBLINEAR_MEMORY_GENETIC_NR_ITER": "2"}  # fmt: skip
    memory(deep, **rounds, **{name: "3"})
    assert bred == [3] * 6
    with pytest.raises(OptionError, match=r"E10013: no rules are left .*--recompute_pool"):
        options({**rounds, name: "0"})
    assert options({name: "0"}).recompute_pool == 0


def test_m_16_memory_that_is_low_enough(step: Path) -> None:
    again = memory(step, MEGENGINE_ENABLE_DROP="1")
    enough = memory(step, MEGENGINE_ENABLE_DROP="1", MGB_SUBLINEAR_MEMORY_LOWER_BOUND_MB="1")
    assert again[1] > 0
    assert enough == memory(step)
    assert enough[1] == 0


@pytest.mark.slow
def test_m_17_threads_of_the_search(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name, used = "MGB_SUBLINEAR_MEMORY_WORKERS", []

    class Threads(ThreadPoolExecutor):
        def __init__(self, count: int) -> None:
            used.append(count)
            super().__init__(count)

    monkeypatch.setattr(recomputation_search, "ThreadPoolExecutor", Threads)
    rounds = {**DROP, "MGB_SUBLINEAR_MEMORY_THRESH_NR_TRY": "2",
              "MGB_SUBLINEAR_MEMORY_GENETIC_NR_ITER": "1",
              "MGB_SUBLINEAR_MEMORY_GENETIC_POOL_SIZE": "4"}  # fmt: skip
    one, four = (memory(deep, **rounds, **{name: workers}) for workers in ("1", "4"))
    assert one == four
    assert used == [1, 4]
    for wrong in ("0", str(4 * (os.cpu_count() or 1) + 1)):
        with pytest.raises(OptionError, match="E10013"):
            options({name: wrong})


def test_m_18_one_shape(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = save([relu], {"x": ["n", 4]}, {"y": ["n", 4]}, tmp_path / "m.onnx")
    headers = {}
    for value in ("0", "1"):
        environ = {"MEGENGINE_INPUT_NODE_USE_STATIC_SHAPE": value}
        chosen = options(environ, model, target="c99", input_shape="x:1~3,4")
        project = project_of(chosen)
        headers[value] = (bool(project.graph.dims), project.graph.types["x"].shape)
    assert headers["0"][0]
    assert headers["1"] == (False, (3, 4))


@pytest.mark.parametrize("name", ["MEGENGINE_ENABLE_SWAP", "MGB_ENABLE_SWAP"])
def test_m_19_values_are_swapped(name: str, step: Path) -> None:
    def swapped(value: str, **given: object) -> tuple[int, bool]:
        done = project_of(options({name: value}, step, target="cuda-emulated", **given))
        return done.arena.plan.size, bool(done.program.on_host)

    whole, _ = swapped("1")
    budget = whole * 3 // 4
    least, done = swapped("1", memory_budget=budget)
    assert least <= budget
    assert done
    with pytest.raises(OptionError, match="allow --recompute=all or --gpu_swap=1"):
        swapped("0", memory_budget=budget)


@pytest.mark.slow
def test_m_19_a_network_runs_in_the_memory_that_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose values, weights and tensors are more than that only where they are swapped."""
    model = onnx.load(training_net(tmp_path / "step.onnx", (64,) * 9))
    whole = compiled(model, tmp_path).report["memory"]["arena_bytes"]
    net = load(tmp_path / "net")
    pool = sum(np.dtype(t.dtype).itemsize * np.prod(t.shape) for t in (*net.inputs, *net.outputs))
    pool = int(pool) + whole // 2
    feed = {t.name: np.ones(t.shape, t.dtype) for t in net.inputs}
    wanted = net.run(dict(feed))
    monkeypatch.setenv("ATC_EMULATED_MEMORY", str(pool))
    for value in ("0", "1"):
        environ = {"MGB_CUDA_RESERVE_MEMORY": f"b:{pool}", "MEGENGINE_ENABLE_SWAP": value}
        chosen = options(environ, tmp_path / "model.onnx", target="cuda-emulated")
        compile_model(replace(chosen, output=tmp_path / value / "net"))
        if value == "0":
            with pytest.raises(RuntimeError, match="memory"):
                load(tmp_path / value / "net").run(dict(feed))
        else:
            found = load(tmp_path / value / "net").run(dict(feed))
            for key, array in wanted.items():
                np.testing.assert_array_equal(found[key], array)


AUTO = {"MEGENGINE_DTR_AUTO_DROP": "1", "MEGENGINE_DTR_EVICTEE_MINIMUM_SIZE": "0"}


def test_m_20_dropping_is_allowed(step: Path) -> None:
    least, _ = memory(step, MEGENGINE_ENABLE_DROP="1")
    budget = {"MEGENGINE_DTR_EVICTION_THRESHOLD": str(least), **AUTO}
    assert memory(step, MEGENGINE_ENABLE_DROP="1", **budget)[0] <= least
    with pytest.raises(OptionError, match=r"E10013: .*\[MEGENGINE_DTR_EVICTION_THRESHOLD\]"):
        memory(step, MEGENGINE_ENABLE_DROP="0", **budget)


def test_m_21_dropping_by_itself(step: Path) -> None:
    assert memory(step, **AUTO)[0] < memory(step)[0]
    assert memory(step, **{**AUTO, "MEGENGINE_DTR_AUTO_DROP": "0"}) == memory(step)


def test_m_22_budgets(step: Path) -> None:
    whole, least = memory(step)[0], memory(step, **AUTO)[0]
    for budget in (least, (least + whole) // 2, whole):
        environ = {"MEGENGINE_DTR_EVICTION_THRESHOLD": str(budget), **AUTO}
        assert memory(step, **environ)[0] <= budget
    with pytest.raises(OptionError, match=rf"the arena needs {least} bytes.*this is the least"):
        memory(step, MEGENGINE_DTR_EVICTION_THRESHOLD="64", **AUTO)


def test_m_23_the_smallest_to_drop(step: Path) -> None:
    name = "MEGENGINE_DTR_EVICTEE_MINIMUM_SIZE"
    environ = {**AUTO, name: "1048576"}
    assert memory(step, **environ) == memory(step)
    with pytest.raises(OptionError, match="E10013: the arena needs"):
        memory(step, MEGENGINE_DTR_EVICTION_THRESHOLD="64", **environ)
    assert options(environ) == options({"MEGENGINE_DTR_AUTO_DROP": "1"})
    assert options({"MEGENGINE_DTR_AUTO_DROP": "1"}).recompute_minimum == 1 << 20
    assert options({"MEGENGINE_DTR_AUTO_DROP": "1"}, recompute_minimum=64).recompute_minimum == 64
    assert options({"MEGENGINE_DTR_AUTO_DROP": "0"}).recompute_minimum == 0
    assert options({"MEGENGINE_ENABLE_DROP": "1", name: "128"}).recompute_minimum == 128


@pytest.mark.few(1)
@pytest.mark.parametrize(("level", "named"), [("0", True), ("1", False)])
def test_m_24_a_fault_is_located(level: str, named: bool, tmp_path: Path) -> None:
    node = helper.make_node("Log", ["x"], ["y"], "the logarithm")
    model = save([node], {"x": [2]}, {"y": [2]}, tmp_path / "m.onnx")
    chosen = options({"MEGENGINE_INTERP_ASYNC_LEVEL": level}, model, target="c99")
    done = compile_model(replace(chosen, output=tmp_path / "net"))
    x = np.array([-1, 1], np.float32)
    if named:
        with pytest.raises(RuntimeError, match="the logarithm"):
            load(done.folder)(x)
    else:
        assert np.isnan(load(done.folder)(x)[0])
    assert options({"MEGENGINE_INTERP_ASYNC_LEVEL": "2"}) == options({})
    with pytest.raises(OptionError, match="E10013"):
        options({"MEGENGINE_INTERP_ASYNC_LEVEL": "3"})


def test_m_27_errors_name_the_computing_path(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"], "the exponential"),
             helper.make_node("Transpose", ["e"], ["t"], "turned"),
             helper.make_node("Neg", ["w"], ["n"], "the negative"),
             helper.make_node("MatMul", ["t", "n"], ["y"], "the product")]  # fmt: skip
    model = save(nodes, {"x": [2, 3], "w": [3, 4]}, {"y": [3, 4]}, tmp_path / "m.onnx")
    texts = []
    for value in ("0", "1"):
        chosen = options({"MEGENGINE_RECORD_COMPUTING_PATH": value}, model, target="c99")
        with pytest.raises(AtcError, match="node 'the product'") as caught:
            graph_of(chosen)
        texts.append(caught.value.message)
    path = "; computed by x -> the exponential -> turned; w -> the negative"
    assert texts[1] == texts[0] + path


@pytest.mark.slow
def test_m_27_faults_of_a_run_name_it_too(tmp_path: Path) -> None:
    nodes = [helper.make_node("CumSum", ["x", "axis"], ["s"], "the sum"),
             helper.make_node("Softmax", ["s"], ["p"], "the softmax"),
             helper.make_node("Log", ["p"], ["l"], "the logarithm"),
             helper.make_node("CumSum", ["l", "axis"], ["y"], "the last")]  # fmt: skip
    axis = numpy_helper.from_array(np.array(1, np.int64), "axis")
    model = save(nodes, {"x": [1, 3]}, {"y": [1, 3]}, tmp_path / "m.onnx", [axis])
    environ = {"MEGENGINE_RECORD_COMPUTING_PATH": "1"}
    for given, reported in ((environ, True), ({}, False)):
        chosen = options(given, model, target="c99", sanity_check="inf")
        done = compile_model(replace(chosen, output=tmp_path / "net"))
        with pytest.raises(RuntimeError, match="the logarithm") as caught:
            load(done.folder)(np.array([[0, 200, 0]], np.float32))
        assert str(caught.value).endswith("; computed by x -> the sum") is reported


@pytest.fixture(scope="module")
def logarithm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile a network that fails for negative numbers; return its folder."""
    folder = tmp_path_factory.mktemp("log")
    node = helper.make_node("Log", ["x"], ["y"], "the logarithm")
    model = save([node], {"x": [2]}, {"y": [2]}, folder / "m.onnx")
    chosen = options({"MEGENGINE_INTERP_ASYNC_LEVEL": "0"}, model, target="c99")
    return compile_model(replace(chosen, output=folder / "net")).folder


def asked(folder: Path, code: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process in which `net` is a network and `bad` an input that it fails for."""
    begin = (
        f"import sys, time; sys.path.insert(0, {str(folder)!r}); import net, numpy\n"
        "net = net.load(); good = numpy.ones(2, 'float32'); bad = -good\n"
    )
    return subprocess.run(
        [sys.executable, "-P", "-c", begin + code], capture_output=True, text=True,
        env={**os.environ, **environ},
    )  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("level", "seen"),
    [("0", "ValueError at once, RuntimeError at once"), ("1", "ValueError at once, RuntimeError"),
     ("2", "ValueError, RuntimeError")],
)  # fmt: skip
def test_m_24_where_errors_of_queued_calls_are_raised(
    level: str, seen: str, logarithm: Path
) -> None:
    code = (
        "def failure(x):\n"
        "    try: future = net.submit(x)\n"
        "    except Exception as e: return type(e).__name__ + ' at once'\n"
        "    return type(future.exception()).__name__\n"
        "print(failure(good[:1]), failure(bad), sep=', ')"
    )
    done = asked(logarithm, code, MEGENGINE_INTERP_ASYNC_LEVEL=level)
    assert done.stdout == f"{seen}\n", done.stderr


@pytest.mark.slow
def test_m_25_a_full_queue_lets_callers_wait(logarithm: Path) -> None:
    """At length 1 each call has ended before the next one is queued; a long queue takes all."""
    code = (
        "import threading; gate = threading.Event(); run = net._library.run\n"
        "net._library.run = lambda *given: [gate.wait(20), run(*given)][1]\n"
        "threading.Timer(0.1, gate.set).start()\n"
        "futures = [net.submit(good) for _ in range(3)]\n"
        "print(gate.is_set(), [len(f.result()) for f in futures])"
    )
    for size, waited in (("1", True), ("2", True), ("3", False)):
        done = asked(logarithm, code, MEGENGINE_ASYNC_QUEUE_SIZE=size)
        assert done.stdout == f"{waited} [2, 2, 2]\n", done.stderr
    with pytest.raises(OptionError, match=r"E10013.*MEGENGINE_ASYNC_QUEUE_SIZE"):
        options({"MEGENGINE_ASYNC_QUEUE_SIZE": "0"})


def test_m_26_errors_of_the_worker_are_caught_or_end_the_process(logarithm: Path) -> None:
    code = "print(type(net.submit(bad).exception(20)).__name__)"
    caught = asked(logarithm, code, MEGENGINE_CATCH_WORKER_EXEC="1")
    assert (caught.returncode, caught.stdout) == (0, "RuntimeError\n")
    ended = asked(logarithm, code, MEGENGINE_CATCH_WORKER_EXEC="0")
    assert (ended.returncode, ended.stdout) == (-6, "")  # SIGABRT
    assert "the logarithm" in ended.stderr
    assert not options({"MEGENGINE_CATCH_WORKER_EXEC": "0"}).notes


def test_m_28_strategy() -> None:
    def chosen(text: str) -> tuple[bool, bool, bool, str]:
        o = options({"MEGENGINE_EXECUTION_STRATEGY": text})
        return o.full_run, o.fast_run, o.reproducible, o.kernels

    assert chosen("HEURISTIC") == (False, False, False, "all")
    assert chosen("PROFILE") == (True, False, False, "all")
    assert chosen("OPTIMIZED_PROFILE") == (False, True, False, "optimized")
    assert chosen("OPTIMIZED") == (False, False, False, "optimized")
    for spelling in ("REPRODUCEABLE", "HEURISTIC|REPRODUCIBLE"):
        assert chosen(spelling) == (False, False, True, "all")
    with pytest.raises(OptionError, match="E10001: unknown strategy 'FASTEST'.*use HEURISTIC"):
        chosen("PROFILE_FASTEST")


def test_m_28_the_command_line_answers_the_whole_question() -> None:
    o = options({"MEGENGINE_EXECUTION_STRATEGY": "PROFILE"}, fast_run="1")
    assert (o.fast_run, o.full_run) == (True, False)


def test_m_28_optimized_leaves_out_portable_kernels(tmp_path: Path) -> None:
    environ = {"MEGENGINE_EXECUTION_STRATEGY": "OPTIMIZED"}
    chosen = options(environ, conv_net(tmp_path / "m.onnx"), target="x86-64-avx2")
    (first, *_) = check_model(resolve_request(chosen)).findings
    assert (first.op_type, first.status) == ("Conv", "tuned")


def test_m_29_seconds_that_a_candidate_may_take() -> None:
    assert options({}).fast_run_timeout == 20
    assert options({"MGB_CONV_PROFILING_TIMEOUT": "0.1"}).fast_run_timeout == 0.1
    assert options({"MGB_CONV_PROFILING_TIMEOUT": "0"}).fast_run_timeout == 0  # no limit
    with pytest.raises(OptionError, match=r"E10003.*MGB_CONV_PROFILING_TIMEOUT"):
        options({"MGB_CONV_PROFILING_TIMEOUT": "-1"})


def test_m_32_code_generators() -> None:
    assert not options({"MGB_JIT_BACKEND": "MLIR"}).notes
    with pytest.raises(OptionError, match="E10001: TINYOPENCL makes no code"):
        options({"MGB_JIT_BACKEND": "TINYOPENCL"})
    with pytest.raises(OptionError, match="E10001: .*use one of MLIR, HALIDE"):
        options({"MGB_JIT_BACKEND": "LLVM"})


def test_m_32_nvrtc_writes_fused_operators_in_cuda(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Tanh", ["a"], ["y"])]
    model = save(nodes, {"x": [4, 6]}, {"y": [4, 6]}, tmp_path / "m.onnx")
    environ = {"MGB_JIT_BACKEND": "NVRTC"}
    output = tmp_path / "net"
    with pytest.raises(OptionError, match=r"c99 is not a GPU.*MGB_JIT_BACKEND=NVRTC"):
        compile_model(replace(options(environ, model, target="c99"), output=output))
    chosen = options(environ, model, target="cuda-emulated")
    assert not [*chosen.warnings()]
    (node,) = compile_model(replace(chosen, output=output)).report["nodes"]
    assert (node["kernel"], node["runs_on"]) == ("cuda_map", "device")
    (source,) = (output / "src" / "kernels").glob("*.cu")
    assert "tanhf(" in source.read_text()


@pytest.mark.slow
def test_m_02_small_things_are_computed_on_the_host(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Reshape", ["number", "shape"], ["turned"]),
        helper.make_node("Exp", ["turned"], ["y"]),
    ]
    shape = numpy_helper.from_array(np.array([2, 2]), "shape")
    model = save(nodes, {"x": [4]}, {"y": [2, 2]}, tmp_path / "m.onnx", [shape])
    x = np.array([0.5, -1, 2, 0], np.float32)
    for value, side in (("1", "host"), ("0", "device")):
        chosen = options({"MEGENGINE_HOST_COMPUTE": value}, model, target="cuda-emulated")
        done = compile_model(replace(chosen, output=tmp_path / value / "net"))
        sides = [n["runs_on"] for n in done.report["nodes"] if n["op"] == "Map"]
        assert sides == ["device", side]
        np.testing.assert_allclose(load(done.folder)(x), np.exp(-x).reshape(2, 2), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("value", "memory", "able"), [
    ("0", 1 << 15, True), ("b:65536", 1 << 15, False), ("b:65536", 1 << 17, True),
    ("b:1024", 1 << 17, False), ("1", 1 << 17, True),
])  # fmt: skip
def test_m_11_memory_of_the_gpu_is_reserved(
    value: str, memory: int, able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = square_of_floats(tmp_path / "m.onnx")
    chosen = options({"MGB_CUDA_RESERVE_MEMORY": value}, model, target="cuda-emulated")
    runs_in_memory(replace(chosen, output=tmp_path / "net"), memory, able, monkeypatch)


@pytest.mark.parametrize("value", ["yes", "b:", "b:-1", "2"])
def test_m_11_says_which_values_there_are(value: str, tmp_path: Path) -> None:
    model = square_of_floats(tmp_path / "m.onnx")
    with pytest.raises(OptionError, match=f"invalid value '{value}'") as found:
        options({"MGB_CUDA_RESERVE_MEMORY": value}, model, target="cuda-emulated")
    assert found.value.hint == "use 0, 1 or b:BYTES"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile with several variables in a process of its own, which then changes one of them."""
    folder = tmp_path_factory.mktemp("built")
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    save([product], {"x": [48, 48]}, {"y": [48, 48]}, folder / "m.onnx")
    environ = {
        "MGB_JIT_KEEP_INTERM": "1", "MGB_JIT_WORKDIR": str(folder / "work"),
        "MGE_FASTRUN_CACHE_TYPE": "FILE", "MGE_FASTRUN_CACHE_DIR": str(folder / "times"),
        "MEGENGINE_EXECUTION_STRATEGY": "PROFILE_OPTIMIZED", "MEGENGINE_LOGGING_LEVEL": "INFO",
    }  # fmt: skip
    code = (
        "import os, sys; from atc.cli.main import main; "
        "os.environ['MGB_JIT_WORKDIR'] = 'elsewhere'; sys.exit(main(sys.argv[1:]))"
    )
    command = [f"--model={folder / 'm.onnx'}", f"--output={folder / 'out/net'}", "--jobs=2"]
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, *command], capture_output=True, text=True,
        env={**os.environ, **environ}, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "log").write_text(done.stderr)
    return folder


@pytest.mark.slow
def test_m_33_the_build_is_kept(built: Path) -> None:
    (work,) = (built / "work").iterdir()
    assert (work / "src/net.c").is_file()
    assert (work / "src/net.c.o").is_file()
    assert "-c src/net.c -o src/net.c.o" in (work / "commands.txt").read_text()
    assert f"the build is kept in {work}" in (built / "log").read_text()


@pytest.mark.slow
def test_m_34_work_folder(built: Path, tmp_path: Path) -> None:
    assert not (built / "elsewhere").exists()  # set too late: it is read once
    relu = helper.make_node("Relu", ["x"], ["y"])
    model = save([relu], {"x": [2]}, {"y": [2]}, tmp_path / "m.onnx")
    seen: list[list[str]] = []
    mine = tmp_path / "there"
    mine.mkdir()
    (mine / "notes.txt").write_text("mine")
    for place in (mine, tmp_path / "new"):
        diagnostics = Diagnostics(
            progress=lambda *_, at=place: seen.append(sorted(p.name for p in at.iterdir()))
        )
        chosen = options({"MGB_JIT_WORKDIR": str(place)}, model, target="c99", jobs="2")
        compile_model(replace(chosen, output=tmp_path / "out/net"), diagnostics=diagnostics)
        assert any(name.startswith("atc-tmp-build-") for name in seen[-1])
    assert [p.name for p in mine.iterdir()] == ["notes.txt"]
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("target", "waiting"),
    [("c99", set()), pytest.param("cuda-emulated", {"StringOf", "StringValue"},
                                  marks=pytest.mark.slow)],
)  # fmt: skip
def test_m_30_profiles_of_what_waits(
    target: str, waiting: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx.save(mixed_model(), tmp_path / "m.onnx")
    path = tmp_path / "profile.json"
    line = [str(tmp_path / "m.onnx"), f"--profile={path}", "--iter=1", f"--target={target}",
            "--copy-to-host", f"--op_compiler_cache_dir={tmp_path / 'cache'}"]  # fmt: skip
    found: list[set[str]] = []
    for value in ("0", "1"):
        monkeypatch.setenv("MGB_PROFILE_ONLY_WAIT", value)
        assert main(["load_and_run", *line]) == 0
        profile = json.loads(path.read_text())
        operators, timed = profile["graph_exec"]["operator"], profile["profiler"]
        assert timed["host"].keys() == timed["device"].keys() == timed["opr_footprint"].keys()
        found.append({operators[k]["type"] for k in timed["host"]})
    assert found == [{"Map", "MatMul", "StringOf", "StringValue", "Copy"}, {"Copy", *waiting}]


def test_m_35_inputs_in_binary_dumps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = conv_net(tmp_path / "m.onnx")
    names: list[set[str]] = []
    for value in ("0", "1"):
        monkeypatch.setenv("MGB_DUMP_INPUT", value)
        (tmp_path / value).mkdir()
        line = [str(model), f"--bin-io-dump={tmp_path / value}", "--iter=1", "--target=c99",
                f"--op_compiler_cache_dir={tmp_path / 'cache'}"]  # fmt: skip
        assert main(["load_and_run", *line]) == 0
        names.append({p.name for p in (tmp_path / value).iterdir()})
    outputs, both = names
    assert not [name for name in outputs if "-inp" in name]
    assert outputs < both
    assert all(name.partition("-inp")[0] in outputs for name in both)
    assert {name.rpartition("-inp")[2] for name in both - outputs} >= {"0"}


@pytest.mark.slow
def test_m_36_measured_times_are_kept_or_not(built: Path, tmp_path: Path) -> None:
    assert len(list((built / "times").rglob("*.json"))) == 1
    environ = {"ASCEND_CACHE_PATH": str(tmp_path)}
    memory = {**environ, "MGE_FASTRUN_CACHE_TYPE": "MEMORY"}
    assert times_root(options(memory), memory) is None
    assert times_root(options({}, fast_run_cache_type="MEMORY"), environ) is None
    for mode in ("disable", "enable"):  # of the op compiler cache; times are kept in any case
        assert times_root(options({}, op_compiler_cache_mode=mode), environ) == tmp_path
    home = {"HOME": str(tmp_path)}
    assert times_root(options({}), home) == tmp_path / "atc_data"
    assert times_root(options({}), {}) is None
    with pytest.raises(OptionError, match="E10001: .*use one of FILE, MEMORY"):
        options({"MGE_FASTRUN_CACHE_TYPE": "REDIS"})


@pytest.mark.slow
def test_m_36_a_second_run_measures_nothing(tmp_path: Path) -> None:
    product = helper.make_node("MatMul", ["x", "x"], ["y"])
    model = save([product], {"x": [48, 48]}, {"y": [48, 48]}, tmp_path / "m.onnx")
    chosen = replace(options({}, model, fast_run="1"), output=tmp_path / "out/net")
    stages = [list[int](), list[int]()]
    for totals in stages:
        diagnostics = Diagnostics(
            progress=lambda what, done, total, to=totals: to.append(total)
            if what == "measuring kernels" else None
        )  # fmt: skip
        compile_model(chosen, {**os.environ, "ASCEND_CACHE_PATH": str(tmp_path)}, diagnostics)
    assert max(stages[0]) > 0
    assert max(stages[1]) == 0


@pytest.mark.slow
def test_m_37_where_measured_times_are_kept(built: Path, tmp_path: Path) -> None:
    assert (built / "times/algo_cache/cache.lock").is_file()
    chosen = options({"MGE_FASTRUN_CACHE_DIR": str(tmp_path)})
    assert times_root(chosen, {}) == tmp_path
    assert times_root(options({}, fast_run_cache_dir=str(tmp_path)), {}) == tmp_path
    both = {"MGE_FASTRUN_CACHE_DIR": str(tmp_path), "MGE_FASTRUN_CACHE_TYPE": "MEMORY"}
    assert times_root(options(both), both) is None
    both |= {"MGE_FASTRUN_CACHE_TYPE": "FILE"}
    assert times_root(options(both), both) == tmp_path


def test_m_37_the_default_is_megengines_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    kept = options({"MGE_FASTRUN_CACHE_TYPE": "FILE"})
    assert times_root(kept, {}) == tmp_path / ".cache/megengine/persistent_cache"
    assert variable_of("M-37").default == "~/.cache/megengine/persistent_cache"
    given = options({"MGE_FASTRUN_CACHE_TYPE": "FILE"}, fast_run_cache_dir="/mine")
    assert times_root(given, {}) == Path("/mine")


def test_m_31_where_nvcc_is(tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(
        "#!/bin/sh\necho 'Cuda compilation tools, release 12.4, V12.4.131'\necho sm_80\n"
    )
    nvcc.chmod(0o755)
    found = find_nvcc("sm_80", {"CUDA_BIN_PATH": str(tmp_path), "PATH": os.environ["PATH"]})
    assert found.argv == (str(nvcc),)
    with pytest.raises(AtcError, match="CUDA_BIN_PATH holds no nvcc: /nowhere"):
        find_nvcc("sm_80", {"CUDA_BIN_PATH": "/nowhere", "PATH": ""})


def test_m_38_capabilities(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    said = capsys.readouterr().out
    assert said == version_text()
    assert "targets: c99, " in said
    none = version_text({"PATH": "", "CC": ""})
    assert "gcc (" not in none


@pytest.mark.slow
def test_m_03_and_m_28_are_seen_in_a_whole_run(built: Path) -> None:
    log = (built / "log").read_text()
    assert "[INFO] measuring kernels" in log
    assert "[DEBUG]" not in log


def log(environ: dict[str, str], *, program: bool = False, **given: object) -> object:
    named = {"model": "x", "output": "y", **given}
    return resolve(named, "compile", ConfigEnvironment(environ), program=program).values["log"]
