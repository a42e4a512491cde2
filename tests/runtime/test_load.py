"""`atc.load`, and the module of the generated folder, which is the same code."""

from __future__ import annotations

import copy
import importlib.util
import os
import pickle
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import (
    affine_model,
    build_shared,
    compile_c,
    emit_model,
    make_library,
    make_model,
    reference,
    require,
    write_project,
)

import atc
from atc.errors import ModelError
from atc.runtime.load import load
from atc.runtime.network import Network

F32 = TensorProto.FLOAT
X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)


def arithmetic_model(*operators: str, shape: tuple[int, ...] = (2, 3)) -> onnx.ModelProto:
    """Return a model of a and b whose outputs are each operator's."""
    nodes = [helper.make_node(op, ["a", "b"], [f"y{k}"]) for k, op in enumerate(operators)]
    outputs = [(f"y{k}", F32, shape) for k in range(len(operators))]
    return make_model(nodes, [("a", F32, shape), ("b", F32, shape)], outputs)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library of the affine model."""
    path = tmp_path_factory.mktemp("load") / "net"
    make_library(path, affine_model())
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A network of two inputs and two outputs: a + b and a * b."""
    return load(make_library(tmp_path_factory.mktemp("pair"), arithmetic_model("Add", "Mul")))


@pytest.fixture(scope="module")
def single(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """A network of two inputs and one output: a - b."""
    return load(make_library(tmp_path_factory.mktemp("single"), arithmetic_model("Sub")))


A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.ones((2, 3), np.float32)


# ---- finding the library ------------------------------------------------------------------------


def test_a_folder_a_file_and_a_file_of_any_name_load(folder: Path, tmp_path: Path) -> None:
    expected = reference(affine_model(), X)[0]
    renamed = shutil.copy(folder / "libnet.so", tmp_path / "model.plugin")
    for path in (folder, str(folder), folder / "libnet.so", renamed):
        np.testing.assert_allclose(load(path)(X)[0], expected, rtol=1e-5)


def test_of_several_libraries_in_a_folder_its_own_is_taken(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "my-net"
    own.mkdir()
    shutil.copy(folder / "libnet.so", own / "libother.so")
    shutil.copy(folder / "libnet.so", own / "libthird.so")
    with pytest.raises(ModelError, match="2 libraries"):
        load(own)
    make_library(own, arithmetic_model("Sub"), "my_net")
    assert len(load(own).inputs) == 2


def test_load_is_the_packages_own_function(folder: Path) -> None:
    assert atc.load(folder).build_info == load(folder).build_info


@pytest.mark.parametrize(
    "case", ["missing", "empty folder", "empty file", "text", "foreign", "cut"]
)
def test_anything_else_is_an_error_that_names_the_path(
    case: str, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "thing.so"
    match case:
        case "empty folder":
            path.mkdir()
        case "empty file":
            path.touch()
        case "text":
            path.write_text("net_abi_version\0")
        case "foreign":
            (tmp_path / "a.c").write_text("int net_abi_version(void);\n")
            (tmp_path / "b.c").write_text("int f(void) { return 1; }\n")
            compile_c(
                tmp_path, "-shared", "-fPIC", "b.c", "-Wno-missing-prototypes", "-o", str(path)
            )
        case "cut":
            data = (folder / "libnet.so").read_bytes()
            path.write_bytes(data[:-1])
    with pytest.raises(ModelError, match="thing.so") as caught:
        load(path)
    assert "atc-load-" not in str(caught.value)


def test_bytes_that_only_look_like_the_interface_are_passed_over(tmp_path: Path) -> None:
    decoy = np.frombuffer(b"\0decoy_abi_version\0" + bytes(5), np.uint8)
    model = make_model(
        [helper.make_node("Add", ["x", "c"], ["y"])], [("x", 2, (24,))], [("y", 2, (24,))],
        {"c": decoy},
    )  # fmt: skip
    library = make_library(tmp_path, model)
    plain = shutil.copy(library, tmp_path / "renamed.so")
    x = np.zeros(24, np.uint8)
    np.testing.assert_array_equal(load(plain)(x), decoy)


def test_an_interface_of_another_version_is_refused(tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model()))
    header = tmp_path / "include/net.h"
    header.write_text(header.read_text().replace("ABI_VERSION 1", "ABI_VERSION 999"))
    with pytest.raises(RuntimeError, match="999"):
        load(build_shared(tmp_path))


def test_a_library_compiled_again_loads_as_the_new_one(tmp_path: Path) -> None:
    old = load(make_library(tmp_path / "net", arithmetic_model("Sub")))
    np.testing.assert_array_equal(old(A, B), A - B)
    built = make_library(tmp_path / "again", arithmetic_model("Add"))
    built.replace(tmp_path / "net" / "libnet.so")
    new = load(tmp_path / "net")
    np.testing.assert_array_equal(new(A, B), A + B)
    np.testing.assert_array_equal(old(A, B), A - B)


def test_external_weights_come_from_the_file_beside(tmp_path: Path) -> None:
    emission = emit_model(affine_model(), external=True)
    write_project(tmp_path, emission, external=True)
    build_shared(tmp_path)
    np.testing.assert_allclose(load(tmp_path)(X)[0], reference(affine_model(), X)[0], rtol=1e-5)
    weights = tmp_path / "net_weights.bin"
    weights.write_bytes(emission.weights[:-1])
    with pytest.raises(RuntimeError, match="weights"):
        load(tmp_path)
    weights.unlink()
    with pytest.raises(ModelError, match=r"net_weights\.bin"):
        load(tmp_path)


# ---- calling ------------------------------------------------------------------------------------


def test_names_shapes_and_types_are_the_models(pair: Network) -> None:
    assert [(t.name, t.shape, t.dtype) for t in pair.inputs] == [
        ("a", (2, 3), np.dtype(np.float32)), ("b", (2, 3), np.dtype(np.float32)),
    ]  # fmt: skip
    assert [t.name for t in pair.outputs] == ["y0", "y1"]
    assert "a: float32 [2, 3]" in repr(pair)


def test_one_output_is_an_array_and_several_a_tuple(pair: Network, single: Network) -> None:
    np.testing.assert_array_equal(single(A, B), A - B)
    both = pair(A, B)
    assert isinstance(both, tuple)
    np.testing.assert_array_equal(both, (A + B, A * B))


def test_run_takes_and_gives_names_in_the_models_order(pair: Network) -> None:
    results = pair.run({"b": B, "a": A})
    assert list(results) == ["y0", "y1"]
    np.testing.assert_array_equal(results["y1"], A * B)


def test_inputs_may_come_by_name(pair: Network, single: Network) -> None:
    for given in ({"b": B, "a": A}, {"a": A, "b": B}):
        np.testing.assert_array_equal(single(**given), A - B)
        np.testing.assert_array_equal(single.submit(**given).result(), A - B)
        np.testing.assert_array_equal(single.bind(**given)(), A - B)
    np.testing.assert_array_equal(single(A, b=B), A - B)
    out = np.empty_like(A)
    assert single(b=B, a=A, out=out) is out
    np.testing.assert_array_equal(pair(b=B, a=A)[1], A * B)


def test_names_of_inputs_may_be_anything(tmp_path: Path) -> None:
    names = ["self", "x:0", "inputs", "out"]
    nodes = [helper.make_node("Sum", names, ["named"])]
    model = make_model(nodes, [(n, F32, (2, 3)) for n in names], [("named", F32, (2, 3))])
    network = load(make_library(tmp_path / "net", model))
    given = dict.fromkeys(names, A)
    np.testing.assert_array_equal(network.run(given)["named"], 4 * A)
    with pytest.raises(TypeError, match="input 'out' is missing"):
        network(**given)  # out= is where the result goes


@pytest.mark.parametrize(
    ("inputs", "named", "problem"),
    [
        ((), {"a": A}, "input 'b' is missing"),
        ((A,), {"a": A}, "input 'a' is given twice"),
        ((A, B), {"a": A}, "input 'a' is given twice"),
        ((A,), {"c": B}, r"there is no input 'c'; the inputs are \['a', 'b'\]"),
        ((), {"a": A, "b": B, "c": B}, r"there is no input 'c'; the inputs are \['a', 'b'\]"),
        ((A, B, A), {"c": B}, r"3 inputs given, the network takes 2: \['a', 'b'\]"),
    ],
)
def test_wrong_names_of_a_call_are_errors(
    inputs: tuple[Any, ...], named: dict[str, Any], problem: str, single: Network
) -> None:
    for call in (single, single.bind, lambda *a, **k: single.submit(*a, **k).result()):
        with pytest.raises((TypeError, ValueError), match=f"^{problem}$"):
            call(*inputs, **named)


def test_every_call_makes_new_outputs(single: Network) -> None:
    first = single(A, B)
    second = single(B, A)
    np.testing.assert_array_equal(first, A - B)
    assert not np.shares_memory(first, second)


def test_given_outputs_are_filled(pair: Network, single: Network) -> None:
    out = np.empty((2, 3), np.float32)
    assert single(A, B, out=out) is out
    np.testing.assert_array_equal(out, A - B)
    result = pair(A, B, out=(None, out))
    assert result[1] is out
    np.testing.assert_array_equal(out, A * B)
    results = pair.run({"a": A, "b": B}, out={"y0": out})
    assert results["y0"] is out
    np.testing.assert_array_equal(results["y1"], A * B)


def test_inputs_are_read_where_they_lie(single: Network) -> None:
    memory = np.zeros(16, np.float32)
    view = memory[5:11].reshape(2, 3)
    call = single.bind(view, B)
    memory[5:11] = 7
    np.testing.assert_array_equal(call(), view - B)
    view.setflags(write=False)
    np.testing.assert_array_equal(single(view, B), view - B)


@pytest.mark.parametrize("shape", [(2, 3), (40, 30)], ids=["copied", "lent"])
def test_arrays_of_the_right_type_and_shape_take_the_short_way(
    shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small networks what Python does takes most of a call."""

    def long_way(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("the long way")

    net = load(make_library(tmp_path, arithmetic_model("Add", "Mul", shape=shape)))
    a, b = np.random.default_rng(0).normal(size=(2, *shape)).astype(np.float32)
    columns = np.asfortranarray(b)
    np.testing.assert_array_equal(net(a, columns), (a + b, a * b))
    read_only = b.copy()
    read_only.flags.writeable = False
    monkeypatch.setattr("atc.runtime.network.listed_inputs", long_way)
    before = net(a, b)
    for given in (b, read_only):
        np.testing.assert_array_equal(net(a, given), (a + b, a * b))
        found = net.run({"b": given, "a": a})
        assert list(found) == ["y0", "y1"]
        np.testing.assert_array_equal(found["y1"], a * b)
    net(b, b)
    np.testing.assert_array_equal(before, (a + b, a * b))
    for awkward in (b.tolist(), b.astype(np.float64), b.T, b[:1]):
        with pytest.raises(AssertionError, match="the long way"):
            net(a, awkward)
    with pytest.raises(AssertionError, match="the long way"):
        net(a)
    assert len(net._open().idle) == 1


def test_ranges_of_shapes_take_the_short_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outputs have the shapes that a run gives them: `few` is as long as `keep` says."""

    def long_way(*arguments: Any, **keywords: Any) -> None:
        raise AssertionError("the long way")

    nodes = [helper.make_node("Neg", ["x"], ["y"]),
             helper.make_node("Compress", ["x", "keep"], ["few"], axis=0)]  # fmt: skip
    inputs = [("x", F32, ("n", 3)), ("keep", TensorProto.BOOL, ("n",))]
    model = make_model(nodes, inputs, [("y", F32, ("n", 3)), ("few", F32, (None, 3))])
    onnx.save(model, tmp_path / "m.onnx")
    folder = tmp_path / "net"
    atc.compile(tmp_path / "m.onnx", folder, target="c99", input_shape="x:1~2000,3;keep:1~2000")
    random = np.random.default_rng(0)
    with atc.load(folder) as net:
        with monkeypatch.context() as patched:
            patched.setattr("atc.runtime.network.listed_inputs", long_way)
            for rows in (1, 2000, 7, 7, 1):
                x = random.normal(size=(rows, 3)).astype(np.float32)
                keep = random.random(rows) < 0.5
                for kept in (keep, ~keep):
                    y, few = net(x, kept)
                    np.testing.assert_array_equal(y, -x)
                    np.testing.assert_array_equal(few, x[kept])
                for awkward in (x.tolist(), x.astype(np.float64), x[0], x[:0], x[:, :2]):
                    with pytest.raises(AssertionError, match="the long way"):
                        net(awkward, keep)
        with pytest.raises(ValueError, match=r"'x' must have a shape in \[1~2000, 3\]"):
            net(x[0], keep)
        with pytest.raises(ValueError, match=r"\[7, 3\], \[1\]"):
            net(np.ones((7, 3), np.float32), keep)
        np.testing.assert_array_equal(net(x, keep)[1], x[keep])


@pytest.mark.parametrize("case", ["transposed", "strided", "misaligned", "numbers"])
def test_awkward_inputs_are_copied(case: str, single: Network) -> None:
    match case:
        case "transposed":
            x: Any = np.asfortranarray(A)
        case "strided":
            x = np.repeat(A, 2, axis=1)[:, ::2]
        case "misaligned":
            raw = np.zeros(25, np.uint8)
            x = raw[1:].view(np.float32).reshape(2, 3)
            x[...] = A
        case _:
            x = [[np.float32(v) for v in row] for row in A]
    np.testing.assert_array_equal(single(x, B), A - B)


@pytest.mark.parametrize(
    ("inputs", "error", "words"),
    [
        ((A,), TypeError, "1 inputs given, the network takes 2: .'a', 'b'"),
        ((A, B, B), TypeError, "3 inputs given"),
        ((A, B.astype(np.float64)), TypeError, "input 'b' must be float32, not float64"),
        ((A, B.astype(">f4")), TypeError, "input 'b' must be float32, not >f4"),
        ((A, B[:1]), ValueError, r"input 'b' must have the shape \(2, 3\), not \(1, 3\)"),
        ((A.ravel(), B), ValueError, "input 'a'"),
        ((A, None), TypeError, "input 'b' must be float32, not object"),
        ((A, {"b": B}), TypeError, r"input 'b' is a dict; run\(\) takes inputs by name"),
    ],
)
def test_wrong_inputs_are_errors_that_name_them(
    inputs: tuple[Any, ...], error: type[Exception], words: str, single: Network
) -> None:
    with pytest.raises(error, match=words):
        single(*inputs)
    with pytest.raises(error, match=words):
        single.bind(*inputs)


def test_wrong_names_are_errors(pair: Network) -> None:
    with pytest.raises(TypeError, match="input 'b' is missing"):
        pair.run({"a": A})
    with pytest.raises(ValueError, match="there is no input 'c'; the inputs are .'a', 'b'"):
        pair.run({"a": A, "b": B, "c": B})
    with pytest.raises(ValueError, match="there is no output 'y9'"):
        pair.run({"a": A, "b": B}, out={"y9": B})
    with pytest.raises(TypeError, match="run takes a dict of arrays by name; a call takes"):
        pair.run([A, B])  # type: ignore[arg-type]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickle.dumps])
def test_a_network_is_not_copied(copied: Callable[[Network], object], pair: Network) -> None:
    with pytest.raises(TypeError, match="network .* can't be copied or pickled: load it once more"):
        copied(pair)


@pytest.mark.parametrize("case", ["list", "dtype", "shape", "order", "locked", "count", "same"])
def test_wrong_outputs_are_errors(case: str, single: Network) -> None:
    out: Any = np.empty((2, 3), np.float32)
    error: type[Exception] = ValueError
    match case:
        case "list":
            out, error = [out.tolist()], TypeError
        case "dtype":
            out, error = out.astype(np.float64), TypeError
        case "shape":
            out = out[:1]
        case "order":
            out = np.asfortranarray(out)
        case "locked":
            out.setflags(write=False)
        case "count":
            out, error = (out, out), TypeError
        case "same":
            out = A
    with pytest.raises(error, match="output"):
        single(A, B, out=out)
    np.testing.assert_array_equal(A, np.arange(6).reshape(2, 3))


def test_two_outputs_may_not_be_one_array(pair: Network) -> None:
    out = np.empty((2, 3), np.float32)
    with pytest.raises(ValueError, match="output 'y1' overlaps"):
        pair(A, B, out=(out, out))


def test_a_bound_call_uses_its_arrays(pair: Network) -> None:
    a, b = A.copy(), B.copy()
    out = np.empty((2, 3), np.float32)
    call = pair.bind(a, b, out=(None, out))
    first = call()
    assert first[1] is out
    assert first is call.outputs
    a += 1
    np.testing.assert_array_equal(call()[1], (A + 1) * B)
    with pytest.raises(ValueError, match="input 'a' can't be bound"):
        pair.bind(np.asfortranarray(a), b)


def test_sixteen_bit_floats_and_bools_keep_their_types(tmp_path: Path) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    nodes = [helper.make_node("Neg", [k], [f"{k}_out"]) for k in ("h", "b")]
    nodes.append(helper.make_node("Not", ["n"], ["n_out"]))
    types = [("h", TensorProto.FLOAT16), ("b", TensorProto.BFLOAT16), ("n", TensorProto.BOOL)]
    model = make_model(
        nodes, [(k, t, (4,)) for k, t in types], [(f"{k}_out", t, (4,)) for k, t in types]
    )
    net = load(make_library(tmp_path, model))
    h, b = np.array([1, -2, 3, np.inf], np.float16), np.array([1, 2, -3, 0.5], bfloat16)
    n = np.array([True, False, True, False])
    results = net(h, b, n)
    for got, expected in zip(results, (-h, -b, ~n), strict=True):
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)


def test_small_types_are_those_of_ml_dtypes(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    types = {"e4m3": ml_dtypes.float8_e4m3fn, "i4": ml_dtypes.int4, "u2": ml_dtypes.uint2}
    arrays = {k: np.array([1, 0, 3, 2]).astype(t) for k, t in types.items()}
    codes = {k: helper.np_dtype_to_tensor_dtype(a.dtype) for k, a in arrays.items()}
    nodes = [helper.make_node("Cast", [k], [f"{k}_out"], to=codes[k]) for k in types]
    inputs = [(k, TensorProto.FLOAT, (4,)) for k in types]
    model = make_model(nodes, inputs, [(f"{k}_out", codes[k], (4,)) for k in types])
    net = load(make_library(tmp_path, model))
    results = net(*(a.astype(np.float32) for a in arrays.values()))
    for got, wanted in zip(results, arrays.values(), strict=True):
        assert got.dtype == wanted.dtype
        np.testing.assert_array_equal(got, wanted)


def test_a_scalar_is_an_array_without_dimensions(tmp_path: Path) -> None:
    model = arithmetic_model("Mul", shape=())
    net = load(make_library(tmp_path, model))
    result = net(np.float32(3), np.array(4, np.float32))
    assert result.shape == ()
    assert result == 12


# ---- closing and threads ------------------------------------------------------------------------


def test_a_closed_network_says_so_and_bound_calls_live_on(folder: Path) -> None:
    with load(folder) as net:
        call = net.bind(X)
    for use in (lambda: net(X), lambda: net.run({"x": X}), lambda: net.bind(X)):
        with pytest.raises(ValueError, match="the network net is closed"):
            use()
    np.testing.assert_allclose(call()[0], reference(affine_model(), X)[0], rtol=1e-5)
    net.close()
    assert [t.name for t in net.inputs] == ["x"]


def slow_model() -> onnx.ModelProto:
    """Return a model that computes for some tenths of a second in one arena."""
    size = 256
    nodes = [helper.make_node("MatMul", ["x", "x"], ["p0"])]
    nodes += [helper.make_node("MatMul", [f"p{k}", "x"], [f"p{k + 1}"]) for k in range(4)]
    return make_model(nodes, [("x", F32, (size, size))], [("p4", F32, (size, size))])


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Network:
    """The network of the slow model."""
    path = write_project(tmp_path_factory.mktemp("slow"), emit_model(slow_model()))
    return load(build_shared(path, level="-O0"))


def test_the_interpreters_lock_is_released(slow: Network) -> None:
    x = np.zeros(slow.inputs[0].shape, np.float32)
    begun, ended = threading.Event(), threading.Event()

    def compute() -> None:
        call = slow.bind(x)
        begun.set()
        call()
        ended.set()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # a thread goes on until it lets go of the lock itself
    try:
        thread = threading.Thread(target=compute)
        thread.start()
        begun.wait()
        assert not ended.is_set()
        thread.join()
    finally:
        sys.setswitchinterval(interval)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes don't fork here")
def test_a_fork_lets_go_of_a_network_with_threads(tmp_path: Path) -> None:
    """Its threads are the parent's: a fork that waited for them would wait forever."""
    onnx.save(slow_model(), tmp_path / "model.onnx")
    atc.compile(
        tmp_path / "model.onnx", tmp_path / "net", target="c99", num_threads=2,
        build_config=f"{os.environ.get('CC') or 'cc'} -O0",
    )  # fmt: skip
    program = """
import gc, os, sys, time, atc, numpy
net = atc.load(sys.argv[1])
net(numpy.zeros(net.inputs[0].shape, numpy.float32))
time.sleep(0.2)  # until its threads sleep
child = os.fork()
if child:
    sys.exit(os.waitpid(child, 0)[1])
del net
gc.collect()
os._exit(0)
"""
    command = [sys.executable, "-c", program, tmp_path / "net"]
    assert subprocess.run(command, timeout=300, check=False).returncode == 0


@pytest.mark.slow
def test_threads_may_share_a_network(slow: Network) -> None:
    random = np.random.default_rng(0)
    scales = random.integers(1, 4, 8).astype(np.float32)
    xs = [np.eye(slow.inputs[0].shape[0], dtype=np.float32) * k for k in scales]
    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(slow, xs))
    for x, result in zip(xs, results, strict=True):
        np.testing.assert_allclose(result, np.linalg.matrix_power(x, 6), rtol=1e-5)


# ---- the module of the folder -------------------------------------------------------------------


def module_of(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("generated_module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)  # in no table of modules, where dataclasses look
    assert spec.name not in sys.modules
    return module


def test_the_folders_module_loads_the_library_beside_it(folder: Path) -> None:
    net = module_of(folder / "net.py").load()
    np.testing.assert_allclose(net(X)[0], reference(affine_model(), X)[0], rtol=1e-5)
    assert "x  float32 [2, 5]" in (folder / "net.py").read_text()


def test_the_folders_module_needs_nothing_of_ours(folder: Path, tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "class Refuse:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name.split('.')[0] in ('atc', 'onnx', 'jinja2'): raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "import net, numpy\n"
        "print(net.load()(numpy.zeros((2, 5), numpy.float32))[0].shape)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.stdout == "(2, 3)\n", done.stderr


def test_the_folders_module_finds_external_weights(tmp_path: Path) -> None:
    write_project(tmp_path, emit_model(affine_model(), external=True), external=True)
    build_shared(tmp_path)
    net = module_of(tmp_path / "net.py").load()
    np.testing.assert_allclose(net(X)[0], reference(affine_model(), X)[0], rtol=1e-5)


def test_a_library_for_another_machine_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.c").write_text('const char net_abi_version[] = "net_abi_version";\n')
    compiler = require("aarch64-linux-gnu-gcc")
    command = [compiler, "-shared", "-fPIC", "-nostdlib", "a.c", "-o", "libnet.so"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(ModelError, match=r"libnet\.so"):
        load(tmp_path)
