"""Scales of packed weights in float16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atc.ir.expr import Input
from atc.ir.graph import DType, Graph, Node, TensorType, type_of
from atc.ir.ops import Epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.passes.quantized.narrow_scales import narrow_scales
from atc.passes.rewriting import rewrite


def graph(scales: NDArray[Any]) -> Graph:
    """Return a product with weights of 4 bits, two columns of two blocks."""
    op = MatMulPacked(1, 2, 32, 16, 4, Epilogue(Input(DType.FLOAT, 0), ()))
    constants = {"q": np.zeros((2, 2, 8), np.uint8), "s": scales}
    types = {"x": TensorType(DType.FLOAT, (1, 32)), "y": TensorType(DType.FLOAT, (1, 2))}
    types |= {name: type_of(array) for name, array in constants.items()}
    node = Node(op, ("x", "q", "s", ""), ("y",), ("n",))
    return Graph("g", ("x",), ("y",), (node,), types, constants)


@pytest.mark.parametrize(
    ("scale", "stored"),
    [(0.5, DType.FLOAT16), (2.0**-24, DType.FLOAT16), (0.1, DType.FLOAT), (1e6, DType.FLOAT),
     (np.inf, DType.FLOAT16)],
)  # fmt: skip
def test_only_scales_that_float16_holds_become_it(scale: float, stored: DType) -> None:
    scales = np.array([[1, 2], [3, scale]], np.float32)
    found = rewrite(graph(scales), narrow_scales, {})
    name = found.nodes[0].inputs[2]
    assert found.types[name].dtype is stored
    np.testing.assert_array_equal(found.constants[name].astype(np.float32), scales)
