"""QONNX's operators are what their definition says in numpy, and layers around sum integers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from atc.errors import AtcError
from atc.passes import run_passes
from support import compile_graph, run_model, run_models

Array = NDArray[Any]
DOMAIN = "qonnx.custom_op.general"
ROUNDINGS = {
    "ROUND": np.rint, "CEIL": np.ceil, "FLOOR": np.floor, "DOWN": np.trunc,
    "UP": lambda x: np.sign(x) * np.ceil(np.abs(x)),
    "HALF_UP": lambda x: np.sign(x) * np.floor(np.abs(x) + 0.5),
    "HALF_DOWN": lambda x: np.sign(x) * np.ceil(np.abs(x) - 0.5),
}  # fmt: skip
STEPS = np.float32([[0.25], [0.5], [2]])
"""Scales of channels with which halves, where roundings differ, are common."""
CASES: dict[str, tuple[dict[str, Any], Array, float, float]] = {
    "signed": ({}, np.float32(0.5), 0, 4),
    "narrow": ({"narrow": 1}, np.float32(0.5), 0, 4),
    "unsigned": ({"signed": 0}, np.float32(0.5), 0, 3),
    "unsigned, narrow": ({"signed": 0, "narrow": 1}, np.float32(0.5), 6, 8),
    "of channels": ({}, STEPS, 0, 8),
    "an odd zero point": ({"signed": 0}, np.float32(0.5), 7, 4),
    "a zero point between": ({}, np.float32(0.5), 0.5, 4),
    "many bits": ({}, STEPS, 0, 12),
    "more than integers hold": ({}, STEPS, 0, 24),
    "part of a bit": ({}, np.float32(0.5), 0, 3.5),
    **{f"to {mode}": ({"rounding_mode": mode}, STEPS, 2, 5) for mode in ROUNDINGS},
}


def model(kind: str, constants: dict[str, Any], **attributes: Any) -> onnx.ModelProto:
    """Return one operator of an operand x."""
    node = helper.make_node(kind, ["x", *constants], ["y"], domain=DOMAIN, **attributes)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 40])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3, 40])],
        [numpy_helper.from_array(np.float32(a), n) for n, a in constants.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def quantized(name: str) -> onnx.ModelProto:
    attributes, scale, zero, bits = CASES[name]
    return model("Quant", {"scale": scale, "zero": zero, "bits": bits}, **attributes)


def numbers() -> Array:
    return np.random.default_rng(0).integers(-80, 81, (3, 40)).astype(np.float32) / 8


def by_definition(name: str, x: Array) -> Array:
    attributes, scale, zero, bits = CASES[name]
    narrow = attributes.get("narrow", 0)
    low, high = (
        (-(2 ** (bits - 1)) + narrow, 2 ** (bits - 1) - 1) if attributes.get("signed", 1)
        else (0, 2**bits - 1 - narrow)
    )  # fmt: skip
    y = np.clip(x / scale + np.float32(zero), np.float32(low), np.float32(high))
    y = ROUNDINGS[attributes.get("rounding_mode", "ROUND")](y)
    return (y - np.float32(zero)) * scale


def test_it_is_what_the_definition_says() -> None:
    x = numbers()
    for name, got in zip(CASES, run_models([quantized(n) for n in CASES], [[x]] * len(CASES)),
                         strict=True):  # fmt: skip
        assert not isinstance(got, Exception), (name, got)
        np.testing.assert_array_equal(got[0], by_definition(name, x), err_msg=name)


def test_two_values_are_the_signs_of_the_scale() -> None:
    x = numbers()
    x[0, :2] = 0.0, -0.0
    (got,) = run_model(model("BipolarQuant", {"scale": STEPS}), [x])
    np.testing.assert_array_equal(got, np.where(x >= 0, STEPS, -STEPS))


TRUNCATIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "scale kept": ({}, {"scale": 0.5, "zero": 0, "in": 8, "out": 5}),
    "scale kept, up": ({"rounding_mode": "CEIL"}, {"scale": STEPS, "zero": 3, "in": 8, "out": 6}),
    "coarser": ({}, {"scale": 0.25, "zero": 0, "in": 8, "to": 2, "out": 4}),
    "coarser, unsigned": (
        {"signed": 0, "rounding_mode": "ROUND"},
        {"scale": 0.25, "zero": 16, "in": 8, "to": 1, "out": 3},
    ),
    "of channels": ({"narrow": 1}, {"scale": STEPS, "zero": 0, "in": 8, "to": 4 * STEPS, "out": 4}),
    "a zero point between": ({}, {"scale": 0.25, "zero": 6, "in": 8, "to": 1, "out": 6}),
    "with the output's zero point": (
        {"rounding_mode": "ceil"}, {"scale": 0.25, "zero": 8, "in": 8, "to": 1, "z": 2, "out": 20},
    ),
}  # fmt: skip
"""Attributes of Trunc and its inputs; those of version 2 have a scale of the output."""


def truncated(name: str, x: Array) -> Array:
    attributes, given = TRUNCATIONS[name]
    rounding = ROUNDINGS[attributes.get("rounding_mode", "FLOOR").upper()]
    scale, zero = np.float32(given["scale"]), np.float32(given["zero"])
    y = np.rint(x / scale + zero)
    if "to" not in given:
        return (rounding(y / np.float32(2 ** (given["in"] - given["out"]))) - zero) * scale
    to, bits, narrow = np.float32(given["to"]), given["out"], attributes.get("narrow", 0)
    signed = attributes.get("signed", 1)
    low = -(2 ** (bits - 1)) + narrow if signed else 0
    high = 2 ** (bits - 1) - 1 if signed else 2**bits - 1 - narrow
    ratio = to / scale  # a power of two
    return (rounding(np.clip(y / ratio, low, high)) - zero / ratio) * to


def test_numbers_of_fewer_bits_are_what_the_definition_says() -> None:
    x = numbers()
    made = [model("Trunc", inputs, **attributes) for attributes, inputs in TRUNCATIONS.values()]
    for name, got in zip(TRUNCATIONS, run_models(made, [[x]] * len(made)), strict=True):
        assert not isinstance(got, Exception), (name, got)
        np.testing.assert_array_equal(got[0], truncated(name, x), err_msg=name)


def test_a_coarser_scale_must_be_positive() -> None:
    given = {"scale": 0.25, "zero": 0, "in": 8, "to": -1, "out": 4}
    with pytest.raises(AtcError, match="the output's scale is -1"):
        compile_graph(model("Trunc", given))


@pytest.mark.parametrize(
    ("attributes", "bits", "message"),
    [({"rounding_mode": "NEAR"}, 4, "rounding_mode 'NEAR'"), ({}, 0, "the bit width is")],
)
def test_mistakes_are_named(attributes: dict[str, Any], bits: float, message: str) -> None:
    made = model("Quant", {"scale": 1, "zero": 0, "bits": bits}, **attributes)
    with pytest.raises(AtcError, match=message):
        compile_graph(made)


def layer() -> onnx.ModelProto:
    """Return a convolution between numbers of 4 bits."""
    rng = np.random.default_rng(4)
    stored = {
        "w": rng.standard_normal((32, 16, 3, 3)).astype(np.float32),
        "ws": rng.uniform(0.2, 0.4, (32, 1, 1, 1)).astype(np.float32),
        "zero": np.float32(0), "bits": np.float32(4), "xs": np.float32(0.25),
        "ys": np.float32(2),
    }  # fmt: skip
    nodes = [
        helper.make_node("Quant", ["x", "xs", "zero", "bits"], ["xq"], domain=DOMAIN, signed=0),
        helper.make_node("Quant", ["w", "ws", "zero", "bits"], ["wq"], domain=DOMAIN, narrow=1),
        helper.make_node("Conv", ["xq", "wq"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("Quant", ["r", "ys", "zero", "bits"], ["y"], domain=DOMAIN, signed=0),
    ]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 7, 7])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 7, 7])],
        [numpy_helper.from_array(a, n) for n, a in stored.items()],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def test_layers_between_sum_integers_in_vectors() -> None:
    graph = run_passes(compile_graph(layer()), width=8)
    (conv,) = (n for n in graph.nodes if n.op.kind in ("Conv", "ConvBlocked"))
    assert conv.op.kind == "ConvBlocked"
    assert [graph.types[name].dtype.label for name in conv.inputs[:2]] == ["u8", "i8"]
