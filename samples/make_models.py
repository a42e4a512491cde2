"""Makes the models of this folder: `python samples/make_models.py` (a minute, numpy and onnx).

digits.onnx     a convolutional network that reads handwritten-looking digits, trained here
spiral.onnx     a perceptron for a batch of points of any size: a dynamic dimension
keywords.onnx   a GRU over frames of speech features that hands its state on; weights are random
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from digits import Floats, Parameters, accuracy, draw_digits, train
from onnx import TensorProto, helper, numpy_helper

Shapes = Mapping[str, Sequence[int | str]]


def main() -> None:
    """Train, print the accuracies and write the files."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    parameters = train()
    print(f"digits: {accuracy(parameters):.1%} of new digits are read correctly")
    onnx.save(digits_model(parameters), folder / "digits.onnx")
    model, correct = spiral_model()
    print(f"spiral: {correct:.1%} of new points are classified correctly")
    onnx.save(model, folder / "spiral.onnx")
    onnx.save(keywords_model(), folder / "keywords.onnx")
    write_images(folder / "images")


def digits_model(parameters: Parameters) -> onnx.ModelProto:
    """Return the network of `digits.py`: an image [1, 1, 28, 28] to ten probabilities."""
    nodes = [
        node("Conv", "image conv1.weight conv1.bias", "conv1", pads=[1, 1, 1, 1]),
        node("Relu", "conv1", "relu1"),
        node("MaxPool", "relu1", "pool1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "pool1 conv2.weight conv2.bias", "conv2", pads=[1, 1, 1, 1]),
        node("Relu", "conv2", "relu2"),
        node("MaxPool", "relu2", "pool2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "pool2", "flat"),
        node("Gemm", "flat dense.weight dense.bias", "dense", transB=1),
        node("Softmax", "dense", "scores"),
    ]
    return make(nodes, {"image": [1, 1, 28, 28]}, {"scores": [1, 10]}, parameters)


def spiral_model(hidden: int = 96, seed: int = 0) -> tuple[onnx.ModelProto, float]:
    """Return a network that classifies the three arms of a spiral, and its accuracy on new points.

    The first layer is random, the second the least squares solution for it.
    """
    random = np.random.default_rng(seed)
    first = (random.standard_normal((2, hidden)) * 4).astype(np.float32)
    bias = random.uniform(-4, 4, hidden).astype(np.float32)

    def features(points: Floats) -> Floats:
        return np.tanh(points @ first + bias)

    points, arms = spiral(1500, random)
    second = np.linalg.lstsq(features(points), np.eye(3)[arms] * 8 - 4, rcond=1e-6)[0]
    second = second.astype(np.float32)
    points, arms = spiral(1000, random)
    correct = ((features(points) @ second).argmax(1) == arms).mean()
    nodes = [
        node("Gemm", "points first bias", "sum"),
        node("Tanh", "sum", "features"),
        node("MatMul", "features second", "logits"),
        node("Softmax", "logits", "arms"),
    ]
    weights = {"first": first, "bias": bias, "second": second}
    model = make(nodes, {"points": ["batch", 2]}, {"arms": ["batch", 3]}, weights)
    return model, float(correct)


def spiral(count: int, random: np.random.Generator) -> tuple[Floats, np.ndarray]:
    """Return points [count, 2] and which of three arms each lies on."""
    arms = random.integers(0, 3, count)
    radius = random.uniform(0.1, 1, count)
    angle = arms * 2.1 + radius * 4 + random.normal(0, 0.12, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return points.astype(np.float32), arms


def keywords_model(
    frames: int = 16, bands: int = 20, hidden: int = 32, words: int = 8, seed: int = 0
) -> onnx.ModelProto:
    """Return a GRU over features [frames, 1, bands]: scores of the words, and its new state."""
    random = np.random.default_rng(seed)

    def weights(*shape: int) -> Floats:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    constants = {
        "gru.weight": weights(1, 3 * hidden, bands),
        "gru.recurrence": weights(1, 3 * hidden, hidden),
        "gru.bias": weights(1, 6 * hidden),
        "dense.weight": weights(words, hidden),
        "dense.bias": weights(words),
        "batch": np.array([0]),
    }
    nodes = [
        node("GRU", "features gru.weight gru.recurrence gru.bias  state", "frames new_state",
             hidden_size=hidden, linear_before_reset=1),
        node("Squeeze", "new_state batch", "last"),
        node("Gemm", "last dense.weight dense.bias", "logits", transB=1),
        node("Softmax", "logits", "scores"),
    ]  # fmt: skip
    state = [1, 1, hidden]
    inputs = {"features": [frames, 1, bands], "state": state}
    return make(nodes, inputs, {"scores": [1, words], "new_state": state}, constants)


def node(operator: str, inputs: str, outputs: str, **attributes: int | list[int]) -> onnx.NodeProto:
    """Return a node named after its first output; two spaces stand for an input left out."""
    results = outputs.split()
    return helper.make_node(operator, inputs.split(" "), results, results[0], **attributes)


def make(
    nodes: Sequence[onnx.NodeProto], inputs: Shapes, outputs: Shapes,
    constants: Mapping[str, np.ndarray],
) -> onnx.ModelProto:  # fmt: skip
    """Return a checked model of float inputs and outputs."""
    graph = helper.make_graph(
        nodes, "sample",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in outputs.items()],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )  # fmt: skip
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8, producer_name="samples")
    onnx.checker.check_model(model, full_check=True)
    return model


def write_images(folder: Path, seed: int = 2) -> None:
    """Write one image of each of three digits, as the plain PGM files that the embeddings read."""
    folder.mkdir(exist_ok=True)
    images, labels = draw_digits(40, seed)
    for digit in (2, 4, 7):
        image = images[labels == digit][0, 0]
        rows = [" ".join(str(round(255 * float(v))) for v in row) for row in image]
        (folder / f"{digit}.pgm").write_text("P2\n28 28\n255\n" + "\n".join(rows) + "\n")


if __name__ == "__main__":
    main()
