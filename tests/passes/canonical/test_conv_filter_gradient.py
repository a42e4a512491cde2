"""Gradients of filters as convolutions: where GPUs compute, with the same results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import atc
from atc.ir.ops import ConvFilterGradient
from atc.passes import run_passes
from support import compile_graph


def gradient_model(group: int, stride: int) -> onnx.ModelProto:
    """Return a model of the gradients of the sum of a convolution's squares."""
    shapes = {"x": [2, 4, 7, 6], "w": [6, 4 // group, 3, 2]}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=group, strides=[stride] * 2,
                         pads=[1, 0, 1, 1]),
        helper.make_node("ReduceSumSquare", ["c"], ["y"], keepdims=0),
        helper.make_node("Gradient", ["x", "w"], ["dx", "dw"], xs=["x", "w"], y="y",
                         domain="ai.onnx.preview.training"),
    ]  # fmt: skip
    declare = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [declare(n, TensorProto.FLOAT, s) for n, s in shapes.items()],
        [declare(f"d{n}", TensorProto.FLOAT, s) for n, s in shapes.items()],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.preview.training", 1)]
    return helper.make_model(graph, opset_imports=versions, ir_version=9)


CASES = [(1, 1), (1, 2), (2, 1), (2, 2)]


@pytest.mark.parametrize(("group", "stride"), CASES)
def test_none_is_left_for_a_gpu(group: int, stride: int) -> None:
    graph = compile_graph(gradient_model(group, stride))
    gradients = [n for n in graph.nodes if isinstance(n.op, ConvFilterGradient)]
    assert len(gradients) == 1
    found = run_passes(graph, device=True).nodes
    assert not any(isinstance(n.op, ConvFilterGradient) for n in found)


@pytest.mark.slow
@pytest.mark.parametrize(("group", "stride"), CASES)
def test_results_are_those_of_the_op(group: int, stride: int, tmp_path: Path) -> None:
    model = gradient_model(group, stride)
    onnx.save(model, tmp_path / "model.onnx")
    rng = np.random.default_rng(group)
    x, w = rng.normal(size=(2, 4, 7, 6)), rng.normal(size=(6, 4 // group, 3, 2))
    results: list[Any] = []
    for target in ("c99", "cuda-emulated"):
        folder = tmp_path / target
        atc.compile(tmp_path / "model.onnx", folder, target=target,
                    op_compiler_cache_mode="disable")  # fmt: skip
        results.append(atc.load(folder)(x.astype(np.float32), w.astype(np.float32)))
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-4)
