from __future__ import annotations

import unittest
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
import suite
from onnx import TensorProto, helper
from onnx.backend.test import BackendTest
from onnx.backend.test.loader import load_model_tests
from projects import affine_model, make_model, reference

import atc.onnx_backend as backend
from atc.errors import AtcError, ModelError, UnsupportedError
from support import standard_nodes

X = np.linspace(-1, 1, 10, dtype=np.float32).reshape(2, 5)
QUICK = {"target": "c99", "level": "O0"}


def test_prepare_and_run() -> None:
    rep = backend.prepare(affine_model(), **QUICK)
    outputs = rep.run([X])
    for got, expected in zip(outputs, reference(affine_model(), X), strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)
    assert outputs.hidden is outputs["hidden"] is outputs[1]  # type: ignore[attr-defined,call-overload]
    for inputs in ({"x": X}, (X,)):
        np.testing.assert_array_equal(rep.run(inputs)[0], outputs[0])


def test_run_model_and_run_node() -> None:
    (y, _) = backend.run_model(affine_model(), [X], "CPU", **QUICK)
    np.testing.assert_allclose(y, reference(affine_model(), X)[0], rtol=1e-5)
    node = helper.make_node("Clip", ["x", "", "high"], ["y"])
    (clipped,) = backend.run_node(node, [X, np.array(0.5, np.float32)])
    np.testing.assert_array_equal(clipped, np.minimum(X, 0.5))
    node = helper.make_node("Squeeze", ["x"], ["y"], axes=[0])
    (squeezed,) = backend.run_node(node, X[None], opset_version=11)
    np.testing.assert_array_equal(squeezed, X)


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "compute_capabilities", lambda: ())
    assert backend.supports_device("CPU")
    assert backend.supports_device("CPU:0")
    assert not backend.supports_device("CUDA")
    with pytest.raises(UnsupportedError, match="CUDA"):
        backend.prepare(affine_model(), "CUDA")
    assert backend.supports_device("CUDA-EMULATED")
    monkeypatch.setattr(backend, "compute_capabilities", lambda: ((9, 0), (8, 7), (13, 0)))
    named = ("CUDA", "CUDA:1", "CUDA:2")
    assert [backend.target_of(name, "c99") for name in named] == ["cuda-sm90", "cuda-sm86", "cuda"]
    assert all(map(backend.supports_device, named))
    assert not any(map(backend.supports_device, ("CUDA:3", "CUDA:x", "TPU")))


def dynamic_model() -> onnx.ModelProto:
    """Return y = reshape(x + x, s) for x of any length."""
    model = make_model(
        [
            helper.make_node("Add", ["x", "x"], ["d"]),
            helper.make_node("Reshape", ["d", "s"], ["y"]),
        ],
        [("x", TensorProto.FLOAT, (1,)), ("s", TensorProto.INT64, (2,))],
        [("y", TensorProto.FLOAT, (1, 1))],
    )
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    for dim in model.graph.output[0].type.tensor_type.shape.dim:
        dim.dim_param = f"m{dim}"
    return model


def test_each_shape_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    compile_networks = backend.compile_networks

    def counting(*arguments: Any) -> Any:
        compiled.append(arguments)
        return compile_networks(*arguments)

    monkeypatch.setattr(backend, "compile_networks", counting)
    rep = backend.prepare(dynamic_model(), **QUICK)
    for n, shape in ((6, (2, 3)), (12, (3, 4)), (6, (2, 3)), (6, (3, 2)), (12, (3, 4))):
        x = np.arange(n, dtype=np.float32)
        (y,) = rep.run([x, np.array(shape)])
        np.testing.assert_array_equal(y, 2 * x.reshape(shape))
    assert len(compiled) == 3


def test_inputs_that_do_not_fit_are_errors() -> None:
    rep = backend.prepare(affine_model(), **QUICK)
    with pytest.raises(ModelError, match="2 inputs given, the model takes 1: x"):
        rep.run([X, X])
    with pytest.raises(ModelError, match="axis 1 of input 'x' is 5"):
        rep.run([X[:, :4]])
    with pytest.raises(TypeError, match="input 'x' must be float32, not object"):
        rep.run([np.full((2, 5), "text", object)])
    with pytest.raises(ModelError, match="input 'x' is not a sequence, but several shapes"):
        rep.run([[X]])


def test_is_compatible_says_what_is_not_covered() -> None:
    assert backend.is_compatible(affine_model())
    assert backend.is_compatible(dynamic_model())
    assert not backend.is_compatible(affine_model(), "CUDA")
    node = helper.make_node("ConstantOfShape", ["x"], ["y"])
    given = [("x", TensorProto.INT64, (2,)), ("y", TensorProto.FLOAT, (2, 2))]
    assert not backend.is_compatible(make_model([node], given[:1], given[1:]))


def test_an_invalid_model_is_refused() -> None:
    model = affine_model()
    del model.graph.node[0]
    with pytest.raises((AtcError, onnx.checker.ValidationError)):
        backend.prepare(model)


@pytest.mark.slow
def test_the_standards_own_runner_takes_the_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = standard_nodes()  # computed once for all tests

    def load(kind: str) -> Sequence[Any]:
        return nodes if kind == "node" else load_model_tests(kind=kind)

    monkeypatch.setattr("onnx.backend.test.runner.load_model_tests", load)
    runner = BackendTest(backend.AtcBackend, __name__).include("^test_(erf|and2d|operator_pow)_")
    result = unittest.TestResult()
    runner.test_suite.run(result)
    ran = result.testsRun - len(result.skipped)
    assert (ran, result.failures, result.errors) == (3, [], [])


# ---- the standard's suite -----------------------------------------------------------------------

EXCEPTIONS = suite.read_exceptions()


def check(names: tuple[str, ...], level: str = "O0") -> None:
    """Run cases; fail if one fails that isn't listed, or passes that is."""
    outcomes = suite.run_cases([*suite.load_cases(names)], "c99", level)
    failed = {n: reason for n, reason in outcomes.items() if reason and n not in EXCEPTIONS}
    healed = [n for n, reason in outcomes.items() if not reason and n in EXCEPTIONS]
    assert not failed, "\n".join(f"{n}: {reason}" for n, reason in failed.items())
    assert not healed, f"these pass now; write the list again: {healed}"


SAMPLE = [n for n in suite.case_names("node") if n not in EXCEPTIONS][::160]
SAMPLE += suite.case_names("pytorch-operator")[::12]
SAMPLE += suite.case_names("pytorch-converted")[::30]


def test_a_sample_of_the_suite() -> None:
    check(tuple(SAMPLE))


PARTS = [
    part
    for kind in suite.KINDS
    for part in suite.chunks(suite.case_names(kind), 1 if kind == "real" else suite.CHUNK)
]


@pytest.mark.suite
@pytest.mark.parametrize("names", PARTS, ids=lambda names: names[0])
def test_the_whole_suite(names: tuple[str, ...]) -> None:
    check(names, "O2" if names[0].startswith("real/") else "O0")


@pytest.mark.suite
def test_the_exceptions_are_cases() -> None:
    known = {name for kind in suite.KINDS for name in suite.case_names(kind)}
    assert EXCEPTIONS.keys() <= known
    assert all(EXCEPTIONS.values())
