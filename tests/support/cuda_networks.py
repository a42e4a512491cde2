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


def compiled(model: onnx.ModelProto, folder: Path, **options: Any) -> Any:
    onnx.save(model, folder / "model.onnx")
    given = {"target": "cuda-emulated", **options}
    return compile_network(folder / "model.onnx", folder / "net", **given)
