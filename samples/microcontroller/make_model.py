"""Make the sample's network and data, called by run.sh with a folder (numpy and onnxruntime).

kws_float.onnx    a keyword spotter of MLPerf Tiny's shape (DS-CNN): features [1, 1, 49, 10] to
                  scores of twelve words
calibration.npy   features to choose the scales of its integers by
words.npz         features of words that it has not seen, and which words they are

Called once more, with words.h, it writes those words as integers of the quantized network's input,
for the program. Words are made up: paths of two formants through ten bands, louder or softer,
earlier or later, in noise. The convolutions stay random; the last layer is fitted by least squares.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Floats = NDArray[np.float32]
Weights = dict[str, Floats]

WORDS = ("silence", "unknown", "yes", "no", "up", "down", "left", "right", "on", "off", "stop",
         "go")  # fmt: skip
FRAMES, BANDS, CHANNELS, BLOCKS = 49, 10, 64, 4


def main() -> None:
    """Write what the arguments name."""
    folder = Path(sys.argv[1])
    if sys.argv[2:]:
        (folder / sys.argv[2]).write_text(words_header(folder))
        return
    random = np.random.default_rng(7)
    weights = random_weights(random)
    sounds, words = speak(1200, random)
    hidden = pooled(weights, sounds)
    targets = np.eye(len(WORDS))[words] * 8 - 4
    design = np.c_[hidden, np.ones(len(hidden))]
    ridge = 1e-2 * np.eye(design.shape[1])
    fitted = np.linalg.solve(design.T @ design + ridge, design.T @ targets)
    weights["dense.weight"] = fitted[:-1].astype(np.float32)
    weights["dense.bias"] = fitted[-1].astype(np.float32)
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(network(weights), folder / "kws_float.onnx")
    np.save(folder / "calibration.npy", sounds[:64])
    sounds, words = speak(48, random)
    np.savez(folder / "words.npz", sounds=sounds, words=words)


def speak(count: int, random: np.random.Generator) -> tuple[Floats, NDArray[np.int64]]:
    """Return features [count, 1, frames, bands] of words, and which words they are."""
    paths = np.random.default_rng(1).uniform(0, BANDS, (len(WORDS), 2, 4))
    words = random.integers(0, len(WORDS), count)
    sounds = random.normal(0, 0.15, (count, FRAMES, BANDS))
    band = np.arange(BANDS)
    for k, word in enumerate(words):
        if WORDS[word] == "silence":
            continue
        path = random.uniform(0, BANDS, (2, 4)) if WORDS[word] == "unknown" else paths[word]
        start, length = random.integers(2, 8), random.integers(34, 40)
        time = np.linspace(0, 3, length)
        for formant in path + random.normal(0, 0.25, path.shape):
            centre = np.interp(time, range(4), formant)
            shape = np.exp(-((band - centre[:, None]) ** 2))
            sounds[k, start : start + length] += random.uniform(0.8, 1.2) * shape
    return sounds[:, None].astype(np.float32), words


def random_weights(random: np.random.Generator) -> Weights:
    """Return the convolutions' weights, of a size that keeps signals at theirs."""
    def normal(*shape: int) -> Floats:
        return (random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))).astype(np.float32)

    weights = {"first.weight": normal(CHANNELS, 1, 10, 4)}
    for k in range(BLOCKS):
        weights[f"depthwise{k}.weight"] = normal(CHANNELS, 1, 3, 3)
        weights[f"pointwise{k}.weight"] = normal(CHANNELS, CHANNELS, 1, 1)
    return weights


def pooled(weights: Weights, sounds: Floats) -> Floats:
    """Return what the convolutions make of sounds: the features of the last layer."""
    import onnxruntime

    model = network(weights, len(sounds)).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    features: Floats = session.run(None, {"features": sounds})[0]
    return features


def network(weights: Weights, batch: int = 1) -> onnx.ModelProto:
    """Return the network; without a last layer it ends in what that would take."""
    def convolution(name: str, x: str, **attributes: object) -> list[onnx.NodeProto]:
        conv = helper.make_node("Conv", [x, f"{name}.weight"], [f"{name}.sum"], **attributes)
        return [conv, helper.make_node("Relu", [f"{name}.sum"], [name])]

    nodes = convolution("first", "features", strides=[2, 2], pads=[4, 1, 5, 1])
    value = "first"
    for k in range(BLOCKS):
        nodes += convolution(f"depthwise{k}", value, group=CHANNELS, pads=[1, 1, 1, 1])
        nodes += convolution(f"pointwise{k}", f"depthwise{k}")
        value = f"pointwise{k}"
    nodes.append(helper.make_node("AveragePool", [value], ["pool"], kernel_shape=[25, 5]))
    nodes.append(helper.make_node("Flatten", ["pool"], ["flat"]))
    last, width = "flat", CHANNELS
    if "dense.weight" in weights:
        nodes.append(helper.make_node("Gemm", ["flat", "dense.weight", "dense.bias"], ["scores"]))
        last, width = "scores", len(WORDS)
    graph = helper.make_graph(
        nodes, "kws",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, [batch, 1, FRAMES, BANDS])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, [batch, width])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def words_header(folder: Path) -> str:
    """Return C of the unseen words, in integers of the quantized network's input."""
    model = onnx.load(folder / "kws.onnx")
    values = {c.name: numpy_helper.to_array(c) for c in model.graph.initializer}
    first = next(n for n in model.graph.node if n.op_type == "QuantizeLinear"
                 and n.input[0] == model.graph.input[0].name)  # fmt: skip
    scale, zero = values[first.input[1]], values[first.input[2]]
    signed = int(zero) - (128 if zero.dtype == np.uint8 else 0)
    data = np.load(folder / "words.npz")
    numbers = np.clip(np.rint(data["sounds"] / scale) + signed, -128, 127).astype(int)
    rows = ",\n".join(f"  {{{', '.join(map(str, sound.ravel()))}}}" for sound in numbers)
    names = ", ".join(f'"{word}"' for word in WORDS)
    return (
        "#include <stdint.h>\n"
        f"#define SOUNDS {len(numbers)}\n#define WORDS {len(WORDS)}\n"
        f"#define FEATURES {FRAMES * BANDS}\n"
        f"static const char *const words[WORDS] = {{{names}}};\n"
        f"static const uint8_t spoken[SOUNDS] = {{{', '.join(map(str, data['words']))}}};\n"
        f"static const int8_t sounds[SOUNDS][FEATURES] = {{\n{rows}}};\n"
    )


if __name__ == "__main__":
    main()
