"""Networks for GPUs: what runs where, what moves, the C interface, and what can't be had yet."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import onnx
import pytest
import suite
from onnx import TensorProto, helper
from projects import make_model, reference

from atc.api import compile as compile_network
from atc.errors import AtcError
from atc.runtime.load import load

EXCEPTIONS = suite.read_exceptions()
X = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


def mixed_model() -> onnx.ModelProto:
    """Return a model with a node between others that only the host computes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("CumSum", ["a", "axis"], ["b"]),
        helper.make_node("Add", ["b", "a"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    w = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6))],
        [("y", TensorProto.FLOAT, (4, 2)), ("b", TensorProto.FLOAT, (4, 6))],
        {"w": w, "axis": np.array(1)},
    )  # fmt: skip


def loop_model() -> onnx.ModelProto:
    """Return a model whose loop reads what a GPU has computed, and the other way round."""
    body = helper.make_graph(
        [
            helper.make_node("Add", ["s", "d"], ["t"]),
            helper.make_node("Identity", ["going"], ["still"]),
        ],
        "body",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ()),
         helper.make_tensor_value_info("going", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("s", TensorProto.FLOAT, (4, 6))],
        [helper.make_tensor_value_info("still", TensorProto.BOOL, ()),
         helper.make_tensor_value_info("t", TensorProto.FLOAT, (4, 6))],
    )  # fmt: skip
    nodes = [
        helper.make_node("Exp", ["x"], ["d"]),
        helper.make_node("Neg", ["x"], ["first"]),
        helper.make_node("Loop", ["trips", "", "first"], ["last"], body=body),
        helper.make_node("Tanh", ["last"], ["y"]),
    ]
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6)), ("trips", TensorProto.INT64, ())],
        [("y", TensorProto.FLOAT, (4, 6))],
    )  # fmt: skip


def has_driver() -> bool:
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Any:
    onnx.save(model, folder / "model.onnx")
    given = {"target": "cuda-emulated", "op_compiler_cache_mode": "disable", **options}
    return compile_network(folder / "model.onnx", folder / "net", **given)


def test_the_host_computes_what_has_no_cuda_kernel(tmp_path: Path) -> None:
    report = compiled(mixed_model(), tmp_path).report
    sides = {node["op"]: node["runs_on"] for node in report["nodes"]}
    assert sides == {"Map": "device", "Cumulate": "host", "MatMul": "device"}
    # x and b go there; Relu's result and y come back: b is the host's already.
    assert report["moved"] == {"to_device": 2 * X.nbytes, "to_host": X.nbytes + 4 * 2 * 4}
    found = load(tmp_path / "net").run({"x": X})
    for one, expected in zip(found.values(), reference(mixed_model(), X), strict=True):
        np.testing.assert_allclose(one, expected, rtol=1e-5)


def joined_model(parts: int) -> onnx.ModelProto:
    """Return a model that joins results of a GPU and hands them, reshaped, to the host."""
    names = [f"a{k}" for k in range(parts)]
    scales = {f"s{k}": np.full(1, k + 1, np.float32) for k in range(parts)}
    nodes = [
        *(helper.make_node("Mul", ["x", s], [a]) for s, a in zip(scales, names, strict=True)),
        helper.make_node("Concat", names, ["c"], axis=0),
        helper.make_node("Reshape", ["c", "flat"], ["d"]),
        helper.make_node("CumSum", ["d", "axis"], ["e"]),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6))], [("y", TensorProto.FLOAT, (parts * 24,))],
        {**scales, "flat": np.array([-1]), "axis": np.array(0)},
    )  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"external_weight": 2}, {"memory_in_place": False}])
def test_joined_results_move_as_one(options: dict[str, Any], tmp_path: Path) -> None:
    report = compiled(joined_model(3), tmp_path, **options).report
    assert report["moved"] == {"to_device": 4 * X.nbytes, "to_host": 6 * X.nbytes}
    found = load(tmp_path / "net").run({"x": X})
    np.testing.assert_allclose(found["y"], reference(joined_model(3), X)[0], rtol=1e-4)


@pytest.mark.slow
def test_more_operands_than_a_launch_takes_are_the_hosts(tmp_path: Path) -> None:
    report = compiled(joined_model(110), tmp_path, memory_in_place=False).report
    assert {n["runs_on"] for n in report["nodes"] if n["op"] == "Concat"} == {"host"}
    found = load(tmp_path / "net").run({"x": X})
    np.testing.assert_allclose(found["y"], reference(joined_model(110), X)[0], rtol=1e-4)


@pytest.mark.parametrize("trips", [0, 1, 3])
def test_control_flow_runs_on_the_host(trips: int, tmp_path: Path) -> None:
    compiled(loop_model(), tmp_path)
    found = load(tmp_path / "net").run({"x": X, "trips": np.array(trips)})
    np.testing.assert_allclose(found["y"], np.tanh(-X + trips * np.exp(X)), rtol=1e-5)


def test_tensors_on_the_device_stay_there(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path)
    ffi = cffi.FFI()
    ffi.cdef("""
        int net_init(void *ctx, void *arena, size_t size); size_t net_context_size(void);
        size_t net_arena_size(void);
        int net_run(void *ctx, const float *x, float *y, float *b);
        int net_run_device(void *ctx, void *stream, const float *x, float *y, float *b);
        void net_release(void *ctx);
    """)
    library = ffi.dlopen(str(tmp_path / "net" / "libnet.so"))
    arena = np.empty(library.net_arena_size() + 64, np.uint8)
    start = ffi.cast("uintptr_t", ffi.from_buffer(arena))
    contexts = [ffi.new("uint64_t[]", library.net_context_size() // 8 + 1) for _ in range(2)]
    y, b = np.empty((4, 2), np.float32), np.empty((4, 6), np.float32)
    given = [ffi.from_buffer("float[]", a) for a in (X, y, b)]
    first, second = contexts
    for context in contexts:
        aligned = ffi.cast("void *", int(start) + -int(start) % 64)
        assert library.net_init(context, aligned, library.net_arena_size()) == 0
    assert library.net_run_device(first, ffi.NULL, *given) == 0  # the imitation's memory is ours
    for found, expected in zip((y, b), reference(mixed_model(), X), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    library.net_release(first)
    library.net_release(first)  # once is enough
    assert library.net_run(first, *given) == -1
    y[:] = 0
    assert library.net_run(second, *given) == 0
    np.testing.assert_allclose(y, reference(mixed_model(), X)[0], rtol=1e-5)
    library.net_release(second)


def test_a_network_without_a_gpu_says_so(tmp_path: Path) -> None:
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc isn't there")
    compiled(mixed_model(), tmp_path, target="cuda-sm90")
    if has_driver():
        pytest.skip("this machine has a driver")
    with pytest.raises(RuntimeError, match="there is no CUDA driver, or no device"):
        load(tmp_path / "net").run({"x": X})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": True}, "--profile and --target=cuda-emulated can't be combined"),
        ({"hooks": True}, "--hooks and --target=cuda-emulated can't be combined"),
        ({"target": "cuda-sm90,c99"}, "cuda-sm90 can't be listed with other targets"),
        ({"target": "cuda-sm91"}, "unknown target 'cuda-sm91'"),
    ],
    ids=["profile", "hooks", "several", "unknown"],
)
def test_what_can_not_be_had_yet_is_told(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AtcError, match=words.replace("(", "\\(")):
        compiled(mixed_model(), tmp_path, **options)
    assert not (tmp_path / "net").exists()


def check(names: tuple[str, ...]) -> None:
    outcomes = suite.run_isolated(names, "cuda-emulated", "O0")
    failed = {n: reason for n, reason in outcomes.items() if reason and n not in EXCEPTIONS}
    assert not failed, "\n".join(f"{n}: {reason}" for n, reason in failed.items())


def test_a_sample_of_the_suite() -> None:
    check(tuple(n for n in suite.case_names("node") if n not in EXCEPTIONS)[7::120])


@pytest.mark.suite
@pytest.mark.parametrize("names", suite.chunks(suite.case_names("node")), ids=lambda n: n[0])
def test_the_nodes_of_the_suite(names: tuple[str, ...]) -> None:
    check(names)
