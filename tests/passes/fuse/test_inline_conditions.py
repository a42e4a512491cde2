"""An epilogue that chooses by a comparison of floats reads the floats, not booleans."""

from __future__ import annotations

import pytest
from onnx import parser

from atc.ir.graph import DType
from atc.ir.ops import MatMul
from atc.passes import run_passes
from support import compile_graph


def model(compared: str, kind: str) -> str:
    return f"""<ir_version: 8, opset_import: ["": 17]>
        g (float[8,4] x, float[4,6] w, {kind}[8,6] y, {kind} limit) => (float[8,6] z) {{
          zero = Constant<value = float {{0.0}}>() p = MatMul(x, w) m = {compared}(y, limit)
          z = Where(m, zero, p) }}"""


@pytest.mark.parametrize(
    ("compared", "kind", "read"),
    [("LessOrEqual", "float", DType.FLOAT), ("Greater", "float", DType.FLOAT),
     ("Equal", "int64", DType.BOOL)],
)  # fmt: skip
def test_comparisons_are_computed_where_they_choose(compared: str, kind: str, read: DType) -> None:
    graph = run_passes(compile_graph(parser.parse_model(model(compared, kind))))
    (product,) = (n for n in graph.nodes if isinstance(n.op, MatMul))
    assert {graph.types[name].dtype for name in product.inputs[2:]} == {read}
    assert product.outputs == ("z",)
