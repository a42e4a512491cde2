"""Writes a detector of voices, of the same layers and sizes as Silero's, and a sound to try it on.

    python make_detector.py vad.onnx sound.wav

A run takes 512 samples (32 ms at 16 kHz) and gives the probability that somebody speaks. Between
runs two states are handed on: `state`, the LSTM's, and the last 64 samples, which stand before the
next ones. The weights are random but for the last layer's, which is fitted to synthetic voices in
noise: enough to distinguish those.

Silero's own network takes those 64 samples with the 512, and the rate (--state=auto with
--input_shape="input:1,576;state:2,1,128"): a program for it keeps them itself.
"""

from __future__ import annotations

import sys
import wave
from pathlib import Path

import numpy as np
import onnx
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from onnx_graph import OnnxGraph  # noqa: E402

Floats = NDArray[np.float32]

RATE = 16000
FRAME, CONTEXT = 512, 64
"""New samples of a run, and those kept from the one before."""
WINDOW, HOP = 256, 128
BINS, WIDTH = WINDOW // 2 + 1, 128
ENCODER = ((BINS, 128, 1), (128, 64, 2), (64, 64, 2), (64, WIDTH, 1))
"""Channels before and after, and the stride, of each convolution of three."""


class Weights:
    """The weights of all layers but the last, as numpy and ONNX read them."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng(seed)

        def draw(*shape: int) -> Floats:
            scale = np.sqrt(2 / np.prod(shape[1:]))
            return (random.standard_normal(shape) * scale).astype(np.float32)

        angles = 2 * np.pi * np.outer(np.arange(BINS), np.arange(WINDOW)) / WINDOW
        waves = np.concatenate([np.cos(angles), -np.sin(angles)]) * np.hanning(WINDOW + 1)[:-1]
        self.waves = waves.astype(np.float32)
        self.encoder = [(draw(after, before, 3), draw(after, 200)[:, 0])
                        for before, after, _ in ENCODER]  # fmt: skip
        self.lstm = draw(4 * WIDTH, WIDTH), draw(4 * WIDTH, WIDTH) / 2
        self.lstm_bias = np.repeat(np.float32([0, 0, 1, 0]), WIDTH)  # gates in, out, forget, cell

    def features(self, samples: Floats) -> Floats:
        """Return what the last layer reads after each frame of a sound, [frames, WIDTH]."""
        frames = samples[: len(samples) // FRAME * FRAME].reshape(-1, FRAME)
        before = np.concatenate([np.zeros((1, CONTEXT), np.float32), frames[:-1, -CONTEXT:]])
        x = np.pad(np.concatenate([before, frames], 1), ((0, 0), (0, CONTEXT)), "reflect")
        spectrum = sliding_window_view(x, WINDOW, 1)[:, ::HOP] @ self.waves.T
        x = np.hypot(spectrum[..., :BINS], spectrum[..., BINS:])  # [frames, steps, channels]
        for (kernel, bias), (_, _, stride) in zip(self.encoder, ENCODER, strict=True):
            windows = sliding_window_view(np.pad(x, ((0, 0), (1, 1), (0, 0))), 3, 1)[:, ::stride]
            x = np.maximum(np.einsum("tsck,ock->tso", windows, kernel, optimize=True) + bias, 0)
        return np.maximum(self._recurrent(x[:, 0]), 0)

    def _recurrent(self, x: Floats) -> Floats:
        own, back = self.lstm
        h = c = np.zeros(WIDTH, np.float32)
        made = []
        for row in x @ own.T + self.lstm_bias:
            i, o, f, g = np.split(row + back @ h, 4)
            c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
            h = _sigmoid(o) * np.tanh(c)
            made.append(h)
        return np.stack(made)


def _sigmoid(x: Floats) -> Floats:
    return 1 / (1 + np.exp(-x))


def draw_sound(seconds: float, seed: int) -> tuple[Floats, NDArray[np.bool_]]:
    """Return a sound, samples of -1 to 1, and for each frame of it whether somebody speaks there.

    Voices are harmonics under two formants, for half a second or more; noise is everywhere.
    """
    random = np.random.default_rng(seed)
    frames = int(seconds * RATE) // FRAME
    spoken = np.zeros(frames, np.bool_)
    noise = 10 ** random.uniform(-3, -1.7, frames // 40 + 2)
    level = np.interp(np.arange(frames * FRAME), np.arange(len(noise)) * 40 * FRAME, noise)
    sound = random.standard_normal(frames * FRAME) * level
    at = int(random.integers(10, 30))
    while at + 16 < frames:
        length = min(int(random.integers(16, 60)), frames - at)
        spoken[at : at + length] = True
        sound[at * FRAME : (at + length) * FRAME] += _voice(length * FRAME, random)
        at += length + int(random.integers(20, 60))
    return np.clip(sound, -1, 1).astype(np.float32), spoken


def _voice(count: int, random: np.random.Generator) -> NDArray[np.float64]:
    time = np.arange(count) / RATE
    pitch = random.uniform(90, 240) * (1 + 0.1 * np.sin(2 * np.pi * random.uniform(1, 4) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    first, second = random.uniform(300, 800), random.uniform(900, 2400)
    sound = np.zeros(count)
    for k in range(1, 20):
        near = np.exp(-(((k * pitch - first) / 200) ** 2))
        far = np.exp(-(((k * pitch - second) / 300) ** 2))
        sound += (0.05 + near + 0.5 * far) * np.sin(k * phase)
    syllables = 0.6 + 0.4 * np.sin(2 * np.pi * random.uniform(3, 6) * time)
    return random.uniform(0.05, 0.2) * syllables * sound


def fit(weights: Weights) -> tuple[Floats, float]:
    """Return the last layer's weights and bias by least squares on half a minute of sound."""
    samples, spoken = draw_sound(30, seed=1)
    x = weights.features(samples).astype(np.float64)
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    wanted = np.where(spoken, 3.0, -3.0)
    found = np.linalg.solve(x.T @ x + 0.1 * np.eye(WIDTH + 1), x.T @ wanted)
    return found[:-1].astype(np.float32), float(found[-1])


def detector(weights: Weights) -> onnx.ModelProto:
    """Return the network."""
    g = OnnxGraph()
    head, bias = fit(weights)

    def numbers(*values: int) -> str:
        return g.constant(values, np.int64)

    x = g.add("Concat", ["context_in", "input"], axis=1)
    g.add("Slice", [x, numbers(FRAME), numbers(FRAME + CONTEXT), numbers(1)], ["context_out"])
    x = g.add("Pad", [x, numbers(0, 0, 0, CONTEXT)], mode="reflect")
    x = g.add("Unsqueeze", [x, numbers(1)])
    x = g.add("Conv", [x, g.constant(weights.waves[:, None])], strides=[HOP])
    parts = [g.add("Slice", [x, numbers(k), numbers(k + BINS), numbers(1)]) for k in (0, BINS)]
    real, imaginary = (g.add("Mul", [part, part]) for part in parts)
    x = g.add("Sqrt", [g.add("Add", [real, imaginary])])
    for layer, (_, _, stride) in zip(weights.encoder, ENCODER, strict=True):
        x = g.add("Conv", [x, *map(g.constant, layer)], strides=[stride], pads=[1, 1])
        x = g.add("Relu", [x])
    x = g.add("Transpose", [x], perm=[2, 0, 1])  # one step, one row
    g.add("Split", ["state"], ["h", "c"], axis=0, num_outputs=2)
    own, back = (g.constant(w[None]) for w in weights.lstm)
    biases = g.constant(np.concatenate([weights.lstm_bias, np.zeros(4 * WIDTH)])[None])
    g.add("LSTM", [x, own, back, biases, "", "h", "c"], ["", "hN", "cN"], hidden_size=WIDTH)
    g.add("Concat", ["hN", "cN"], ["stateN"], axis=0)
    x = g.add("Transpose", [g.add("Relu", ["hN"])], perm=[1, 2, 0])
    x = g.add("Conv", [x, g.constant(head[None, :, None]), g.constant([bias])])
    g.add("Reshape", [g.add("Sigmoid", [x]), numbers(1, 1)], ["output"])

    def tensor(name: str, *shape: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    given = [tensor("input", 1, FRAME), tensor("state", 2, 1, WIDTH),
             tensor("context_in", 1, CONTEXT)]  # fmt: skip
    made = [tensor("output", 1, 1), tensor("stateN", 2, 1, WIDTH),
            tensor("context_out", 1, CONTEXT)]  # fmt: skip
    return g.finish("detector", given, made)


def write_wav(path: Path, samples: Floats) -> None:
    """Write samples of -1 to 1 as 16-bit PCM."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.round(samples * 32767).astype("<i2").tobytes())


def main() -> None:
    """Write the files that the command line names."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: make_detector.py MODEL.onnx [SOUND.wav]")
    onnx.save(detector(Weights()), sys.argv[1])
    if len(sys.argv) == 3:
        write_wav(Path(sys.argv[2]), draw_sound(12, seed=2)[0])


if __name__ == "__main__":
    main()
