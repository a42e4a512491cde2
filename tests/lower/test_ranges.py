"""Ranges of shapes: sizes that fit by rounding alone, sums of two ranges, names in errors."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime
import pytest
from dynamic_models import Case, Net, floats
from whole.test_dynamic_models import network_of

import atc
from atc.dims import Symbol, dim
from atc.errors import AtcError, UnsupportedError
from atc.lower.ranges import labelled


def rows_of_halves(n: Net) -> str:
    """Return x [h, w] as rows of twice the half of w, rounded up."""
    half = n("Div", n("Add", n.extent("x", 1), n.constant([1])), n.constant([2]))
    return n.shaped("x", n.extent("x", 0), n("Mul", half, n.constant([2])))


def test_sizes_that_rounding_changes_end_the_run(tmp_path: Path) -> None:
    n = Net()
    y = n("Add", n("Relu", rows_of_halves(n)), "x")
    model = n.model({"x": ("f", ["h", "w"])}, {y: "f"})
    network = network_of(Case(model, "x:1~5,3~9", []), tmp_path, "c99")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for feed in ({"x": floats(1, 4)}, {"x": floats(5, 8)}):
        assert (network.run(feed)[y] == session.run(None, feed)[0]).all()
    with pytest.raises(ValueError, match="shape"):
        network.run({"x": floats(2, 7)})


def test_sizes_that_never_agree_are_refused(tmp_path: Path) -> None:
    n = Net()
    y = n.shaped("x", 4, n.extent("x", 1))
    onnx.save(n.model({"x": ("f", ["h", "w"])}, {y: "f"}), tmp_path / "m.onnx")
    with pytest.raises(AtcError, match=r"\[x\[0\], x\[1\]\] cannot become \[4, x\[1\]\]"):
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape="x:5~8,3~9")


def test_two_ranges_are_added_where_they_are_the_same(tmp_path: Path) -> None:
    n = Net()
    y = n("Mul", n("Add", "a", "b"), n("Transpose", n("Transpose", "a")))
    model = n.model({"a": ("f", ["h", "w"]), "b": ("f", ["i", "w"])}, {y: "f"})
    network = network_of(Case(model, "a:2~5,6;b:2~9,6", []), tmp_path, "c99")
    a, b = floats(4, 6), floats(4, 6, seed=1)
    assert (network.run({"a": a, "b": b})[y] == (a + b) * a).all()
    with pytest.raises(ValueError, match="shape"):
        network.run({"a": a, "b": floats(5, 6)})


def test_errors_of_extents_call_them_by_their_names() -> None:
    symbol = Symbol(0, "x[0]", 1, 4)
    with (
        pytest.raises(UnsupportedError, match=r"rows of x\[0\] \+ 1$"),
        labelled((symbol,)),
    ):
        raise UnsupportedError(f"rows of {dim(symbol) + 1}")
