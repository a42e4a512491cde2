"""What Python stands between is one library, whatever comes to it later."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import onnx.parser
import pytest

from atc import Tensor, exclude_from_trace, trace
from atc.build.sdk import Sdk, make_sdk
from atc.errors import OptionError
from atc.tracing import segments
from atc.tracing.segments import Segments
from atc.tracing.traced import Traced

TABLE, OTHER = np.random.default_rng(0).normal(size=(2, 16, 16)).astype(np.float32)
X = np.random.default_rng(1).normal(size=(4, 16)).astype(np.float32)


def cut_twice(**options: Any) -> Traced:
    """Return a function of three segments with kernels and a constant in common."""

    @trace(**options)
    def scaled(x: Tensor) -> Tensor:
        y = x @ Tensor(TABLE)
        with exclude_from_trace():
            scale = Tensor(1 / abs(y.numpy()).max())  # an input of what follows
        y = (y * scale) @ Tensor(TABLE)
        with exclude_from_trace():
            pass
        return (y @ Tensor(OTHER)) @ Tensor(TABLE)

    return scaled


def expected(x: Any) -> Any:
    y = x.astype(np.float64) @ TABLE
    return y / abs(y).max() @ TABLE @ OTHER @ TABLE


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Sdk]:
    """Return the libraries that are made."""
    found: list[Sdk] = []

    def noted(*arguments: Any, **options: Any) -> Sdk:
        found.append(make_sdk(*arguments, **options))
        return found[-1]

    monkeypatch.setattr(segments, "make_sdk", noted)
    return found


def files(traced: Traced) -> set[str]:
    """Return the files that the networks of a function were loaded from."""
    libraries = [network._library for network in traced.networks]
    return {repr(library.handle) for library in libraries if library is not None}


def test_segments_are_functions_of_one_library(made: list[Sdk]) -> None:
    scaled = cut_twice()
    for x in (X, X + 1, X):
        np.testing.assert_allclose(scaled(x).numpy(), expected(x), rtol=1e-4, atol=1e-4)
    (one,) = made
    assert one.networks == ("scaled_0", "scaled_1", "scaled_2")
    assert len(scaled.networks) == 3
    assert len(files(scaled)) == 1
    assert one.distinct < one.kernels, "equal kernels stand in it once"
    assert one.weights == TABLE.nbytes + OTHER.nbytes, "and so do equal constants"


@pytest.mark.slow
def test_segments_of_later_calls_come_to_the_library(made: list[Sdk]) -> None:
    @trace
    def counted(x: Tensor, *, by: int) -> Tensor:
        x = x + 1.0
        with exclude_from_trace():
            pass
        return x * float(by)

    for by in (2, 2, 3, 2):
        np.testing.assert_array_equal(counted(X, by=by).numpy(), (X + 1) * by)
    assert [len(each.networks) for each in made] == [2, 3]
    assert len(files(counted)) == 1


@pytest.mark.slow
def test_a_library_has_an_end(made: list[Sdk]) -> None:
    parts = Segments("parts", (), most=3)
    for by in (2, 3, 4, 5, 2, 4):
        model = onnx.parser.parse_model(f"""
            <ir_version: 8, opset_import: ["": 17]>
            g (float[4, 16] x) => (float[4, 16] y) <float by = {{{by}}}> {{ y = Mul(x, by) }}
        """)
        (y,) = parts.network(model).run({"x": X}).values()
        np.testing.assert_array_equal(y, X * by)
        parts.join()
    assert [len(each.networks) for each in made] == [2, 3]
    assert len(parts.networks) == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "count"),
    [({"num_threads": 2}, 1), ({"external_weight": 2}, 3), ({"target": "cuda-emulated"}, 3),
     ({"target": "host,c99"}, 3)],
)  # fmt: skip
def test_what_can_not_be_joined_stays_apart(options: dict[str, Any], count: int) -> None:
    scaled = cut_twice(**options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x in (X, X + 1, X):
            np.testing.assert_allclose(scaled(x).numpy(), expected(x), rtol=1e-4, atol=1e-4)
    assert len(files(scaled)) == count


@pytest.mark.slow
def test_a_library_that_fails_is_told_and_costs_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any, **__: Any) -> Sdk:
        raise OptionError("files differ")

    monkeypatch.setattr(segments, "make_sdk", failing)

    @trace
    def shifted(x: Tensor) -> Tensor:
        x = x + 1.0
        with exclude_from_trace():
            pass
        return x * 2.0

    with pytest.warns(UserWarning, match=r"shifted: its segments stay .*: files differ"):
        first = shifted(X)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for found in (first, shifted(X)):
            np.testing.assert_array_equal(found.numpy(), (X + 1) * 2)
