"""A network in float16 needs no larger arena than in float32, mostly little more than half.

The registry has a small network of each kind: what dominates an arena differs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from setting_rows import options
from stages import project_of


@dataclass
class Net:
    """A float32 network in the making, of random weights."""

    shape: tuple[int, ...]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def weight(self, *shape: int) -> str:
        """Add weights."""
        values = self.rng.standard_normal(shape) / max(1, int(np.prod(shape[1:]))) ** 0.5
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def constant(self, values: object, dtype: type = np.int64) -> str:
        """Add a constant."""
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.array(values, dtype), name))
        return name

    def node(self, op: str, *inputs: str, **attributes: object) -> str:
        """Add a node."""
        self.nodes.append(helper.make_node(op, inputs, [f"t{len(self.nodes)}"], **attributes))
        return f"t{len(self.nodes) - 1}"

    def conv(
        self, x: str, channels: int, filters: int, size: int = 3, stride: int = 1, group: int = 1
    ) -> str:
        """Add a convolution."""
        w = self.weight(filters, channels // group, size, size)
        return self.node("Conv", x, w, self.weight(filters), pads=[size // 2] * 4,
                         strides=[stride] * 2, group=group)  # fmt: skip

    def dense(self, x: str, inputs: int, outputs: int) -> str:
        """Add a product of rows and a bias."""
        return self.node("Add", self.node("MatMul", x, self.weight(inputs, outputs)),
                         self.weight(outputs))  # fmt: skip

    def silu(self, x: str) -> str:
        """Add a function."""
        return self.node("Mul", x, self.node("Sigmoid", x))

    def save(self, path: Path, y: str) -> Path:
        """Write the network."""
        graph = helper.make_graph(
            self.nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)],
            [helper.make_empty_tensor_value_info(y)], self.weights,
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
        return path


def transformer_block(tokens: int, width: int, hidden: int) -> Callable[[Path], Path]:
    """Return two blocks of attention and a layer of products, with residuals."""

    def made(path: Path) -> Path:
        net, x, heads = Net((1, tokens, width)), "x", width // 32
        for _ in range(2):
            h = net.node("LayerNormalization", x, net.weight(width), net.weight(width))
            parts = []
            for order in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
                each = net.node("Reshape", net.dense(h, width, width),
                                net.constant([1, tokens, heads, 32]))  # fmt: skip
                parts.append(net.node("Transpose", each, perm=order))
            q, k, v = parts
            scores = net.node("Mul", net.node("MatMul", q, k), net.constant(32**-0.5, np.float32))
            seen = net.node("MatMul", net.node("Softmax", scores, axis=-1), v)
            seen = net.node("Transpose", seen, perm=[0, 2, 1, 3])
            seen = net.node("Reshape", seen, net.constant([1, tokens, width]))
            x = net.node("Add", x, net.dense(seen, width, width))
            h = net.node("LayerNormalization", x, net.weight(width), net.weight(width))
            h = net.silu(net.dense(h, width, hidden))
            x = net.node("Add", x, net.dense(h, hidden, width))
        return net.save(path, x)

    return made


def segmentation_head(path: Path) -> Path:
    """Write maps of three sizes that are upsampled, joined and convolved."""
    net, parts = Net((1, 16, 64, 64)), list[str]()
    x, channels = "x", 16
    for step in range(3):
        x = net.node("Relu", net.conv(x, channels, 32 << step, stride=1 if step == 0 else 2))
        channels = 32 << step
        part = net.conv(x, channels, 64, 1)
        if step:
            factor = net.constant([1, 1, 2**step, 2**step], np.float32)
            part = net.node("Resize", part, "", factor, mode="linear")
        parts.append(part)
    x = net.node("Relu", net.conv(net.node("Concat", *parts, axis=1), 192, 64, 1))
    return net.save(path, net.conv(x, 64, 8, 1))


def mobile_block(path: Path) -> Path:
    """Write inverted residuals on an image."""
    net = Net((1, 3, 96, 96))
    x, channels = net.node("Relu", net.conv("x", 3, 16, stride=2)), 16
    for filters, stride in ((24, 2), (24, 1), (40, 2), (40, 1)):
        h = net.silu(net.conv(x, channels, 6 * channels, 1))
        h = net.silu(net.conv(h, 6 * channels, 6 * channels, 3, stride, 6 * channels))
        h = net.conv(h, 6 * channels, filters, 1)
        x = net.node("Add", x, h) if channels == filters else h
        channels = filters
    return net.save(path, net.node("GlobalAveragePool", x))


def detector_neck(path: Path) -> Path:
    """Write parts of channels that pass convolutions, are joined, upsampled and joined again."""
    net = Net((1, 3, 160, 160))
    x = net.silu(net.conv("x", 3, 32, stride=2))
    near = net.silu(net.conv(x, 32, 64, stride=2))
    far = net.silu(net.conv(near, 64, 64, stride=2))
    for _ in range(2):
        up = net.node("Resize", far, "", net.constant([1, 1, 2, 2], np.float32), mode="nearest")
        h = net.silu(net.conv(net.node("Concat", up, near, axis=1), 128, 64, 1))
        parts = [f"{h}.a", f"{h}.b"]
        net.nodes.append(helper.make_node("Split", [h], parts, axis=1, num_outputs=2))
        more = net.silu(net.conv(net.silu(net.conv(f"{h}.b", 32, 32)), 32, 32))
        near = net.silu(net.conv(net.node("Concat", h, more, axis=1), 96, 64, 1))
    boxes = net.conv(net.silu(net.conv(near, 64, 80)), 80, 80)
    return net.save(path, net.node("Reshape", boxes, net.constant([1, 80, -1])))


NETWORKS: dict[str, Callable[[Path], Path]] = {
    "transformer block": transformer_block(197, 96, 384),
    "few long rows": transformer_block(64, 256, 1024),
    "segmentation head": segmentation_head,
    "mobile block": mobile_block,
    "detector neck": detector_neck,
}
MOST = {"x86-64-avx2": 0.95, "x86-64-avx512": 0.8, "x86-64-amx": 1.01, "aarch64-neon": 0.95}
"""Targets, and the part of float32's arena that float16's may take: on AMX values stay floats, with
AVX2 Winograd's scratch is most of the detector's."""


@pytest.mark.parametrize("target", MOST)
@pytest.mark.parametrize("name", NETWORKS)
def test_float16_takes_less_memory(name: str, target: str, tmp_path: Path) -> None:
    model = NETWORKS[name](tmp_path / "net.onnx")
    floats, halves = (
        project_of(
            options({}, model, target=target, precision_mode=mode)
        ).arena.plan.size for mode in ("", "force_fp16")
    )  # fmt: skip
    assert halves <= MOST[target] * floats, halves / floats
