"""States that several Scatters overwrite part by part are windows of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import numpy_helper
from passes.canonical.test_slide_states import expected, inputs

import atc

GRIDS = {
    "early": np.array([[[c, k] for k in (0, 1)] for c in range(4)]),
    "late": np.array([[[c, k] for k in (2, 3, 4)] for c in range(4)]),
    "upper": np.array([[0]]), "lower": np.array([[1]]),
}  # fmt: skip
LAYERS = """
        past = Slice(s, nought, two, axis)
        whole = Concat<axis = 1>(past, x)
        next = Slice(whole, one, end, axis)
        r = ScatterND(s, early, next)
        mean = ReduceMean(whole, axis)
        past2 = Slice(%s, two, end, axis)
        whole2 = Concat<axis = 1>(past2, mean)
        next2 = Slice(whole2, one, end, axis)
        t = ScatterND(r, late, next2)
        y = ReduceMax<keepdims = 0>(%s, axis) }"""
BODY = {
    "columns of rows": ("[4, 5]", LAYERS % ("r", "whole2"), 2),
    "the first version is read late": ("[4, 5]", LAYERS % ("s", "whole2"), 2),
    "the next one is read whole": ("[4, 5]", LAYERS % ("r", "t"), 1),
    "a version in between is read whole": ("[4, 5]", LAYERS % ("r", "r"), 1),
    "some stay": ("[4, 6]", LAYERS % ("r", "whole2"), 1),
    "one for all": ("[1, 4, 5]", """
        past = Gather<axis = 0>(s, noughts)
        whole = Concat<axis = 1>(past, x)
        next = Slice(whole, one, six, axis)
        up = Unsqueeze(next, nought)
        t = ScatterND(s, upper, up)
        y = ReduceSum<keepdims = 0>(whole, axis) }""", 1),
    "a part with parts": ("[2, 4, 5]", """
        top = Gather<axis = 0>(s, noughts)
        past = Slice(top, nought, two, axis)
        whole = Concat<axis = 1>(past, x)
        next = Slice(whole, one, end, axis)
        top2 = ScatterND(top, early, next)
        mean = ReduceMean(whole, axis)
        past2 = Slice(top2, two, end, axis)
        whole2 = Concat<axis = 1>(past2, mean)
        next2 = Slice(whole2, one, end, axis)
        top3 = ScatterND(top2, late, next2)
        up = Unsqueeze(top3, nought)
        r = ScatterND(s, upper, up)
        low = Gather<axis = 0>(r, ones)
        most = ReduceMax(whole2, axis)
        whole3 = Concat<axis = 1>(low, most)
        next3 = Slice(whole3, one, six, axis)
        down = Unsqueeze(next3, nought)
        t = ScatterND(r, lower, down)
        y = ReduceSum<keepdims = 0>(whole3, axis) }""", 3),
}  # fmt: skip
HEAD = """<ir_version: 8, opset_import: ["" : 18]>
net (float[4, 1] x, float%s s) => (float[4] y, float%s t)
    <int64[1] nought = {0}, int64[1] one = {1}, int64[1] two = {2}, int64[1] end = {5},
     int64[1] six = {6}, int64[1] axis = {1}, int64 noughts = {0}, int64 ones = {1}> {"""


def write(name: str, folder: Path) -> tuple[Path, tuple[int, ...]]:
    """Write a network; return it and its state's shape."""
    shape, body, _ = BODY[name]
    text = HEAD % (shape, shape) + body
    model = onnx.parser.parse_model(text)
    used = {i for node in model.graph.node for i in node.input}
    kept = [i for i in model.graph.initializer if i.name in used]
    del model.graph.initializer[:]
    model.graph.initializer.extend(kept)
    model.graph.initializer.extend(
        numpy_helper.from_array(v, k) for k, v in GRIDS.items() if k in used
    )
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx", tuple(int(n) for n in shape.strip("[]").split(","))


@pytest.mark.few(3)
@pytest.mark.parametrize("name", BODY)
def test_parts_that_are_windows_slide_apart(name: str, tmp_path: Path) -> None:
    path, held = write(name, tmp_path)
    done = atc.compile(path, tmp_path / "net", state="s:t", target="c99")
    *_, parts = BODY[name]
    assert [s.slide is not None for s in done.program.states] == [parts > 1] * parts
    xs = inputs((4, 1))
    ys, kept = expected(path, xs, np.zeros(held, np.float32))
    with atc.load(done.folder) as net:
        for k, (x, y) in enumerate(zip(xs, ys, strict=True)):
            np.testing.assert_allclose(net(x), y, rtol=1e-5, atol=1e-5, err_msg=f"run {k}")
        size = 4 * int(np.prod(held))
        assert net.state_size == size
        found, after = (np.sort(np.frombuffer(each, np.float32))
                        for each in (net.save_state(), kept[-1].tobytes()))  # fmt: skip
        np.testing.assert_allclose(found, after, rtol=1e-5, atol=1e-5)
