"""`Backward`, the derivative of one operator, beside the gradient of a sum of products with g."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import parser

from atc.errors import ModelError, UnsupportedError
from atc.lower.gradient.derivatives import DERIVATIVES
from support import compile_graph, run_model

HEAD = ('<ir_version: 10, opset_import: ["": 21, "atc.training": 1, '
        '"ai.onnx.preview.training": 1]>')  # fmt: skip
CASES = {
    "Conv": ("[2,4,7,6]", "[6,2,3,3]", "[2,6,4,3]", "strides=[2,2], pads=[1,1,1,1], group=2"),
    "ConvTranspose": ("[2,4,3,3]", "[4,3,2,3]", "[2,6,6,5]",
                      "strides=[2,1], group=2, output_padding=[0,0]"),
    "AveragePool": ("[2,3,6,6]", "", "[2,3,3,3]",
                    "kernel_shape=[3,2], strides=[2,2], pads=[1,0,1,0], count_include_pad=1"),
    "GridSample": ("[2,3,4,5]", "[2,2,3,2]", "[2,3,2,3]", "mode=\"linear\", align_corners=1"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_gradient_of_the_operator(name: str) -> None:
    x, w, y, attributes = CASES[name]
    operands, given = ("x, w", f", double{w} w") if w else ("x", "")
    names = '["x", "w"]' if w else '["x"]'
    mine, theirs = ("a, b", "c, d") if w else ("a", "c")
    results = f"double{x} a, double{x} c" + (f", double{w} b, double{w} d" if w else "")
    model = parser.parse_model(f"""{HEAD} g (double{y} g, double{x} x{given}) => ({results}) {{
        {mine} = atc.training.Backward<operator="{name}", {attributes}>(g, {operands})
        y = {name}<{attributes}>({operands}) p = Mul(y, g) s = ReduceSum<keepdims=0>(p)
        {theirs} = ai.onnx.preview.training.Gradient<xs={names}, zs=["g"], y="s">({operands}, g)
    }}""")
    rng = np.random.default_rng(0)
    feeds = [rng.normal(size=[d.dim_value for d in v.type.tensor_type.shape.dim])
             for v in model.graph.input]  # fmt: skip
    found = dict(zip((o.name for o in model.graph.output), run_model(model, feeds), strict=True))
    for a, b in (("a", "c"), ("b", "d")) if w else (("a", "c"),):
        np.testing.assert_allclose(found[a], found[b], rtol=1e-12, atol=1e-13)


def test_what_has_none_is_refused() -> None:
    assert ("", "Size") not in DERIVATIVES
    model = parser.parse_model(f"""{HEAD} g (float[2] g, float[2] x) => (float[2] a) {{
        a = atc.training.Backward<operator="Size">(g, x) }}""")
    with pytest.raises((ModelError, UnsupportedError), match="the operator 'Size'"):
        compile_graph(model)
