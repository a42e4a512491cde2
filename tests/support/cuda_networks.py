"""Networks for GPUs, and how tests compile them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from projects import make_model

from atc.api import compile as compile_network

X = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


def mixed_model() -> onnx.ModelProto:
    """Return a model with texts, which only the host reads and writes, between other nodes."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Cast", ["a"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["b"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["b", "a"], ["c"]),
        helper.make_node("MatMul", ["c", "w"], ["y"]),
    ]
    w = np.linspace(0, 1, 12, dtype=np.float32).reshape(6, 2)
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (4, 6))],
        [("y", TensorProto.FLOAT, (4, 2)), ("b", TensorProto.FLOAT, (4, 6))],
        {"w": w},
    )  # fmt: skip


def image_model() -> onnx.ModelProto:
    """Return a model of convolutions and products that are large enough for tensor cores."""
    rng = np.random.default_rng(0)
    shapes = {"f": (64, 32, 3, 3), "g": (64, 64, 1, 1), "w": (64, 72)}
    weights = {k: (rng.normal(size=s) / 16).astype(np.float32) for k, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["a"], pads=[1, 1, 1, 1], strides=[2, 2]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "g"], ["c"]),
        helper.make_node("Softmax", ["c"], ["d"], axis=1),
        helper.make_node("GlobalAveragePool", ["d"], ["e"]),
        helper.make_node("Flatten", ["e"], ["h"]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    return make_model(
        nodes, [("x", TensorProto.FLOAT, (32, 32, 16, 16))], [("y", TensorProto.FLOAT, (32, 72))],
        weights,
    )  # fmt: skip


def large_model(dtype: Any = np.float32) -> onnx.ModelProto:
    """Return a model whose convolutions and products are large enough for warpgroups."""
    rng = np.random.default_rng(0)
    shapes = {"f": (64, 64, 3, 3), "g": (128, 64, 3, 3), "h": (256, 128, 1, 1), "w": (512, 1024)}
    weights = {k: (rng.normal(size=s) / 32).astype(dtype) for k, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["a", "g"], ["b"], strides=[2, 2]),
        helper.make_node("Conv", ["b", "h"], ["c"]),
        helper.make_node("MatMul", ["m", "w"], ["d"]),
        helper.make_node("MatMul", ["d", "n"], ["e"]),
    ]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    return make_model(
        nodes, [("x", kind, (32, 64, 33, 33)), ("m", kind, (1024, 512)), ("n", kind, (1024, 1024))],
        [("c", kind, (32, 256, 16, 16)), ("e", kind, (1024, 1024))], weights,
    )  # fmt: skip


def joined_model(first: int) -> onnx.ModelProto:
    """Return a model whose product is read, and joined behind `first` other numbers."""
    rng = np.random.default_rng(1)
    weights = {k: (rng.normal(size=(32, 32)) / 8).astype(np.float16) for k in "vw"}
    nodes = [
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Reshape", ["a", "flat"], ["b"]),
        helper.make_node("Concat", ["r", "b"], ["c"], axis=0),
        helper.make_node("Softmax", ["c"], ["z"]),
        helper.make_node("MatMul", ["a", "v"], ["y"]),
    ]
    kind = TensorProto.FLOAT16
    return make_model(
        nodes, [("x", kind, (32, 32)), ("s", kind, (first,))],
        [("y", kind, (32, 32)), ("z", kind, (1024 + first,))],
        {**weights, "flat": np.array([-1])},
    )  # fmt: skip


def depthwise_model() -> onnx.ModelProto:
    """Return a model of a depthwise convolution between pointwise ones."""
    rng = np.random.default_rng(0)
    shapes = {"f": (64, 32, 1, 1), "g": (64, 1, 3, 3), "h": (32, 64, 1, 1)}
    weights = {k: (rng.normal(size=s) / 8).astype(np.float32) for k, s in shapes.items()}
    nodes = [
        helper.make_node("Conv", ["x", "f"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Conv", ["b", "g"], ["c"], pads=[1, 1, 1, 1], group=64),
        helper.make_node("Relu", ["c"], ["d"]),
        helper.make_node("Conv", ["d", "h"], ["y"]),
    ]
    ports = ("x", TensorProto.FLOAT, (4, 32, 28, 28)), ("y", TensorProto.FLOAT, (4, 32, 28, 28))
    return make_model(nodes, [ports[0]], [ports[1]], weights)


def attention_model(dtype: Any = np.float32) -> onnx.ModelProto:
    """Return a model of self-attention behind a normalisation."""
    width, element = 64, helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [
        helper.make_node("LayerNormalization", ["x", "scale"], ["n"]),
        helper.make_node("Attention", ["n", "n", "n"], ["a"], q_num_heads=2, kv_num_heads=2,
                         is_causal=1),
        helper.make_node("Add", ["a", "x"], ["y"]),
    ]  # fmt: skip
    ports = ("x", element, (2, 100, width)), ("y", element, (2, 100, width))
    made = make_model(nodes, [ports[0]], [ports[1]], {"scale": np.ones(width, dtype)})
    made.opset_import[0].version = 23  # that Attention came with
    return made


def lasting_model(rows: int = 64) -> onnx.ModelProto:
    """Return a model with a value that is read again, whole and in parts, behind wide products.

    Between two of these the host computes something with a text.
    """
    rng = np.random.default_rng(3)
    shapes = {"w": (64, 256), "u": (256, 256), "v": (256, 64)}
    weights = {k: (rng.normal(size=s) / 16).astype(np.float32) for k, s in shapes.items()}

    def wide(x: str, y: str) -> list[onnx.NodeProto]:
        names = [x, f"{y}1", f"{y}2", y]
        return [
            helper.make_node("MatMul", [a, w], [b])
            for a, w, b in zip(names, "wuv", names[1:], strict=False)
        ]

    nodes = [
        helper.make_node("Sin", ["x"], ["a"]),
        *wide("a", "b"),
        helper.make_node("Add", ["b", "a"], ["c"]),
        helper.make_node("ReduceMax", ["c"], ["most"], keepdims=1),
        helper.make_node("Cast", ["most"], ["text"], to=TensorProto.STRING),
        helper.make_node("Cast", ["text"], ["number"], to=TensorProto.FLOAT),
        helper.make_node("Div", ["c", "number"], ["d"]),
        *wide("d", "e"),
        helper.make_node("Split", ["a"], ["s", "t"], axis=0, num_outputs=2),
        helper.make_node("Softmax", ["s"], ["f"]),
        helper.make_node("LogSoftmax", ["t"], ["g"]),
        helper.make_node("Concat", ["f", "g"], ["h"], axis=0),
        helper.make_node("Add", ["h", "e"], ["y"]),
    ]
    ports = ("x", TensorProto.FLOAT, (rows, 64)), ("y", TensorProto.FLOAT, (rows, 64))
    made = make_model(nodes, [ports[0]], [ports[1]], weights)
    made.opset_import[0].version = 18  # that num_outputs came with
    return made


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Any:
    onnx.save(model, folder / "model.onnx")
    given = {"target": "cuda-emulated", **options}
    return compile_network(folder / "model.onnx", folder / "net", **given)
