"""Models with names and outputs that no one would choose: the C compiles and means the same."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from projects import (
    F32,
    affine_model,
    build_example,
    build_shared,
    constant_model,
    emit_model,
    empty_model,
    make_library,
    make_model,
    reference,
    run_example,
    write_project,
)

from atc.runtime.load import load

NAMES = [
    "x*/ int", 'a"b\\', "数据\u202e", "int", "class", "NET_OK", "uint8_t", "t0", "w0", "atc_map",
    "net_run", "a\nb", "%s%n", "n" * 100_000, "??/", "ctx", "t#1", "", "a.b", "a b", "a_b",
]  # fmt: skip


@pytest.mark.slow
def test_tensors_may_have_any_name(tmp_path: Path) -> None:
    names = [f"{name} " for name in NAMES] + [name for name in NAMES if name]
    nodes, scales = [], {}
    for name in names:
        nodes += [
            helper.make_node("Exp", [name], [f"{name}/exp"], name=name),
            helper.make_node(
                "Mul", [f"{name}/exp", f"{name} scale"], [f"{name}."], name=f"{name}*/"
            ),
        ]
        scales[f"{name} scale"] = np.array([1, 2, len(scales)], np.float32)
    shapes = [[(f"{name}{end}", F32, (2, 3)) for name in names] for end in ("", ".")]
    model = make_model(nodes, *shapes, scales)
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    inputs = {name: x + np.float32(k) for k, name in enumerate(names)}
    net = load(make_library(tmp_path, model))
    assert [t.name for t in net.inputs] == names
    results = net.run(inputs)
    assert list(results) == [f"{name}." for name in names]
    for got, expected in zip(results.values(), reference(model, *inputs.values()), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)
    subprocess.run([build_example(tmp_path)], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["kernel", "模型", *(pytest.param(n, marks=pytest.mark.slow) for n in ("math", "m", "int"))],
)
def test_a_network_may_have_any_name(name: str, tmp_path: Path) -> None:
    emission = emit_model(affine_model(), name)
    write_project(tmp_path, emission)
    x = np.ones((2, 5), np.float32)
    y, _ = load(build_shared(tmp_path, emission.name))(x)
    np.testing.assert_allclose(y, reference(affine_model(), x)[0], rtol=1e-5)
    run_example(build_example(tmp_path))


def test_the_models_file_may_have_any_name(tmp_path: Path) -> None:
    file = '*/ "; """\\\n evil=1; target=fake 模型?' + "x" * 5000
    write_project(tmp_path, emit_model(affine_model(), file=file))
    net = load(build_shared(tmp_path))
    fields = dict(pair.split("=", 1) for pair in net.build_info.split("; "))
    assert fields["target"] == "c99"
    assert "evil" not in fields
    run_example(build_example(tmp_path))
    compile((tmp_path / "net.py").read_text(), "net.py", "exec")


def identity(source: str, result: str) -> onnx.NodeProto:
    return helper.make_node("Identity", [source], [result])


def test_outputs_that_are_inputs_or_constants_or_twice_the_same(tmp_path: Path) -> None:
    c = np.arange(3, dtype=np.float32)
    nodes = [
        identity("x", "copy"), identity("c", "fixed"), helper.make_node("Neg", ["x"], ["neg"]),
        identity("neg", "again"), helper.make_node("Reshape", ["neg", "s"], ["shaped"]),
    ]  # fmt: skip
    outputs = [("copy", F32, (3,)), ("fixed", F32, (3,)), ("again", F32, (3,)), ("neg", F32, (3,)),
               ("shaped", F32, (3, 1)), ("c", F32, (3,))]  # fmt: skip
    constants = {"c": c, "s": np.array([3, 1])}
    model = make_model(nodes, [("x", F32, (3,))], outputs, constants)
    net = load(make_library(tmp_path, model))
    x = np.array([1, -2, 3], np.float32)
    results = net.run({"x": x})
    expected = {"copy": x, "fixed": c, "again": -x, "neg": -x, "shaped": -x.reshape(3, 1), "c": c}
    assert list(results) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(results[name], array, err_msg=name)


def test_an_output_that_is_a_reshaped_input_may_be_read(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Reshape", ["x", "s"], ["shaped"]),
        helper.make_node("Exp", ["shaped"], ["e"]),
        helper.make_node("Reshape", ["e", "t"], ["e2"]),
        helper.make_node("Neg", ["e2"], ["y"]),
    ]
    outputs = [("shaped", F32, (3, 1)), ("y", F32, (3,)), ("e", F32, (3, 1)), ("e2", F32, (3,))]
    constants = {"s": np.array([3, 1]), "t": np.array([3])}
    model = make_model(nodes, [("x", F32, (3,))], outputs, constants)
    x = np.array([1, -2, 3], np.float32)
    results = load(make_library(tmp_path, model)).run({"x": x})
    for got, expected in zip(results.values(), reference(model, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-6)


@pytest.mark.few(1)
@pytest.mark.parametrize("order", [(0, 1, 2), (1, 0, 2), (2, 1, 0), (1, 2, 0)])
def test_outputs_may_be_reshapes_of_each_other(order: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Softplus", ["x"], ["a"]),
        helper.make_node("Reshape", ["a", "s"], ["b"]),
        helper.make_node("Identity", ["a"], ["c"]),
    ]
    outputs = [("a", F32, (3,)), ("b", F32, (3, 1)), ("c", F32, (3,))]
    for chosen in ([outputs[k] for k in order], [outputs[k] for k in order if k]):
        model = make_model(nodes, [("x", F32, (3,))], chosen, {"s": np.array([3, 1])})
        folder = tmp_path / str(len(chosen))
        x = np.array([1, -2, 3], np.float32)
        results = load(make_library(folder, model)).run({"x": x})
        for got, expected in zip(results.values(), reference(model, x), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_an_output_may_be_an_input_of_the_same_name(tmp_path: Path) -> None:
    nodes = [helper.make_node("Neg", ["x"], ["y"])]
    model = make_model(nodes, [("x", F32, (3,))], [("x", F32, (3,)), ("y", F32, (3,))])
    net = load(make_library(tmp_path, model))
    x = np.array([1, -2, 3], np.float32)
    same, negated = net(x)
    np.testing.assert_array_equal(same, x)
    np.testing.assert_array_equal(negated, -x)
    assert [t.name for t in net.outputs] == ["x", "y"]


def test_an_unused_input_stays_a_parameter(tmp_path: Path) -> None:
    model = make_model(
        [identity("x", "y")], [("unused", F32, (2,)), ("x", F32, (2,))], [("y", F32, (2,))]
    )
    net = load(make_library(tmp_path, model))
    x = np.array([1, 2], np.float32)
    np.testing.assert_array_equal(net(x * 0, x), x)


def test_models_without_inputs_or_elements(tmp_path: Path) -> None:
    constant = load(make_library(tmp_path / "constant", constant_model()))
    np.testing.assert_array_equal(constant(), np.arange(6, dtype=np.float32).reshape(2, 3))
    empty = load(make_library(tmp_path / "empty", empty_model()))
    assert [a.shape for a in empty(np.zeros((0, 3), np.float32))] == [(0, 2), (0, 3)]


def test_both_branches_of_an_if_are_written_and_read_outputs(tmp_path: Path) -> None:
    branches = {
        f"{key}_branch": helper.make_graph(
            [helper.make_node(op, ["z", "w"], [f"{key}_y"])], key, [],
            [helper.make_tensor_value_info(f"{key}_y", F32, (3,))],
        )
        for key, op in (("then", "Add"), ("else", "Mul"))
    }  # fmt: skip
    nodes = [
        helper.make_node("Neg", ["x"], ["z"]),
        helper.make_node("If", ["c"], ["y"], name="choice", **branches),
    ]
    inputs = [("c", TensorProto.BOOL, ()), ("x", F32, (3,))]
    w = np.array([5, 6, 7], np.float32)
    model = make_model(nodes, inputs, [("y", F32, (3,)), ("z", F32, (3,))], {"w": w})
    net = load(make_library(tmp_path, model))
    x = np.array([1, 2, 3], np.float32)
    for condition, expected in ((True, w - x), (False, -x * w)):
        y, z = net(np.array(condition), x)
        np.testing.assert_array_equal(y, expected)
        np.testing.assert_array_equal(z, -x)


def test_names_of_outputs_may_be_those_that_the_compiler_would_choose(tmp_path: Path) -> None:
    chain = ["x", "t#3", "t#2", "t#1", "t#0", "t#4"]
    nodes = [
        helper.make_node(op, [chain[k]], [chain[k + 1]])
        for k, op in enumerate(["Neg", "Exp", "Sqrt", "Tanh", "Abs"])
    ]
    model = make_model(nodes, [("x", F32, (3,))], [(n, F32, (3,)) for n in chain[1:]])
    x = np.array([1, -2, 0.5], np.float32)
    results = load(make_library(tmp_path, model)).run({"x": x})
    for got, expected in zip(results.values(), reference(model, x), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
