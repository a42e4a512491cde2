"""Quantization against numpy and onnxruntime, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator
from ort_cases import Case, compiled, integers, noise, scales

from atc.errors import AtcError
from atc.ir.ops import MatMul
from atc.passes import run_passes
from support import assert_close, compile_graph, node_model, pinned, run_model, run_models

# ---- scaling ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16"])
def test_quantization_rounds_half_to_even_and_saturates(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 1e30, -1e30, np.inf, -np.inf], np.float32)
    scale, zero = np.float32(1), np.array(3, dtype)
    (y,) = run_model(node_model("QuantizeLinear", [x, scale, zero]), [x, scale, zero])
    expected = np.clip(np.rint(x.astype(np.float64)) + 3, info.min, info.max).astype(dtype)
    assert y.tolist() == expected.tolist()


LAYOUTS = {
    "whole": ((), {}), "first axis": ((4,), {"axis": 0}), "last axis": ((6,), {"axis": -1}),
    "blocks": ((4, 3, 2), {"axis": 2, "block_size": 3}),
    "ragged blocks": ((4, 3, 2), {"axis": 2, "block_size": 4}),
    "blocks of the first axis": ((2, 3, 6), {"axis": 0, "block_size": 2}),
}  # fmt: skip


def _layouts() -> dict[str, Case]:
    cases = {}
    for name, (shape, attributes) in LAYOUTS.items():
        scale, zero = scales(*shape, seed=1), integers("int8", *shape, seed=2)
        operands = {"QuantizeLinear": noise(4, 3, 6), "DequantizeLinear": integers("int8", 4, 3, 6)}
        for op, x in operands.items():
            made = (np.int8 if op == "QuantizeLinear" else np.float32,)
            for constant in ((), (1, 2)):
                label = f"{op} {name} {'constant' if constant else ''}"
                cases[label] = Case(op, [x, scale, zero], constant, attributes, 21, outputs=made)
    return cases


SCALED = _layouts()
SCALED_COMPILED = compiled(SCALED)


@pytest.mark.few(12)
@pytest.mark.parametrize("name", SCALED)
def test_scales_of_every_layout(name: str) -> None:
    case = SCALED[name]
    names = [v.name for v in case.model.graph.input]
    feeds = dict(zip(names, case.feeds, strict=True))
    expected = ReferenceEvaluator(case.model).run(None, feeds)
    assert_close(SCALED_COMPILED[name](case.feeds), expected, rtol=0, atol=0)


TYPES = {
    f"{dtype} {scale.__name__}": Case(
        "DequantizeLinear",
        [integers(dtype, 50), scale(0.0123), np.array(0 if dtype == "int32" else 5, dtype)],
        outputs=(scale,),
    )
    for dtype in ("uint8", "int8", "uint16", "int16", "int32")
    for scale in (np.float32, np.float16)
}  # fmt: skip
TYPES_COMPILED = compiled(TYPES)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", TYPES)
def test_dequantization_of_every_type(name: str) -> None:
    x, scale, zero = TYPES[name].inputs
    with np.errstate(over="ignore"):
        expected = ((x.astype(np.float64) - float(zero)) * float(scale)).astype(scale.dtype)
    assert_close(TYPES_COMPILED[name](TYPES[name].feeds), [expected], rtol=1e-3)


def test_output_types_by_attribute() -> None:
    x, scale = noise(9), np.float32(0.02)
    (y,) = run_model(node_model("QuantizeLinear", [x, scale], output_dtype=5), [x, scale])
    assert y.dtype == np.int16
    (z,) = run_model(
        node_model("DequantizeLinear", [y, scale], output_dtype=10, opset=23), [y, scale]
    )
    assert z.dtype == np.float16
    assert np.abs(z - x).max() < 0.02


def test_dynamic_quantization_of_extreme_tensors() -> None:
    models, inputs = [], []
    for x in (noise(40), np.abs(noise(40)) + 1, -np.abs(noise(40)) - 1, np.zeros(5, np.float32)):
        models.append(node_model("DynamicQuantizeLinear", [x], 3))
        inputs.append([x])
    for model, x, got in zip(models, inputs, run_models(models, inputs), strict=True):
        assert not isinstance(got, Exception)
        if x[0].any():
            expected = ReferenceEvaluator(model).run(None, {"x0": x[0]})
            assert_close(got, expected, rtol=1e-6)
        else:
            assert got[0].tolist() == [got[2].item()] * 5


# ---- integer products ---------------------------------------------------------------------------


def product(a: np.ndarray, b: np.ndarray, p: Any, q: Any) -> np.ndarray:
    """Return (a - p)(b - q); zero points per row and per column as MatMulInteger has them."""
    p = np.zeros((), a.dtype) if p is None else p
    q = np.zeros((), b.dtype) if q is None else q
    rows = p[:, None] if p.ndim == 1 and p.size > 1 else p
    return (a.astype(np.int64) - rows) @ (b.astype(np.int64) - q)


ZEROS = {"none": (None, None), "whole": ((), ()), "rows": ((5,), None), "columns": (None, (7,)),
         "both": ((5,), (7,)), "one": ((1,), (1,))}  # fmt: skip


def _products() -> dict[str, Case]:
    cases = {}
    for types in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
        for name, shapes in ZEROS.items():
            for constant in ((), (1, 3), (1, 2, 3), (0, 2)):
                a, b = integers(types[0], 2, 5, 33), integers(types[1], 33, 7, seed=1)
                zeros = [
                    None if shape is None else integers(types[k], *shape, seed=2 + k)
                    for k, shape in enumerate(shapes)
                ]
                label = f"{'-'.join(types)} {name} {constant}"
                cases[label] = Case(
                    "MatMulInteger", [a, b, *zeros], constant, opset=10, outputs=(np.int32,)
                )
    for left, right in (((9,), (9, 4)), ((3, 9), (9,)), ((9,), (9,)), ((2, 3, 9), (2, 9, 4))):
        inputs = [integers("uint8", *left), integers("int8", *right, seed=1)]
        inputs += [np.uint8(7), np.int8(-3)]
        cases[f"{left} {right}"] = Case("MatMulInteger", inputs, opset=10, outputs=(np.int32,))
    return cases


PRODUCTS = _products()
PRODUCTS_COMPILED = compiled(PRODUCTS)


@pytest.mark.few(4)
@pytest.mark.parametrize("name", PRODUCTS)
def test_integer_products(name: str) -> None:
    case = PRODUCTS[name]
    (y,) = PRODUCTS_COMPILED[name](case.feeds)
    np.testing.assert_array_equal(y, product(*case.inputs).astype(np.int32))


CONVS: dict[str, dict[str, Any]] = {
    "plain": {}, "padded": {"pads": [1, 2, 0, 1]},
    "strided": {"strides": [2, 3], "auto_pad": "SAME_UPPER"},
    "dilated": {"dilations": [2, 1], "pads": [1, 1, 1, 1]},
    "grouped": {"group": 2, "pads": [1, 1, 1, 1]},
}  # fmt: skip


def _convolutions() -> dict[str, Case]:
    cases = {}
    for kind, attributes in CONVS.items():
        group = attributes.get("group", 1)
        x, w = integers("uint8", 2, 4, 7, 8), integers("uint8", 6, 4 // group, 3, 2, seed=1)
        for zero in (np.uint8(131), integers("uint8", 6, seed=2)):
            for constant in ((), (1, 3), (1, 2, 3)):
                label, inputs = f"{kind} {zero.shape} {constant}", [x, w, np.uint8(100), zero]
                cases[label] = Case(
                    "ConvInteger", inputs, constant, attributes, 10, outputs=(np.int32,)
                )
    return cases


CONVOLUTIONS = _convolutions()
CONVOLUTIONS_COMPILED = compiled(CONVOLUTIONS)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_integer_convolution_pads_with_the_zero_point(name: str) -> None:
    case = CONVOLUTIONS[name]
    x, w, x_zero, w_zero = (a.astype(np.float32) for a in case.inputs)
    plain = [x - x_zero, w - w_zero.reshape(-1, 1, 1, 1)]
    real = node_model("Conv", plain, **case.attributes)
    (expected,) = ReferenceEvaluator(real).run(None, {"x0": plain[0], "x1": plain[1]})
    (y,) = CONVOLUTIONS_COMPILED[name](case.feeds)
    np.testing.assert_array_equal(y, expected.astype(np.int32))


@pytest.mark.parametrize("op", ["Conv", "ConvInteger", "QLinearConv", "DeformConv"])
def test_a_kernel_larger_than_the_padded_input_is_refused(op: str) -> None:
    """Also where dividing what is missing by the strides would leave an output of 1."""
    floats = "Integer" not in op and "QLinear" not in op
    x = np.ones((2, 1, 7, 1), np.float32 if floats else np.uint8)
    w = np.ones((4, 1, 3, 3), np.float32 if floats else np.int8)
    scale, zeros = np.float32(0.5), [np.uint8(2), np.int8(0)]
    inputs: list[Any] = {
        "Conv": [x, w], "DeformConv": [x, w, np.zeros((2, 18, 3, 1), np.float32)],
        "ConvInteger": [x, w, *zeros],
        "QLinearConv": [x, scale, zeros[0], w, scale, zeros[1], scale, zeros[0]],
    }[op]  # fmt: skip
    with pytest.raises(AtcError, match=r"kernel \[3, 3\] is larger than the padded input"):
        compile_graph(node_model(op, inputs, pads=[0, 0, 0, 1], strides=[2, 2]))


# ---- requantized products -----------------------------------------------------------------------


def _requantized() -> dict[str, Case]:
    cases = {}
    for types in (("uint8", "int8"), ("int8", "int8"), ("uint8", "uint8")):
        for shape in ((), (70,)):
            a, b = integers(types[0], 30, 64), integers(types[1], 64, 70, seed=1)
            inputs = [
                a, scales(), integers(types[0], seed=3), b, scales(*shape, seed=4),
                integers(types[1], *shape, seed=5), np.float32(1.37), np.array(11, types[0]),
            ]  # fmt: skip
            for constant in ((4, 5), (1, 2, 4, 5, 6, 7), (1, 2, 3, 4, 5, 6, 7)):
                label = f"{'-'.join(types)} product {shape} {constant}"
                cases[label] = Case(
                    "QLinearMatMul", inputs, constant, opset=10, outputs=(types[0],)
                )
        for kind, attributes in CONVS.items():
            for shape in ((), (6,)):
                cases[f"{'-'.join(types)} {kind} {shape}"] = _qlinear_conv(types, attributes, shape)
    return cases


def _qlinear_conv(
    types: tuple[str, str], attributes: dict[str, Any], shape: tuple[int, ...]
) -> Case:
    group = attributes.get("group", 1)
    w_zero = np.zeros(shape, "int8") if types[1] == "int8" else np.full(shape, 130, "uint8")
    bias = np.random.default_rng(4).integers(-3000, 3000, 6).astype(np.int32)
    inputs = [
        integers(types[0], 2, 4, 17, 18), scales(), integers(types[0], seed=3),
        integers(types[1], 6, 4 // group, 3, 2, seed=1), scales(*shape, seed=4), w_zero,
        np.float32(0.51), np.array(17, types[0]), bias,
    ]  # fmt: skip
    return Case("QLinearConv", inputs, tuple(range(1, 9)), attributes, 10, outputs=(types[0],))


REQUANTIZED = _requantized()
REQUANTIZED_COMPILED = compiled(REQUANTIZED)


@pytest.mark.few(3)
@pytest.mark.parametrize("name", REQUANTIZED)
def test_requantized_products_equal_onnxruntime_bit_for_bit(name: str) -> None:
    case = REQUANTIZED[name]
    (got,) = REQUANTIZED_COMPILED[name](case.feeds)
    np.testing.assert_array_equal(got, case.onnxruntime()[0])


def test_the_sum_of_a_qlinear_product_is_never_stored() -> None:
    a, b = integers("uint8", 4, 8), integers("int8", 8, 5, seed=1)
    inputs = [a, scales(), np.uint8(3), b, scales(), np.int8(0), np.float32(2), np.uint8(9)]
    model = node_model("QLinearMatMul", inputs, opset=10, constant=range(1, 8))
    graph = run_passes(compile_graph(pinned(model, [a])))
    assert [type(n.op) for n in graph.nodes] == [MatMul]


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [("QuantizeLinear", {"output_dtype": 24}, "ONNX type 24"),
     ("DequantizeLinear", {"output_dtype": 99}, "ONNX type 99 in 'output_dtype' is not covered"),
     ("QuantizeLinear", {"axis": 0, "block_size": 2}, r"the scale is \[3\], not \[2, 3\]")],
)  # fmt: skip
def test_limits_are_named(op: str, attributes: dict[str, Any], message: str) -> None:
    x, scale = noise(4, 3), scales(3)
    if op == "DequantizeLinear":
        x = x.astype(np.int8)
    with pytest.raises(AtcError, match=message):
        run_model(node_model(op, [x, scale], **attributes), [x, scale])
