"""Subgraphs that MXNet fuses for oneDNN, float and quantised, and whole quantised chains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir
import pytest
from importers.mxnet_cases import f4, normal, uniform
from importers.mxnet_files import Array, assert_close, node, run, symbol, variable, write
from importers.mxnet_truth import conv

from atc.errors import ModelError
from atc.importers.mxnet import load_mxnet

X, W = uniform(1, 3, 6, 6), normal(4, 3, 3, 3)
NORM = [uniform(4), normal(4), normal(4, seed=1), uniform(4, seed=2)]


def inner(relu: bool = True, add: bool = False) -> dict[str, Any]:
    """Return the fused symbol: convolution, BatchNorm, sum, ReLU."""
    nodes = [variable("d"), variable("w"), node("Convolution", "c", [(0, 0), (1, 0)],
             kernel=(3, 3), num_filter=4, pad=(1, 1), no_bias=True)]  # fmt: skip
    nodes += [variable(n) for n in ("g", "b", "m", "v")]
    nodes.append(node("BatchNorm", "n", [(i, 0) for i in (2, 3, 4, 5, 6)], fix_gamma=False))
    if add:
        nodes += [variable("s"), node("elemwise_add", "a", [(7, 0), (8, 0)])]
    if relu:
        nodes.append(node("Activation", "r", [(len(nodes) - 1, 0)], act_type="relu"))
    return symbol(nodes, [(len(nodes) - 1, 0)])


def folded(factor: Array, array: Array) -> Array:
    return array * factor.reshape(-1, *[1] * (array.ndim - 1))


def outer(data: int, extra: int, subgraph: Any, **attrs: object) -> list[Any]:
    """Return variables w, g, b, m, v and the fused node behind the nodes up to `data`."""
    start = data + extra + 1
    nodes = [variable(n) for n in ("w", "g", "b", "m", "v")]
    inputs = [(data, 0), *((start + i, 0) for i in range(5))]
    fused = node("_sg_mkldnn_conv", "fused", inputs, **attrs)
    return [*nodes, fused | {"subgraphs": [subgraph]}]


WEIGHTS = {"arg:w": W, "arg:g": NORM[0], "arg:b": NORM[1], "aux:m": NORM[2], "aux:v": NORM[3]}


def exact(x: Array, w: Array) -> Array:
    """Return convolution and BatchNorm."""
    g, b, m, v = (a.astype(float) for a in NORM)
    factor = g / np.sqrt(v + 1e-3)
    return conv(x, folded(factor, w.astype(float)), b - m * factor, pad=(1, 1))


def test_float_subgraph(tmp_path: Path) -> None:
    nodes = [variable("x"), *outer(0, 0, inner(), with_bn="true", with_act="true")]
    root = symbol(nodes, [(len(nodes) - 1, 0)])
    assert_close(run(write(tmp_path, root, WEIGHTS), {"x": X})[0], exact(X, W).clip(0))


def calibrated(tmp_path: Path, relu: bool, **attrs: object) -> Path:
    """Write data -> quantize_v2 -> fused convolution."""
    nodes = [variable("x"), node("_contrib_quantize_v2", "q", [(0, 0)], out_type="auto",
             min_calib_range=0, max_calib_range=1)]  # fmt: skip
    nodes += outer(1, 0, inner(relu), quantized="true", with_bn="true", **attrs)
    nodes[-1]["inputs"] += [[1, 1], [1, 2]]
    last = len(nodes) - 1
    heads = [(last, 0)] if "enable_float_output" in attrs else [(last, 0), (last, 1), (last, 2)]
    return write(tmp_path, symbol(nodes, heads), WEIGHTS)


def rounded() -> Array:
    """Return convolution and BatchNorm of uint8 data and int8 weights, one scale a filter."""
    g, b, m, v = (a.astype(float) for a in NORM)
    factor = g / np.sqrt(v + 1e-3)
    weight = folded(factor, W.astype(float))
    step = np.abs(weight).max((1, 2, 3)) / 127.5
    weight = folded(step, np.rint(folded(1 / step, weight)).clip(-128, 127))
    data = np.rint(X.astype(float) * 255.5).clip(0, 255) / 255.5
    return conv(data, weight, b - m * factor, pad=(1, 1))


@pytest.mark.parametrize("relu", [True, False])
def test_calibrated_subgraph(tmp_path: Path, relu: bool) -> None:
    path = calibrated(tmp_path, relu, min_calib_range=-4 * (not relu), max_calib_range=5)
    numbers, least, greatest = run(path, {"x": X}, optimize=False)
    assert numbers.dtype == (np.uint8 if relu else np.int8)
    assert (least[0], greatest[0]) == ((0, 5) if relu else (-5, 5))
    limits = (0, 255) if relu else (-128, 127)
    wanted = np.rint(rounded() * (255.5 if relu else 127.5) / 5).clip(*limits)
    assert np.abs(numbers.astype(float) - wanted).max() <= 1


def test_float_output(tmp_path: Path) -> None:
    path = calibrated(tmp_path, True, enable_float_output="True")
    found = run(path, {"x": X}, optimize=False)[0]
    assert_close(found, rounded().clip(0), atol=5e-3)  # a tie of the data may round either way


def test_int32_output_stands_for_the_same_values(tmp_path: Path) -> None:
    numbers, _, greatest = run(calibrated(tmp_path, True), {"x": X}, optimize=False)
    assert numbers.dtype == np.int32
    real = numbers * (greatest[0] / (2.0**31 - 1))
    assert_close(real, rounded().clip(0), rtol=0.02, atol=0.02)


def test_sum_input_has_its_own_range(tmp_path: Path) -> None:
    nodes = [variable("x"), node("_contrib_quantize_v2", "q", [(0, 0)], out_type="auto",
             min_calib_range=0, max_calib_range=1), variable("y"),
             node("_contrib_quantize_v2", "p", [(2, 0)], min_calib_range=-3,
                  max_calib_range=3)]  # fmt: skip
    nodes += outer(1, 2, inner(add=True), quantized="true", with_sum="true",
                   min_calib_range=0, max_calib_range=8)  # fmt: skip
    nodes[-1]["inputs"] += [[3, 0], [1, 1], [1, 2], [3, 1], [3, 2]]
    y = normal(1, 4, 6, 6)
    root = symbol(nodes, [(len(nodes) - 1, 0)])
    (numbers,) = run(write(tmp_path, root, WEIGHTS), {"x": X, "y": y}, optimize=False)
    added = np.rint(y * 127.5 / 3).clip(-128, 127) * 3 / 127.5
    wanted = np.rint((rounded() + added).clip(0) * 255.5 / 8).clip(0, 255)
    assert np.abs(numbers.astype(float) - wanted).max() <= 1


def test_weights_are_stored_as_int8(tmp_path: Path) -> None:
    model = load_mxnet(calibrated(tmp_path, True, min_calib_range=0, max_calib_range=5), None,
                       {"x": X.shape})  # fmt: skip
    assert [n.op_type for n in model.graph] == [
        "QuantizeLinear", "DequantizeLinear", "DequantizeLinear", "Conv", "Relu", "QuantizeLinear",
        "Identity", "Identity",
    ]  # fmt: skip
    types = {v.dtype for v in model.graph.initializers.values()}
    assert onnx_ir.DataType.INT8 in types


def test_chain_of_plain_operators(tmp_path: Path) -> None:
    """Quantise, fully connected, requantise, dequantise: within a step of the float layer."""
    w = normal(5, 12)
    numbers = np.rint(w / np.abs(w).max() * 127).astype(np.int8)
    limit = f4(np.abs(w).max())
    nodes = [variable("x"), node("_contrib_quantize_v2", "q", [(0, 0)]), variable("w"),
             variable("lo"), variable("hi"),
             node("_contrib_quantized_fully_connected", "fc",
                  [(1, 0), (2, 0), (1, 1), (1, 2), (3, 0), (4, 0)], num_hidden=5, no_bias=True),
             node("_contrib_requantize", "r", [(5, 0), (5, 1), (5, 2)]),
             node("_contrib_dequantize", "d", [(6, 0), (6, 1), (6, 2)])]  # fmt: skip
    path = write(tmp_path, symbol(nodes, [(7, 0)]),
                 {"arg:w": numbers, "arg:lo": -limit, "arg:hi": limit})  # fmt: skip
    x = normal(2, 12)
    assert_close(run(path, {"x": x}, optimize=False)[0], x @ w.T, rtol=0, atol=0.03)


def test_range_of_an_input_is_missing(tmp_path: Path) -> None:
    nodes = [variable("x"), node("_contrib_quantize_v2", "q", [(0, 0)])]
    nodes += outer(1, 0, inner(), quantized="true")
    with pytest.raises(ModelError, match="range.*'fused'"):
        load_mxnet(write(tmp_path, symbol(nodes, [(len(nodes) - 1, 0)]), WEIGHTS), None,
                   {"x": (1, 3, 6, 6)})  # fmt: skip
