"""Traced functions: what is an input, what is frozen, what is written."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir
import pytest
from onnx.reference import ReferenceEvaluator

import atc
from atc import (
    DTRConfig,
    GradManager,
    Parameter,
    SublinearMemoryConfig,
    Tensor,
    exclude_from_trace,
    functional,
    trace,
)
from atc.errors import AtcError, OptionError, UnsupportedError
from atc.importers.megengine import load_megengine
from atc.tracing import OperandError, TracingError

X = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)
ROW = np.float32([1, 2, 3])


def test_later_calls_run_the_library_alone() -> None:
    calls = []

    @trace
    def scaled(x: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        xp = x.__array_namespace__()
        return xp.sum(x * y + 1, axis=-1)

    for k in range(3):
        found = scaled(X + k, ROW).numpy()
        np.testing.assert_allclose(found, ((X + k) * ROW + 1).sum(-1), rtol=1e-5)
    assert len(calls) == 1
    scaled(X[:2], ROW)
    assert len(calls) == 2, "another shape is another trace"
    scaled(X, ROW)
    assert len(calls) == 2
    assert [t.name for t in scaled.network.inputs] == ["x", "y"]


def test_keywords_are_not_inputs() -> None:
    weight = Parameter(ROW)

    @trace
    def times(x: Tensor, *, w: Tensor, twice: bool = False) -> Tensor:
        return x * w * 2.0 if twice else x * w

    np.testing.assert_array_equal(times(X, w=weight).numpy(), X * ROW)
    weight.assign(ROW + 1)  # is read again by each call
    np.testing.assert_array_equal(times(X, w=weight).numpy(), X * (ROW + 1))
    np.testing.assert_array_equal(times(X, w=weight, twice=True).numpy(), X * (ROW + 1) * 2)
    np.testing.assert_array_equal(times(X, w=Parameter(ROW)).numpy(), X * ROW)


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, np.complex64])
def test_arrays_of_types_beyond_the_standard_are_refused_with_a_reason(kind: Any) -> None:
    for use in (trace(lambda x: x), Tensor):
        with pytest.raises(OptionError, match=f"{np.dtype(kind)}.*use float32 or float16"):
            use(np.zeros(2, kind))


@pytest.mark.parametrize("wrong", [3, 1.5, "text", None, [1, 2], object()])
def test_what_is_no_array_is_no_positional_argument(wrong: object) -> None:
    @trace
    def same(x: Tensor, y: Any) -> Tensor:
        return x

    with pytest.raises(OperandError, match=r"positional parameter 'y' .*keyword-only"):
        same(X, wrong)


@pytest.mark.parametrize(
    ("made", "names"),
    [
        pytest.param(lambda x: x + 1.0, ["output"], marks=pytest.mark.slow),
        (lambda x: (x + 1.0, x * 2.0), ["output_0", "output_1"]),
        pytest.param(lambda x: [x, x], ["output_0", "output_1"], marks=pytest.mark.slow),
        (lambda x: {"loss": x + 1.0, "x": x * 2.0}, ["loss", "x_"]),
    ],
)
def test_results_are_outputs(made: Any, names: list[str]) -> None:
    traced = trace(lambda x: made(x))
    for _ in range(2):
        found, wanted = traced(X), made(X)
        assert type(found) in (type(wanted), Tensor)
        pairs = zip(
            found.values() if isinstance(found, dict) else found if type(found) is not Tensor
            else [found],
            wanted.values() if isinstance(wanted, dict) else wanted
            if isinstance(wanted, (tuple, list)) else [wanted], strict=True,
        )  # fmt: skip
        for one, other in pairs:
            np.testing.assert_array_equal(one.numpy(), other)
    assert [t.name for t in traced.network.outputs] == names


@pytest.mark.parametrize(
    ("result", "said"), [(None, "NoneType"), ((), "nothing"), (3, "int"), ({"a": 1}, "int")]
)
def test_a_function_that_returns_nothing_traced_is_refused(result: Any, said: str) -> None:
    with pytest.raises(TracingError, match=f"returns {said}"):
        trace(lambda x: result)(X)


def test_a_frozen_branch_is_told_once() -> None:
    @trace
    def signed(x: Tensor) -> Tensor:
        for _ in range(2):
            if x[0] > 0:
                x = x * 2.0
        return x

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        np.testing.assert_array_equal(signed(ROW).numpy(), ROW * 4)
        np.testing.assert_array_equal(signed(-ROW).numpy(), -ROW * 4)
        signed(ROW[:2])
    (one,) = told
    assert "signed: the branch" in str(one.message)
    assert "if x[0] > 0" in str(one.message)


@pytest.mark.parametrize("use", [bool, float, int, Tensor.numpy, Tensor.item])
def test_nothing_has_a_value_in_a_symbolic_trace(use: Any) -> None:
    @trace(symbolic=True)
    def looked(x: Tensor) -> Tensor:
        use(x[0, 0])
        return x

    with pytest.raises(TracingError, match=r"test_trace.py:\d+: use\(x\[0, 0\]\)"):
        looked(X)


def test_a_symbolic_trace_computes_the_same() -> None:
    traced = trace(symbolic=True)(lambda x: x * 2.0 + 1.0)
    np.testing.assert_array_equal(traced(X).numpy(), X * 2 + 1)


def test_record_only_computes_nothing(tmp_path: Path) -> None:
    traced = trace(record_only=True)(lambda x: x * 2.0)
    assert traced(X) is None
    traced.dump(tmp_path / "m.onnx")
    model = ReferenceEvaluator(onnx.load(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(model.run(None, {"x": X})[0], X * 2)


def test_what_is_excluded_is_run_by_python() -> None:
    seen: list[float] = []
    step = 0

    @trace
    def cut(x: Tensor) -> Tensor:
        x = x + 1
        with exclude_from_trace():
            seen.append(float(x))
            if step % 2 == 0:
                x = x + 1
        x = x + 1
        return x

    found = []
    for step in range(3):  # noqa: B007 (the function reads it)
        found.append(float(cut(Tensor(np.zeros(1, np.float32)))))
    assert found == [3, 2, 3]
    assert seen == [1, 1, 1]


def test_an_excluded_part_can_not_be_dumped(tmp_path: Path) -> None:
    @trace
    def cut(x: Tensor) -> Tensor:
        with exclude_from_trace():
            pass
        return x + 1.0

    cut(X)
    with pytest.raises(ValueError, match="exclude_from_trace"):
        cut.dump(tmp_path / "m.onnx")
    with pytest.raises(TracingError, match="capture_as_const"):
        trace(capture_as_const=True)(cut)(X)


@pytest.fixture
def dumped() -> Any:
    weight = Parameter(ROW)

    @trace(capture_as_const=True)
    def times(x: Tensor) -> Tensor:
        return x * weight

    times(X)
    return times


def test_a_dump_is_read_back(dumped: Any, tmp_path: Path) -> None:
    dumped.dump(tmp_path / "m.onnx", arg_names=["data"], output_names=["scores"])
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_array_equal(ReferenceEvaluator(model).run(None, {"data": X})[0], X * ROW)
    dumped.dump(tmp_path / "net")
    np.testing.assert_array_equal(atc.load(tmp_path / "net")(X), X * ROW)


def test_a_dump_for_megengine_computes_the_same(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    filters, bias, weight = (
        Parameter(rng.normal(size=s).astype(np.float32)) for s in ((4, 3, 3, 3), (4,), (5, 64))
    )

    @trace(record_only=True)
    def network(image: Tensor) -> dict[str, Tensor]:
        y = functional.relu(functional.conv2d(image, filters, bias, padding=1))
        y = functional.linear(functional.flatten(functional.max_pool2d(y, 2)), weight)
        return {"scores": functional.softmax(y), "logs": functional.log_softmax(y)}

    image = rng.normal(size=(2, 3, 8, 8)).astype(np.float32)
    network(image)
    network.dump(tmp_path / "m.mge")
    read = onnx_ir.to_proto(load_megengine(tmp_path / "m.mge", {}))
    assert [o.name for o in read.graph.output] == ["scores", "logs"]
    wanted = ReferenceEvaluator(network.model()).run(None, {"image": image})
    found = ReferenceEvaluator(read).run(None, {"image": image})
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_gradients_are_not_written_for_megengine(tmp_path: Path) -> None:
    weight = Parameter(ROW)

    @trace(record_only=True)
    def slope(x: Tensor) -> Tensor:
        with GradManager().attach(weight) as gm:
            gm.backward(x * weight)
        found = weight.grad
        assert found is not None
        weight.grad = None
        return found

    slope(X)
    with pytest.raises(UnsupportedError, match="Gradient has no counterpart"):
        slope.dump(tmp_path / "m.mge")
    assert not (tmp_path / "m.mge").exists()


@pytest.mark.parametrize("wrong", [{"arg_names": []}, {"output_names": ["a", "b"]}])
def test_a_dump_with_names_of_another_count_is_refused(
    wrong: dict[str, Any], dumped: Any, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="names for 1"):
        dumped.dump(tmp_path / "m.onnx", **wrong)
    assert not [*tmp_path.iterdir()]


def test_what_is_detached_is_dumped_in_the_standard(tmp_path: Path) -> None:
    twice = trace(lambda x: (x * 2).detach() + x, symbolic=True, capture_as_const=True)
    twice(X)
    twice.dump(tmp_path / "m.onnx")
    model = ReferenceEvaluator(onnx.load(tmp_path / "m.onnx"))
    np.testing.assert_array_equal(model.run(None, {"x": X})[0], X * 3)


def test_output_names_are_no_dicts(tmp_path: Path) -> None:
    traced = trace(capture_as_const=True)(lambda x: {"y": x + 1.0})
    traced(X)
    with pytest.raises(TypeError, match="output_names"):
        traced.dump(tmp_path / "m.onnx", output_names=["y"])


def test_a_dump_needs_constants(tmp_path: Path) -> None:
    traced = trace(lambda x: x + 1.0)
    with pytest.raises(ValueError, match="capture_as_const=True"):
        traced.dump(tmp_path / "m.onnx")
    with pytest.raises(ValueError, match="hasn't been called"):
        trace(capture_as_const=True)(lambda x: x).dump(tmp_path / "m.onnx")


@pytest.mark.parametrize("levels", [(0, 3), pytest.param((0, 1, 2), marks=pytest.mark.slow)])
def test_levels_fuse_more_and_compute_the_same(levels: tuple[int, ...]) -> None:
    def chain(x: Tensor) -> Tensor:
        xp = x.__array_namespace__()
        for _ in range(3):
            x = xp.tanh(x * 0.5 + 1.0)
        return x

    found = [trace(opt_level=level)(chain)(X).numpy() for level in levels]
    for one in found[1:]:
        np.testing.assert_allclose(one, found[0], rtol=1e-6)
    with pytest.raises(ValueError, match="opt_level is 4"):
        trace(opt_level=4)(chain)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: SublinearMemoryConfig(thresh_nr_try=-1),
        lambda: SublinearMemoryConfig(num_worker=0),
        lambda: SublinearMemoryConfig(genetic_nr_iter=1, genetic_pool_size=0),
        lambda: DTRConfig(), lambda: DTRConfig(1, evictee_minimum_size=-1),
    ],
)  # fmt: skip
def test_wrong_configurations_are_refused(wrong: Any) -> None:
    with pytest.raises(OptionError, match="below"):
        wrong()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: trace(sublinear_memory_config=3), "is of the type int .*give atc.SublinearMemory"),
        (lambda: trace(dtr_config=SublinearMemoryConfig()), "is of the type SublinearMemoryConfig"),
        (lambda: SublinearMemoryConfig(num_worker=10**6), "num_worker is 1000000, above"),
        (lambda: DTRConfig("5GB"), "eviction_threshold is '5GB', not a whole number"),
    ],
)  # fmt: skip
def test_configurations_of_another_kind_are_refused(wrong: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        wrong()


def deep(x: Tensor, weights: list[Parameter]) -> Tensor:
    xp = x.__array_namespace__()
    for weight in weights:
        x = xp.tanh(x @ weight)
    return xp.sum(x * x)


def gradients(**keywords: Any) -> tuple[list[Any], int]:
    """Return the gradients of a deep network, and the bytes that the step needs beside them."""
    rng = np.random.default_rng(1)
    weights = [Parameter(rng.normal(size=(8, 8)).astype(np.float32)) for _ in range(3)]
    x = rng.normal(size=(256, 8)).astype(np.float32)
    manager = atc.GradManager().attach(weights)

    @trace(**keywords)
    def step(x: Tensor) -> Tensor:
        with manager:
            loss = deep(x, weights)
            manager.backward(loss)
        return loss

    step(x)
    library = step.network._library
    assert library is not None
    return [w.grad.numpy() for w in weights if w.grad is not None], library.function("arena_size")()


@pytest.mark.slow
def test_memory_is_spared_as_the_configurations_say() -> None:
    plain, most = gradients()
    sublinear, less = gradients(sublinear_memory_config=SublinearMemoryConfig(num_worker=1))
    assert less < most
    for one, two in zip(plain, sublinear, strict=True):
        np.testing.assert_array_equal(one, two)
    held = 2 * sum(gradient.nbytes for gradient in plain)  # parameters, too
    with pytest.raises(AtcError, match=rf"weights and state \({held}\) need .* alone needs"):
        gradients(dtr_config=DTRConfig(64))


@pytest.mark.slow
def test_memory_is_spared_up_to_a_bound() -> None:
    plain, most = gradients()
    less = gradients(sublinear_memory_config=SublinearMemoryConfig(num_worker=1))[1]
    held = 2 * sum(gradient.nbytes for gradient in plain)
    evicting, least = gradients(dtr_config=DTRConfig(held + (most + less) // 2, 0))
    assert least <= (most + less) // 2
    for one, two in zip(plain, evicting, strict=True):
        np.testing.assert_array_equal(one, two)
    _, bounded = gradients(
        sublinear_memory_config=SublinearMemoryConfig(lb_memory_mb=1, num_worker=1)
    )
    assert bounded == most, "memory is below the bound already"


def test_a_tensor_that_was_not_returned_is_refused() -> None:
    kept = []

    @trace
    def leaks(x: Tensor) -> Tensor:
        kept.append(x * 2.0)
        return x + 1.0

    leaks(X)
    with pytest.raises(TracingError, match="leaks is used after the function has ended"):
        (kept[0] + 1.0).numpy()
    with pytest.raises(TracingError, match="leaks is used after the function has ended"):
        kept[0].numpy()


def test_traces_nest() -> None:
    inner = trace(lambda x: x * 2.0)
    outer = trace(lambda x: inner(x) + 1.0)
    np.testing.assert_array_equal(outer(X).numpy(), X * 2 + 1)
    assert not atc.is_tracing()


def test_outside_of_traces_tensors_are_computed_when_looked_at() -> None:
    x = Tensor(X)
    y = x * 2.0
    assert "tensor:" in repr(y)
    assert float((y - x * 2.0)[0, 0]) == 0
    np.testing.assert_array_equal(np.from_dlpack(y), X * 2)


def test_importing_atc_imports_no_tracing() -> None:
    code = "import atc, sys; assert 'atc.tracing' not in sys.modules; assert 'trace' in dir(atc)"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert not done.stderr
