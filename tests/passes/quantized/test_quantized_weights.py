"""Convolutions by weights of other types than int8: integer sums where these fit, else floats."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from atc.ir.graph import DType
from atc.ir.ops import Conv
from atc.passes import run_passes
from support import compile_graph, run_models, runnable

Array = NDArray[Any]
node = helper.make_node
X_SCALE, W_SCALE = np.float32(0.01), np.float32(0.02)


@dataclass(frozen=True)
class Case:
    """A convolution of `x` by weights from `low` to `high` of an ONNX type, less `zero`."""

    code: int
    low: int
    high: int
    zero: int = 0
    x: Any = np.uint8
    x_zero: int = 0
    group: int = 1
    channels: int = 16
    integers: bool = True
    operator: str = "QDQ"


CASES = {
    "uint8": Case(TensorProto.UINT8, 0, 255, 100, x_zero=3),
    "uint8 up to 255": Case(TensorProto.UINT8, 0, 255),
    "uint8, signed x": Case(TensorProto.UINT8, 0, 255, 130, np.int8, -128),
    "uint8, depthwise": Case(TensorProto.UINT8, 0, 255, 90, group=16),
    "int16, 12 bits": Case(TensorProto.INT16, -2048, 2047),
    "int16 whose sums don't fit": Case(
        TensorProto.INT16, -32768, 32767, channels=512, integers=False
    ),
    "int4": Case(TensorProto.INT4, -8, 7),
    "uint4": Case(TensorProto.UINT4, 0, 15, 7, np.int8),
    "int16 operand": Case(TensorProto.INT8, -128, 127, x=np.int16, channels=512, integers=False),
    "QLinearConv, uint8": Case(
        TensorProto.UINT8, 0, 255, 121, x_zero=7, operator="QLinearConv"
    ),
    "ConvInteger": Case(TensorProto.UINT8, 0, 255, 100, x_zero=9, operator="ConvInteger"),
}  # fmt: skip


def operands(case: Case) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    info = np.iinfo(case.x)
    x = rng.integers(info.min, info.max + 1, (1, case.channels, 7, 9)).astype(case.x)
    return x, rng.integers(case.low, case.high + 1, (16, case.channels // case.group, 3, 3))


def sums(case: Case) -> Array:
    """The exact sums of (x - zero) * (w - zero)."""
    x, w = operands(case)
    wide = np.pad(x.astype(np.int64) - case.x_zero, [(0, 0), (0, 0), (1, 1), (1, 1)])
    seen = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    seen = seen.reshape(case.group, -1, 7, 9, 3, 3)
    weights = (w - case.zero).reshape(case.group, -1, *w.shape[1:])
    return np.einsum("gchwij,gfcij->gfhw", seen, weights).reshape(1, 16, 7, 9)


def model(case: Case) -> onnx.ModelProto:
    x, w = operands(case)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(case.x))
    tensors = [
        numpy_helper.from_array(X_SCALE, "xs"), numpy_helper.from_array(W_SCALE, "ws"),
        numpy_helper.from_array(np.array(case.x_zero, case.x), "xz"),
        helper.make_tensor("w", case.code, w.shape, w.reshape(-1).tolist()),
        helper.make_tensor("wz", case.code, [], [case.zero]),
        numpy_helper.from_array(np.float32(0.25), "ys"),
        numpy_helper.from_array(np.array(99, np.uint8), "yz"),
    ]  # fmt: skip
    shared: dict[str, Any] = {"pads": [1] * 4, "group": case.group}
    match case.operator:
        case "QLinearConv":
            names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
            nodes = [node("QLinearConv", names, ["y"], **shared)]
        case "ConvInteger":
            nodes = [node("ConvInteger", ["x", "w", "xz", "wz"], ["y"], **shared)]
        case _:
            nodes = [
                node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
                node("DequantizeLinear", ["w", "ws", "wz"], ["wf"]),
                node("Conv", ["xf", "wf"], ["y"], **shared),
            ]
    out = {"QLinearConv": TensorProto.UINT8, "ConvInteger": TensorProto.INT32}
    graph = helper.make_graph(
        nodes, "weights", [helper.make_tensor_value_info("x", code, x.shape)],
        [helper.make_tensor_value_info("y", out.get(case.operator, TensorProto.FLOAT), None)],
        tensors,
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["c99", "x86-64-avx2", "x86-64-avx512-vnni"])
def test_sums_are_exact_where_they_fit(target: str) -> None:
    if target != "c99" and not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    given = [model(c) for c in CASES.values()], [[operands(c)[0]] for c in CASES.values()]
    for (name, case), (got,) in zip(CASES.items(), run_models(*given, target), strict=True):
        total = sums(case)
        scale = (X_SCALE.astype(np.float64) * W_SCALE.astype(np.float64)).astype(np.float32)
        match case.operator:
            case "ConvInteger":
                np.testing.assert_array_equal(got, total, err_msg=name)
            case "QLinearConv":
                ratio = X_SCALE * W_SCALE / np.float32(0.25)
                want = np.clip(np.rint(total.astype(np.float32) * ratio) + 99, 0, 255)
                np.testing.assert_array_equal(got, want, err_msg=name)
            case _ if case.integers:
                np.testing.assert_array_equal(got, total.astype(np.float32) * scale, err_msg=name)
            case _:
                want = total * np.float64(scale)
                assert np.abs(got - want).max() <= 1e-5 * np.abs(want).max(), name


@pytest.mark.parametrize("name", CASES)
def test_only_sums_that_dont_fit_are_floats(name: str) -> None:
    graph = run_passes(compile_graph(model(CASES[name])))
    (conv,) = (n.op for n in graph.nodes if isinstance(n.op, Conv))
    assert (conv.accumulator is DType.INT32) == CASES[name].integers
