"""Convolutions of MegEngine dumps, written by hand, against numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from importers.megengine_check import Case, Const, Quant, build, check, load, run
from importers.megengine_numpy import (
    conv,
    sigmoid,
    transposed_conv,
)
from importers.megengine_truth import half_away
from importers.megengine_writer import Dump, write_v2

from atc.importers.megengine.types import DType

RNG = np.random.default_rng(5)


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


IMAGE, LINE, CUBE = normal(2, 4, 9, 8), normal(2, 4, 9, 1), normal(1, 4, 5, 6, 4)
W, GROUPED = normal(6, 4, 3, 2), normal(2, 3, 2, 3, 3)
FLAT = GROUPED.reshape(6, 2, 3, 3)
HARD = lambda v: v * np.clip(v / 6 + 0.5, 0, 1)  # noqa: E731
ACTIVATIONS = {
    "IDENTITY": np.copy,
    "RELU": lambda v: np.maximum(v, 0),
    "SIGMOID": sigmoid,
    "H_SWISH": HARD,
}
ODD = {"pad_h": 2, "pad_w": 1, "stride_h": 2, "stride_w": 3, "dilate_h": 2}
ODD_NUMPY = ((2, 1), (2, 3), (2, 1))

CONVOLUTIONS = [
    Case("Convolution", [IMAGE, Const(W)], {"Convolution": {}}, conv, "defaults"),
    Case("Convolution", [IMAGE, W], {"Convolution": {}}, conv, "computed-weight"),
    Case(
        "Convolution",
        [IMAGE, Const(W)],
        {"Convolution": ODD},
        lambda x, w: conv(x, w, *ODD_NUMPY),
        "odd",
    ),
    Case(
        "Convolution",
        [IMAGE, Const(W)],
        {"Convolution": {"mode": "CONVOLUTION"}},
        lambda x, w: conv(x, w[:, :, ::-1, ::-1]),
        "flipped",
    ),
    Case(
        "Convolution",
        [IMAGE, W],
        {"Convolution": {"mode": "CONVOLUTION"}},
        lambda x, w: conv(x, w[:, :, ::-1, ::-1]),
        "flipped-computed",
    ),
    Case(
        "Convolution",
        [IMAGE, Const(GROUPED)],
        {"Convolution": {"sparse": "GROUP"}},
        lambda x, w: conv(x, FLAT, groups=2),
        "grouped",
    ),
    Case(
        "Convolution",
        [IMAGE, GROUPED],
        {"Convolution": {"sparse": "GROUP"}},
        lambda x, w: conv(x, FLAT, groups=2),
        "grouped-computed",
    ),
    Case(
        "Convolution",
        [IMAGE.transpose(0, 2, 3, 1).copy(), Const(W.transpose(0, 2, 3, 1).copy())],
        {"Convolution": {"format": "NHWC"}},
        lambda x, w: conv(IMAGE, W).transpose(0, 2, 3, 1),
        "nhwc",
    ),
    Case(
        "Convolution3D",
        [CUBE, Const(normal(3, 4, 2, 3, 2))],
        {"Convolution3D": {"pad_d": 1, "pad_w": 1, "stride_h": 2}},
        lambda x, w: conv(x, w, (1, 0, 1), (1, 2, 1)),
    ),
    Case(
        "ConvolutionBackwardData",
        [Const(normal(4, 5, 3, 2)), IMAGE],
        {"Convolution": {"stride_w": 2, "pad_h": 1}},
        lambda w, x: transposed_conv(x, w, (1, 0), (1, 2)),
    ),
    Case(
        "ConvolutionBackwardData",
        [Const(normal(2, 2, 3, 3, 3)), IMAGE],
        {"Convolution": {"sparse": "GROUP", "dilate_h": 2}},
        lambda w, x: transposed_conv(x, w.reshape(4, 3, 3, 3), dilations=(2, 1), groups=2),
        "grouped",
    ),
    Case(
        "ConvolutionBackwardData",
        [Const(normal(4, 5, 3, 3)), IMAGE, Const(np.zeros((2, 5, 18, 16), np.float32))],
        {"Convolution": {"stride_h": 2, "stride_w": 2, "pad_h": 1, "pad_w": 1}},
        lambda w, x, s: transposed_conv(x, w, (1, 1), (2, 2), extra=(1, 1)),
        "output-shape",
    ),
    Case(
        "Convolution3DBackwardData",
        [Const(normal(4, 2, 2, 2, 3)), CUBE],
        {"Convolution3D": {"stride_d": 2}},
        lambda w, x: transposed_conv(x, w, strides=(2, 1, 1)),
    ),
    *(
        Case(
            "ConvBias",
            [IMAGE, Const(W), Const(normal(1, 6, 1, 1))],
            {"ConvBias": {"nonline_mode": word}},
            lambda x, w, b, f=f: f(conv(x, w) + b),
            word,
        )
        for word, f in ACTIVATIONS.items()
    ),
    Case(
        "ConvBias",
        [IMAGE, Const(W)],
        {"ConvBias": {"pad_w": 1}},
        lambda x, w: conv(x, w, (0, 1)),
        "no-bias",
    ),
    Case(
        "ConvBias",
        [IMAGE, Const(W), normal(2, 6, 7, 7)],
        {"ConvBias": {"nonline_mode": "RELU"}},
        lambda x, w, b: np.maximum(conv(x, w) + b, 0),
        "full-bias",
    ),
    Case(
        "ConvBias",
        [IMAGE, Const(W), Const(normal(1, 6, 1, 1)), normal(2, 6, 7, 7)],
        {"ConvBias": {}},
        lambda x, w, b, z: conv(x, w) + b + z,
        "z",
    ),
]


@pytest.mark.parametrize("case", CONVOLUTIONS, ids=str)
def test_convolution(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_a_bias_that_is_added_joins_its_convolution(tmp_path: Path) -> None:
    dump = Dump()
    x = dump.input("x", IMAGE.shape)
    bias = dump.constant(normal(1, 6, 1, 1), name="layer.bias")
    weight = dump.constant(W, name="layer.weight")
    product = dump.op("Convolution", [x, weight], {"Convolution": {}}, name="layer.conv")
    total = dump.op("Elemwise", [bias, *product], {"Elemwise": {"mode": "FUSE_ADD_RELU"}})
    dump.output(total[0], "y")
    model = load(write_v2(dump), tmp_path)
    assert [node.op_type for node in model.graph] == ["Conv", "Relu"]
    assert {"layer.weight", "layer.bias"} == set(model.graph.initializers)


S8, U8 = DType("QuantizedS8", 0.0217), DType("Quantized8Asymm", 0.0217, 131)
W8, V8 = DType("QuantizedS8", 0.0113), DType("Quantized8Asymm", 0.0113, 120)
OUT = {
    "QuantizedS8": DType("QuantizedS8", 0.0731),
    "Quantized8Asymm": DType("Quantized8Asymm", 0.0731, 99),
}


def stored(dtype: DType, *shape: int) -> np.ndarray:
    low, high = dtype.limits
    return RNG.integers(low, high + 1, shape).astype(dtype.numpy)


def real(q: np.ndarray, dtype: DType) -> np.ndarray:
    return (q.astype(np.float64) - dtype.zero_point) * dtype.scale


def quantized(x: np.ndarray, dtype: DType) -> np.ndarray:
    return np.clip(half_away(x / dtype.scale) + dtype.zero_point, *dtype.limits)


def assert_quantized(case: Case, truth: np.ndarray, folder: Path) -> None:
    """Compare stored integers, leaving out ties that single precision may turn."""
    dump, feeds, _ = build(case)
    result = run(load(write_v2(dump), folder), feeds)[0]
    out = case.output_dtype
    assert out is not None
    assert result.dtype == out.numpy
    sure = np.abs(np.abs(truth / out.scale % 1) - 0.5) > 1e-3
    assert sure.mean() > 0.9
    np.testing.assert_array_equal(result[sure], quantized(truth, out)[sure])


@pytest.mark.parametrize("word", ["IDENTITY", "RELU", "H_SWISH"])
@pytest.mark.parametrize("types", [(S8, W8), (U8, V8)], ids=["s8", "u8"])
def test_quantized_convolution(types: tuple[DType, DType], word: str, tmp_path: Path) -> None:
    into, weight = types
    sums = DType("QuantizedS32", float(np.float32(into.scale) * np.float32(weight.scale)))
    x, w = stored(into, 1, 4, 6, 6), stored(weight, 3, 4, 3, 3)
    bias = RNG.integers(-9000, 9000, (1, 3, 1, 1)).astype(np.int32)
    truth = ACTIVATIONS[word](conv(real(x, into), real(w, weight), (1, 1)) + bias * sums.scale)
    inputs = [Quant(x, into), Const(w, weight), Const(bias, sums)]
    params = {"ConvBias": {"nonline_mode": word, "pad_h": 1, "pad_w": 1}}
    out = OUT[into.name]
    case = Case("ConvBias", inputs, params, lambda *_: x, output_dtype=out)
    assert_quantized(case, truth, tmp_path)


def test_quantized_residual_is_added(tmp_path: Path) -> None:
    x, w, z = stored(S8, 1, 4, 5, 5), stored(W8, 3, 4, 1, 1), stored(S8, 1, 3, 5, 5)
    bias = np.zeros((1, 3, 1, 1), np.int32)
    truth = conv(real(x, S8), real(w, W8)) + real(z, S8)
    inputs = [Quant(x, S8), Const(w, W8), Const(bias, DType("QuantizedS32", 1e-4)), Quant(z, S8)]
    out = DType("QuantizedS8", 0.09)
    assert_quantized(
        Case("ConvBias", inputs, {"ConvBias": {}}, lambda *_: x, output_dtype=out), truth, tmp_path
    )


def test_integer_products_stay_exact(tmp_path: Path) -> None:
    x, w = stored(S8, 1, 4, 5, 5), stored(W8, 3, 4, 3, 3)
    truth = lambda x, w: conv(x, w)  # noqa: E731
    check(Case("Convolution", [x, Const(w)], {"Convolution": {}}, truth, tolerance=0), tmp_path)
    case = Case(
        "Convolution", [Quant(x, S8), Const(w, W8)], {"Convolution": {}}, truth, tolerance=0
    )
    check(case, tmp_path)


def test_quantized_transposed_convolution(tmp_path: Path) -> None:
    x, w = stored(S8, 1, 4, 5, 5), stored(W8, 4, 3, 3, 3)
    truth = transposed_conv(real(x, S8), real(w, W8), strides=(2, 2))
    params = {"Convolution": {"stride_h": 2, "stride_w": 2}}
    case = Case(
        "ConvolutionBackwardData",
        [Const(w, W8), Quant(x, S8)],
        params,
        lambda *_: x,
        output_dtype=OUT["QuantizedS8"],
    )
    assert_quantized(case, truth, tmp_path)
