"""Portable convolution and pooling over any number of axes, against onnx's reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator
from projects import F32, make_model

import atc
from atc.runtime.load import open_network


@pytest.mark.parametrize("size", [(11,), (7, 6), (3, 4, 5)], ids=str)
def test_windows_slide_over_any_number_of_axes(size: tuple[int, ...], tmp_path: Path) -> None:
    rank = len(size)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1] * 2 * rank),
        helper.make_node("MaxPool", ["c"], ["y"], kernel_shape=[2] * rank, strides=[2] * rank),
    ]
    rng = np.random.default_rng(rank)
    w = rng.normal(size=(4, 3, *[3] * rank)).astype(np.float32)
    x = rng.normal(size=(1, 3, *size)).astype(np.float32)
    halves = tuple(n // 2 for n in size)
    model = make_model(nodes, [("x", F32, x.shape)], [("y", F32, (1, 4, *halves))], {"w": w})
    onnx.save(model, tmp_path / "m.onnx")
    folder = atc.compile(tmp_path / "m.onnx", tmp_path / "net", target="c99").folder
    (want,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(open_network(folder).run({"x": x})["y"], want, atol=1e-4)
