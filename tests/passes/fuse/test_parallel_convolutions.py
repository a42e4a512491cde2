"""Sums of convolutions of one operand: one convolution, the same results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from atc.ir.ops import Conv
from atc.passes import run_passes
from support import assert_close, compile_graph, run_models

Branch = tuple[int, int, int]
"""Kernel, pad and dilation; kernel 0 is a scaled identity."""
SUMS: dict[str, tuple[int, int, Sequence[Branch]]] = {
    "RepVGG": (1, 1, ((3, 1, 1), (1, 0, 1), (0, 0, 1))),
    "smaller first": (1, 1, ((1, 0, 1), (5, 2, 1), (3, 1, 1))),
    "depthwise": (6, 1, ((3, 1, 1), (3, 1, 1), (0, 0, 1), (1, 0, 1))),
    "groups": (2, 1, ((0, 0, 1), (3, 1, 1))),
    "strides": (1, 2, ((3, 1, 1), (1, 0, 1))),
    "dilated": (1, 1, ((3, 2, 2), (1, 0, 1))),
}
APART: dict[str, tuple[int, int, Sequence[Branch]]] = {
    "dilated apart": (1, 1, ((3, 2, 2), (3, 1, 1))),
    "between taps": (1, 1, ((2, 1, 2), (1, 0, 1))),
}


def model(group: int, stride: int, branches: Sequence[Branch]) -> onnx.ModelProto:
    """Return the sum of convolutions with biases and normalised identities, and a Relu."""
    rng = np.random.default_rng(len(branches))
    tensors: list[onnx.TensorProto] = []
    nodes, names = [], []

    def tensor(name: str, array: Any) -> str:
        tensors.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    for k, (size, pad, dilation) in enumerate(branches):
        names.append(f"y{k}")
        if size:
            weights = rng.uniform(-1, 1, (6, 6 // group, size, size))
            given = ["x", tensor(f"w{k}", weights), tensor(f"b{k}", rng.uniform(-1, 1, 6))]
            nodes.append(helper.make_node(
                "Conv", given, [names[-1]], pads=[pad] * 4, strides=[stride] * 2,
                dilations=[dilation] * 2, group=group,
            ))  # fmt: skip
        else:
            given = [tensor(f"{n}{k}", rng.uniform(0.5, 1, 6)) for n in "smuv"]
            nodes.append(helper.make_node("BatchNormalization", ["x", *given], [names[-1]]))
    total = names[0]
    for k, name in enumerate(names[1:]):
        nodes.append(helper.make_node("Add", [name, total], [f"t{k}"]))
        total = f"t{k}"
    nodes.append(helper.make_node("Relu", [total], ["y"]))
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 6, 9, 8])],
        [helper.make_empty_tensor_value_info("y")], tensors,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made)


def convolutions(made: onnx.ModelProto) -> int:
    """Return how many are left."""
    return sum(isinstance(n.op, Conv) for n in run_passes(compile_graph(made)).nodes)


def test_results_are_those_of_the_sum() -> None:
    models = [model(*case) for case in SUMS.values()]
    x = np.random.default_rng(0).uniform(-1, 1, (2, 6, 9, 8)).astype(np.float32)
    for made, found in zip(models, run_models(models, [[x]] * len(models)), strict=True):
        assert not isinstance(found, Exception), found
        assert_close(found, ReferenceEvaluator(made).run(None, {"x": x}), atol=1e-5)


@pytest.mark.parametrize("case", SUMS)
def test_one_is_left(case: str) -> None:
    assert len(run_passes(compile_graph(model(*SUMS[case]))).nodes) == 1
    assert convolutions(model(*SUMS[case])) == 1


@pytest.mark.parametrize("case", APART)
def test_windows_that_no_filter_covers_stay(case: str) -> None:
    assert convolutions(model(*APART[case])) == 2


def test_a_branch_that_is_read_elsewhere_stays() -> None:
    made = model(*SUMS["strides"])
    made.graph.output.append(helper.make_empty_tensor_value_info("y0"))
    assert convolutions(onnx.shape_inference.infer_shapes(made)) == 2
