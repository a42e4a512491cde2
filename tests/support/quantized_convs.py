"""Quantized convolutions as models, and what they are by definition, in numpy."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A quantized convolution with a bias: `zero` is x's zero point, `per` whether per channel."""

    channels: int
    filters: int
    kernel: int = 1
    stride: int = 1
    pad: int = 0
    group: int = 1
    size: int = 9
    x: Any = np.uint8
    y: Any = np.uint8
    zero: int = 0
    per: bool = True
    scale: float = 0.02
    residual: bool = False
    bias: str = "integer"
    dilation: int = 1
    bounds: tuple[int, int] | None = None
    """What y is clipped to, as those do that quantize to fewer bits."""
    extreme: bool = field(default=False, repr=False)
    """Whether x and the weights are the greatest and the least numbers alone."""
    narrow: bool = field(default=False, repr=False)
    """Whether no weight is -128."""


CASES = {
    "pointwise": Case(16, 32),
    "nothing but padding": Case(16, 32, 1, 2, 1, size=1),
    "odd": Case(19, 21, zero=7),
    "spatial": Case(32, 40, 3, pad=1),
    "strided": Case(16, 16, 3, 2, 1, size=11),
    "first": Case(3, 16, 5, 2, 2, zero=113, size=12),
    "signed": Case(16, 24, 3, pad=1, x=np.int8, y=np.int8, zero=-128),
    "windows in padding": Case(16, 24, 1, pad=3, x=np.int8, y=np.int8, zero=-128, size=4),
    "signed, padded": Case(16, 24, 3, pad=1, x=np.int8, y=np.int8, zero=-3),
    "grouped": Case(32, 64, 3, pad=1, group=2, per=False),
    "depthwise": Case(33, 33, 3, pad=1, group=33, zero=5),
    "depthwise, signed": Case(16, 16, 5, 2, 2, group=16, x=np.int8, y=np.int8, zero=4),
    "saturating": Case(48, 32, scale=3.0),
    "ties": Case(16, 32, scale=0.5, per=False),
    "residual": Case(16, 16, 3, pad=1, residual=True, zero=3),
    "float bias": Case(16, 32, bias="float"),
    "depthwise, large": Case(32, 32, 9, pad=4, group=32, zero=5, size=11, extreme=True),
    "depthwise, dilated": Case(32, 32, 3, pad=2, group=32, zero=5, dilation=2),
    "fewer bits": Case(16, 32, bounds=(0, 115)),
    "fewer bits, signed": Case(16, 32, 3, pad=1, y=np.int8, bounds=(-32, 7)),
}


def drawn(seed: int) -> Case:
    """Return a convolution that kernels of bytes take, drawn by a seed."""
    rng = np.random.default_rng(seed)
    group, kernel = int(rng.choice([1, 1, 1, 2])), int(rng.choice([1, 1, 2, 3, 5]))
    pad, signed = int(rng.integers(0, kernel)), bool(rng.integers(2))
    x = np.int8 if signed else np.uint8
    least = -128 if signed else 0
    stride = int(rng.integers(1, 3))
    return Case(
        16 * group * int(rng.integers(1, 6)) - (0 if group > 1 else int(rng.integers(0, 8))),
        16 * group * int(rng.integers(1, 6)) - (0 if group > 1 else int(rng.integers(0, 8))),
        kernel, stride, pad, group, int(rng.integers(11, 20)), x, rng.choice([np.uint8, np.int8]),
        least if pad else least + int(rng.integers(0, 256)), bool(rng.integers(2)),
        float(rng.choice([0.02, 0.5, 3.0])), False,
        str(rng.choice(["integer", "float"])), int(rng.integers(1, 3)), narrow=seed % 2 == 1,
    )  # fmt: skip


def parts(case: Case) -> dict[str, Array]:
    """Return the operands: integers, scales and what a definition in numpy needs."""
    rng = np.random.default_rng(len(case.__repr__()))
    shape = (case.filters, case.channels // case.group, case.kernel, case.kernel)
    count = case.filters if case.per else 1
    w_scale = rng.uniform(0.5, 1.5, count).astype(np.float32)
    if not case.per:
        w_scale = np.array([1], np.float32)  # sums that lie between two results are then common
    w = rng.integers(-128, 128, shape).astype(np.int8)
    info = np.iinfo(case.x)
    x = rng.integers(info.min, info.max + 1, (1, case.channels, case.size, case.size))
    if case.extreme:
        w = rng.choice(np.array([-128, 127], np.int8), shape)
        x = rng.choice([info.min, info.max], x.shape)
    if case.narrow:
        w = np.maximum(w, -127)
    depth = w[0].size
    y_scale = np.float32(2.0 ** np.round(np.log2(depth**0.5 * 64 * 74 / case.scale / 2500)))
    bias = rng.integers(-3000, 3000, case.filters).astype(np.int32)
    return {"x": x.astype(case.x), "w": w, "w_scale": w_scale, "y_scale": y_scale, "bias": bias,
            "x_scale": np.float32(0.5)}  # fmt: skip


def model(case: Case) -> onnx.ModelProto:
    p = parts(case)
    y_zero = np.array(np.iinfo(case.y).min + 100, case.y)
    constants = {
        "w": p["w"], "ws": p["w_scale"], "wz": np.zeros(p["w_scale"].shape, np.int8),
        "xs": p["x_scale"], "xz": np.array(case.zero, case.x), "ys": p["y_scale"], "yz": y_zero,
        "b": p["bias"], "bs": p["x_scale"] * p["w_scale"],
        "bz": np.zeros(p["w_scale"].shape, np.int32),
    }  # fmt: skip
    if not case.per:
        constants |= {k: constants[k].reshape(()) for k in ("ws", "wz", "bs", "bz")}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "xs", "xz"], ["xf"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wf"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs", "bz"], ["bf"], axis=0),
        helper.make_node(
            "Conv", ["xf", "wf", "bf"], ["c"], group=case.group, pads=[case.pad] * 4,
            strides=[case.stride] * 2, dilations=[case.dilation] * 2,
        ),
        helper.make_node("QuantizeLinear", ["c", "ys", "yz"], ["q"]),
    ]  # fmt: skip
    if case.bias == "float":
        constants["bf"] = p["bias"].astype(np.float32)
        nodes.pop(2)
    result = "q"
    if case.bounds:
        constants |= dict(zip(("low", "high"), np.array(case.bounds, case.y), strict=True))
        nodes.append(helper.make_node("Clip", ["q", "low", "high"], ["narrow"]))
        result = "narrow"
    if case.residual:
        constants["ss"] = np.float32(0.75) * p["y_scale"]
        nodes += [
            helper.make_node("DequantizeLinear", ["q", "ys", "yz"], ["qf"]),
            helper.make_node("Add", ["qf", "xf"], ["s"]),
            helper.make_node("Relu", ["s"], ["r"]),
            helper.make_node("QuantizeLinear", ["r", "ss", "yz"], ["t"]),
        ]
        result = "t"
    code = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        nodes, "quantized",
        [helper.make_tensor_value_info("x", code(np.dtype(case.x)), p["x"].shape)],
        [helper.make_tensor_value_info(result, code(np.dtype(case.y)), None)],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    return onnx.shape_inference.infer_shapes(made, strict_mode=True)


def sums(case: Case) -> Array:
    """Return the exact sums of (x - zero) * w in int64."""
    p = parts(case)
    x = p["x"].astype(np.int64) - case.zero
    x = np.pad(x, ((0, 0), (0, 0), (case.pad, case.pad), (case.pad, case.pad)))
    k, group = case.kernel, case.group
    reach = (k - 1) * case.dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(x, (reach, reach), (2, 3))
    windows = windows[:, :, :: case.stride, :: case.stride, :: case.dilation, :: case.dilation]
    windows = windows.reshape(1, group, -1, *windows.shape[2:])
    w = p["w"].astype(np.int64).reshape(group, case.filters // group, -1, k, k)
    y = np.einsum("ngchwij,gfcij->ngfhw", windows, w)
    return y.reshape(1, case.filters, *y.shape[3:])


def expected(case: Case) -> Array:
    """The definition: exact sums, each float operation rounded once, half to even, saturated."""
    p, f32 = parts(case), np.float32
    zero = np.iinfo(case.y).min + 100
    low, high = case.bounds or (np.iinfo(case.y).min, np.iinfo(case.y).max)
    total = sums(case)
    factor = p["x_scale"].astype(np.float64) * p["w_scale"].astype(np.float64)
    channel = (1, -1, 1, 1)

    def over(scale: Array) -> Array:
        """The scale of the sums over another one, in float64 and rounded at each step."""
        return (factor.astype(f32).astype(np.float64) / np.float64(scale)).astype(f32)

    if case.bias == "float":
        shift = (p["bias"].astype(np.float64) / p["y_scale"]).astype(f32).reshape(channel)
        value = total.astype(f32) * over(p["y_scale"]).reshape(channel) + shift
    else:
        total = total + p["bias"].reshape(channel)
        value = total.astype(f32) * over(p["y_scale"]).reshape(channel)
    q = np.clip(np.rint(value) + f32(zero), low, high)
    if not case.residual:
        return q.astype(case.y)
    scale = np.float64(f32(0.75) * p["y_scale"])
    left = (q - f32(zero)) * f32(np.float64(p["y_scale"]) / scale)
    right = (p["x"].astype(f32) - f32(case.zero)) * f32(np.float64(p["x_scale"]) / scale)
    return np.clip(np.rint(np.maximum(left + right, f32(0))) + f32(zero), low, high).astype(case.y)


def network(batch: int = 2, zero: int = 0) -> onnx.ModelProto:
    """Return a small network: float images, convolutions, pooling, a residual, float scores."""
    rng = np.random.default_rng(batch)
    nodes: list[onnx.NodeProto] = []
    constants: dict[str, Array] = {
        "scale": np.float32(0.05), "zero": np.array(zero, np.uint8), "ws": np.float32(0.01),
        "wz": np.array(0, np.int8),
    }  # fmt: skip

    def op(kind: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"v{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    def through_bytes(x: str) -> str:
        return op("DequantizeLinear", op("QuantizeLinear", x, "scale", "zero"), "scale", "zero")

    def conv(x: str, channels: int, filters: int, size: int, group: int = 1, **more: Any) -> str:
        name = f"w{len(constants)}"
        shape = (filters, channels // group, size, size)
        constants[name] = rng.integers(-127, 128, shape).astype(np.int8)
        w = op("DequantizeLinear", name, "ws", "wz")
        return op("Conv", x, w, group=group, pads=[size // 2] * 4, **more)

    first = through_bytes(op("Relu", conv(through_bytes("x"), 3, 32, 3, strides=[2, 2])))
    pooled = op("MaxPool", first, kernel_shape=[2, 2], strides=[2, 2])
    inner = through_bytes(op("Relu", conv(pooled, 32, 48, 1)))
    inner = through_bytes(op("Relu", conv(inner, 48, 48, 3, 48)))
    joined = through_bytes(op("Relu", op("Add", conv(inner, 48, 32, 3), pooled)))
    nodes.append(helper.make_node("GlobalAveragePool", [conv(joined, 32, 40, 3)], ["y"]))
    graph = helper.make_graph(
        nodes, "bytes", [helper.make_tensor_value_info("x", 1, (batch, 3, 16, 20))],
        [helper.make_tensor_value_info("y", 1, (batch, 40, 1, 1))],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
