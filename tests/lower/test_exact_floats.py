"""Extents that a model computes in floating point."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir
import onnxruntime
import pytest
from dynamic_models import Case, Net, floats
from whole.test_dynamic_models import network_of

from atc.dims import is_data_dependent
from atc.importers.onnx import pin_inputs
from atc.lower import lower_model
from atc.options.shapes import shapes


def scaled(n: Net, to: float, most: float) -> str:
    """Return the rows and columns [2] of x in floats, scaled as detectors do."""
    rows_and_columns = n("Slice", n("Shape", "x"), n.constant([1]), n.constant([3]))
    wanted = []
    for which, size in (("ReduceMin", to), ("ReduceMax", most)):
        extent = n("Cast", n(which, rows_and_columns, keepdims=0), to=1)
        wanted.append(n("Mul", n("Reciprocal", extent), n.constant(size, np.float32)))
    scale = n("Min", *wanted)
    return n("Floor", n("Mul", n("Cast", rows_and_columns, to=1), scale))


def up(n: Net, extent: str, multiple: float) -> str:
    """Return an extent [1] rounded up to a multiple, by way of floats."""
    parts = n("Ceil", n("Div", n("Cast", extent, to=1), n.constant(multiple, np.float32)))
    return n("Cast", n("Mul", parts, n.constant(multiple, np.float32)), to=7)


def padded(n: Net, x: str, multiple: float) -> str:
    """Return an image with zeros behind it up to multiples."""
    more = []
    for axis in (1, 2):
        extent = n("Slice", n("Shape", x), n.constant([axis]), n.constant([axis + 1]))
        more.append(n("Sub", up(n, extent, multiple), extent))
    return n("Pad", x, n("Concat", n.constant([0, 0, 0, 0]), *more, axis=0))


def test_an_image_is_scaled_and_padded(tmp_path: Path) -> None:
    n = Net()
    sizes = n("Concat", n.constant([1, 2]), n("Cast", scaled(n, 8.0, 20.0), to=7), axis=0)
    image = n("Resize", n("Unsqueeze", "x", n.constant([0])), "", "", sizes, mode="linear")
    y = padded(n, n("Squeeze", image, n.constant([0])), 4.0)
    model = n.model({"x": ("f", [2, "h", "w"])}, {y: "f"})
    feeds = [{"x": floats(2, *size)} for size in ((5, 5), (5, 16), (16, 7), (11, 13))]
    network = network_of(Case(model, "x:2,5~16,5~16", feeds, ""), tmp_path, "c99")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for given in feeds:
        (wanted,) = session.run(None, given)
        got = network.run(given)
        assert got[y].shape == wanted.shape
        np.testing.assert_allclose(got[y], wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("multiple", "given", "exact"),
    [(4.0, "x:2,1~9,1~9", True), (0.5, "x:2,1~9,1~9", True), (3.0, "x:2,1~9,1~9", False),
     (4.0, "x:1,1~9,16777218~16777220", False)],
)  # fmt: skip
def test_what_is_rounded_is_no_extent(multiple: float, given: str, exact: bool) -> None:
    n = Net()
    extent = n("Slice", n("Shape", "x"), n.constant([2]), n.constant([3]))
    y = n("Range", n.constant(0), n("Squeeze", up(n, extent, multiple)), n.constant(1))
    model = n.model({"x": ("f", ["c", "h", "w"])}, {y: "i"})
    graph = lower_model(pin_inputs(onnx_ir.from_proto(model), shapes(given), "test.onnx"), "t")
    assert is_data_dependent(graph.types[y].shape) is not exact


@pytest.mark.parametrize(
    ("start", "step", "given", "exact"),
    [(0.5, 1.0, "x:1~9,2", True), (7.0, -0.5, "x:1~9,2", True), (0.0, 0.1, "x:1~9,2", False),
     (0.5, 1.0, "x:16777200~16777216,2", False)],
)  # fmt: skip
def test_a_range_of_floats_is_as_long_as_its_ends_say(
    start: float, step: float, given: str, exact: bool, tmp_path: Path
) -> None:
    n = Net()
    limit = n("Cast", n("Squeeze", n.extent("x", 0)), to=1)
    y = n("Range", n.constant(start, np.float32), limit, n.constant(step, np.float32))
    model = n.model({"x": ("f", ["h", "w"])}, {y: "f"})
    graph = lower_model(pin_inputs(onnx_ir.from_proto(model), shapes(given), "test.onnx"), "t")
    assert is_data_dependent(graph.types[y].shape) is not exact
    if exact:
        network = network_of(Case(model, given, [], ""), tmp_path, "c99")
        session = onnxruntime.InferenceSession(model.SerializeToString())
        for rows in (1, 6, 9):
            feed = {"x": floats(rows, 2)}
            np.testing.assert_array_equal(network.run(feed)[y], session.run(None, feed)[0])


def test_powers_of_extents_are_extents() -> None:
    n = Net()
    extent = n.extent("x", 0)
    square = n("Pow", extent, n.constant(2))
    cube = n("Cast", n("Pow", n("Cast", extent, to=1), n.constant(3.0, np.float32)), to=7)
    y = n("Expand", n.constant([1]), n.joined(square, cube))
    model = n.model({"x": ("f", ["h"])}, {y: "i"})
    graph = lower_model(pin_inputs(onnx_ir.from_proto(model), shapes("x:1~9"), "test.onnx"), "t")
    assert [str(s) for s in graph.types[y].shape] == ["⟨d[0] * d[0]⟩", "⟨d[0] * d[0] * d[0]⟩"]
