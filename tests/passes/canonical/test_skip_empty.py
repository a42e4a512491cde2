"""Networks of results without elements, which no kernel computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from support import compile_models, node_model

OPERATORS: dict[str, tuple[list[tuple[int, ...]], dict[str, Any]]] = {
    "Softmax": ([(5, 0, 2)], {"axis": 0}), "LogSoftmax": ([(1, 0)], {"axis": 0}),
    "ReduceMax": ([(3, 0)], {"keepdims": 0}), "MatMul": ([(0, 3), (3, 4)], {}),
    "Conv": ([(0, 3, 5, 5), (4, 3, 3, 3)], {}), "CumSum": ([(2, 0)], {}),
    "MaxPool": ([(2, 0, 5, 5)], {"kernel_shape": [2, 2]}), "Gather": ([(4, 0)], {"axis": 0}),
}  # fmt: skip
INDICES = {"ReduceMax": np.array([0]), "CumSum": np.array(0), "Gather": np.array([1, 2])}


def models() -> list[onnx.ModelProto]:
    """Return a model of each operator, whose inputs are all zeros."""
    return [
        node_model(op, [np.zeros(s, np.float32) for s in shapes]
                   + ([INDICES[op]] if op in INDICES else []), **attributes)
        for op, (shapes, attributes) in OPERATORS.items()
    ]  # fmt: skip


@pytest.mark.parametrize("target", ["c99", "host"])
def test_results_without_elements_are_compiled(target: str) -> None:
    given = models()
    for model, run in zip(given, compile_models(given, target), strict=True):
        assert not isinstance(run, Exception), run
        arrays = [
            np.zeros([d.dim_value for d in v.type.tensor_type.shape.dim],
                     helper.tensor_dtype_to_np_dtype(v.type.tensor_type.elem_type))
            for v in model.graph.input
        ]  # fmt: skip
        feeds = {v.name: a for v, a in zip(model.graph.input, arrays, strict=True)}
        (expected,) = ReferenceEvaluator(model).run(None, feeds)
        (result,) = run(arrays)
        assert (result.shape, result.size) == (expected.shape, 0)
