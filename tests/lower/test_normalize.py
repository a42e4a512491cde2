"""Softmaxes and normalizations against float64 numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx.parser import parse_model

from atc.errors import ModelError, UnsupportedError
from support import assert_close, node_model, run_model


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def softmax(x: np.ndarray, axis: int) -> np.ndarray:
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def standardized(x: np.ndarray, axes: tuple[int, ...], epsilon: float) -> np.ndarray:
    wide = x.astype(np.float64)
    centred = wide - wide.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + epsilon)


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_softmax_of_other_types(dtype: type, axis: int) -> None:
    x = noise(3, 5, 4).astype(dtype)
    model = node_model("Softmax", [x], axis=axis)
    assert_close(run_model(model, [x]), [softmax(x, axis).astype(dtype)], rtol=2e-3)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_before_opset_13_the_axes_from_the_given_one_on_are_one(op: str) -> None:
    x = noise(2, 3, 4)
    expected = softmax(x.reshape(2, 12), 1).reshape(x.shape)
    expected = np.log(expected) if op == "LogSoftmax" else expected
    (y,) = run_model(node_model(op, [x], opset=11), [x])
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1])
def test_softmax_neither_overflows_nor_invents_numbers(axis: int) -> None:
    rows = [[1e38, -1e38, 0, -np.inf], [88.8, 89, 90, -np.inf], [0, np.nan, 1, 2]]
    x = np.array(rows, np.float32)
    x = x.T.copy() if axis == 0 else x
    with np.errstate(all="ignore"):
        expected = softmax(x, axis).astype(np.float32)
    assert_close(run_model(node_model("Softmax", [x], axis=axis), [x]), [expected], rtol=1e-6)


def test_softmax_of_a_long_row_is_accurate() -> None:
    x = np.zeros((1, 200_000), np.float32)
    (y,) = run_model(node_model("Softmax", [x]), [x])
    assert_close([y], [np.full_like(x, 1 / 200_000)], rtol=1e-6)


def test_softmax_is_stored_through_a_quantizing_epilogue() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]> g (float[6,3,5] x) => (int32[6,3,5] y)
    { s = Softmax<axis=AXIS>(x) k = Constant<value_float=1000.0>() t = Mul(s, k)
      y = Cast<to=6>(t) }"""
    x = noise(6, 3, 5)
    for axis in (1, 2):
        (y,) = run_model(parse_model(text.replace("AXIS", str(axis))), [x])
        assert np.abs(y - 1000 * softmax(x, axis)).max() <= 1


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_variance_is_centred(offset: float) -> None:
    x = noise(4, 300) + np.float32(offset)
    scale = np.ones(300, np.float32)
    (y,) = run_model(node_model("LayerNormalization", [x, scale]), [x, scale])
    assert_close([y], [standardized(x, (1,), 1e-5).astype(np.float32)], rtol=1e-4, atol=1e-3)


def test_large_images_are_normalized_accurately() -> None:
    x = noise(1, 2, 256, 256) * 3 + 100
    s, t = noise(2, seed=1), noise(2, seed=2)
    (y,) = run_model(node_model("InstanceNormalization", [x, s, t]), [x, s, t])
    expected = standardized(x, (2, 3), 1e-5) * s[:, None, None] + t[:, None, None]
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_layer_normalization_gives_all_its_outputs(dtype: type) -> None:
    x = noise(2, 3, 4, 5).astype(dtype)
    s, t = noise(4, 5, seed=1).astype(dtype), noise(1, 5, seed=2).astype(dtype)
    model = node_model("LayerNormalization", [x, s, t], 3, axis=2)
    y, mean, inverse = run_model(model, [x, s, t])
    wide = x.astype(np.float64)
    centre = wide.mean((2, 3), keepdims=True)
    scale = 1 / np.sqrt(wide.var((2, 3), keepdims=True) + 1e-5)
    expected = ((wide - centre) * scale * s + t).astype(dtype)
    assert_close([y], [expected], rtol=2e-3, atol=2e-3 if dtype is np.float16 else 1e-6)
    statistics = [centre.astype(np.float32), scale.astype(np.float32)]
    assert_close([mean, inverse], statistics, rtol=1e-5, atol=1e-6)


def test_scale_may_be_broadcast_over_the_normalized_axes() -> None:
    x, s, t = noise(3, 4, 5), noise(4, 1, seed=1), noise(3, 1, 5, seed=2)
    (y,) = run_model(node_model("LayerNormalization", [x, s, t], axis=1), [x, s, t])
    expected = standardized(x, (1, 2), 1e-5) * s + t
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-5)


def test_residual_around_a_normalization() -> None:
    text = """<ir_version: 8, opset_import: ["" : 18]>
    g (float[8,16] a, float[16] s) => (float[8,16] y)
    { x = Exp(a) n = LayerNormalization(x, s) y = Add(n, x) }"""
    a, s = noise(8, 16), noise(16, seed=1)
    (y,) = run_model(parse_model(text), [a, s])
    x = np.exp(a.astype(np.float64))
    expected = standardized(x, (1,), 1e-5) * s + x
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axes", [[0, 2, 3], [1], [0, 1], [0, 3], [0, 1, 2, 3]])
def test_mean_variance_normalization_over_any_axes(axes: list[int]) -> None:
    x = noise(3, 4, 5, 2)
    (y,) = run_model(node_model("MeanVarianceNormalization", [x], axes=axes), [x])
    expected = standardized(x, tuple(axes), 1e-18)
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("p", [1, 2])
def test_zero_vectors_stay_zero_under_lp_normalization(p: int, axis: int) -> None:
    x = noise(6, 5)
    x[:, 2] = 0
    x[3, :] = 0
    norm = np.linalg.norm(x.astype(np.float64), ord=p, axis=axis, keepdims=True)
    expected = np.divide(x, norm, out=np.zeros(x.shape), where=norm != 0)
    (y,) = run_model(node_model("LpNormalization", [x], p=p, axis=axis), [x])
    assert_close([y], [expected.astype(np.float32)], rtol=1e-6)


@pytest.mark.parametrize("opset", [18, 21])
def test_group_normalization_scales_groups_then_channels(opset: int) -> None:
    x = noise(2, 6, 3, 3)
    s = noise(2 if opset < 21 else 6, seed=1)
    t = noise(*s.shape, seed=2)
    model = node_model("GroupNormalization", [x, s, t], opset=opset, num_groups=2)
    (y,) = run_model(model, [x, s, t])
    normal = standardized(x.reshape(2, 2, -1), (2,), 1e-5).reshape(x.shape)
    wide = [v.repeat(3) if opset < 21 else v for v in (s, t)]
    expected = normal * wide[0][:, None, None] + wide[1][:, None, None]
    assert_close([y], [expected.astype(np.float32)], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(0, 4), (3, 0)])
def test_empty_tensors(shape: tuple[int, int]) -> None:
    x = np.zeros(shape, np.float32)
    for model in (node_model("Softmax", [x]), node_model("LpNormalization", [x])):
        assert run_model(model, [x])[0].shape == shape


def test_wrong_groups_are_named() -> None:
    x, s = noise(1, 6, 2), noise(6)
    model = node_model("GroupNormalization", [x, s, s], num_groups=4)
    with pytest.raises(ModelError, match="4 groups of 6 channels"):
        run_model(model, [x, s, s])


def test_unknown_types_of_statistics_are_named() -> None:
    x, s = noise(2, 6), noise(6)
    with pytest.raises(UnsupportedError, match="ONNX type 99 in 'stash_type'"):
        run_model(node_model("LayerNormalization", [x, s], stash_type=99), [x, s])
