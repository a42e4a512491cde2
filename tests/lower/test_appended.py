"""Sequences that loops append to, as often as a run says, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from onnx.parser import parse_model
from projects import build_shared, emit_graph, write_project

from atc.errors import UnsupportedError
from atc.importers.onnx import pin_inputs
from atc.lower import lower_model
from atc.options.shapes import shapes
from atc.runtime.network import Network

HEAD = '<ir_version: 8, opset_import: ["" : 18]>'
LOOP = """g (float[n, 3] x) => (RESULTS) {
  zero = Constant<value_int=0>() one = Constant<value_int=1>() axis = Constant<value_ints=[0]>()
  two = Constant<value_int=2>() all = Constant<value_ints=[-1]>()
  sizes = Shape(x) size = Gather(sizes, zero)
  START going = Less(zero, size)
  s, last = Loop<body = b (int64 k, bool c, seq(float[P, 3]) e, int64 i) =>
    (bool d, seq(float[Q, 3]) r, int64 j) {
    p = Reshape(i, all) q = Add(p, one) row = Slice(x, p, q, axis) part = MADE
    r = SequenceInsert(e, part) j = Add(i, one) d = Less(j, size) }>(, going, begun, zero)
  AFTER }"""
EMPTY = "begun = SequenceEmpty()"
FULL = """end = Constant<value_ints=[1]>() first = Slice(x, axis, end, axis)
  begun = SequenceConstruct(first)"""
CASES = {
    "joined": ("float[m, 3] y", EMPTY, "Tanh(row)", "y = ConcatFromSequence<axis=0>(s)"),
    "side by side": ("float[1, m] y", EMPTY, "Neg(row)", "y = ConcatFromSequence<axis=-1>(s)"),
    "along a new axis": ("float[1, m, 3] y", EMPTY, "Exp(row)",
                         "y = ConcatFromSequence<axis=1, new_axis=1>(s)"),
    "behind a first one": ("float[m, 3] y", FULL, "Tanh(first)",
                           "y = ConcatFromSequence<axis=0>(s)"),
    "counted": ("int64 y, int64 last", EMPTY, "Tanh(row)", "y = SequenceLength(s)"),
    "taken from": ("float[1, 3] y, float[1, 3] z", EMPTY, "Tanh(row)",
                   "y = SequenceAt(s, zero) m = Constant<value_int=-1>() z = SequenceAt(s, m)"),
    "sums of what is left": ("float[m, 3] y", EMPTY, "CumSum<reverse=1>(x, zero)",
                             "t = ConcatFromSequence<axis=0>(s) y = Neg(t)"),
}  # fmt: skip


def model(case: str, ranges: str = "x:1~6,3") -> tuple[onnx_ir.Model, bytes]:
    """Return a case's model for a range of shapes, and its file."""
    results, start, made, after = CASES[case]
    text = LOOP.replace("RESULTS", results).replace("START", start).replace("AFTER", after)
    proto = parse_model(HEAD + text.replace("MADE", made))
    pinned = pin_inputs(onnx_ir.from_proto(proto), shapes(ranges), "test.onnx")
    return pinned, proto.SerializeToString()


@pytest.mark.few(2)
@pytest.mark.parametrize("case", CASES)
def test_as_many_elements_as_the_run_says(case: str, tmp_path: Path) -> None:
    pinned, file = model(case)
    emission = emit_graph(lower_model(pinned, "test.onnx"), target="c99")
    network = Network(build_shared(write_project(tmp_path, emission), level="-O0"), emission.name)
    session = onnxruntime.InferenceSession(file)
    for count in (1, 2, 6):
        x = np.random.default_rng(count).standard_normal((count, 3)).astype(np.float32)
        found = network.run({"x": x})
        for output, want in zip(session.get_outputs(), session.run(None, {"x": x}), strict=True):
            assert found[output.name].shape == want.shape
            np.testing.assert_allclose(found[output.name], want, rtol=1e-5, atol=1e-6)


def test_a_body_that_reads_its_sequence_is_refused() -> None:
    pinned, _ = model("joined")
    body = next(n for n in pinned.graph if n.op_type == "Loop").attributes["body"].as_graph()
    body.append(onnx_ir.node("SequenceLength", [body.inputs[2]]))
    with pytest.raises(UnsupportedError, match="known only at run time"):
        lower_model(pinned, "test.onnx")


def test_more_elements_than_are_written_out() -> None:
    pinned, _ = model("joined", ranges="x:3000,3")
    graph = lower_model(pinned, "test.onnx")
    assert len(graph.nodes) < 100
