"""The networks of MLPerf Tiny with random weights, in float32 and quantized to int8 (QDQ)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]


@dataclass
class Net:
    """A network in the making: every step is quantized, or none is."""

    quantized: bool
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)
    inputs: list[str] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(7))
    uneven: bool = False
    """Whether every result has a scale of its own, none of them another's simple multiple."""

    def input(
        self, *shape: int, name: str = "x", scale: float = 0.02, zero: int = -1
    ) -> str:
        """Add an input, int8 with a zero point where the network is quantized."""
        self.inputs.append(name)
        self.shapes[name] = shape
        if not self.quantized:
            return name
        return self._dequantized(name, scale, zero)

    def conv(
        self, x: str, filters: int, kernel: tuple[int, int] = (3, 3), stride: int = 1,
        depthwise: bool = False, relu: bool = True, pads: tuple[int, ...] | None = None,
        dilation: int = 1,
    ) -> str:  # fmt: skip
        """Add a convolution that keeps the size but for its stride."""
        _, channels, *size = self.shapes[x]
        group = channels if depthwise else 1
        if pads is None:
            total = [max((-(-n // stride) - 1) * stride + (k - 1) * dilation + 1 - n, 0)
                     for n, k in zip(size, kernel, strict=True)]  # fmt: skip
            pads = (*[t // 2 for t in total], *[t - t // 2 for t in total])
        reach = [(k - 1) * dilation + 1 for k in kernel]
        out = [(n + pads[d] + pads[d + 2] - reach[d]) // stride + 1 for d, n in enumerate(size)]
        depth = channels // group * kernel[0] * kernel[1]
        shape = (filters, channels // group, *kernel)
        operands = self._weights(x, shape, depth, 0)
        y = self._name("conv")
        self.nodes.append(helper.make_node(
            "Conv", [x, *operands], [y], group=group, strides=[stride] * 2, pads=list(pads),
            dilations=[dilation] * 2,
        ))  # fmt: skip
        self.shapes[y] = (1, filters, *out)
        return self._activated(y, relu)

    def dense(self, x: str, units: int, relu: bool = True) -> str:
        """Add a fully connected layer."""
        depth = self.shapes[x][1]
        y = self._name("dense")
        self.nodes.append(helper.make_node(
            "Gemm", [x, *self._weights(x, (units, depth), depth, 0)], [y], transB=1
        ))  # fmt: skip
        self.shapes[y] = (1, units)
        return self._activated(y, relu)

    def add(self, a: str, b: str, operator: str = "Add", relu: bool = True) -> str:
        """Add a sum, or what another operator makes of two."""
        y = self._name("add")
        self.nodes.append(helper.make_node(operator, [a, b], [y]))
        self.shapes[y] = self.shapes[a]
        return self._activated(y, relu)

    def inverted_residual(
        self, x: str, filters: int, expansion: int = 6, kernel: int = 3, stride: int = 1
    ) -> str:
        """Add a block of MobileNetV2: wide, by channel, narrow, and its input where it fits."""
        channels = self.shapes[x][1]
        y = self.conv(x, channels * expansion, (1, 1))
        y = self.conv(y, channels * expansion, (kernel, kernel), stride, depthwise=True)
        y = self.conv(y, filters, (1, 1), relu=False)
        return self.add(x, y, relu=False) if stride == 1 and channels == filters else y

    def pool(self, x: str, kernel: int, stride: int, operator: str = "MaxPool") -> str:
        """Add pooling, of integers where the network is quantized."""
        y, last = self._name("pool"), self.nodes.pop() if self.quantized else None
        source = last.input[0] if last else x
        self.nodes.append(helper.make_node(
            operator, [source], [y], kernel_shape=[kernel] * 2, strides=[stride] * 2
        ))  # fmt: skip
        size = [(n - kernel) // stride + 1 for n in self.shapes[x][2:]]
        self.shapes[y] = (*self.shapes[x][:2], *size)
        if last is None:
            return y
        return self._dequantized(y, self.scales[x], int(self.constants[last.input[2]]))

    def mean(self, x: str) -> str:
        """Add the mean over all pixels, as a row of channels."""
        y, z = self._name("mean"), self._name("flat")
        self.nodes.append(helper.make_node("GlobalAveragePool", [x], [y]))
        self.shapes[y] = (1, self.shapes[x][1], 1, 1)
        y = self._activated(y, False)
        self.nodes.append(helper.make_node("Flatten", [y], [z]))
        self.shapes[z] = self.shapes[y][:2]
        if self.quantized:
            self.scales[z] = self.scales[y]
        return z

    def softmax(self, x: str, axis: int = -1) -> str:
        """Add a Softmax, in steps of 1/256 where the network is quantized."""
        y = self._name("softmax")
        self.nodes.append(helper.make_node("Softmax", [x], [y], axis=axis))
        self.shapes[y] = self.shapes[x]
        return self._quantized(y, 1 / 256, -128) if self.quantized else y

    def model(self, y: str) -> onnx.ModelProto:
        """Return the model whose output is a value, integers where it is quantized."""
        kind = TensorProto.INT8 if self.quantized else TensorProto.FLOAT
        if self.quantized:
            last = self.nodes.pop()  # its dequantization
            y = last.input[0]
            self.shapes[y] = self.shapes[last.output[0]]
        infos = [helper.make_tensor_value_info(i, kind, self.shapes[i]) for i in self.inputs]
        graph = helper.make_graph(
            self.nodes, "tiny", infos, [helper.make_tensor_value_info(y, kind, self.shapes[y])],
            [numpy_helper.from_array(np.asarray(v), k) for k, v in self.constants.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)

    def _name(self, kind: str) -> str:
        return f"{kind}{len(self.nodes)}"

    def _weights(self, x: str, shape: tuple[int, ...], depth: int, axis: int) -> list[str]:
        """Return the names of weights and bias."""
        w = self.rng.integers(-127, 128, shape).astype(np.int8)
        scale = (self.rng.uniform(0.7, 1.3, shape[0]) / 74 / depth**0.5).astype(np.float32)
        bias = self.rng.integers(-500, 500, shape[0]).astype(np.int32)
        by_filter = scale.reshape(-1, *[1] * (len(shape) - 1))
        name = self._name("w")
        if not self.quantized:
            self.constants[name] = w.astype(np.float32) * by_filter
            self.constants[f"{name}.bias"] = bias.astype(np.float32) * scale * np.float32(0.02)
            return [name, f"{name}.bias"]
        bias_scale = (scale * np.float32(self.scales[x])).astype(np.float32)
        for key, value, each in ((name, w, scale), (f"{name}.bias", bias, bias_scale)):
            zero = np.zeros(each.shape, value.dtype)
            self.constants |= {f"{key}.q": value, f"{key}.s": each, f"{key}.z": zero}
            self.nodes.append(helper.make_node(
                "DequantizeLinear", [f"{key}.q", f"{key}.s", f"{key}.z"], [key], axis=axis
            ))  # fmt: skip
        return [name, f"{name}.bias"]

    def _activated(self, y: str, relu: bool) -> str:
        if relu:
            z = self._name("relu")
            self.nodes.append(helper.make_node("Relu", [y], [z]))
            self.shapes[z] = self.shapes[y]
            y = z
        if not self.quantized:
            return y
        scale, zero = (0.008, -128) if relu else (0.016, 3)
        scale = float(np.float32(scale * self.rng.uniform(0.6, 1.6))) if self.uneven else scale
        return self._quantized(y, scale, zero)

    def _quantized(self, y: str, scale: float, zero: int) -> str:
        q = self._name("q")
        self.constants |= {f"{q}.s": np.float32(scale), f"{q}.z": np.int8(zero)}
        self.nodes.append(helper.make_node("QuantizeLinear", [y, f"{q}.s", f"{q}.z"], [q]))
        self.shapes[q] = self.shapes[y]
        return self._dequantized(q, scale, zero)

    def _dequantized(self, q: str, scale: float, zero: int) -> str:
        x = self._name("x")
        self.constants |= {f"{x}.s": np.float32(scale), f"{x}.z": np.int8(zero)}
        self.nodes.append(helper.make_node("DequantizeLinear", [q, f"{x}.s", f"{x}.z"], [x]))
        self.shapes[x], self.scales[x] = self.shapes[q], scale
        return x


def keyword_spotting(quantized: bool) -> onnx.ModelProto:
    """Return a DS-CNN for 12 words: 49 frames of 10 coefficients."""
    net = Net(quantized)
    x = net.conv(net.input(1, 1, 49, 10), 64, (10, 4), 2)
    for _ in range(4):
        x = net.conv(net.conv(x, 64, depthwise=True), 64, (1, 1))
    return net.model(net.dense(net.mean(x), 12, relu=False))


def image_classification(quantized: bool) -> onnx.ModelProto:
    """Return ResNet-8 for 10 classes: 32 x 32 pixels."""
    net = Net(quantized)
    x = net.conv(net.input(1, 3, 32, 32), 16)
    for filters, stride in ((16, 1), (32, 2), (64, 2)):
        y = net.conv(net.conv(x, filters, stride=stride), filters, relu=False)
        x = net.conv(x, filters, (1, 1), stride, relu=False) if stride > 1 else x
        x = net.add(y, x)
    return net.model(net.dense(net.mean(x), 10, relu=False))


def visual_wake_words(quantized: bool) -> onnx.ModelProto:
    """Return MobileNetV1-0.25 for 2 classes: 96 x 96 pixels."""
    net = Net(quantized)
    x = net.conv(net.input(1, 3, 96, 96), 8, stride=2)
    blocks = [(16, 1), (32, 2), (32, 1), (64, 2), (64, 1), (128, 2), *[(128, 1)] * 5, (256, 2)]
    for filters, stride in (*blocks, (256, 1)):
        channels = net.shapes[x][1]
        x = net.conv(net.conv(x, channels, stride=stride, depthwise=True), filters, (1, 1))
    return net.model(net.dense(net.mean(x), 2, relu=False))


def mobilenet_v2(quantized: bool) -> onnx.ModelProto:
    """Return MobileNetV2-0.35 for 1000 classes: 96 x 96 pixels."""
    net = Net(quantized)
    x = net.conv(net.input(1, 3, 96, 96), 16, stride=2)
    x = net.conv(net.conv(x, 16, depthwise=True), 8, (1, 1), relu=False)
    blocks = [(8, 2), (8, 1), (16, 2), (16, 1), (16, 1), (24, 2), *[(24, 1)] * 3, *[(32, 1)] * 3,
              (56, 2), (56, 1), (56, 1), (112, 1)]  # fmt: skip
    for filters, stride in blocks:
        x = net.inverted_residual(x, filters, stride=stride)
    return net.model(net.dense(net.mean(net.conv(x, 1280, (1, 1))), 1000, relu=False))


def mcunet_vww0(quantized: bool) -> onnx.ModelProto:
    """Return MCUNet's smallest network for visual wake words: 64 x 64 pixels (Lin et al. 2020)."""
    net = Net(quantized)
    x = net.conv(net.input(1, 3, 64, 64), 16, stride=2)
    x = net.conv(net.conv(x, 16, depthwise=True), 8, (1, 1), relu=False)
    blocks = [
        (16, 6, 5, 2), (16, 4, 3, 1), (24, 5, 3, 2), (24, 4, 3, 1), (24, 4, 3, 1), (40, 5, 3, 2),
        (40, 4, 3, 1), (40, 3, 7, 1), (48, 3, 3, 1), (48, 4, 3, 1), (96, 5, 7, 2), (96, 5, 5, 1),
        (160, 4, 7, 1),
    ]  # fmt: skip
    for filters, expansion, kernel, stride in blocks:
        x = net.inverted_residual(x, filters, expansion, kernel, stride)
    return net.model(net.dense(net.mean(x), 2, relu=False))


def anomaly_detection(quantized: bool) -> onnx.ModelProto:
    """Return the autoencoder of 640 numbers."""
    net = Net(quantized)
    x = net.input(1, 640)
    for units in (128, 128, 128, 128, 8, 128, 128, 128, 128):
        x = net.dense(x, units)
    return net.model(net.dense(x, 640, relu=False))


NETWORKS: dict[str, Callable[[bool], onnx.ModelProto]] = {
    "keyword spotting": keyword_spotting, "image classification": image_classification,
    "visual wake words": visual_wake_words, "anomaly detection": anomaly_detection,
    "MobileNetV2-0.35": mobilenet_v2, "mcunet-vww0": mcunet_vww0,
}  # fmt: skip


def layer(
    shape: tuple[int, ...], filters: int, kernel: tuple[int, int] = (3, 3), stride: int = 1,
    depthwise: bool = False,
) -> Callable[[bool], onnx.ModelProto]:  # fmt: skip
    """Return a network of one convolution, without a fully connected end."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        return net.model(net.conv(net.input(1, *shape), filters, kernel, stride, depthwise))

    return made


def elementwise(operator: str, *shape: int) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of one sum or product of two inputs."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized, uneven=True)
        a, b = (net.input(1, *shape, name=n, scale=s) for n, s in (("a", 0.02137), ("b", 0.01733)))
        return net.model(net.add(a, b, operator))

    return made


def dense_layer(depth: int, units: int) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of one fully connected layer."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        return net.model(net.dense(net.input(1, depth), units))

    return made


def function_layer(operator: str, *shape: int) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of one function of one operand."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        x, y = net.input(1, *shape), net._name("function")
        net.nodes.append(helper.make_node(operator, [x], [y]))
        net.shapes[y] = net.shapes[x]
        return net.model(net._activated(y, False))

    return made


def pointwise(
    channels: int, height: int, width: int, operator: str
) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of a 1x1 convolution and a function of its results."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        x = net.conv(net.input(1, channels, height, width), channels, (1, 1), relu=False)
        y = net._name("function")
        net.nodes.append(helper.make_node(operator, [x], [y]))
        net.shapes[y] = net.shapes[x]
        return net.model(net._activated(y, False))

    return made


def quantized_floats(*shape: int) -> Callable[[bool], onnx.ModelProto | None]:
    """Return a network that quantizes floats; there is none without."""

    def made(quantized: bool) -> onnx.ModelProto | None:
        if not quantized:
            return None
        net = Net(True)
        net.inputs, net.shapes["x"] = ["x"], (1, *shape)
        model = net.model(net._quantized("x", 0.016, 3))
        model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT
        return model

    return made


def softmax_layer(*shape: int) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of one Softmax over the last axis."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        return net.model(net.softmax(net.input(*shape, scale=0.1)))

    return made


def pooled(
    operator: str, channels: int, kernel: int, stride: int
) -> Callable[[bool], onnx.ModelProto]:
    """Return a network of pooling alone, of 32 x 32 pixels."""

    def made(quantized: bool) -> onnx.ModelProto:
        net = Net(quantized)
        x, y = net.input(1, channels, 32, 32), net._name("pool")
        net.nodes.append(helper.make_node(
            operator, [x], [y], kernel_shape=[kernel] * 2, strides=[stride] * 2
        ))  # fmt: skip
        net.shapes[y] = (1, channels, *[(32 - kernel) // stride + 1] * 2)
        return net.model(net._activated(y, False))

    return made


LAYERS: dict[str, Callable[[bool], onnx.ModelProto | None]] = {
    "1x1 64->64 at 25x5": layer((64, 25, 5), 64, (1, 1)),
    "3x3 16->16 at 32x32": layer((16, 32, 32), 16),
    "1x1 64->64 at 25x5, HardSwish": pointwise(64, 25, 5, "HardSwish"),
    "depthwise 3x3 64 at 25x5": layer((64, 25, 5), 64, depthwise=True),
    "first 10x4 1->64": layer((1, 49, 10), 64, (10, 4), 2),
    "1x1 8->16 at 48x48": layer((8, 48, 48), 16, (1, 1)),
    "fully connected 128->128": dense_layer(128, 128),
    "sum of 16 at 32x32": elementwise("Add", 16, 32, 32),
    "product of 16 at 32x32": elementwise("Mul", 16, 32, 32),
    "relu of 16 at 32x32": function_layer("Relu", 16, 32, 32),
    "sigmoid of 16 at 32x32": function_layer("Sigmoid", 16, 32, 32),
    "floats to bytes, 16 at 32x32": quantized_floats(16, 32, 32),
    "average 2x2/2 of 16 at 32x32": pooled("AveragePool", 16, 2, 2),
    "average 3x3/2 of 16 at 32x32": pooled("AveragePool", 16, 3, 2),
    "maximum 3x3/2 of 16 at 32x32": pooled("MaxPool", 16, 3, 2),
    "softmax of 12": softmax_layer(1, 12),
    "softmax of 10, 32 rows": softmax_layer(32, 10),
}
