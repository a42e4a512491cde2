"""Steps that read one tensor block by block are one kernel, with the same numbers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import parser

from atc.ir.ops import MatMul, SubView
from atc.lower.model import lower_model
from atc.passes import run_passes
from support import run_model

STEPS, ROWS, UNITS = 8, 2, 16


def model(reach: int) -> onnx.ModelProto:
    """Return h = tanh(h w + x[t : t + reach]) for all t."""
    shape = f"{reach},{ROWS},{UNITS}"
    nodes = " ".join(
        f"p{t} = MatMul(h{t}, w) c{t} = Slice(x, t{t}, e{t}) s{t} = Add(p{t}, c{t}) "
        f"h{t + 1} = Tanh(s{t})" for t in range(STEPS)
    )  # fmt: skip
    places = ", ".join(
        f"int64[1] t{t} = {{{t}}}, int64[1] e{t} = {{{t + reach}}}" for t in range(STEPS)
    )
    return parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[{STEPS + reach},{ROWS},{UNITS}] x, float[{shape}] h0, float[{UNITS},{UNITS}] w)
        => (float[{shape}] h{STEPS}) <{places}> {{ {nodes} }}""")


@pytest.mark.parametrize(("reach", "products"), [(1, 1), (2, 5)])
def test_blocks_are_parts(reach: int, products: int) -> None:
    """Blocks that begin where none of their size does are read where they lie."""
    made = model(reach)
    graph = run_passes(lower_model(onnx_ir.from_proto(made), "test"), width=8)
    ops = Counter(node.op for node in graph.nodes)
    assert sum(isinstance(op, MatMul) for op in ops) == products
    assert sum(isinstance(node.op, SubView) for node in graph.nodes) == STEPS // reach
    rng = np.random.default_rng(5)
    shapes = [(STEPS + reach, ROWS, UNITS), (reach, ROWS, UNITS), (UNITS, UNITS)]
    x, h, w = (rng.normal(size=s).astype(np.float32) / 6 for s in shapes)
    got = run_model(made, [x, h, w])
    h = h.astype(np.float64)
    for t in range(STEPS):
        h = np.tanh(h @ w.astype(np.float64) + x[t : t + reach])
    np.testing.assert_allclose(got[0], h, rtol=1e-5, atol=1e-6)
