"""Ifs and loops over ranges whose parts need one extent: right where a model works, or a status.

Each model is compared with onnxruntime shape by shape; where that fails, so must the network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from dynamic_models import Case, Feed, Net, floats
from whole.test_dynamic_models import network_of

import atc
from atc.errors import AtcError

Part = Callable[[Net], str]


def branches(n: Net, condition: str, then: Part, other: Part) -> str:
    """Return the result of an If whose branches are these parts."""
    graphs = {}
    for name, part in (("then", then), ("else", other)):
        inner = Net()
        result = part(inner)
        graphs[f"{name}_branch"] = inner.body(name, {}, {result: "f"})
    return n("If", condition, **graphs)


def times(rows: int) -> Part:
    """Return a product of x and a matrix of so many rows."""
    return lambda n: n("MatMul", "x", n.weight(rows, 3))


def has_extent(n: Net, axis: int, extent: int) -> str:
    return n("Equal", n("Squeeze", n.extent("x", axis)), n.constant(extent))


def feeds(rows: tuple[int, ...], columns: tuple[int, ...], *flags: str) -> Iterator[Feed]:
    """Yield x of these shapes with all values of these flags."""
    for h, w, *values in product(rows, columns, *[(True, False)] * len(flags)):
        given = zip(flags, values, strict=True)
        yield {"x": floats(h, w), **{name: np.array(v) for name, v in given}}


def two_sizes() -> Case:
    n = Net()
    y = n("Relu", branches(n, "c", times(4), times(7)))
    model = n.model({"x": ("f", ["h", "w"]), "c": ("b", [])}, {y: "f"})
    return Case(model, "x:1~3,1~9;c:", [*feeds((1, 3), (1, 4, 7), "c")])


def nested() -> Case:
    n = Net()
    inner: Part = lambda p: branches(p, "d", times(4), times(5))  # noqa: E731
    y = n("Relu", branches(n, "c", inner, times(7)))
    model = n.model({"x": ("f", ["h", "w"]), "c": ("b", []), "d": ("b", [])}, {y: "f"})
    return Case(model, "x:1~3,3~9;c:;d:", [*feeds((2,), (4, 5, 7), "c", "d")])


def ranks() -> Case:
    """Return a vector or a matrix, and what follows: how many axes it has, its sum, its rows."""
    n = Net()
    y = branches(
        n, has_extent(n, 1, 1),
        lambda p: p("Squeeze", "x", p.constant([1])), lambda p: p("Identity", "x"),
    )  # fmt: skip
    rank = n("Size", n("Shape", y))
    total = n("ReduceSum", n("Mul", y, y), keepdims=0)
    again = branches(
        n, n("Equal", rank, n.constant(1)),
        lambda p: p("Unsqueeze", y, p.constant([1])), lambda p: p("Identity", y),
    )  # fmt: skip
    model = n.model({"x": ("f", ["h", "w"])}, {total: "f", rank: "i", n("Relu", again): "f"})
    return Case(model, "x:1~4,1~5", [*feeds((1, 4), (1, 2, 5))])


def reshaped() -> Case:
    """Return rows of three where x has two, which must hold a multiple of three then."""
    n = Net()
    y = branches(
        n, has_extent(n, 0, 2),
        lambda p: p.shaped("x", 2, -1, 3),
        lambda p: p("Unsqueeze", "x", p.constant([0])),
    )  # fmt: skip
    model = n.model({"x": ("f", ["h", "w"])}, {n("Relu", y): "f"})
    return Case(model, "x:2~4,1~12", [*feeds((2, 3), (1, 3, 7, 12))])


def parts() -> Case:
    n = Net()
    y = branches(
        n, "c",
        lambda p: p("Mul", *_both(p, p("Split", "x", p.constant([2, 2]), axis=1, outputs=2))),
        lambda p: p("Einsum", "x", p.weight(5, 3), equation="ab,bc->ac"),
    )  # fmt: skip
    model = n.model({"x": ("f", ["h", "w"]), "c": ("b", [])}, {n("Relu", y): "f"})
    return Case(model, "x:1~3,2~9;c:", [*feeds((3,), (2, 4, 5), "c")])


def _both(n: Net, first: str) -> tuple[str, str]:
    return first, n.nodes[-1].output[1]


def in_loop() -> Case:
    """Return a state that even iterations multiply and odd ones add a product of x to."""
    n, p = Net(), Net()
    even = p("Equal", p("Mod", "i", p.constant(2)), p.constant(0))
    state = branches(
        p, even,
        lambda q: q("MatMul", "s", q.weight(3, 3)), lambda q: q("Add", "s", times(4)(q)),
    )  # fmt: skip
    going = p("Identity", "go")
    inputs = {"i": ("i", []), "go": ("b", []), "s": ("f", ["h", 3])}
    body = p.body("body", inputs, {going: "b", state: "f"})
    rows = n("Slice", n.weight(9, 3), n.constant([0]), n.extent("x", 1), n.constant([0]))
    y = n("Loop", "m", "", n("MatMul", "x", rows), body=body)
    model = n.model({"x": ("f", ["h", "w"]), "m": ("i", [])}, {y: "f"})
    runs = [{**x, "m": np.array(m)} for x in feeds((2,), (3, 4)) for m in (0, 1, 2, 3)]
    return Case(model, "x:1~3,2~9;m:", runs)


def in_scan() -> Case:
    n, p = Net(), Net()
    row = branches(
        p, "c",
        lambda q: q("MatMul", "e", q.weight(4, 3)),
        lambda q: q("ReduceSum", "e", q.constant([1]), keepdims=1),
    )  # fmt: skip
    state = p("Add", "s", row)
    inputs = {"s": ("f", [1, 3]), "e": ("f", [1, "w"])}
    body = p.body("body", inputs, {state: "f"})
    rows = n("Unsqueeze", "x", n.constant([1]))
    y = n("Scan", n.constant(np.zeros((1, 3)), np.float32), rows, body=body, num_scan_inputs=1)
    model = n.model({"x": ("f", ["h", "w"]), "c": ("b", [])}, {y: "f"})
    return Case(model, "x:1~12,1~6;c:", [*feeds((1, 12), (3, 4), "c")])


def never_begun() -> Case:
    """Return a state of a loop whose body fits one extent alone, and may never run."""
    n, p = Net(), Net()
    state, going = p("Add", "s", times(4)(p)), p("Identity", "go")
    inputs = {"i": ("i", []), "go": ("b", []), "s": ("f", ["h", 3])}
    body = p.body("body", inputs, {going: "b", state: "f"})
    start = n.constant(np.ones((1, 3)), np.float32)
    y = n("Loop", "m", "", n("Expand", start, n.joined(n.extent("x", 0), 3)), body=body)
    model = n.model({"x": ("f", ["h", "w"]), "m": ("i", [])}, {y: "f"})
    runs = [{**x, "m": np.array(m)} for x in feeds((2,), (3, 4)) for m in (0, 2)]
    return Case(model, "x:1~3,2~9;m:", runs)


def windows() -> Case:
    """Return means over a convolution of a window that small images haven't room for."""

    def layer(size: int) -> Part:
        return lambda p: p("Conv", "x", p.weight(2, 3, size, size), strides=[2, 2])

    n = Net()
    large = n("Greater", n("Squeeze", n.extent("x", 2)), n.constant(6))
    y = n("GlobalAveragePool", branches(n, large, layer(5), layer(1)))
    model = n.model({"x": ("f", [1, 3, "h", "w"])}, {y: "f"})
    sizes = product((1, 6, 7, 12), (1, 4, 5))
    return Case(model, "x:1,3,1~12,1~12", [{"x": floats(1, 3, h, w)} for h, w in sizes])


def pools() -> Case:
    n = Net()
    y = n("MaxPool", "x", kernel_shape=[3, 3], strides=[2, 2])
    y = n("AveragePool", y, kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1)
    model = n.model({"x": ("f", [1, 2, "h", "w"])}, {n("Relu", y): "f"})
    sizes = product((1, 2, 3, 5, 12), (1, 3, 4))
    return Case(model, "x:1,2,1~12,1~12", [{"x": floats(1, 2, h, w)} for h, w in sizes])


def channels() -> Case:
    def layer(count: int) -> Part:
        return lambda p: p("Conv", "x", p.weight(2, count, 3, 3), pads=[1] * 4)

    n = Net()
    y = branches(n, has_extent(n, 1, 1), layer(1), layer(3))
    model = n.model({"x": ("f", [1, "c", "h", 6])}, {n("Relu", y): "f"})
    return Case(model, "x:1,1~3,4~9,6", [{"x": floats(1, c, 5, 6)} for c in (1, 2, 3)])


CASES = (two_sizes, nested, ranks, reshaped, parts, in_loop, in_scan, never_begun, windows, pools,
         channels)  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_every_shape_is_right_or_a_status(make: Callable[[], Case], tmp_path: Path) -> None:
    case = make()
    network = network_of(case, tmp_path, "c99")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(case.model.SerializeToString(), options)
    outcomes = set()
    for feed in case.feeds:
        try:
            wanted = session.run(None, dict(feed))
        except Exception:  # onnxruntime raises many kinds
            wanted = None
        outcomes.add(wanted is None)
        if wanted is None:
            with pytest.raises((RuntimeError, ValueError), match="shape"):
                network.run(dict(feed))
            continue
        for got, want in zip(network.run(dict(feed)).values(), wanted, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert outcomes == ({False} if make is ranks else {True, False})


def test_a_range_may_hold_shapes_that_no_branch_takes(tmp_path: Path) -> None:
    onnx.save(two_sizes().model, tmp_path / "m.onnx")
    atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_shape="x:1~3,1~9;c:")
    network = atc.load(tmp_path / "net")
    x = floats(2, 4)
    assert network(x, np.array(True)).shape == (2, 3)
    with pytest.raises(RuntimeError, match="shape"):
        network(x, np.array(False))


def test_results_of_different_ranks_are_refused(tmp_path: Path) -> None:
    n = Net()
    y = branches(
        n, "c", lambda p: p("Squeeze", "x", p.constant([0])), lambda p: p("Identity", "x")
    )
    onnx.save(n.model({"x": ("f", [1, 4]), "c": ("b", [])}, {y: "f"}), tmp_path / "m.onnx")
    with pytest.raises(AtcError, match="different types"):
        atc.compile(tmp_path / "m.onnx", tmp_path / "net")
