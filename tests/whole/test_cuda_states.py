"""States on a GPU: they last in its memory, and a run moves no more of them than it must."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnx
import pytest
from cuda_cases import ORDERS
from networks import save
from onnx import helper, numpy_helper
from passes.canonical import test_slide_states as windows
from projects import require
from whole import test_states as states

import atc
from atc.pipeline.pipeline import Compilation
from atc.program.placement import place
from atc.program.steps import calls

GPU = "cuda-emulated"
ERROR_GPU = -23


def moving(done: Compilation) -> list[str]:
    """Return the kinds of the calls that copy states, or move them: no nodes of the model's own."""
    program = done.program
    held = {s.value for s in program.states}

    def in_states(values: Iterable[str]) -> bool:
        return any(v and program.base(v) in held for v in values)

    return [
        call.node.op.kind for call in calls(program.steps)
        if (in_states(call.node.inputs) if call.node.op.kind == "Concat"
            else not call.node.origin and in_states(call.node.outputs))
    ]  # fmt: skip


@pytest.mark.few(3)
@pytest.mark.parametrize("order", ["forward", "reverse"])
@pytest.mark.parametrize("name", windows.BODY)
def test_windows_are_moved_back_by_one_launch(
    name: str, order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    path, shape, held = windows.write(name, tmp_path)
    done = windows.compiled(path, tmp_path, GPU)
    (state,) = done.program.states
    assert state.anchored
    assert moving(done) == ["MoveRows"]
    for resident in (False, True):
        moves = place(done.program, resident=resident)
        bases = {m.base for step in (*moves.before, moves.after) for m in step}
        assert state.value not in bases
    xs = windows.inputs(shape)[:8]
    ys, kept = windows.expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net, atc.load(done.folder) as other:
        assert net.state_size == 4 * np.prod(held)
        for k, (x, y, after) in enumerate(zip(xs, ys, kept, strict=True)):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5, err_msg=f"run {k}")
            found = np.frombuffer(net.save_state(), np.float32).reshape(held)
            np.testing.assert_allclose(found, after, rtol=1e-5, atol=1e-5)
            if k == 3:
                other.restore_state(net.save_state())
        for x, y in zip(xs[4:], ys[4:], strict=True):
            np.testing.assert_allclose(other(x), y, rtol=1e-5, atol=1e-5)
        net.reset()
        assert not any(net.save_state())
        np.testing.assert_allclose(net(xs[0]), ys[0], rtol=1e-5, atol=1e-5)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", states.CASES)
def test_what_a_cpu_replaces_in_place_a_gpu_does(name: str, tmp_path: Path) -> None:
    """Where branches, one of which may read what another one replaces, run one after another."""
    case = states.CASES[name]
    copied = []
    for target in ("c99", GPU):
        folder = tmp_path / target
        folder.mkdir()
        done = states.compiled(case, folder, target=target, gpu_streams=1)
        copied.append({s.value for s in done.program.states if s.next.endswith("#next")})
        if target == GPU:
            assert "Concat" not in moving(done)
            states.check(case, atc.load(done.folder), states.expected(case))
    assert copied[0] == copied[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"disable_reuse_memory": True}, {"memory_in_place": False}, {"sanity_check": "1"},
        {"hooks": True, "profile": True}, {"external_weight": 1}, {"runtime_log": True},
        {"oo_level": "O0"}, {"target": "cuda-emulated,c99"}, {"target": "c99,cuda-emulated"},
        {"gpu_streams": 2},
    ],
    ids=lambda o: "-".join(map(str, o.values() if "target" in o else o)),
)  # fmt: skip
@pytest.mark.parametrize("name", [*windows.BODY][::3])
def test_whatever_the_library_is_built_for(
    name: str, options: dict[str, object], tmp_path: Path
) -> None:
    windows.check_bound(name, tmp_path, {"target": GPU, **options}, runs=6)


CAPTURED = r"""
#include <stdio.h>
#include "gpu.h"
#include "net.h"

static NET_ALIGNED unsigned char arena[NET_ARENA_SIZE + 64];

int main(void)
{
  static float x[X_SIZE], y[Y_SIZE];
  net_context ctx;
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  if (net_init(&ctx, arena, NET_ARENA_SIZE) != NET_OK) return 1;
  gpu_state *const gpu = ctx.gpu;
  const cuda_driver *const driver = &gpu->shared->driver;
  if (net_run_device(&ctx, NULL, x, y) != NET_OK || net_reset(&ctx) != NET_OK) return 2;
  if (driver->context_push(gpu->shared->context) != 0) return 2;
  if (driver->stream_create(&stream, 1) != 0 || driver->capture_begin(stream, 0) != 0) return 3;
  const int status = net_run_device(&ctx, stream, x, y);
  if (driver->capture_end(stream, &graph) != 0) return 4;
  printf("%d\n", status);
  if (status != NET_OK) return 0;
  if (driver->graph_instantiate(&exec, graph, 0) != 0) return 5;
  while (fread(x, sizeof x, 1, stdin) == 1) {
    if (driver->graph_launch(exec, stream) != 0 || driver->stream_wait(stream) != 0) return 6;
    for (int k = 0; k < Y_SIZE; k++) printf("%.9g ", (double)y[k]);
  }
  return 0;
}
"""


def captured(folder: Path, xs: list[np.ndarray], results: int) -> list[float]:
    """Return what a graph of the caller's gives, which has one run in it, for some inputs.

    First is the status of the run that was captured.
    """
    (folder / "main.c").write_text(CAPTURED)
    command = [require("gcc"), "-Iinclude", "-Isrc", f"-DX_SIZE={xs[0].size}",
               f"-DY_SIZE={results}", "main.c", "libnet.a", "-lstdc++", "-lm",
               "-lpthread", "-o", "main"]  # fmt: skip
    subprocess.run(command, cwd=folder, check=True)
    given = b"".join(x.tobytes() for x in xs)
    done = subprocess.run([folder / "main"], input=given, capture_output=True, check=True)
    return [float(word) for word in done.stdout.split()]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", windows.BODY)
def test_windows_go_on_in_graphs_of_the_callers(name: str, tmp_path: Path) -> None:
    path, shape, held = windows.write(name, tmp_path)
    done = windows.compiled(path, tmp_path, GPU)
    xs = windows.inputs(shape)[:5]
    ys, _ = windows.expected(path, xs, np.zeros(held, np.float32))
    status, *found = captured(done.folder, xs, ys[0].size)
    assert status == 0
    np.testing.assert_allclose(found, np.ravel(ys), rtol=1e-5, atol=1e-5)


def test_what_grows_goes_into_no_graph_of_the_callers(tmp_path: Path) -> None:
    """It would be appended in the same place each time."""
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=1),
        helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
    ]
    model = save(nodes, {"past": [2, "p", 4], "x": [2, 1, 4]}, {"present": [2, "t", 4], "y": []},
                 tmp_path / "m.onnx", [])  # fmt: skip
    done = atc.compile(model, tmp_path / "net", input_shape="past:2,0~9,4;x:2,1,4",
                       state="past:present", target=GPU)  # fmt: skip
    assert captured(done.folder, [np.ones((2, 1, 4), np.float32)], 1) == [ERROR_GPU]


ROWS: dict[str, tuple[type, tuple[int, ...], int, int, bool]] = {
    "many steps in a row": (np.float32, (1, 2, 3000), 2, 1, False),
    "long steps, aligned": (np.float32, (1, 50, 100), 1, 3, False),
    "long steps of bytes": (np.int8, (1, 70, 33), 1, 1, False),
    "halves": (np.float16, (3, 9, 70), 2, 2, False),
    "doubles, newest first": (np.float64, (1, 5, 1500), 2, 1, True),
    "rows of bytes, newest first": (np.int8, (1, 90, 50), 1, 4, True),
}  # fmt: skip
"""Of windows the type, the shape, the axis along which they move, the step, what comes first."""


@pytest.mark.few(1)
@pytest.mark.parametrize("order", ORDERS)
def test_rows_of_any_length_and_type_are_moved(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    nodes, inputs, outputs, constants = [], [], [], []
    for k, (dtype, shape, axis, step, first) in enumerate(ROWS.values()):
        type_ = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        new = [*shape[:axis], step, *shape[axis + 1 :]]
        begin, end = (0, shape[axis]) if first else (-shape[axis], 1 << 40)
        constants += [numpy_helper.from_array(np.array([n]), f"{name}{k}")
                      for name, n in (("b", begin), ("e", end), ("a", axis))]  # fmt: skip
        parts = [f"x{k}", f"s{k}"] if first else [f"s{k}", f"x{k}"]
        nodes += [
            helper.make_node("Concat", parts, [f"w{k}"], axis=axis),
            helper.make_node("Slice", [f"w{k}", f"b{k}", f"e{k}", f"a{k}"], [f"t{k}"]),
            helper.make_node("ReduceMax", [f"w{k}"], [f"y{k}"], keepdims=0),
        ]
        value = helper.make_tensor_value_info
        inputs += [value(f"x{k}", type_, new), value(f"s{k}", type_, shape)]
        outputs += [value(f"y{k}", type_, []), value(f"t{k}", type_, shape)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, constants)
    opsets = [helper.make_opsetid("", 21)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "m.onnx")
    done = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target=GPU,
                       state=";".join(f"s{k}:t{k}" for k in range(len(ROWS))))  # fmt: skip
    assert moving(done) == ["MoveRows"]
    random, kept = np.random.default_rng(0), [np.zeros(s, d) for d, s, *_ in ROWS.values()]
    with atc.load(done.folder) as net:
        for _ in range(5):
            feed = {}
            for k, (dtype, shape, axis, step, first) in enumerate(ROWS.values()):
                new = (*shape[:axis], step, *shape[axis + 1 :])
                x = feed[f"x{k}"] = random.integers(-100, 100, new).astype(dtype)
                whole = np.concatenate([x, kept[k]] if first else [kept[k], x], axis)
                at = range(shape[axis]) if first else range(step, step + shape[axis])
                kept[k] = whole.take(at, axis)
            net.run(feed)
            assert net.save_state() == b"".join(each.tobytes() for each in kept)
