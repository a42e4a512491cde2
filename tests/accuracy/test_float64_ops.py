"""The float64 evaluation's own operators against onnxruntime, where the standard has no tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir
import pytest
from onnxruntime import InferenceSession

from atc.accuracy.float64 import run_in_double
from support import node_model

RANDOM = np.random.default_rng(0)


def numbers(*shape: int, low: float = -1.0, high: float = 1.0) -> np.ndarray:
    return RANDOM.uniform(low, high, shape).astype(np.float32)


def boxes(count: int) -> np.ndarray:
    """Return boxes of which a third has its corners the wrong way round."""
    found = numbers(1, count, 4, low=0.0, high=20.0)
    found[:, :, 2:] = found[:, :, :2] + numbers(1, count, 2, low=1.0, high=12.0)
    return np.where(np.arange(count)[:, None] % 3 == 0, found[:, :, [2, 3, 0, 1]], found)


REGIONS = np.array([[0, 0, 8, 6], [3.3, 2.1, 3.4, 9], [-5, -3, 30, 4], [6, 6, 2, 2]], np.float32)
GRID = numbers(2, 5, 4, 2, low=-1.6, high=1.6)

CASES: list[tuple[str, list[Any], dict[str, Any]]] = [
    ("AveragePool", [numbers(2, 3, 9, 8)],
     {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [2, 0, 1, 1]}),
    ("AveragePool", [numbers(2, 3, 9, 8)],
     {"kernel_shape": [3, 2], "pads": [2, 0, 1, 1], "count_include_pad": 1}),
    ("AveragePool", [numbers(1, 2, 11)],
     {"kernel_shape": [4], "strides": [3], "pads": [1, 1], "ceil_mode": 1}),
    ("AveragePool", [numbers(1, 2, 11)],
     {"kernel_shape": [2], "strides": [3], "pads": [1, 1], "ceil_mode": 1,
      "count_include_pad": 1}),
    ("AveragePool", [numbers(1, 2, 5, 6, 7)],
     {"kernel_shape": [2, 3, 2], "strides": [1, 2, 2], "auto_pad": "SAME_UPPER"}),
    ("ConvTranspose", [numbers(2, 4, 5, 6), numbers(4, 3, 3, 2), numbers(6)],
     {"group": 2, "strides": [2, 3], "pads": [1, 0, 0, 1], "output_padding": [1, 2],
      "dilations": [2, 1]}),
    ("ConvTranspose", [numbers(1, 3, 7), numbers(3, 2, 4)], {"strides": [3], "output_shape": [20]}),
    ("ConvTranspose", [numbers(1, 3, 4, 5), numbers(3, 2, 3, 3)],
     {"strides": [2, 2], "auto_pad": "SAME_LOWER"}),
    *(("GridSample", [numbers(2, 3, 6, 5), GRID],
       {"mode": mode, "padding_mode": padding, "align_corners": aligned, "opset": 16})
      for mode in ("bilinear", "nearest", "bicubic")
      for padding in ("zeros", "border", "reflection") for aligned in (0, 1)),
    ("GridSample", [numbers(1, 2, 3, 4, 5), numbers(1, 2, 3, 2, 3)], {"mode": "linear"}),
    ("DeformConv", [numbers(2, 4, 6, 7), numbers(6, 2, 3, 2), numbers(2, 24, 3, 4, high=2.0),
                    numbers(6), numbers(2, 12, 3, 4)],
     {"group": 2, "offset_group": 2, "strides": [2, 2], "pads": [1, 0, 1, 1],
      "dilations": [1, 1]}),
    *(("RoiAlign", [numbers(2, 3, 10, 9), REGIONS, np.array([0, 1, 1, 0])],
       {"output_height": 3, "output_width": 2, "sampling_ratio": ratio, "spatial_scale": 0.5,
        "mode": mode, "opset": opset})
      for ratio in (0, 2) for mode, opset in (("avg", 10), ("avg", 16), ("max", 16))),
    *(("NonMaxSuppression",
       [boxes(60), numbers(1, 2, 60), np.array([limit]), np.array([0.3], np.float32),
        np.array([-0.5], np.float32)], {"center_point_box": centers})
      for limit in (0, 7, 60) for centers in (0, 1)),
    ("NonMaxSuppression", [boxes(9), numbers(1, 1, 9), np.array([5])], {}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "inputs", "attributes"), CASES)
def test_operators(operator: str, inputs: list[Any], attributes: dict[str, Any]) -> None:
    model = node_model(operator, inputs, constant=[], **attributes)
    session = InferenceSession(model.SerializeToString())
    feeds = {v.name: a for v, a in zip(session.get_inputs(), inputs, strict=True)}
    (expected,) = session.run(None, feeds)
    outputs = [v.name for v in model.graph.output]
    (found,) = run_in_double(onnx_ir.from_proto(model), outputs, feeds)[1]
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
