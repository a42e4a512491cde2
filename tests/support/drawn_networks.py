"""Small networks of the kinds that people run, drawn with random weights, for shapes in ranges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from dynamic_models import Net


class Drawn(Net):
    """A network under construction with the layers of people's networks."""

    def conv(
        self, x: str, inner: int, outer: int, kernel: int = 3, stride: int = 1, group: int = 1,
        act: str = "Relu",
    ) -> str:  # fmt: skip
        fan = inner // group * kernel**2
        w = self.weight(outer, inner // group, kernel, kernel, scale=fan**-0.5)
        x = self("Conv", x, w, self.weight(outer), group=group, strides=[stride] * 2,
                 pads=[kernel // 2] * 4)  # fmt: skip
        return self(act, x) if act else x

    def linear(self, x: str, inner: int, outer: int) -> str:
        y = self("MatMul", x, self.weight(inner, outer, scale=inner**-0.5))
        return self("Add", y, self.weight(outer))

    def norm(self, x: str, width: int) -> str:
        return self("LayerNormalization", x, self.weight(width), self.weight(width), axis=-1)

    def gelu(self, x: str) -> str:
        half = self("Mul", x, self.constant(0.5, np.float32))
        erf = self("Erf", self("Mul", x, self.constant(2**-0.5, np.float32)))
        return self("Mul", half, self("Add", erf, self.constant(1, np.float32)))

    def heads(self, x: str, count: int, width: int, perm: Sequence[int]) -> str:
        split = self("Reshape", x, self.constant([0, 0, count, width // count]))
        return self("Transpose", split, perm=perm)

    def encoder(self, x: str, width: int, heads: int) -> str:
        """A layer of a transformer on x [batch, tokens, width]."""
        y = self.norm(x, width)
        q, k, v = (self.heads(self.linear(y, width, width), heads, width, perm)
                   for perm in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))  # fmt: skip
        scale = self.constant((width // heads) ** -0.5, np.float32)
        scores = self("Softmax", self("Mul", self("MatMul", q, k), scale), axis=-1)
        y = self("Transpose", self("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = self("Reshape", y, self.constant([0, 0, width]))
        x = self("Add", x, self.linear(y, width, width))
        y = self.gelu(self.linear(self.norm(x, width), width, 4 * width))
        return self("Add", x, self.linear(y, 4 * width, width))

    def resized(self, x: str, like: str, channels: int, mode: str) -> str:
        """An image in the size of another."""
        extents = (self.extent(like, axis) for axis in (2, 3))
        to = self.joined(self.extent(x, 0), channels, *extents)
        return self("Resize", x, "", "", to, mode=mode)

    def classes(self, x: str, width: int) -> str:
        return self.linear(self("Flatten", self("GlobalAveragePool", x)), width, 10)

    def quantized(self, x: str, scale: float, point: int = 0) -> str:
        args = (self.constant(scale, np.float32), self.constant(point, np.int8))
        return self("DequantizeLinear", self("QuantizeLinear", x, *args), *args)

    def weight_int8(self, *shape: int, fan: int, exact: bool) -> str:
        """Dequantized weights, `exact` with a power of two as their scale."""
        self.count += 1
        w = self.constant(np.random.default_rng(self.count).integers(-90, 90, shape), np.int8)
        scale = 0.02 * fan**-0.5
        scale = 2.0 ** round(np.log2(scale)) if exact else scale
        args = (self.constant(scale, np.float32), self.constant(0, np.int8))
        return self("DequantizeLinear", w, *args)

    def conv_int8(
        self, x: str, inner: int, outer: int, kernel: int = 3, stride: int = 1, group: int = 1,
        exact: bool = False,
    ) -> str:  # fmt: skip
        fan = inner // group * kernel**2
        w = self.weight_int8(outer, inner // group, kernel, kernel, fan=fan, exact=exact)
        x = self("Conv", x, w, group=group, strides=[stride] * 2, pads=[kernel // 2] * 4)
        return self.quantized(self("Relu", x), 1 / 32 if exact else 0.03, -128)


def _images(net: Drawn, y: str, *size: int) -> onnx.ModelProto:
    shape = ["n", 3, *(size or ("h", "w"))]
    return net.model({"x": ("f", shape)}, {y: "f"})


def residual(*size: int) -> onnx.ModelProto:
    """Convolutions of three by three, residuals, pooling."""
    net = Drawn()
    x = net.conv("x", 3, 32, stride=2)
    x = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    width = 32
    for wider in (32, 64, 128):
        stride = 1 if wider == width else 2
        y = net.conv(net.conv(x, width, wider, stride=stride), wider, wider, act="")
        side = x if wider == width else net.conv(x, width, wider, 1, stride, act="")
        x, width = net("Relu", net("Add", y, side)), wider
    return _images(net, net.classes(x, width), *size)


def plain(*size: int) -> onnx.ModelProto:
    """Convolutions of three by three, nothing else."""
    net = Drawn()
    x = net.conv("x", 3, 32)
    for _ in range(3):
        x = net.conv(x, 32, 32)
    return _images(net, x, *size)


def averages(*size: int) -> onnx.ModelProto:
    """Averages over windows, padding counted, beside and between convolutions."""
    net = Drawn()
    x = net.conv("x", 3, 32)
    for kernel, stride in ((3, 1), (3, 2), (2, 2)):
        y = net("AveragePool", x, kernel_shape=[kernel] * 2, strides=[stride] * 2,
                pads=[kernel % 2] * 4, count_include_pad=1)  # fmt: skip
        x = net.conv(y, 32, 32)
    return _images(net, net.classes(x, 32), *size)


def normalized(*size: int) -> onnx.ModelProto:
    """Convolutions with statistics of channels, of groups of them, and of each pixel's."""
    net = Drawn()
    x = net.conv("x", 3, 48, stride=2, act="")
    x = net("Relu", net("InstanceNormalization", x, net.weight(48), net.weight(48)))
    y = net("GroupNormalization", net.conv(x, 48, 48, act=""), net.weight(4), net.weight(4),
            num_groups=4)  # fmt: skip
    x = net("Add", x, net("Relu", y))
    for _ in range(2):
        y = net("Transpose", net.conv(x, 48, 48, 7, 1, 48, act=""), perm=[0, 2, 3, 1])
        y = net("Transpose", net.norm(y, 48), perm=[0, 3, 1, 2])
        x = net("Add", x, net.conv(net.gelu(net.conv(y, 48, 96, 1, act="")), 96, 48, 1, act=""))
    return _images(net, x, *size)


def branches(*size: int) -> onnx.ModelProto:
    """Sums of convolutions and a scaled identity, which are one convolution (RepVGG)."""
    net = Drawn()
    x = net.conv("x", 3, 32, act="")
    for group in (1, 32):
        y = net.conv(x, 32, 32, group=group, act="")
        y = net("Add", y, net.conv(x, 32, 32, 1, group=group, act=""))
        scale, shift, mean = (net.weight(32) for _ in range(3))
        identity = net("BatchNormalization", x, scale, shift, mean, net("Abs", scale))
        x = net("Relu", net("Add", y, identity))
    return _images(net, x, *size)


def modulated(*size: int) -> onnx.ModelProto:
    """Convolutions whose filters only the run knows."""
    net = Drawn()
    gate = net("Sigmoid", net("ReduceMean", "x", keepdims=1))
    x = "x"
    for inner, outer, kernel, stride, group in (
        (3, 32, 3, 1, 1), (32, 48, 3, 2, 1), (48, 48, 5, 1, 48), (48, 33, 1, 1, 1)
    ):  # fmt: skip
        w = net.weight(outer, inner // group, kernel, kernel, scale=0.2)
        x = net("Conv", x, net("Mul", w, gate), net.weight(outer), group=group,
                strides=[stride] * 2, pads=[kernel // 2] * 4)  # fmt: skip
        x = net("Relu", x)
    return _images(net, x, *size)


def mobile(*size: int) -> onnx.ModelProto:
    """Depthwise separable convolutions, squeeze and excitation."""
    net = Drawn()
    x = net.conv("x", 3, 16, stride=2, act="HardSwish")
    for inner, outer, stride in ((16, 24, 2), (24, 24, 1), (24, 40, 2), (40, 40, 1)):
        y = net.conv(x, inner, 4 * inner, 1, act="HardSwish")
        y = net.conv(y, 4 * inner, 4 * inner, 3, stride, 4 * inner, act="HardSwish")
        gate = net.conv(net("GlobalAveragePool", y), 4 * inner, inner, 1)
        gate = net.conv(gate, inner, 4 * inner, 1, act="HardSigmoid")
        y = net.conv(net("Mul", y, gate), 4 * inner, outer, 1, act="")
        x = net("Add", x, y) if inner == outer else y
    return _images(net, net.classes(net.conv(x, 40, 160, 1, act="HardSwish"), 160), *size)


def bytes_net(*size: int) -> onnx.ModelProto:
    """Convolutions of bytes (QDQ), depthwise ones among them, pooling and a residual."""
    net = Drawn()
    x = net.conv_int8(net.quantized("x", 0.02), 3, 32, stride=2)
    x = net("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    x = net.quantized(x, 0.03, -128)
    y = net.conv_int8(net.conv_int8(x, 32, 32), 32, 32)
    x = net.quantized(net("Add", x, y), 0.05, -128)
    x = net.conv_int8(net.conv_int8(x, 32, 128, 1), 128, 128, 3, 2, 128)
    x = net.conv_int8(x, 128, 64, 1)
    pooled = net.quantized(net("GlobalAveragePool", x), 0.03, -128)
    return _images(net, net.linear(net("Flatten", pooled), 64, 10), *size)


def moved_bytes(*size: int) -> onnx.ModelProto:
    """Bytes (QDQ) that are pooled, resized, joined, padded, split, transposed and gathered.

    Scales are powers of two: all floats of the model are exact.
    """
    net = Drawn()

    def q(x: str) -> str:
        return net.quantized(x, 1 / 32, -128)

    def conv(x: str, inner: int, outer: int, kernel: int = 3, stride: int = 1) -> str:
        return net.conv_int8(x, inner, outer, kernel, stride, exact=True)

    a = conv(net.quantized("x", 1 / 64), 3, 32, stride=2)
    b = conv(q(net("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])), 32, 32)
    c = q(net("AveragePool", b, kernel_shape=[2, 2], strides=[1, 1], pads=[0, 1, 1, 0]))
    b = conv(q(net("Concat", b, c, axis=1)), 64, 32)
    b = q(net.resized(b, a, 32, "nearest"))
    left = net("Split", a, axis=1, outputs=2, num_outputs=2)
    right = conv(q(f"{left}_1"), 16, 16, 1)
    a = conv(q(net("Concat", b, q(left), right, axis=1)), 64, 32)
    a = q(net("Pad", a, net.constant([0, 0, 1, 0, 0, 0, 2, 1])))
    a = q(net("Pad", a, net.constant([0, 0, 1, 1, 0, 0, 0, 1]), mode="reflect"))
    a = q(net("Gather", a, net.constant([*range(1, 32, 2)]), axis=1))
    a = q(net("Slice", a, net.constant([1]), net.constant([-1]), net.constant([3])))
    boxes = q(net("Reshape", q(net("Transpose", a, perm=[0, 2, 3, 1])), net.constant([0, -1, 16])))
    least = q(net("ReduceMin", boxes, net.constant([1]), keepdims=1))
    x = q(net("Sub", boxes, least))
    total = net("MatMul", x, net.weight_int8(16, 10, fan=16, exact=True))
    return _images(net, q(net("Add", total, net.constant([0.5] * 10, np.float32))), *size)


def unet(*size: int) -> onnx.ModelProto:
    """Down and up again, with copies beside: pooling, Resize, Concat."""
    net = Drawn()
    a = net.conv(net.conv("x", 3, 16), 16, 16)
    b = net.conv(net("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2]), 16, 32)
    c = net.conv(net("MaxPool", b, kernel_shape=[2, 2], strides=[2, 2]), 32, 64)
    c = net.resized(c, b, 64, "linear")
    b = net.conv(net("Concat", c, b, axis=1), 96, 32)
    b = net.resized(b, a, 32, "nearest")
    a = net.conv(net("Concat", b, a, axis=1), 48, 16)
    return _images(net, net("Softmax", net.conv(a, 16, 4, 1, act=""), axis=1), *size)


def vision_transformer() -> onnx.ModelProto:
    """Patches of an image as tokens."""
    net = Drawn()
    x = net("Conv", "x", net.weight(64, 3, 8, 8, scale=0.07), strides=[8, 8])
    x = net("Transpose", net("Reshape", x, net.constant([0, 64, -1])), perm=[0, 2, 1])
    for _ in range(2):
        x = net.encoder(x, 64, 4)
    x = net.linear(net("ReduceMean", net.norm(x, 64), net.constant([1]), keepdims=0), 64, 10)
    return _images(net, x, 64, 64)


def text(batch: object = "n") -> onnx.ModelProto:
    """Words of a table as tokens, two layers of a transformer."""
    net = Drawn()
    x = net("Gather", net.weight(500, 128), "x")
    for _ in range(2):
        x = net.encoder(x, 128, 4)
    x = net("Tanh", net.linear(net.norm(x, 128), 128, 128))
    return net.model({"x": ("i", [batch, "t"])}, {x: "f"})


def recurrent(kind: str = "LSTM", gates: int = 4) -> onnx.ModelProto:
    """Two recurrent layers and a head over steps [t, n, 64]."""
    net = Drawn()
    x = "x"
    for _ in range(2):
        w, r = (net.weight(1, gates * 64, 64, scale=0.12) for _ in range(2))
        x = net(kind, x, w, r, net.weight(1, 2 * gates * 64), hidden_size=64)
        x = net("Squeeze", x, net.constant([1]))
    y = net("Softmax", net.linear(x, 64, 32), axis=-1)
    return net.model({"x": ("f", ["t", "n", 64])}, {y: "f"})


def rows() -> onnx.ModelProto:
    """Elementwise chains, normalization, reductions and Softmax of rows [t, 256]."""
    net = Drawn()
    x = net.gelu(net("Mul", net("Add", "x", net.weight(256)), net.weight(256)))
    x = net("Sigmoid", net.norm(x, 256))
    mean = net("ReduceMean", x, net.constant([1]), keepdims=1)
    y = net("Softmax", net("Sub", x, mean), axis=-1)
    y = net("Transpose", net("Div", y, net("ReduceMax", y, net.constant([0]), keepdims=1)))
    return net.model({"x": ("f", ["t", 256])}, {y: "f"})
