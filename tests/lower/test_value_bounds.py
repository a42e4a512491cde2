"""Integers known only at run time that decide shapes: declared bounds, proven ones, none."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import onnxruntime
import pytest
from dynamic_models import Array, Case, Net, floats
from whole.test_dynamic_models import network_of

from atc.dims import Range
from atc.errors import AtcError, OptionError
from atc.importers.onnx import pin_inputs
from atc.ir.expr import call, cast, const
from atc.ir.graph import DType, Graph, TensorType
from atc.ir.ops import If
from atc.lower import lower_model
from atc.lower.builder import Builder
from atc.lower.value_bounds import declare_ranges
from atc.lower.value_ranges import interval_of
from atc.options.shapes import shapes, value_ranges
from atc.runtime.network import Network

SHAPE = "out of its range"
VALUES = "a:-5~5;b:0~20;s:1~4,1~3,1~6;t:0~3;r:1~24"


def everything() -> onnx.ModelProto:
    """Every operator whose result's shape its operands' values decide."""
    n = Net()
    first = n("Range", "a", "b", n.constant(3))
    down = n("Range", "b", "a", n.constant(-2))
    real = n("Range", n.constant(0.5, np.float32), n("Cast", "b", to=1),
             n.constant(0.75, np.float32))  # fmt: skip
    filled = n("ConstantOfShape", "s")
    wide = n("Expand", "x", "s")
    tiled = n("Tile", "y", n.joined("t", 2))
    shaped = n("Reshape", "y", "r")
    rest = n("Relu", n("Reshape", "y", n.joined(n("Slice", "r", n.constant([0]), n.constant([1])),
                                                -1)))  # fmt: skip
    part = n("Slice", "y", n.constant([0]), "t")
    inputs: Mapping[str, tuple[str, object]] = {
        "a": ("i", []), "b": ("i", []), "s": ("i", [3]), "t": ("i", [1]), "r": ("i", [3]),
        "x": ("f", [3, 1]), "y": ("f", [4, 6]),
    }  # fmt: skip
    results = dict.fromkeys((real, filled, wide, tiled, shaped, rest, part), "f")
    return n.model(inputs, {first: "i", down: "i", **results})


def feed(a: int, b: int, s: tuple[int, ...], t: int, r: tuple[int, ...]) -> dict[str, Array]:
    return {"a": np.array(a), "b": np.array(b), "s": np.array(s), "t": np.array([t]),
            "r": np.array(r), "x": floats(3, 1), "y": floats(4, 6)}  # fmt: skip


FEEDS = [
    feed(0, 10, (4, 3, 6), 3, (2, 3, 4)), feed(-5, 20, (1, 3, 1), 1, (24, 1, 1)),
    feed(5, 0, (2, 1, 3), 0, (1, 12, 2)), feed(2, 3, (1, 1, 1), 2, (4, 6, 1)),
]  # fmt: skip


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Network:
    case = Case(everything(), "", FEEDS, VALUES)
    return network_of(case, tmp_path_factory.mktemp("values"), "c99")


def test_results_are_as_long_as_the_values_say(network: Network) -> None:
    session = onnxruntime.InferenceSession(everything().SerializeToString())
    for given in FEEDS:
        wanted = session.run(None, given)
        for got, want in zip(network.run(given).values(), wanted, strict=True):
            assert got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize(
    "change",
    [{"a": 6}, {"a": -6}, {"b": 21}, {"s": (5, 1, 1)}, {"s": (1, 2, 1)}, {"t": 4}, {"t": -1},
     {"r": (5, 5, 1)}, {"r": (25, 1, 1)}, {"r": (-1, 1, 1)}, {"r": (2, 3, 3)}],
    ids=str,
)  # fmt: skip
def test_values_that_exceed_their_bounds_are_a_status(
    network: Network, change: dict[str, object]
) -> None:
    given = {"a": 0, "b": 10, "s": (4, 3, 6), "t": 3, "r": (2, 3, 4), **change}
    with pytest.raises(RuntimeError, match=SHAPE):
        network.run(feed(**given))  # type: ignore[arg-type]


def branches() -> onnx.ModelProto:
    """One of two branches of other lengths, as a flag says, and as many steps as a number says."""
    n = Net()
    short, long = (n.model({}, {n("Concat", *["x"] * k, axis=0): "f"}).graph for k in (1, 2))
    y = n("If", "flag", then_branch=short, else_branch=long)
    inputs: Mapping[str, tuple[str, object]] = {
        "x": ("f", [3]), "flag": ("b", [1]), "k": ("i", [])
    }  # fmt: skip
    return n.model(inputs, {y: "f", n.steps("k"): "i"})


@pytest.mark.parametrize("flag", [True, False])
def test_a_single_value_is_a_constant_and_another_is_a_status(flag: bool, tmp_path: Path) -> None:
    case = Case(branches(), "", [], f"flag:{int(flag)};k:4")
    net = network_of(case, tmp_path, "c99")
    x = floats(3)
    given = {"x": x, "flag": np.array([flag]), "k": np.array(4)}
    y, steps = net.run(given).values()
    np.testing.assert_array_equal(y, x if flag else np.concatenate([x, x]))
    assert steps.shape == (4,)
    assert not any(isinstance(n.op, If) for n in lowered(case.model, "", case.values).nodes)
    for change in ({"flag": np.array([not flag])}, {"k": np.array(5)}, {"k": np.array(3)}):
        with pytest.raises(RuntimeError, match=SHAPE):
            net.run({**given, **change})


# ---- what is proven, and what isn't -------------------------------------------------------------


def lowered(model: onnx.ModelProto, given: str, values: str = "") -> Graph:
    pinned = pin_inputs(onnx_ir.from_proto(model), shapes(given), "test.onnx")
    declare_ranges(pinned, value_ranges(values))
    return lower_model(pinned, "test.onnx")


def longest_of_a_mask(mask: str) -> onnx.ModelProto:
    """Steps up to the longest row of a mask, which is as long as its axis at most."""
    n = Net()
    lengths = n("ReduceSum", n("Cast", "mask", to=7), n.constant([1]), keepdims=0)
    y = n.steps(n("ReduceMax", lengths, keepdims=1))
    return n.model({"mask": (mask, ["n", "s"])}, {y: "i"})


def test_a_bound_is_proven_from_what_computes_a_value() -> None:
    lowered(longest_of_a_mask("b"), "mask:1~4,1~16")


def test_a_value_without_a_bound_is_named() -> None:
    with pytest.raises(AtcError) as caught:
        lowered(longest_of_a_mask("i"), "mask:1~4,1~16")
    assert "nothing bounds it" in str(caught.value)
    assert '--value_range="reducemax' in caught.value.hint


def test_all_integers_that_a_bound_follows_from_are_named() -> None:
    n = Net()
    rows = n("Cast", n("Round", "durations"), to=7)
    shape = n("Concat", n("ReduceSum", rows, keepdims=1), n("Add", "k", n.constant([2])), axis=0)
    y = n("ConstantOfShape", shape)
    model = n.model({"durations": ("f", [3]), "k": ("i", [1])}, {y: "f"})
    with pytest.raises(AtcError) as caught:
        lowered(model, "")
    assert f'--value_range="{rows}:1~100;k:1~100"' in caught.value.hint
    lowered(model, "", f"{rows}:1~100;k:1~100")


@pytest.mark.parametrize("extent", ["0~4", "1~4"])
def test_no_axis_is_squeezed_in_some_runs_only(extent: str) -> None:
    n = Net()
    model = n.model({"x": ("f", ["n", 1, 3])}, {n("Squeeze", "x"): "f"})
    with pytest.raises(AtcError, match=r"whether x\[0\] equals 1 depends on the shape"):
        lowered(model, f"x:{extent},1,3")
    lowered(model, "x:2~4,1,3")


def test_a_name_that_the_model_has_not() -> None:
    with pytest.raises(OptionError, match="'other' is not a value"):
        lowered(longest_of_a_mask("b"), "mask:1,2", "other:1~2")


@pytest.mark.parametrize("values", ["x:1~2", "s:1~2,3~4"])
def test_ranges_that_do_not_fit_a_value(values: str) -> None:
    with pytest.raises(AtcError, match="--value_range"):
        lowered(everything(), "", values)


def test_what_ranges_are_written_like() -> None:
    assert value_ranges("a:1~2;b c:-3,0~9") == {
        "a": (Range(1, 2),), "b c": (Range(-3, -3), Range(0, 9))
    }  # fmt: skip
    assert value_ranges({"a": [4, "5~6"]}) == {"a": (Range(4, 4), Range(5, 6))}
    for wrong in ("a", "a:", ":1", "a:2~1", "a:x", "a:1;a:2", "a:1~2~3"):
        with pytest.raises(OptionError):
            value_ranges(wrong)


@pytest.mark.parametrize(
    ("op", "operands", "interval"),
    [
        ("Add", ("u", "c"), (5, 260)), ("Sub", ("c", "u"), (-250, 5)), ("Mul", ("u", "u"), None),
        ("Div", ("u", "c"), (0, 51)), ("Mod", ("u", "c"), (0, 4)), ("Min", ("u", "c"), (0, 5)),
        ("Max", ("u", "c"), (5, 255)), ("Neg", ("u",), (-255, 0)), ("Abs", ("u",), (0, 255)),
    ],
)  # fmt: skip
def test_intervals_of_arithmetic(
    op: str, operands: tuple[str, ...], interval: tuple[float, float] | None
) -> None:
    b = Builder()
    u = b.declare("u", TensorType(DType.UINT8, (3,)))
    wide = b.map(lambda x: cast(x, DType.INT64), u)
    names = {"u": wide, "c": b.constant(np.array([5, 5, 5]))}
    y = b.map(lambda *x: call(op, *x), *(names[k] for k in operands))
    assert interval_of(b, y) == ((0, 255 * 255) if interval is None else interval)


@pytest.mark.parametrize("dtype", [DType.FLOAT, DType.FLOAT16])
def test_intervals_hold_what_floats_are_rounded_to(dtype: DType) -> None:
    b = Builder()
    whole = b.declare("u", TensorType(DType.UINT8, ()))
    shifted = b.map(lambda x: call("Add", cast(x, dtype), const(3.0, dtype)), whole)
    third = b.map(lambda x: call("Reciprocal", x), shifted)
    y = b.map(lambda x: call("Mul", x, const(0.3, dtype)), third)
    low, high = interval_of(b, y)
    numbers = np.arange(3, 259).astype(dtype.numpy)
    found = 1 / numbers * np.asarray(0.3, dtype.numpy)
    assert low <= found.min() < found.max() <= high
    assert high < 0.101
    assert low > 0.29 / 258


def test_a_value_that_many_paths_lead_to_is_looked_at_once() -> None:
    b = Builder()
    y = b.map(lambda x: cast(x, DType.INT64), b.declare("u", TensorType(DType.UINT8, (3,))))
    five = b.constant(np.array([5, 5, 5]))
    for _ in range(28):  # 2 ** 28 paths
        low, high = (b.map(lambda *x, f=f: call(f, *x), y, five) for f in ("Min", "Max"))
        y = b.map(lambda *x: call("Div", call("Add", *x), const(2, DType.INT64)), low, high)
    assert interval_of(b, y)[0] >= 0
    assert interval_of(b, y)[1] <= 255


def test_a_loop_may_be_bounded_by_its_name(tmp_path: Path) -> None:
    b = Net()
    half = b("Mul", "v", b.constant(0.5, np.float32))
    going = b("Greater", b("ReduceMax", half, keepdims=0), b.constant(1.0, np.float32))
    body = b.body("b", {"i": ("i", []), "c": ("b", []), "v": ("f", [2])},
                  {going: "b", half: "f", b("Identity", half): "f"})  # fmt: skip
    n = Net()
    n("Loop", "", n.constant(True, np.bool_), "x", outputs=2, body=body)
    n.nodes[-1].name = "halve"
    model = n.model({"x": ("f", [2])}, {n.nodes[-1].output[1]: "f"})
    with pytest.raises(AtcError) as caught:
        lowered(model, "")
    assert '--value_range="halve:' in caught.value.hint
    case = Case(model, "", [], "halve:0~4")
    network = network_of(case, tmp_path, "c99")
    x = np.array([9, 3], np.float32)
    np.testing.assert_allclose(network(x), x / np.array([[2], [4], [8], [16]], np.float32))
    with pytest.raises(RuntimeError, match=SHAPE):
        network(4 * x)


@pytest.mark.parametrize("kept", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("most", [0, 2])
def test_a_loop_of_a_count_ends_at_its_declared_bound(
    most: int, kept: bool, tmp_path: Path
) -> None:
    """Whether the results of its iterations are collected or only the last one is there."""
    b = Net()
    tanh = b("Tanh", "v")
    results = {b("Identity", "c"): "b", tanh: "f", **({b("Neg", "v"): "f"} if kept else {})}
    body = b.body("b", {"i": ("i", []), "c": ("b", []), "v": ("f", [2])}, results)
    n = Net()
    n("Loop", "count", "", "x", outputs=1 + kept, body=body)
    n.nodes[-1].name = "repeat"
    inputs: Mapping[str, tuple[str, object]] = {"count": ("i", []), "x": ("f", [2])}
    model = n.model(inputs, dict.fromkeys(n.nodes[-1].output, "f"))
    network = network_of(Case(model, "", [], f"repeat:0~{most}"), tmp_path, "c99")
    session = onnxruntime.InferenceSession(model.SerializeToString())
    for count in (0, 1, 2, 3, -1):
        given = {"count": np.array(count), "x": floats(2)}
        if count > most:
            with pytest.raises(RuntimeError, match=SHAPE):
                network.run(given)
            continue
        for found, wanted in zip(
            network.run(given).values(), session.run(None, given), strict=True
        ):
            assert found.shape == wanted.shape
            np.testing.assert_allclose(found, wanted, rtol=1e-6)
