"""Scatters that overwrite an operand of a Concat join their updates instead."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest

from atc.ir.ops.data import Scatter
from atc.passes import run_passes
from support import assert_close, compile_graph, run_model

Axes = list[list[int]]


def places(axes: Axes) -> str:
    """Return the constant of the indices of a box, whose every axis is listed."""
    rows = [*product(*axes)]
    extents = ", ".join(map(str, (*map(len, axes), len(axes))))
    numbers = ", ".join(str(n) for row in rows for n in row)
    return f"int64[{extents}] at = {{{numbers}}}"


def model(
    axes: Axes, *, perm: str = "", more: str = "", reduction: str = "none"
) -> onnx.ModelProto:
    """Return x written into a Concat of a [2, 3, 4] and b [2, 1, 4], that may be transposed."""
    shape = ", ".join(str(len(axis)) for axis in axes)
    moved = f"c = Transpose<perm = {perm}>(whole)" if perm else "c = Identity(whole)"
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[2, 3, 4] a, float[2, 1, 4] b, float[{shape}] x) => (float y)
        <{places(axes)}> {{
            whole = Concat<axis = 1>(a, b)
            {moved}
            d = ScatterND<reduction = "{reduction}">(c, at, x)
            {more or "y = Softmax<axis = 0>(d)"} }}""")


LAST: Axes = [[0, 1], [3], [0, 1, 2, 3]]
CASES = {
    "the last": (model(LAST), True),
    "the first": (model([[0, 1], [0, 1, 2], [0, 1, 2, 3]]), True),
    "the last backwards": (model([[1, 0], [3], [3, 2, 1, 0]]), True),
    "transposed": (model([[3], [0, 1], [0, 1, 2, 3]], perm="[1, 0, 2]"), True),
    "turned": (model([[0, 1, 2, 3], [0, 1], [3]], perm="[2, 0, 1]"), True),
    "some of it": (model([[0, 1], [3], [0, 1, 2]]), False),
    "more than it": (model([[0, 1], [2, 3], [0, 1, 2, 3]]), False),
    "some twice": (model([[0, 1], [3, 3], [0, 1, 2, 3]]), False),
    "a sum": (model(LAST, reduction="add"), False),
    "read before": (model(LAST, more="y = Mul(d, c)"), False),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    net, joined = CASES[name]
    onnx.save(net, tmp_path / "m.onnx")
    random = np.random.default_rng(0)
    shapes = [[d.dim_value for d in i.type.tensor_type.shape.dim] for i in net.graph.input]
    inputs = [random.standard_normal(shape).astype(np.float32) for shape in shapes]
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    expected = session.run(None, dict(zip("abx", inputs, strict=True)))
    assert_close(run_model(net, inputs), expected, rtol=1e-6)
    graph = run_passes(compile_graph(net))
    assert any(isinstance(n.op, Scatter) for n in graph.nodes) is not joined
