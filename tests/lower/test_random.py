"""Random operators: their distributions, their types, and that a seed decides all of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from atc.errors import ModelError
from atc.ir.graph import Array, DType
from support import node_model, random_array, run_model

FLOATS = [DType.FLOAT, DType.DOUBLE, DType.FLOAT16, DType.BFLOAT16]
SHAPE = (40, 500)


def draw(op: str, **attributes: Any) -> Array:
    return run_model(node_model(op, [], shape=SHAPE, **attributes), [])[0]


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.label)
def test_uniform(dtype: DType) -> None:
    x = draw("RandomUniform", low=-2.0, high=6.0, seed=1.0, dtype=dtype.code)
    assert x.dtype == dtype.numpy
    assert x.shape == SHAPE
    values = x.astype(float).ravel()
    assert values.min() >= -2
    assert values.max() <= 6
    counts, _ = np.histogram(values, 16, (-2, 6))
    assert abs(counts - values.size / 16).max() < 6 * (values.size / 16) ** 0.5


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.label)
def test_normal(dtype: DType) -> None:
    x = draw("RandomNormal", mean=3.0, scale=2.0, seed=1.0, dtype=dtype.code)
    assert x.dtype == dtype.numpy
    values = (x.astype(float).ravel() - 3) / 2
    assert np.isfinite(values).all()
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03
    within = [np.mean(abs(values) < k) for k in (1, 2, 3)]
    np.testing.assert_allclose(within, [0.6827, 0.9545, 0.9973], atol=0.015)


def test_neighbours_are_independent() -> None:
    x = draw("RandomUniform", seed=3.0)
    for other in (np.roll(x, 1, 0), np.roll(x, 1, 1), draw("RandomUniform", seed=4.0)):
        assert abs(np.corrcoef(x.ravel(), other.ravel())[0, 1]) < 0.03


def test_the_seed_decides() -> None:
    first, again = draw("RandomNormal", seed=5.0), draw("RandomNormal", seed=5.0)
    assert (first == again).all()
    assert (first != draw("RandomNormal", seed=6.0)).mean() > 0.99


def test_nodes_without_seeds_differ() -> None:
    from onnx import helper

    nodes = [helper.make_node("RandomUniform", [], [f"y{k}"], f"n{k}", shape=[50]) for k in (0, 1)]
    outputs = [helper.make_tensor_value_info(f"y{k}", 1, [50]) for k in (0, 1)]
    graph = helper.make_graph(nodes, "two", [], outputs)
    one, two = run_model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), [])
    assert (one != two).any()


@pytest.mark.parametrize("op", ["RandomUniformLike", "RandomNormalLike"])
def test_like_another_tensor(op: str) -> None:
    x = random_array(DType.DOUBLE, (3, 4))
    (same,) = run_model(node_model(op, [x]), [x])
    assert (same.dtype, same.shape) == (x.dtype, x.shape)
    (other,) = run_model(node_model(op, [x], dtype=DType.FLOAT16.code), [x])
    assert other.dtype == np.float16


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.BOOL, DType.INT64], ids=lambda d: d.label)
def test_bernoulli(dtype: DType) -> None:
    p = np.broadcast_to(np.linspace(0, 1, 5, dtype=np.float32), (4000, 5)).copy()
    (got,) = run_model(node_model("Bernoulli", [p], dtype=dtype.code, seed=2.0), [p])
    assert got.dtype == dtype.numpy
    assert set(np.unique(got.astype(int))) == {0, 1}
    np.testing.assert_allclose(got.astype(float).mean(0), p[0], atol=0.04)
    assert not got[:, 0].any()
    assert got[:, -1].all()


@pytest.mark.parametrize("dtype", [DType.INT32, DType.INT64], ids=lambda d: d.label)
def test_multinomial(dtype: DType) -> None:
    shares = np.array([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-9]])
    logs = np.log(shares).astype(np.float32) + 3  # not normalised
    model = node_model("Multinomial", [logs], sample_size=4000, seed=1.0, dtype=dtype.code)
    (got,) = run_model(model, [logs])
    assert (got.dtype, got.shape) == (dtype.numpy, (2, 4000))
    for row, share in zip(got, shares, strict=True):
        np.testing.assert_allclose(np.bincount(row, minlength=3) / 4000, share, atol=0.04)


@pytest.mark.parametrize(
    ("op", "attributes"),
    [
        ("RandomUniform", {"shape": [-1]}),
        ("RandomNormal", {"shape": [2], "dtype": DType.INT32.code}),
    ],
)
def test_nonsense_is_refused(op: str, attributes: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match=op):
        run_model(node_model(op, [], **attributes), [])
