"""Scatters that overwrite an operand of a Concat join their updates instead."""

from __future__ import annotations

from collections.abc import Mapping
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
    axes: Axes, *, moved: str = "Identity(whole)", more: str = "", reduction: str = "none"
) -> onnx.ModelProto:
    """Return x written into a Concat of a [2, 3, 4] and b [2, 1, 4], that may be moved before."""
    shape = ", ".join(str(len(axis)) for axis in axes)
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[2, 3, 4] a, float[2, 1, 4] b, float[{shape}] x) => (float y)
        <{places(axes)}, int64[1] nought = {{0}}, int64[1] one = {{1}},
         int64[1] end3 = {{3}}, int64[1] end = {{9}}> {{
            whole = Concat<axis = 1>(a, b)
            c = {moved}
            d = ScatterND<reduction = "{reduction}">(c, at, x)
            {more or "y = Softmax<axis = 0>(d)"} }}""")


LAST: Axes = [[0, 1], [3], [0, 1, 2, 3]]
CASES: Mapping[str, tuple[onnx.ModelProto, bool]] = {
    "the last": (model(LAST), True),
    "the first": (model([[0, 1], [0, 1, 2], [0, 1, 2, 3]]), True),
    "the last backwards": (model([[1, 0], [3], [3, 2, 1, 0]]), True),
    "transposed": (model([[3], [0, 1], [0, 1, 2, 3]],
                         moved="Transpose<perm = [1, 0, 2]>(whole)"), True),
    "turned": (model([[0, 1, 2, 3], [0, 1], [3]],
                     moved="Transpose<perm = [2, 0, 1]>(whole)"), True),
    "all of a slice": (model([[0, 1], [0], [0, 1, 2, 3]],
                             moved="Slice(whole, end3, end, one)"), True),
    "a part of a slice": (model([[0, 1], [2], [0, 1, 2, 3]],
                                moved="Slice(whole, one, end, one)"), True),
    "the begin": (model([[0, 1], [0, 1, 2], [0, 1, 2, 3]],
                        moved="Slice(whole, nought, end3, one)"), True),
    "some of it": (model([[0, 1], [3], [0, 1, 2]]), False),
    "more than it": (model([[0, 1], [2, 3], [0, 1, 2, 3]]), False),
    "some twice": (model([[0, 1], [3, 3], [0, 1, 2, 3]]), False),
    "a sum": (model(LAST, reduction="add"), False),
    "read before": (model(LAST, more="y = Mul(d, c)"), False),
}  # fmt: skip


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
