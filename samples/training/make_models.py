"""Writes the models that train_digits.c needs: `python samples/training/make_models.py FOLDER`.

digits.onnx     images and untrained weights to scores, 50 images at a time: what is trained
reader.onnx     the same with the weights as inputs: what reads digits with the weights of any state
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

BATCH = 50

WEIGHTS = {
    "conv1.weight": (8, 1, 3, 3), "conv1.bias": (8,),
    "conv2.weight": (16, 8, 3, 3), "conv2.bias": (16,),
    "dense.weight": (10, 16 * 7 * 7), "dense.bias": (10,),
}  # fmt: skip


def main() -> None:
    """Write both models."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model(weights_are_inputs=False), folder / "digits.onnx")
    onnx.save(model(weights_are_inputs=True), folder / "reader.onnx")


def model(*, weights_are_inputs: bool) -> onnx.ModelProto:
    """Return the network of ../digits.py without the softmax, which the loss has."""
    nodes = [
        helper.make_node("Conv", ["image", "conv1.weight", "conv1.bias"], ["c1"], pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"]),
        helper.make_node("MaxPool", ["r1"], ["p1"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Conv", ["p1", "conv2.weight", "conv2.bias"], ["c2"], pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"]),
        helper.make_node("MaxPool", ["r2"], ["p2"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p2"], ["flat"]),
        helper.make_node("Gemm", ["flat", "dense.weight", "dense.bias"], ["scores"], transB=1),
    ]
    inputs = {"image": (BATCH, 1, 28, 28), **(WEIGHTS if weights_are_inputs else {})}
    zeros = {} if weights_are_inputs else {n: np.zeros(s, np.float32) for n, s in WEIGHTS.items()}
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, (BATCH, 10))],
        [numpy_helper.from_array(a, n) for n, a in zeros.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made, full_check=True)
    return made


if __name__ == "__main__":
    main()
