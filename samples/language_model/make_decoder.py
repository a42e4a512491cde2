"""Writes a decoder like Llama's or Qwen's, as onnxruntime-genai exports them, with random weights.

    python make_decoder.py tiny.onnx
    python make_decoder.py smol.onnx --shape=135M
    python make_decoder.py qwen.onnx --shape=0.5B

Its words are bytes in the tiny shape: what it writes means nothing, but each word takes as long as
one of a trained network of that shape. Compile it with room for 1024 words, of which a run takes
512 at most:

    atc --model=tiny.onnx --output=out/decoder --state=auto \\
      --input_shape="input_ids:1,s=1~512;attention_mask:1,s+p;past_key_values.0.key:1,2,p=0~1024,16"

where 2 and 16 are the heads of keys and their size: the program prints the whole command.
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


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder; `bias` belongs to queries, keys and values."""

    words: int
    layers: int
    width: int
    heads: int
    groups: int
    inner: int
    bias: bool
    longest: int = 1024

    @property
    def size(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads


SHAPES = {
    "tiny": Shape(256, 2, 64, 4, 2, 128, bias=False),
    "tiny-qwen": Shape(256, 2, 64, 4, 1, 128, bias=True),
    "135M": Shape(49152, 30, 576, 9, 3, 1536, bias=False),  # SmolLM
    "0.5B": Shape(151936, 24, 896, 14, 2, 4864, bias=True),  # Qwen 2.5
}


class Decoder(OnnxGraph):
    """A decoder under construction."""

    def __init__(self, shape: Shape, seed: int = 0) -> None:
        super().__init__(seed)
        self.shape = shape

    def norm(self, x: str) -> str:
        """Add a normalization by the root of the mean square."""
        scale = self.constant(np.ones(self.shape.width))
        return self.add(
            "SimplifiedLayerNormalization", [x, scale], axis=-1, epsilon=1e-5, stash_type=1
        )

    def linear(self, x: str, inner: int, outer: int, bias: bool = False) -> str:
        """Add a product with weights."""
        y = self.add("MatMul", [x, self.weight(inner, outer)])
        return self.add("Add", [y, self.constant(np.zeros(outer))]) if bias else y

    def attention(self, x: str, layer: int, counts: list[str], angles: list[str]) -> str:
        """Add an attention over the words so far."""
        s = self.shape
        parts = [self.linear(x, s.width, n * s.size, s.bias) for n in (s.heads, s.groups, s.groups)]
        past = [f"past_key_values.{layer}.{kind}" for kind in ("key", "value")]
        present = [f"present.{layer}.{kind}" for kind in ("key", "value")]
        y = self.add("GroupQueryAttention", [*parts, *past, *counts, *angles],
                     [f"attended{layer}", *present], CONTRIB, num_heads=s.heads,
                     kv_num_heads=s.groups, do_rotary=1)  # fmt: skip
        return self.linear(y, s.width, s.width)

    def mlp(self, x: str) -> str:
        """Add the two layers after it."""
        s = self.shape
        gate, up = self.linear(x, s.width, s.inner), self.linear(x, s.width, s.inner)
        silu = self.add("Mul", [gate, self.add("Sigmoid", [gate])])
        return self.linear(self.add("Mul", [silu, up]), s.inner, s.width)

    def counts(self) -> list[str]:
        """Add what the attention wants to know: each row's last word, and the number of words."""
        total = self.add("ReduceSum", ["attention_mask", self.constant([1], np.int64)], keepdims=0)
        last = self.add("Sub", [total, self.constant([1], np.int64)])
        shape = self.add("Shape", ["attention_mask"])
        words = self.add("Gather", [shape, self.constant(1, np.int64)], axis=0)
        return [self.add("Cast", [v], to=TensorProto.INT32) for v in (last, words)]

    def model(self) -> onnx.ModelProto:
        """Return the decoder."""
        s = self.shape
        turns = np.arange(s.longest)[:, None] / 10000 ** (np.arange(s.size // 2) * 2 / s.size)
        angles = [self.constant(f(turns)) for f in (np.cos, np.sin)]
        counts = self.counts()
        x = self.add("Gather", [self.weight(s.words, s.width, scale=s.words**0.5), "input_ids"])
        for layer in range(s.layers):
            x = self.add("Add", [x, self.attention(self.norm(x), layer, counts, angles)])
            x = self.add("Add", [x, self.mlp(self.norm(x))])
        head = self.weight(s.width, s.words, scale=4.0)
        self.add("MatMul", [self.norm(x), head], ["logits"])
        ids = ["batch_size", "sequence_length"]
        given = [
            helper.make_tensor_value_info("input_ids", TensorProto.INT64, ids),
            helper.make_tensor_value_info(
                "attention_mask", TensorProto.INT64, ["batch_size", "total_sequence_length"]
            ),
        ]
        made = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [*ids, s.words])]
        for names, into, length in (("past_key_values", given, "past"), ("present", made, "total")):
            shape = ["batch_size", s.groups, f"{length}_sequence_length", s.size]
            into += [
                helper.make_tensor_value_info(f"{names}.{k}.{kind}", TensorProto.FLOAT, shape)
                for k in range(s.layers) for kind in ("key", "value")
            ]  # fmt: skip
        return self.finish("decoder", given, made)


def shapes(shape: Shape, most: int = 512, longest: int = 0) -> str:
    """Return what --input_shape says for runs of at most `most` words, with room for `longest`."""
    cache = f"1,{shape.groups},p=0~{longest or shape.longest},{shape.size}"
    return f"input_ids:1,s=1~{most};attention_mask:1,s+p;past_key_values.0.key:{cache}"


def main() -> None:
    """Write the file that the command line names, and how it is compiled."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("output", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="tiny")
    chosen = parser.parse_args()
    shape = SHAPES[chosen.shape]
    model = Decoder(shape).model()
    large = sum(len(w.raw_data) for w in model.graph.initializer) > 1 << 30
    data = f"{chosen.output.name}.data"
    onnx.save(model, chosen.output, save_as_external_data=large, location=data)
    print(
        f"atc --model={chosen.output} --output=out/decoder --state=auto "
        f'--input_shape="{shapes(shape)}"'
    )


if __name__ == "__main__":
    main()
