"""Networks for GPUs: what runs where, what moves, the C interface, and what can't be had yet."""

from __future__ import annotations

import ctypes
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cffi
import numpy as np
import onnx
import pytest
import suite
from branching_models import drawn
from cuda_networks import X, compiled, lasting_model, mixed_model
from drawn_networks import unet
from networks import training_net
from onnx import TensorProto, helper
from projects import make_model, reference

from atc.errors import AtcError
from atc.load_and_run.context import Context
from atc.load_and_run.engine import Step, open_engine
from atc.runtime.load import load
from atc.tools.report_page import report_page

EXCEPTIONS = suite.read_exceptions()


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


@pytest.mark.slow
def test_the_host_computes_what_has_no_cuda_kernel(tmp_path: Path) -> None:
    report = compiled(mixed_model(), tmp_path).report
    sides = {node["op"]: node["runs_on"] for node in report["nodes"]}
    assert sides == {
        "Map": "device", "StringOf": "host", "StringValue": "host", "MatMul": "device",
    }  # fmt: skip
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
        helper.make_node("Cast", ["d"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["e"], to=TensorProto.FLOAT),
        helper.make_node("Neg", ["e"], ["y"]),
    ]
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6))], [("y", TensorProto.FLOAT, (parts * 24,))],
        {**scales, "flat": np.array([-1])},
    )  # fmt: skip


@pytest.mark.slow
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


@pytest.mark.few(1)
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
        int net_init_there(void *ctx, int device, void *arena, size_t size, void *there,
                           size_t room);
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
    header = (tmp_path / "net" / "include" / "net.h").read_text("utf-8")
    room = int(re.search(r"NET_DEVICE_ARENA_SIZE (\d+)", header)[1])  # type: ignore[index]
    held = np.full(room + 512, 77, np.uint8)  # the caller's, for what lies between
    begin = int(ffi.cast("uintptr_t", ffi.from_buffer(held)))
    there = begin + -begin % 256
    first_there = [first, 0, ffi.cast("void *", int(start) + -int(start) % 64),
                   library.net_arena_size()]  # fmt: skip
    for place, size, status in (
        (there, room - 1, -2), (there + 64, room, -5), (there, room, 0),
    ):  # fmt: skip
        assert library.net_init_there(*first_there, ffi.cast("void *", place), size) == status
    y[:] = 0
    assert library.net_run_device(first, ffi.NULL, *given) == 0
    np.testing.assert_allclose(y, reference(mixed_model(), X)[0], rtol=1e-5)
    library.net_release(first)
    used = held[there - begin :]
    assert (used[:room] != 77).any()
    assert (used[room:] == 77).all()


class Tensor:
    """A tensor of the imitated GPU, as libraries lend theirs."""

    device = "the first"

    def __init__(self, array: Any, number: int = 0) -> None:
        self.array, self.number = array, number
        self.streams: list[int | None] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, self.number)

    def __dlpack__(self, stream: int | None = None) -> Any:
        self.streams.append(stream)
        return self.array.__dlpack__()

    def __array_namespace__(self) -> Any:
        def empty(shape: tuple[int, ...], dtype: Any, device: str) -> Tensor:
            assert device == self.device
            return Tensor(np.empty(shape, dtype), self.number)

        return SimpleNamespace(float32=np.float32, empty=empty)


class Lent:
    """A tensor that only says where it lies."""

    def __init__(self, array: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__array_interface__, "version": 3, "stream": None}


@pytest.mark.slow
def test_tensors_of_other_libraries_are_taken_and_made(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path)
    net = load(tmp_path / "net")
    expected = reference(mixed_model(), X)
    x = Tensor(X.copy())
    for _ in range(2):
        y, b = net(x)
        assert {type(y), type(b)} == {Tensor}
        for found, right in zip((y, b), expected, strict=True):
            np.testing.assert_allclose(found.array, right, rtol=1e-5)
        x.array *= 1  # the same place: nothing is captured again
    assert x.streams == [1, 1]  # CUDA's default one
    out = [Lent(np.empty((4, 2), np.float32)), Lent(np.empty((4, 6), np.float32))]
    assert net(Lent(X), out=out)[0] is out[0]
    np.testing.assert_allclose(out[0].array, expected[0], rtol=1e-5)
    named = net.run({"x": Tensor(2 * X)})
    np.testing.assert_allclose(named["y"].array, reference(mixed_model(), 2 * X)[0], rtol=1e-5)
    np.testing.assert_allclose(net(X)[0], expected[0], rtol=1e-5)


@pytest.mark.slow
def test_faults_of_tensors_on_a_device_are_reported(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path)
    net = load(tmp_path / "net")
    for given, words in (
        (Tensor(X[:3]), "input 'x' must have the shape (4, 6), not (3, 6)"),
        (Tensor(X.astype(np.float64)), "input 'x' must be float32, not float64"),
        (Tensor(np.asfortranarray(X)), "input 'x' must be contiguous"),
        (Tensor(np.zeros(25, np.float32)[1:].reshape(4, 6)),
         "input 'x' must begin at a multiple of 16 bytes"),
        (Tensor(X, 1), "a tensor is on device 1, the network on 0"),
        (Lent(X), "output 'y': Lent can't be made, give out="),
    ):
        with pytest.raises((TypeError, ValueError)) as caught:
            net(given)
        assert str(caught.value) == words
    with pytest.raises(TypeError, match="must be on the GPU"):
        net(Tensor(X), out=[np.empty((4, 2), np.float32), None])
    with pytest.raises(TypeError, match="stream= is for tensors on a GPU"):
        net(X, stream=1)


@pytest.mark.slow
def test_a_network_runs_on_the_device_that_is_chosen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(mixed_model(), tmp_path, device_id=2)
    with pytest.raises(RuntimeError, match="there is no CUDA driver, or no device"):
        load(tmp_path / "net")
    y = load(tmp_path / "net", device_id=0)(Tensor(X))[0]
    np.testing.assert_allclose(y.array, reference(mixed_model(), X)[0], rtol=1e-5)
    monkeypatch.setenv("ATC_EMULATED_DEVICES", "3")
    y = load(tmp_path / "net")(Tensor(X, 2))[0]
    np.testing.assert_allclose(y.array, reference(mixed_model(), X)[0], rtol=1e-5)


def test_a_library_falls_back_to_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled(mixed_model(), tmp_path, target="cuda-emulated,c99")
    monkeypatch.setenv("ATC_EMULATED_DEVICES", "0")
    here = load(tmp_path / "net")
    monkeypatch.setenv("ATC_EMULATED_DEVICES", "1")
    there = load(tmp_path / "net")
    expected = reference(mixed_model(), X)
    for net in (there, here):
        np.testing.assert_allclose(net(X)[0], expected[0], rtol=1e-5)
    np.testing.assert_allclose(there(Tensor(X))[0].array, expected[0], rtol=1e-5)
    with pytest.raises(RuntimeError, match="no device"):
        here(Tensor(X))


@pytest.mark.slow
def test_kernels_are_timed_on_the_device(tmp_path: Path) -> None:
    compiled(mixed_model(), tmp_path, profile=True)
    net = load(tmp_path / "net")
    np.testing.assert_allclose(net(X)[0], reference(mixed_model(), X)[0], rtol=1e-5)
    library = net._open()
    times = library.function("profile_times")(library.idle[0].arguments[0])
    count = library.function("profile_count")()
    assert count == 5
    assert all(times[k].runs == 1 and times[k].nanoseconds > 0 for k in range(count))


def test_an_observer_sees_the_values_of_the_device(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Host and device alternate; a log has each call."""
    monkeypatch.setenv("RUNTIME_OVERRIDE_LOG_LEVEL", "0")
    compiled(mixed_model(), tmp_path, hooks=True, runtime_log=True)
    source = (tmp_path / "net" / "src" / "net.c").read_text("utf-8")
    assert "gpu_replay(" not in source
    engine = open_engine(tmp_path / "net")
    y, b = np.empty((4, 2), np.float32), np.empty((4, 6), np.float32)
    context = Context(engine, [X], [y, b])
    seen: dict[tuple[str, bool], list[Any]] = {}

    def observer(step: Step, done: bool, arrays: list[Any]) -> None:
        seen[step.op, done] = [a.copy() for a in arrays]

    context.observe(observer)
    context.run()
    right = reference(mixed_model(), X)
    for found, expected in zip((y, b), right, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    (left, w), (same, _, product) = seen["MatMul", False][:2], seen["MatMul", True]
    np.testing.assert_allclose(left, right[1] + np.maximum(X, 0), rtol=1e-5)
    np.testing.assert_array_equal(left, same)
    np.testing.assert_allclose(left @ w, product, rtol=1e-5)
    np.testing.assert_array_equal(product, y)
    assert len(seen) == 2 * len({op for op, _ in seen})
    reported = capfd.readouterr().err
    assert "MatMul of node" in reported
    assert "net: run: " in reported


def test_a_whole_network_is_one_graph(tmp_path: Path) -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("MatMul", ["a", "w"], ["y"])]
    model = make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6))], [("y", TensorProto.FLOAT, (4, 2))],
        {"w": np.ones((6, 2), np.float32)},
    )  # fmt: skip
    compiled(model, tmp_path)
    source = (tmp_path / "net" / "src" / "net.c").read_text("utf-8")
    assert source.count("gpu_replay(") == 1
    net = load(tmp_path / "net")
    for scale in (1, 2):
        x = Tensor(scale * X)  # elsewhere each time: captured again
        np.testing.assert_allclose(net(x).array, reference(model, scale * X)[0], rtol=1e-5)


@pytest.mark.slow
def test_values_are_swapped_to_the_hosts_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One is away twice, around what the host computes, and read in parts when it is back."""
    x = np.random.default_rng(4).normal(size=(64, 64)).astype(np.float32)
    compiled(lasting_model(), tmp_path)
    wanted = load(tmp_path / "net")(x)
    np.testing.assert_allclose(wanted, reference(lasting_model(), x)[0], rtol=1e-3, atol=1e-4)
    report = compiled(lasting_model(), tmp_path, gpu_swap=True, memory_budget=1 << 17).report
    assert report["memory"]["arena_bytes"] <= 1 << 17
    swapped = report["swapped"]
    assert swapped["host_bytes"] == x.nbytes
    assert [(c["value"], c["to_host"]) for c in swapped["copies"]] == [
        ("a", True), ("a", False), ("a", False)
    ]  # fmt: skip
    steps = [step for c in swapped["copies"] for step in (c["first_step"], c["last_step"])]
    assert steps == sorted(set(steps))
    assert 0 < swapped["waiting_ns"] <= swapped["copies_ns"] < swapped["run_ns"]
    assert ">3 copies; " in report_page(tmp_path / "net")
    (softmax,) = (n for n in report["nodes"] if n["writes"] == ["f"])
    assert [report["nodes"][k]["writes"] for k in softmax["reads"]] == [["a"]]
    for order in ("forward", "reverse"):
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        net = load(tmp_path / "net")
        for _ in range(2):  # its graphs are captured, then replayed
            np.testing.assert_array_equal(net(x), wanted)
            np.testing.assert_array_equal(net(Tensor(x)).array, wanted)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "shape", "part"), [(unet(16, 16), (1, 3, 16, 16), 0.8), (drawn(5), (), 0.4),
                                 (drawn(6), (), 0.7), (drawn(100), (), 0.7)],
    ids=["unet", "drawn 5", "drawn 6", "part of a part"],
)  # fmt: skip
def test_parts_of_joined_values_are_swapped(
    model: onnx.ModelProto, shape: tuple[int, ...], part: float, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    given = {"input_shape": f"x:{','.join(map(str, shape))}"} if shape else {}
    whole = compiled(model, tmp_path, **given).report["memory"]["arena_bytes"]
    net, rng = load(tmp_path / "net"), np.random.default_rng(6)
    feed = {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in net.inputs}
    wanted = net.run(dict(feed))
    budget = int(whole * part)
    report = compiled(model, tmp_path, gpu_swap=True, memory_budget=budget, **given).report
    assert report["memory"]["arena_bytes"] <= budget
    assert report["swapped"]["copies"]
    for order in ("forward", "reverse"):
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        net = load(tmp_path / "net")
        for _ in range(2):
            for name, value in net.run(dict(feed)).items():
                np.testing.assert_array_equal(value, wanted[name], err_msg=name)


@pytest.fixture(scope="module")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A model of gradients, what it is given and computes, and the arena that it needs."""
    folder = tmp_path_factory.mktemp("gradients")
    model = onnx.load(training_net(folder / "step.onnx", (64,) * 9))
    arena = compiled(model, folder).report["memory"]["arena_bytes"]
    net, rng = load(folder / "net"), np.random.default_rng(5)
    feed = {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in net.inputs}
    return SimpleNamespace(model=model, feed=feed, wanted=net.run(dict(feed)), arena=arena)


@pytest.mark.slow
@pytest.mark.parametrize("options", [
    {}, {"profile": True, "runtime_log": True}, {"hooks": True}, {"recompute": "all"},
    {"sanity_check": "memory,nan"},
], ids=str)  # fmt: skip
def test_gradients_within_a_budget_have_the_same_bits(
    options: dict[str, Any], gradients: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = gradients.arena // 2
    done = compiled(gradients.model, tmp_path, gpu_swap=True, memory_budget=budget, **options)
    assert done.report["memory"]["arena_bytes"] <= budget
    source = (tmp_path / "net" / "src" / "net.c").read_text("utf-8")
    copies = done.report["swapped"]["copies"]
    assert source.count("gpu_swapped(gpu,") == len(copies) > 0
    for order in ("forward", "reverse"):
        monkeypatch.setenv("ATC_EMULATED_ORDER", order)
        net = load(tmp_path / "net")
        for _ in range(2):
            found = net.run(dict(gradients.feed))
            for name, value in gradients.wanted.items():
                np.testing.assert_array_equal(found[name], value, err_msg=name)


def towers_model(depth: int = 4, size: int = 64) -> onnx.ModelProto:
    """Return two chains of products of one input, whose results are added."""
    rng = np.random.default_rng(1)
    nodes, weights = [], {}
    for tower in "ab":
        value = "x"
        for k in range(depth):
            weights[f"w{tower}{k}"] = (rng.normal(size=(size, size)) / 8).astype(np.float32)
            nodes.append(helper.make_node("MatMul", [value, f"w{tower}{k}"], [f"{tower}{k}"]))
            value = f"{tower}{k}"
    nodes.append(helper.make_node("Add", [f"a{depth - 1}", f"b{depth - 1}"], ["y"]))
    shape = (16, size)
    return make_model(
        nodes, [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)], weights
    )


@pytest.mark.slow
@pytest.mark.parametrize("order", ["forward", "reverse"])
def test_branches_run_on_streams_where_that_gains(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATC_EMULATED_ORDER", order)
    x = np.random.default_rng(2).normal(size=(16, 64)).astype(np.float32)
    results = []
    for streams in (1, 2):
        compiled(towers_model(), tmp_path, gpu_streams=streams)
        source = (tmp_path / "net" / "src" / "net.c").read_text("utf-8")
        assert source.count("gpu_fork(gpu, stream, 1)") == streams - 1
        assert source.count("gpu->sides[0]") == 3 * (streams - 1)  # the last one adds the other
        net = load(tmp_path / "net")
        results += [net(x), net(Tensor(x)).array, net(Tensor(x)).array]
    for one in results:
        np.testing.assert_array_equal(one, results[0])
    np.testing.assert_allclose(results[0], reference(towers_model(), x)[0], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"profile": True}], ids=["plain", "timed"])
def test_all_branches_may_run_on_streams(options: dict[str, Any], tmp_path: Path) -> None:
    for seed in (0, 2):
        model = drawn(seed)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(seed).normal(size=shape).astype(np.float32)
        found = []
        for branches in (1, 3):
            folder = tmp_path / f"{seed}{branches}"
            folder.mkdir()
            compiled(model, folder, parallel_branches=branches, **options)
            found.append(load(folder / "net").run({"x": x}))
        for name, value in found[0].items():
            np.testing.assert_array_equal(found[1][name], value)
        if not options:
            assert "gpu_fork(" in (folder / "net" / "src" / "net.c").read_text("utf-8")


@pytest.mark.slow
def test_floats_are_rounded_to_tf32_where_that_is_allowed(tmp_path: Path) -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    w = np.random.default_rng(0).normal(size=(256, 512)).astype(np.float32)
    model = make_model(
        [node], [("x", TensorProto.FLOAT, (128, 256))], [("y", TensorProto.FLOAT, (128, 512))],
        {"w": w},
    )  # fmt: skip
    kernels, bounds = [], []
    for options in ({}, {"allow_hf32": True}):
        done = compiled(model, tmp_path, **options)
        kernels.append(done.report["nodes"][0]["kernel"].partition("(")[0])
        bounds.append(done.report["precision"]["error_bound"])
    assert kernels == ["cuda_matmul_bf16x3", "cuda_matmul_tf32"]
    assert bounds == [1e-4, 2**-6]


@pytest.mark.slow
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
        ({"target": "cuda-sm90,cuda-emulated"}, "are GPUs and one that is imitated"),
        ({"target": "cuda-sm91"}, "unknown target 'cuda-sm91'"),
    ],
    ids=["imitated", "unknown"],
)
def test_what_can_not_be_had_yet_is_reported(
    options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(AtcError, match=words.replace("(", "\\(")):
        compiled(mixed_model(), tmp_path, **options)
    assert not (tmp_path / "net").exists()


@pytest.mark.suite
@pytest.mark.parametrize("names", suite.chunks(suite.case_names("node")), ids=lambda n: n[0])
def test_the_nodes_of_the_suite(names: tuple[str, ...]) -> None:
    outcomes = suite.run_isolated(names, "cuda-emulated", "O0")
    failed = {n: reason for n, reason in outcomes.items() if reason and n not in EXCEPTIONS}
    assert not failed, "\n".join(f"{n}: {reason}" for n, reason in failed.items())
