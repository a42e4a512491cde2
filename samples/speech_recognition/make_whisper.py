"""Writes an encoder and a decoder like Whisper's, as onnxruntime-genai exports them.

    python make_whisper.py FOLDER
    python make_whisper.py FOLDER --shape=whisper-tiny

The weights are random: what is recognized means nothing, but takes as long as with trained ones.
The encoder reads 30 seconds of sound as logarithms of a mel spectrum and gives, beside its hidden
states, the keys and values that the decoder's layers attend to: they are computed once. The
decoder's own keys and values are its states. The program prints how both are compiled, and writes
features.f32 beside them, as random as the weights.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

sys.path.insert(0, str(Path(__file__).parents[1]))

from onnx_graph import CONTRIB, OnnxGraph  # noqa: E402

PROMPT = 4
"""The most tokens of a run: Whisper's prompt says the language, the task and whether with times."""


@dataclass(frozen=True)
class Shape:
    """The sizes of a network; `frames` are of 10 ms."""

    frames: int
    layers: int
    width: int
    heads: int
    tokens: int
    longest: int
    mels: int = 80

    @property
    def size(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    @property
    def positions(self) -> int:
        """Positions of the encoder: one of its convolutions halves the frames."""
        return self.frames // 2


SHAPES = {
    "toy": Shape(frames=48, layers=2, width=64, heads=2, tokens=256, longest=24),
    "whisper-tiny": Shape(frames=3000, layers=4, width=384, heads=6, tokens=51865, longest=448),
}


class Whisper(OnnxGraph):
    """An encoder or a decoder under construction."""

    def __init__(self, shape: Shape, seed: int) -> None:
        super().__init__(seed)
        self.shape = shape

    def bias(self, count: int) -> str:
        """Add small random numbers."""
        return self.constant(self.random.standard_normal(count) * 0.1)

    def integers(self, *values: int) -> str:
        """Add a constant of integers."""
        return self.constant(values, np.int64)

    def linear(
        self, x: str, inner: int, outer: int, bias: bool = True, scale: float = 1.0
    ) -> str:
        """Add a product with weights."""
        y = self.add("MatMul", [x, self.weight(inner, outer, scale=scale)])
        return self.add("Add", [y, self.bias(outer)]) if bias else y

    def norm(self, x: str) -> str:
        """Add a normalization of each position."""
        scale = self.constant(1 + 0.1 * self.random.standard_normal(self.shape.width))
        return self.add("LayerNormalization", [x, scale, self.bias(self.shape.width)], axis=-1)

    def added(self, x: str, y: str, inner: int) -> str:
        """Add the end of a layer and what goes past it, which is the most: so tokens differ."""
        return self.add("Add", [x, self.linear(y, inner, self.shape.width, scale=0.4)])

    def mlp(self, x: str) -> str:
        """Add the two layers after an attention, and what goes past them."""
        width = self.shape.width
        y = self.add("Gelu", [self.linear(self.norm(x), width, 4 * width)])
        return self.added(x, y, 4 * width)

    def self_attention(self, x: str, *past: str, results: tuple[str, ...] = ()) -> str:
        """Add an attention to the positions themselves; with a past, to no later ones."""
        width = self.shape.width
        h = self.norm(x)
        parts = [self.linear(h, width, width, bias=False) for _ in range(3)]
        biases = [self.random.standard_normal(width) * 0.1 for _ in range(3)]
        biases[1] *= 0  # keys have none
        y = self.add(
            "MultiHeadAttention", [*parts, self.constant(np.concatenate(biases)), "", "", *past],
            [f"attended{len(self.nodes)}", *results], CONTRIB, num_heads=self.shape.heads,
            unidirectional=int(bool(past)),
        )  # fmt: skip
        return self.added(x, y, width)

    def cross_attention(self, x: str, key: str, value: str) -> str:
        """Add an attention to what the encoder has heard."""
        width = self.shape.width
        query = self.linear(self.norm(x), width, width)
        y = self.add("MultiHeadAttention", [query, key, value], domain=CONTRIB,
                     num_heads=self.shape.heads)  # fmt: skip
        return self.added(x, y, width)

    def split_heads(self, x: str, name: str) -> None:
        """Call the heads of an encoder's keys or values by a name, [1, heads, positions, size]."""
        s = self.shape
        x = self.add("Reshape", [x, self.integers(1, s.positions, s.heads, s.size)])
        self.add("Transpose", [x], [name], perm=[0, 2, 1, 3])


def sinusoids(shape: Shape) -> np.ndarray:
    """Return what is added to each position of the encoder, [positions, width]."""
    rates = np.exp(-np.log(10000) * np.arange(shape.width // 2) / (shape.width // 2 - 1))
    angles = np.outer(np.arange(shape.positions), rates)
    return np.concatenate([np.sin(angles), np.cos(angles)], 1)


def floats(name: str, *shape: int | str) -> onnx.ValueInfoProto:
    """Return what says that a tensor has numbers in it."""
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def names(shape: Shape, form: str) -> list[str]:
    """Return the names of all layers' keys and values."""
    return [form.format(kind=kind, layer=layer)
            for layer in range(shape.layers) for kind in ("key", "value")]  # fmt: skip


def encoder(shape: Shape) -> onnx.ModelProto:
    """Return the encoder."""
    s, g = shape, Whisper(shape, seed=0)
    x = "audio_features"
    for channels, stride in ((s.mels, 1), (s.width, 2)):
        kernel = g.random.standard_normal((s.width, channels, 3)) * (2 / (3 * channels)) ** 0.5
        x = g.add("Conv", [x, g.constant(kernel), g.bias(s.width)], strides=[stride], pads=[1, 1])
        x = g.add("Gelu", [x])
    x = g.add("Transpose", [x], perm=[0, 2, 1])
    x = g.add("Add", [x, g.constant(sinusoids(s))])
    for _ in range(s.layers):
        x = g.mlp(g.self_attention(x))
    x = g.add("Identity", [g.norm(x)], ["hidden_states"])
    cross = names(s, "present_{kind}_cross_{layer}")
    for name in cross:
        g.split_heads(g.linear(x, s.width, s.width, bias="value" in name), name)
    made = [floats(name, 1, s.heads, s.positions, s.size) for name in cross]
    return g.finish(
        "encoder", [floats("audio_features", 1, s.mels, s.frames)],
        [floats("hidden_states", 1, s.positions, s.width), *made],
    )  # fmt: skip


def decoder(shape: Shape) -> onnx.ModelProto:
    """Return the decoder."""
    s, g = shape, Whisper(shape, seed=1)
    words = g.constant(g.random.standard_normal((s.tokens, s.width)) * (4 / s.width**0.5))
    places = g.constant(g.random.standard_normal((s.longest, s.width)))
    count = g.add("Shape", ["input_ids"], start=1, end=2)
    past = g.add("Shape", ["past_key_self_0"], start=2, end=3)
    ends = [past, g.add("Add", [past, count]), g.integers(0)]
    x = g.add("Add", [g.add("Gather", [words, "input_ids"]), g.add("Slice", [places, *ends])])
    held = names(s, "past_{kind}_self_{layer}")
    grown = names(s, "present_{kind}_self_{layer}")
    cross = names(s, "past_{kind}_cross_{layer}")
    for layer in range(s.layers):
        pair = slice(2 * layer, 2 * layer + 2)
        x = g.self_attention(x, *held[pair], results=tuple(grown[pair]))
        x = g.mlp(g.cross_attention(x, *cross[pair]))
    g.add("MatMul", [g.norm(x), g.add("Transpose", [words], perm=[1, 0])], ["logits"])
    ids = helper.make_tensor_value_info("input_ids", TensorProto.INT32, [1, "sequence_length"])
    given = [ids, *(floats(name, 1, s.heads, "past_sequence_length", s.size) for name in held),
             *(floats(name, 1, s.heads, s.positions, s.size) for name in cross)]  # fmt: skip
    made = [floats(name, 1, s.heads, "total_sequence_length", s.size) for name in grown]
    return g.finish("decoder", given, [floats("logits", 1, "sequence_length", s.tokens), *made])


def input_shape(shape: Shape) -> str:
    """Return what --input_shape says for the decoder.

    The cache has room for as many tokens as the table has positions.
    """
    cache = f"1,{shape.heads},p=0~{shape.longest},{shape.size}"
    return f"input_ids:1,s=1~{PROMPT};past_key_self_0:{cache}"


def main() -> None:
    """Write the files into the folder that the command line names, and how they are compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="toy")
    chosen = parser.parse_args()
    folder, shape = chosen.folder, SHAPES[chosen.shape]
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(encoder(shape), folder / "encoder.onnx")
    onnx.save(decoder(shape), folder / "decoder.onnx")
    features = np.random.default_rng(0).standard_normal((shape.mels, shape.frames))
    features.astype("<f4").tofile(folder / "features.f32")
    print(f"atc --model={folder / 'encoder.onnx'} --output=out/encoder")
    print(
        f"atc --model={folder / 'decoder.onnx'} --output=out/decoder --state=auto "
        f'--input_shape="{input_shape(shape)}"'
    )


if __name__ == "__main__":
    main()
