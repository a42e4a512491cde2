"""Inputs and outputs in other layouts and types."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir
import pytest
from onnx import TensorProto, helper, numpy_helper

import atc
from atc.adapt import FORMATS, TYPES, Adaptation, adapt
from atc.dims import RANGES, Range
from atc.errors import OptionError
from atc.ir.graph import DType, Graph
from atc.lower import lower_model
from atc.options.table import OPTIONS
from atc.options.values import OUTPUT_TYPES
from support import Runner, compile_models


def net() -> onnx_ir.Model:
    """y = -x (4-D), z = 300 v, both named; `twice` is inside."""
    nodes = [
        helper.make_node("Neg", ["x"], ["y"], "minus"),
        helper.make_node("Add", ["v", "v"], ["twice"], "double"),
        helper.make_node("Mul", ["twice", "many"], ["z"], "scale"),
    ]

    def info(name: str, shape: Sequence[int]) -> object:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    graph = helper.make_graph(
        nodes, "net", [info("x", [2, 3, 4, 5]), info("v", [4])],
        [info("y", [2, 3, 4, 5]), info("z", [4])],
        [helper.make_tensor("many", TensorProto.FLOAT, [], [150.0])],
    )  # fmt: skip
    return onnx_ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]))


def adapted(how: Adaptation, outputs: Sequence[str] = ()) -> tuple[Graph, list[str]]:
    model = net()
    warnings = adapt(model, how, outputs)
    return lower_model(model, "net.onnx"), warnings


X = np.random.default_rng(1).standard_normal((2, 3, 4, 5)).astype(np.float32)
V = np.array([-2.5, 0.0, 0.3, 3e4], np.float32)


def test_layouts_and_types_of_a_compiled_network() -> None:
    last, _ = adapted(Adaptation(input_format="NHWC"))
    half, _ = adapted(
        Adaptation(half_inputs=["v"], output_types=[("y", "FP16"), ("scale:0", "INT8")])
    )
    wide, _ = adapted(Adaptation(output_types=[("", "UINT32")]), ["twice"])
    runners = compile_models([last, half, wide])
    assert all(isinstance(r, Runner) for r in runners), runners
    first, second, third = (r for r in runners if isinstance(r, Runner))
    assert [t.shape for t in first.inputs] == [(2, 4, 5, 3), (4,)]
    np.testing.assert_array_equal(first([X.transpose(0, 2, 3, 1).copy(), V])[0], -X)
    y, z = second([X, V.astype(np.float16)])
    np.testing.assert_array_equal(y, (-X).astype(np.float16))
    np.testing.assert_array_equal(z, np.array([-128, 0, 90, 127], np.int8))
    assert half.outputs == ("y", "z")
    assert wide.outputs == ("twice",)
    (twice,) = third([X, V * 1e5])
    np.testing.assert_array_equal(twice, np.array([0, 0, 60000, 2**32 - 256], np.uint32))


@pytest.mark.parametrize("layout", ["", "NCHW", "ND", "NCDHW"])
def test_the_models_own_layouts_change_nothing(layout: str) -> None:
    graph, warnings = adapted(Adaptation(input_format=layout))
    assert graph.types["x"].shape == X.shape
    assert not warnings


def test_a_layout_that_no_input_has_is_reported() -> None:
    _, warnings = adapted(Adaptation(input_format="NDHWC"))
    assert warnings == ["--input_format=NDHWC: no input has 5 axes"]


@pytest.mark.parametrize("word", TYPES)
def test_every_type_of_an_output(word: str) -> None:
    graph, _ = adapted(Adaptation(output_types=[("z", word)]))
    assert graph.types["z"].dtype is DType.from_onnx(TYPES[word].value)
    assert graph.types["y"].dtype is DType.FLOAT


def test_the_words_are_those_of_the_options() -> None:
    assert set(TYPES) == set(OUTPUT_TYPES)
    for layout in FORMATS:
        assert OPTIONS["input_format"].value(layout) == layout


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        (Adaptation(half_inputs=["none"]), "E10016", "'none' is not in the model"),
        (Adaptation(half_inputs=["twice"]), "E10017", "'twice' is not an input"),
        (Adaptation(half_inputs=["double"]), "E10017", "'double' is not an input"),
        (Adaptation(half_inputs=["v", "v"]), "E10017", "not float32"),
        (Adaptation(output_types=[("twice", "FP16")]), "E10016", "'twice' is not an output"),
        (Adaptation(output_types=[("minus:1", "FP16")]), "E10016", "'minus:1'"),
    ],
)
def test_names_that_do_not_fit(how: Adaptation, code: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        adapted(how)
    assert caught.value.code == code
    assert words in str(caught.value)


def test_states_are_neither_inputs_nor_outputs() -> None:
    model = net()
    how = Adaptation(input_format="NHWC", output_types=[("", "FP16")], states=["x:y"])
    warnings = adapt(model, how)
    assert warnings == ["--input_format=NHWC: no input has 4 axes"]
    graph = lower_model(model, "net.onnx")
    types = {n: (graph.types[n].dtype, graph.types[n].shape) for n in ("x", "y", "z")}
    image = (DType.FLOAT, (2, 3, 4, 5))
    assert types == {"x": image, "y": image, "z": (DType.FLOAT16, (4,))}


def test_ranges_go_with_their_axes() -> None:
    model = net()
    value = model.graph.inputs[0]
    value.shape = onnx_ir.Shape([2, 3, None, 5])
    value.meta[RANGES] = [None, None, Range(1, 9), None]
    adapt(model, Adaptation(input_format="NHWC"))
    assert value.meta[RANGES] == [None, Range(1, 9), None, None]
    assert [d if isinstance(d, int) else None for d in value.shape or ()] == [2, None, 5, 3]


@pytest.mark.few(1)
@pytest.mark.parametrize("own", [np.int8, np.uint8])
@pytest.mark.parametrize("word", ["int8", "uint8"])
def test_quantized_inputs_come_as_integers(own: type, word: str, tmp_path: Path) -> None:
    """The same integers give the same results as the floats that they stand for."""
    scale, point = np.float32(0.05), own(3)
    random = np.random.default_rng(0)
    w = random.integers(-20, 20, (4, 3)).astype(np.int8)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"]),
        helper.make_node("MatMul", ["d", "wd"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, (5, 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (5, 3))],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in
         {"s": scale, "z": point, "w": w, "ws": np.float32(0.1), "wz": np.int8(0)}.items()],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    onnx.save(model, tmp_path / "m.onnx")
    floats = atc.load(atc.compile(tmp_path / "m.onnx", tmp_path / "f", target="c99").folder)
    done = atc.compile(
        tmp_path / "m.onnx", tmp_path / "i", target="c99", input_type=word, verify=True
    )
    integers = atc.load(done.folder)
    assert integers.inputs[0].dtype == np.dtype(word)
    low = np.iinfo(word).min
    q = random.integers(0, 256, (5, 4))  # counted from the type's least
    real = ((q + np.iinfo(own).min - int(point)) * scale).astype(np.float32)
    np.testing.assert_array_equal(integers((q + low).astype(word)), floats(real))


def test_a_quantized_state_stays_as_it_is() -> None:
    """The library carries it from run to run: nobody gives it."""
    text = """<ir_version: 8, opset_import: ["": 18]>
        g (float[4] x, float[4] s) => (float[4] t)
        <float k = {0.5}, uint8 z = {3}> {
            q = QuantizeLinear(x, k, z)
            p = QuantizeLinear(s, k, z)
            d = DequantizeLinear(q, k, z)
            e = DequantizeLinear(p, k, z)
            t = Add(d, e)
        }"""
    model = onnx_ir.from_proto(onnx.parser.parse_model(text))
    adapt(model, Adaptation(input_type="INT8", states=["s:t"]))
    types = lower_model(model, "net.onnx").types
    assert [types[n].dtype for n in "xst"] == [DType.INT8, DType.FLOAT, DType.FLOAT]


def test_an_input_that_is_not_quantized_is_refused(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (2,))],
    )  # fmt: skip
    onnx.save(helper.make_model(graph), tmp_path / "m.onnx")
    with pytest.raises(OptionError, match="quantized to 8-bit"):
        atc.compile(tmp_path / "m.onnx", tmp_path / "net", input_type="int8")
