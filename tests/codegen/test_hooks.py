"""A library built with hooks shows each kernel call's values; others have nothing of that."""

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

DECLARATIONS = """
typedef struct {
  const char *name; int32_t dtype; int32_t rank; const int64_t *shape; size_t size;
} net_tensor_info;
typedef struct { net_tensor_info tensor; int32_t kind; } net_value;
typedef struct {
  const char *nodes, *op, *kernel; size_t reads, writes; const size_t *values;
} net_step;
typedef void (*net_observer)(void *user, size_t step, int done, const void *const *values);
int net_init(void *ctx, void *arena, size_t size);
int net_run_tensors(void *ctx, const void *const *inputs, void *const *outputs);
size_t net_context_size(void);
size_t net_arena_size(void);
void net_set_observer(void *ctx, net_observer observer, void *user);
size_t net_step_count(void);
const net_step *net_step_info(size_t index);
size_t net_value_count(void);
const net_value *net_value_info(size_t index);
"""


def looping_model() -> onnx.ModelProto:
    """Return a model whose loop adds x three times and keeps every sum."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["c"], ["going"]),
            helper.make_node("Add", ["s", "x"], ["t"], name="inner add"),
            helper.make_node("CumSum", ["t", "axis"], ["part"], name="inner sum"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, ()),
            helper.make_tensor_value_info("c", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("s", TensorProto.FLOAT, (4,)),
        ],
        [
            helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
            helper.make_tensor_value_info("t", TensorProto.FLOAT, (4,)),
            helper.make_tensor_value_info("part", TensorProto.FLOAT, (4,)),
        ],
    )
    loop = helper.make_node("Loop", ["n", "", "x"], ["last", "parts"], body=body)
    constants = {"n": np.array(3, np.int64), "axis": np.array(0, np.int64)}
    outputs = [("last", TensorProto.FLOAT, (4,)), ("parts", TensorProto.FLOAT, (3, 4))]
    return make_model([loop], [("x", TensorProto.FLOAT, (4,))], outputs, constants)


@pytest.mark.few(1)
@pytest.mark.parametrize("cc", ["gcc", "clang-19"])
@pytest.mark.parametrize("model", [affine_model, looping_model])
def test_the_code_is_strict_c99(model: Any, cc: str, tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(model(), hooks=True, profile=cc == "gcc"))
    run_example(build_example(tmp_path, "-O1", "-Wshadow", "-Wmissing-prototypes", cc=cc))


def test_a_build_without_hooks_has_nothing_of_them() -> None:
    plain, hooked = emit_model(affine_model()), emit_model(affine_model(), hooks=True)
    text = b"".join(content for path, content in plain.files.items() if path.endswith((".c", ".h")))
    words = (b"observe", b"set_observer", b"step_info", b"value_info", b"seen[")
    assert not [w for w in words if w in text]
    changed = {path for path in hooked.files if hooked.files[path] != plain.files.get(path)}
    assert changed == {"src/net.c", "include/net.h"}


def test_the_observer_sees_every_value(tmp_path: Path) -> None:
    model = looping_model()
    write_project(tmp_path, emit_model(model, hooks=True))
    ffi = cffi.FFI()
    ffi.cdef(DECLARATIONS)
    lib: Any = ffi.dlopen(str(build_shared(tmp_path)))
    steps = [lib.net_step_info(k) for k in range(lib.net_step_count())]
    values = [lib.net_value_info(k) for k in range(lib.net_value_count())]
    assert lib.net_step_info(len(steps)) == lib.net_value_info(len(values)) == ffi.NULL
    seen: list[tuple[str, int, list[np.ndarray[Any, Any]]]] = []

    @ffi.callback("net_observer")
    def observer(user: Any, step: int, done: int, pointers: Any) -> None:
        assert user == ffi.cast("void *", 7)
        info, arrays = steps[step], []
        for k in range(info.reads + info.writes):
            size = values[info.values[k]].tensor.size
            arrays.append(np.frombuffer(ffi.buffer(pointers[k], size), np.uint8).copy())
        seen.append((ffi.string(info.nodes).decode(), done, arrays))

    x = np.arange(4, dtype=np.float32)
    last, parts = np.empty(4, np.float32), np.empty((3, 4), np.float32)
    context, size = ffi.new("uint64_t[]", lib.net_context_size() // 8 + 1), lib.net_arena_size()
    arena = np.empty(size + 64, np.uint8)
    start = ffi.from_buffer(arena) + -arena.ctypes.data % 64
    assert lib.net_init(context, start, size) == 0
    pointers = ffi.new("void *[]", [ffi.from_buffer(last), ffi.from_buffer(parts)])
    inputs = ffi.new("void *[]", [ffi.from_buffer(x)])
    assert lib.net_run_tensors(context, inputs, pointers) == 0
    assert not seen
    lib.net_set_observer(context, observer, ffi.cast("void *", 7))
    assert lib.net_run_tensors(context, inputs, pointers) == 0
    np.testing.assert_array_equal(last, 4 * x)
    np.testing.assert_array_equal(parts, [np.cumsum(k * x) for k in (2, 3, 4)])
    assert [done for _, done, _ in seen] == [0, 1] * (len(seen) // 2)
    sums = [arrays[-1] for nodes, done, arrays in seen if done and "inner add" in nodes]
    np.testing.assert_array_equal([a.view(np.float32) for a in sums], [2 * x, 3 * x, 4 * x])
