"""A library built with --profile times its kernel calls; others have nothing of that in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cffi
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import (
    affine_model,
    build_example,
    build_shared,
    emit_model,
    make_model,
    run_example,
    write_project,
)

from atc.backends.flops import operations
from atc.backends.kernel import workload_of
from atc.ir.graph import Array
from atc.runtime.load import load
from support import compile_graph, node_model

DECLARATIONS = """
typedef struct { uint64_t runs, nanoseconds, begin; } net_call_time;
typedef struct { const char *nodes, *op, *kernel; uint64_t operations, bytes; } net_call_info;
int net_init(void *ctx, void *arena, size_t size);
int net_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
size_t net_context_size(void);
size_t net_arena_size(void);
size_t net_profile_count(void);
const net_call_info *net_profile_info(size_t index);
const net_call_time *net_profile_times(void *ctx);
void net_profile_reset(void *ctx);
"""


def branching_model() -> onnx.ModelProto:
    """Return a model that runs one of two nodes, and one node always."""

    def branch(op: str) -> onnx.GraphProto:
        out = helper.make_tensor_value_info("z", TensorProto.FLOAT, (2,))
        node = helper.make_node(op, ["x"], ["z"], name=f"the {op}")
        return helper.make_graph([node], op, [], [out])

    chosen = helper.make_node(
        "If", ["c"], ["r"], then_branch=branch("Exp"), else_branch=branch("Sin")
    )
    inputs = [("c", TensorProto.BOOL, ()), ("x", TensorProto.FLOAT, (2,))]
    last = helper.make_node("CumSum", ["r", "axis"], ["y"], name="last")
    axis = {"axis": np.array(0, np.int64)}
    return make_model([chosen, last], inputs, [("y", TensorProto.FLOAT, (2,))], axis)


@pytest.mark.few(1)
@pytest.mark.parametrize("cc", ["gcc", "clang-19"])
@pytest.mark.parametrize("model", [affine_model, branching_model])
def test_the_code_is_strict_c99(model: Any, cc: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(model(), profile=True))
    run_example(build_example(tmp_path, "-O1", "-Wshadow", "-Wmissing-prototypes", cc=cc))


def test_nothing_of_it_is_in_other_builds(tmp_path: Path) -> None:
    plain, timed = emit_model(affine_model()), emit_model(affine_model(), profile=True)
    text = b"".join(plain.files[path] for path in ("src/net.c", "include/net.h"))
    assert not [w for w in (b"profile", b"PROFILE", b"time.h", b"nanoseconds") if w in text]
    changed = {path for path in timed.files if timed.files[path] != plain.files.get(path)}
    assert changed == {"src/net.c", "include/net.h", "net.py"}
    assert b"_write_profile" not in plain.files["net.py"]
    libraries = []
    for emission in (plain, timed):
        write_project(tmp_path / str(len(libraries)), emission)
        libraries.append(build_shared(tmp_path / str(len(libraries))).read_bytes())
    assert b"profile" not in libraries[0]
    assert b"clock_gettime" not in libraries[0]
    assert b"net_profile_info" in libraries[1]


def test_every_call_is_timed(tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), profile=True))
    ffi, lib, run = library(build_shared(tmp_path), [np.zeros((2, 5), np.float32)], [6, 2 * 70000])
    infos = [lib.net_profile_info(k) for k in range(lib.net_profile_count())]
    assert infos
    assert lib.net_profile_info(len(infos)) == ffi.NULL
    names = [ffi.string(info.nodes).decode() for info in infos]
    assert any("activation" in name for name in names)
    context = run()
    run(context)
    times = lib.net_profile_times(context)
    assert [times[k].runs for k in range(len(infos))] == [2] * len(infos)
    assert sum(times[k].nanoseconds for k in range(len(infos))) > 0
    lib.net_profile_reset(context)
    assert {(times[k].runs, times[k].nanoseconds) for k in range(len(infos))} == {(0, 0)}


@pytest.mark.parametrize("taken", [True, False])
def test_calls_of_branches_count_where_they_run(tmp_path: Path, taken: bool) -> None:
    write_project(tmp_path, emit_model(branching_model(), profile=True))
    inputs = [np.array(taken), np.zeros(2, np.float32)]
    ffi, lib, run = library(build_shared(tmp_path), inputs, [2])
    times = lib.net_profile_times(context := run())
    assert context
    runs = {
        ffi.string(lib.net_profile_info(k).nodes).decode(): times[k].runs
        for k in range(lib.net_profile_count())
    }
    assert (runs["the Exp"], runs["the Sin"], runs["last"]) == (taken, not taken, 1)


def test_a_profiled_library_runs_as_any_other(tmp_path: Path) -> None:
    model, x = affine_model(), np.ones((2, 5), np.float32)
    results = []
    for profile in (False, True):
        write_project(tmp_path / str(profile), emit_model(model, profile=profile))
        build_shared(tmp_path / str(profile))
        results.append(load(tmp_path / str(profile))(x))
    for a, b in zip(*results, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes", "expected"),
    [
        ("Conv", [(1, 6, 9, 9), (4, 3, 3, 3)], {"group": 2}, 2 * 4 * 7 * 7 * 3 * 9),
        ("ConvTranspose", [(1, 2, 4, 4), (2, 3, 2, 2)], {}, 2 * 2 * 4 * 4 * 3 * 2 * 2),
        ("MatMul", [(5, 4, 3), (3, 7)], {}, 2 * 5 * 4 * 3 * 7),
        ("Relu", [(5,)], {}, 0),
    ],
)
def test_operations(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, Any], expected: int
) -> None:
    graph = compile_graph(node_model(op, [np.ones(s, np.float32) for s in shapes], **attributes))
    work = [operations(workload_of(graph, node, graph.constants)) for node in graph.nodes]
    assert sum(work) == expected


def library(path: Path, inputs: list[Array], outputs: list[int]) -> tuple[cffi.FFI, Any, Any]:
    """Return a library and a function that runs it in a (new) context, which it returns."""
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS)
    lib = ffi.dlopen(str(path))
    kept: list[object] = []  # memory that C points to
    results = [np.zeros(max(size, 1), np.float32) for size in outputs]
    pointers = [
        ffi.new("void *[]", [ffi.cast("void *", a.ctypes.data) for a in arrays])
        for arrays in (inputs, results)
    ]

    def run(context: Any = None) -> Any:
        if context is None:
            size = lib.net_arena_size()
            memory = np.zeros(size + 64, np.uint8)
            start = memory.ctypes.data
            context = ffi.new("uint64_t[]", lib.net_context_size() // 8 + 1)
            kept.append((memory, inputs, results))
            assert lib.net_init(context, ffi.cast("void *", start + -start % 64), size) == 0
        assert lib.net_run_tensors(context, *pointers) == 0
        return context

    return ffi, lib, run
