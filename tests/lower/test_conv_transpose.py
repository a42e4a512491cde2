"""Transposed convolutions whose output_shape decides their pads, against onnxruntime."""

from __future__ import annotations

import pytest
from ort_cases import Case, compiled, noise

from atc.errors import ModelError
from support import assert_close, compile_graph, node_model

X, W = noise(2, 3, 4, 5), noise(3, 2, 3, 2)
SHAPES = {"even": [7, 14], "odd": [8, 13]}
CASES = {
    f"{name} {auto} {opset}": Case(
        "ConvTranspose", [X, W], (1,),
        {"strides": [2, 3], "output_shape": shape, "auto_pad": auto}, opset=opset,
    )
    for name, shape in SHAPES.items()
    for auto in ("NOTSET", "SAME_UPPER", "SAME_LOWER")
    for opset in (7, 11, 22)
}  # fmt: skip
COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_an_output_shape_decides_the_pads(name: str) -> None:
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-5)


@pytest.mark.parametrize("cut", [4, 6])
def test_pads_that_leave_nothing_are_refused(cut: int) -> None:
    with pytest.raises(ModelError, match=rf"pads leave \[6, {4 - cut}\] of the sums \[6, 6\]"):
        compile_graph(node_model("ConvTranspose", [noise(1, 3, 4, 4), noise(3, 2, 3, 3)],
                                 pads=[0, 2, 0, cut]))  # fmt: skip
