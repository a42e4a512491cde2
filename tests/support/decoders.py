"""Decoders with key-value caches as exporters write them, small, with random weights.

Each is a function that returns a Decoder: onnxruntime-genai's models are of onnxruntime's own
operators, optimum's of what torch traces: shapes that are gathered, joined and expanded to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from dynamic_models import Array, Feed, Net, floats, ints
from onnx import TensorProto, helper, numpy_helper

WORDS, WIDTH, HEADS, GROUPS, SIZE, LONGEST = 40, 64, 4, 2, 16, 24
KV = GROUPS * SIZE
I32 = TensorProto.INT32


@dataclass(frozen=True)
class Decoder:
    """A model, what it is compiled for, and what its caches become after each call."""

    model: onnx.ModelProto
    shapes: str
    caches: Mapping[str, str]
    """Inputs and the outputs that they are in the next call."""
    ids: type = np.int64

    def calls(
        self, run: Callable[[Feed], Sequence[Array]], prompt: int, batch: int = 1, steps: int = 3
    ) -> Iterator[tuple[Feed, Sequence[Array]]]:  # fmt: skip
        """Yield the inputs of a prompt and of words after it, and what `run` makes of them."""
        outputs = [v.name for v in self.model.graph.output]
        held = {v.name: self._empty(v, batch) for v in self.model.graph.input
                if v.name.startswith("past")}  # fmt: skip
        taken = {v.name for v in self.model.graph.input}
        done = 0
        for k, count in enumerate([prompt, *[1] * steps]):
            feed = {**held, "input_ids": ints(WORDS, batch, count, seed=k).astype(self.ids)}
            places = np.arange(done, done + count)[None].repeat(batch, 0)
            feed |= {"position_ids": places} if "position_ids" in taken else {}
            if "attention_mask" in taken:
                feed["attention_mask"] = np.ones((batch, done + count), np.int64)
            results = dict(zip(outputs, run(feed), strict=True))
            yield feed, [*results.values()]
            held |= {name: results[out] for name, out in self.caches.items()}
            done += count

    @staticmethod
    def _empty(value: onnx.ValueInfoProto, batch: int) -> Array:
        known = {"batch_size": batch, "kv_cache_dim": SIZE, "encoder_sequence_length": 6}
        dims = value.type.tensor_type.shape.dim
        return floats(*(known.get(d.dim_param, 0) if d.dim_param else d.dim_value for d in dims))


@dataclass
class _Exporter(Net):
    """A graph under construction, with inputs and outputs that it has so far."""

    def weight_of(self, *shape: int) -> str:
        return self.weight(*shape, scale=0.3)

    def ort(self, op: str, *inputs: str, outputs: int = 1, **attributes: object) -> str:
        """Add a node of onnxruntime's own."""
        name = self(op, *inputs, outputs=outputs, **attributes)
        self.nodes[-1].domain = "com.microsoft"
        return name

    def linear(self, x: str, inner: int, outer: int, bias: bool = False) -> str:
        y = self("MatMul", x, self.weight_of(inner, outer))
        return self("Add", self.weight_of(outer), y) if bias else y

    def renamed(self, old: str, new: str) -> None:
        """Let the last node call a result as the model's output is called."""
        outputs = self.nodes[-1].output
        outputs[[*outputs].index(old)] = new

    def finished(
        self, inputs: Mapping[str, tuple[int, Sequence[object]]], outputs: Mapping[str, object]
    ) -> onnx.ModelProto:  # fmt: skip
        """Return the model; a cache has the type of its name, whatever it holds."""
        given = [helper.make_tensor_value_info(n, t, s) for n, (t, s) in inputs.items()]
        made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s)  # type: ignore[arg-type]
                for n, s in outputs.items()]  # fmt: skip
        graph = helper.make_graph(self.nodes, "decoder", given, made, self.weights)
        opsets = [helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT
IDS = (INT64, ["batch_size", "sequence_length"])

# ---- onnxruntime-genai ---------------------------------------------------------------------------

PAST = (FLOAT, ["batch_size", GROUPS, "past_sequence_length", "kv_cache_dim"])
PRESENT = ["batch_size", GROUPS, "total_sequence_length", "kv_cache_dim"]
GENAI = (
    "input_ids:{batch},s=1~6;attention_mask:{batch},s+p;"
    f"past_key_values.0.key:{{batch}},{GROUPS},p=0~18,{SIZE}"
)


def _angles(n: _Exporter) -> list[str]:
    turns = np.arange(LONGEST)[:, None] / 10.0 ** (np.arange(SIZE // 2) / 2)
    return [n.constant(f(turns), np.float32) for f in (np.cos, np.sin)]


def _genai_mask(n: _Exporter) -> tuple[str, str]:
    """Return the last key of each row and the number of keys, from attention_mask."""
    last = n("Sub", n("ReduceSum", "attention_mask", n.constant([1]), keepdims=0), n.constant([1]))
    total = n("Gather", n("Shape", "attention_mask"), n.constant(1), axis=0)
    return n("Cast", last, to=I32), n("Cast", total, to=I32)


def _genai_attention(n: _Exporter, x: str, counts: tuple[str, str], norm: bool) -> str:
    """GroupQueryAttention of packed operands, or of queries and keys that are normalized."""
    packed = n.linear(x, WIDTH, WIDTH + 2 * KV, bias=False)
    operands = [packed, "", ""]
    if norm:
        parts = n("Split", packed, n.constant([WIDTH, KV, KV]), outputs=3, axis=-1)
        operands = [parts, f"{parts}_1", f"{parts}_2"]
        for k, width in enumerate((WIDTH, KV)):
            rows = n("Reshape", operands[k], n.constant([0, -1, SIZE]))
            rows = n("SimplifiedLayerNormalization", rows, n.weight(SIZE), axis=-1, epsilon=1e-6,
                     stash_type=1)  # fmt: skip
            operands[k] = n("Reshape", rows, n.constant([0, -1, width]))
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    y = n.ort("GroupQueryAttention", *operands, *past, *counts, *_angles(n), outputs=3,
              num_heads=HEADS, kv_num_heads=GROUPS, scale=SIZE**-0.5, do_rotary=1)  # fmt: skip
    for k, kind in ((1, "key"), (2, "value")):
        n.renamed(f"{y}_{k}", f"present.0.{kind}")
    return n.linear(y, WIDTH, WIDTH)


def _genai_mlp(n: _Exporter, x: str) -> str:
    gate, up = n.linear(x, WIDTH, 48), n.linear(x, WIDTH, 48)
    return n.linear(n("Mul", n("Mul", gate, n("Sigmoid", gate)), up), 48, WIDTH)


def _skip(n: _Exporter, x: str, y: str) -> tuple[str, str]:
    """Return the normalized sum, and the sum."""
    z = n.ort("SkipSimplifiedLayerNormalization", x, y, n.weight(WIDTH), outputs=4, epsilon=1e-6)
    n.nodes[-1].output[1] = n.nodes[-1].output[2] = ""
    return z, f"{z}_3"


def _genai_experts(n: _Exporter, x: str) -> str:
    """The best two of four experts."""
    scores = n("Reshape", n.linear(x, WIDTH, 4), n.constant([-1, 4]))
    weights = [n.weight_of(4, a, b) for a, b in ((24, WIDTH), (WIDTH, 24))]
    return n.ort("MoE", x, scores, weights[0], "", weights[1], k=2, activation_type="silu",
                 normalize_routing_weights=1)  # fmt: skip


def _genai_delta_rule(n: _Exporter, x: str) -> str:
    """A convolution of queries, keys and values, then attention by a state."""
    y = n.ort("CausalConvWithState", n.linear(x, WIDTH, 3 * WIDTH), n.weight_of(3 * WIDTH, 1, 3),
              "", "past.1.conv", outputs=2, channels_last=1, activation="silu")  # fmt: skip
    n.renamed(f"{y}_1", "present.1.conv")
    parts = n("Split", y, n.constant([WIDTH] * 3), outputs=3, axis=2)
    decay, rate = (n(op, n.linear(x, WIDTH, HEADS)) for op in ("Softplus", "Sigmoid"))
    y = n.ort("LinearAttention", parts, f"{parts}_1", f"{parts}_2", "past.1.state",
              n("Neg", decay), rate, outputs=2, q_num_heads=HEADS, kv_num_heads=HEADS)  # fmt: skip
    n.renamed(f"{y}_1", "present.1.state")
    return n.linear(y, WIDTH, WIDTH)


def _genai(norm: bool = False, kind: str = "", batch: str = "1") -> Decoder:
    n = _Exporter()
    counts = _genai_mask(n)
    x = n("Gather", n.weight_of(WORDS, WIDTH), "input_ids")
    h = n("SimplifiedLayerNormalization", x, n.weight(WIDTH), axis=-1, epsilon=1e-6, stash_type=1)
    caches = {f"past_key_values.0.{kind}": f"present.0.{kind}" for kind in ("key", "value")}
    inputs: dict[str, tuple[int, Sequence[object]]] = {
        "input_ids": IDS, "attention_mask": (INT64, ["batch_size", "total_sequence_length"]),
        **dict.fromkeys(caches, PAST),
    }  # fmt: skip
    outputs: dict[str, object] = {"logits": None, **dict.fromkeys(caches.values(), PRESENT)}
    states: dict[str, tuple[int, ...]] = {}
    if kind == "conv":
        y = n("Transpose", n.linear(h, WIDTH, 3 * WIDTH), perm=[0, 2, 1])
        parts = n("Split", y, n.constant([WIDTH] * 3), outputs=3, axis=1)
        y = n("Mul", parts, f"{parts}_2")
        y = n.ort("CausalConvWithState", y, n.weight_of(WIDTH, 1, 3), "", "past.1.conv", outputs=2,
                  ndim=1, activation="none", state_window=0)  # fmt: skip
        n.renamed(f"{y}_1", "present.1.conv")
        y = n("Transpose", n("Mul", f"{parts}_1", y), perm=[0, 2, 1])
        h, x = _skip(n, x, n.linear(y, WIDTH, WIDTH))
        states = {"1.conv": (WIDTH, 2)}
    if kind == "delta":
        h, x = _skip(n, x, _genai_delta_rule(n, h))
        states = {"1.conv": (2, 3 * WIDTH), "1.state": (HEADS, SIZE, SIZE)}
    for name, shape in states.items():
        caches[f"past.{name}"] = f"present.{name}"
        inputs[f"past.{name}"] = (FLOAT, ["batch_size", *shape])
        outputs[f"present.{name}"] = ["batch_size", *shape]
    h, x = _skip(n, x, _genai_attention(n, h, counts, norm))
    h, x = _skip(n, x, _genai_experts(n, h) if kind == "delta" else _genai_mlp(n, h))
    n.linear(h, WIDTH, WORDS)
    n.renamed(n.nodes[-1].output[0], "logits")
    return Decoder(n.finished(inputs, outputs), GENAI.format(batch=batch), caches)


def genai_llama() -> Decoder:
    """Llama and Qwen 2 (Phi-3 differs in its weights only), one layer, several rows."""
    return _genai(batch="1~2")


def genai_qwen3() -> Decoder:
    """Qwen 3: queries and keys are normalized before they are turned."""
    return _genai(norm=True)


def genai_lfm2() -> Decoder:
    """LFM2: a causal convolution with a state before the attention."""
    return _genai(norm=True, kind="conv")


def genai_qwen3_next() -> Decoder:
    """Qwen 3 Next: the gated delta rule before the attention, and a mixture of experts."""
    return _genai(norm=True, kind="delta")


def genai_whisper() -> Decoder:
    """Whisper's decoder: MultiHeadAttention over a growing cache, then over the encoder's."""
    n, frames = _Exporter(), 9
    count = n("Gather", n("Shape", "input_ids"), n.constant(1), axis=0)
    past = n("Gather", n("Shape", "past_key_self_0"), n.constant(2), axis=0)
    ends = [n("Unsqueeze", e, n.constant([0])) for e in (past, n("Add", count, past))]
    places = n("Slice", n.weight_of(LONGEST, WIDTH), *ends, n.constant([0]), n.constant([1]))
    x = n("Add", n("Gather", n.weight_of(WORDS, WIDTH), "input_ids"), places)
    h = n("LayerNormalization", x, n.weight(WIDTH), n.weight(WIDTH), axis=-1, epsilon=1e-5)
    q, k, v = (n.linear(h, WIDTH, WIDTH) for _ in range(3))
    y = n.ort("MultiHeadAttention", q, k, v, n.weight_of(3 * WIDTH), "", "", "past_key_self_0",
              "past_value_self_0", outputs=3, num_heads=HEADS, unidirectional=1)  # fmt: skip
    n.renamed(f"{y}_1", "present_key_self_0")
    n.renamed(f"{y}_2", "present_value_self_0")
    z = n.ort("SkipLayerNormalization", x, n.linear(y, WIDTH, WIDTH), n.weight(WIDTH),
              n.weight(WIDTH), outputs=4, epsilon=1e-5)  # fmt: skip
    n.nodes[-1].output[1] = n.nodes[-1].output[2] = ""
    q = n.linear(z, WIDTH, WIDTH, bias=True)
    y = n.ort("MultiHeadAttention", q, "past_key_cross_0", "past_value_cross_0", num_heads=HEADS)
    x = n("Add", f"{z}_3", n.linear(y, WIDTH, WIDTH, bias=True))
    n("MatMul", n("Gelu", x), n.weight_of(WIDTH, WORDS))
    n.renamed(n.nodes[-1].output[0], "logits")
    own = (FLOAT, ["batch_size", HEADS, "past_sequence_length", SIZE])
    cross = (FLOAT, ["batch_size", HEADS, frames, SIZE])
    caches = {f"past_{kind}_self_0": f"present_{kind}_self_0" for kind in ("key", "value")}
    shape = ["batch_size", HEADS, "total_sequence_length", SIZE]
    model = n.finished(
        {"input_ids": (I32, IDS[1]), **dict.fromkeys(caches, own), "past_key_cross_0": cross,
         "past_value_cross_0": cross},
        {"logits": None, **dict.fromkeys(caches.values(), shape)},
    )  # fmt: skip
    shapes = f"input_ids:1,1~6;past_key_self_0:1,{HEADS},0~18,{SIZE}"
    return Decoder(model, shapes, caches, np.int32)


# ---- optimum -------------------------------------------------------------------------------------


def _scalars(n: _Exporter, x: str, *axes: int) -> list[str]:
    return [n("Gather", n("Shape", x), n.constant(a), axis=0) for a in axes]


def _joined(n: _Exporter, *parts: str | int) -> str:
    """Extents that are scalars, and numbers, as torch joins them."""
    rows = [n("Unsqueeze", p, n.constant([0])) if isinstance(p, str) else n.constant([p])
            for p in parts]  # fmt: skip
    return n("Concat", *rows, axis=0)


def _expanded(n: _Exporter, x: str, to: str) -> str:
    """torch's expand: -1 is 1."""
    to = n("Reshape", to, n.constant([-1]))
    ones = n("ConstantOfShape", n("Shape", to),
             value=numpy_helper.from_array(np.ones(1, np.int64)))  # fmt: skip
    given = n("Where", n("Equal", to, n("Mul", ones, n.constant(-1))), ones, to)
    return n("Expand", x, given)


def _causal(n: _Exporter, x: str, cache: str, masked: bool) -> str:
    """Return which keys [batch, 1, steps, keys] the queries see, as transformers' masks say."""
    (past,), (batch, steps) = _scalars(n, cache, 2), _scalars(n, x, 0, 1)
    row = n("Range", past, n("Add", past, steps), n.constant(1))
    keys = n("Add", past, *_scalars(n, row, 0))
    column = n("Range", n.constant(0), keys, n.constant(1))
    for axis in (0, 1, 3):
        row = n("Unsqueeze", row, n.constant([axis]))
    for axis in (0, 1, 2):
        column = n("Unsqueeze", column, n.constant([axis]))
    seen = n("LessOrEqual", column, row)
    if masked:
        mask = n("Cast", "attention_mask", to=TensorProto.BOOL)
        rows = n("Range", n.constant(0), batch, n.constant(1))
        for axis in (1, 2, 3):
            rows = n("Unsqueeze", rows, n.constant([axis]))
        width = n("Gather", n("Shape", mask), n.constant([1]), axis=0)
        at = n("Add", column, n("Mul", rows, width))
        given = n("Gather", n("Flatten", mask, axis=2), at, axis=0)
        given = n("Reshape", n("Reshape", given, n.constant([-1])), n("Shape", at))
        seen = n("And", seen, given)
    return _expanded(n, seen, _joined(n, batch, -1, *_scalars(n, row, 2), keys))


def _split(n: _Exporter, x: str, like: str) -> str:
    """Heads apart: [batch, heads, steps, size]."""
    batch, steps = _scalars(n, like, 0, 1)
    rows = n("Reshape", x, _joined(n, batch, steps, -1, SIZE))
    return n("Transpose", rows, perm=[0, 2, 1, 3])


def _attended(n: _Exporter, q: str, k: str, v: str, seen: str, like: str) -> str:
    (keys,) = _scalars(n, k, 2)
    seen = n("Slice", seen, n.constant([0]), n("Unsqueeze", keys, n.constant([0])),
             n.constant([3]), n.constant([1]))  # fmt: skip
    half = n.constant(SIZE**-0.25, np.float32)
    scores = n("MatMul", n("Mul", q, half), n("Mul", n("Transpose", k, perm=[0, 1, 3, 2]), half))
    zero, hidden = (n.constant([v], np.float32) for v in (0.0, -np.inf))
    p = n("Softmax", n("Add", scores, n("Where", seen, zero, hidden)), axis=-1)
    p = n("Where", n("IsNaN", p), zero, p)
    y = n("Transpose", n("MatMul", p, v), perm=[0, 2, 1, 3])
    return n("Reshape", y, _joined(n, *_scalars(n, like, 0, 1), -1))


def _cached(n: _Exporter, kind: str, x: str, middle: str = "") -> str:
    """What the cache becomes, which is an output."""
    y = n("Concat", f"past_key_values.0.{middle}{kind}", x, axis=-2)
    n.renamed(y, f"present.0.{middle}{kind}")
    return f"present.0.{middle}{kind}"


def _optimum(n: _Exporter, heads: int, head: str) -> Decoder:
    n.renamed(head, "logits")
    caches = {f"past_key_values.0.{k}": f"present.0.{k}" for k in ("key", "value")}
    total = "past_sequence_length + sequence_length"
    past = (FLOAT, ["batch_size", heads, "past_sequence_length", SIZE])
    inputs = {"input_ids": IDS, "attention_mask": (INT64, ["batch_size", total]),
              "position_ids": IDS, **dict.fromkeys(caches, past)}  # fmt: skip
    present = ["batch_size", heads, total, SIZE]
    outputs = {"logits": None, **dict.fromkeys(caches.values(), present)}
    shapes = f"input_ids:1~2,1~6;past_key_values.0.key:1~2,{heads},0~18,{SIZE}"
    return Decoder(n.finished(inputs, outputs), shapes, caches)


def optimum_gpt2() -> Decoder:
    """GPT-2: Gemm over rows, learnt positions."""
    n = _Exporter()

    def rows(x: str, inner: int, outer: int) -> str:
        flat = n("Reshape", x, _joined(n, -1, inner))
        y = n("Gemm", flat, n.weight_of(inner, outer), n.weight_of(outer))
        return n("Reshape", y, _joined(n, *_scalars(n, x, 0, 1), outer))

    ids = n("Reshape", "input_ids", _joined(n, -1, *_scalars(n, "input_ids", 1)))
    words = n("Gather", n.weight_of(WORDS, WIDTH), ids)
    x = n("Add", words, n("Gather", n.weight_of(LONGEST, WIDTH), "position_ids"))
    seen = _causal(n, words, "past_key_values.0.key", masked=True)
    h = n("LayerNormalization", x, n.weight(WIDTH), n.weight(WIDTH), axis=-1, epsilon=1e-5)
    parts = n("Split", rows(h, WIDTH, 3 * WIDTH), n.constant([WIDTH] * 3), outputs=3, axis=2)
    q, k, v = (_split(n, part, part) for part in (parts, f"{parts}_1", f"{parts}_2"))
    k, v = _cached(n, "key", k), _cached(n, "value", v)
    x = n("Add", x, rows(_attended(n, q, k, v, seen, h), WIDTH, WIDTH))
    return _optimum(n, HEADS, n("MatMul", x, n.weight_of(WIDTH, WORDS)))


def optimum_llama() -> Decoder:
    """Llama, Qwen and Phi-3: angles from positions, keys and values repeated for their queries."""
    n = _Exporter()
    x = n("Gather", n.weight_of(WORDS, WIDTH), "input_ids")
    seen = _causal(n, x, "past_key_values.0.key", masked=True)
    steps = n.constant(10.0 ** (-np.arange(SIZE // 2) / 2)[None, :, None], np.float32)
    steps = _expanded(n, steps, _joined(n, *_scalars(n, "position_ids", 0), -1, 1))
    places = n("Cast", n("Unsqueeze", "position_ids", n.constant([1])), to=FLOAT)
    turns = n("Transpose", n("MatMul", steps, places), perm=[0, 2, 1])
    turns = n("Concat", turns, turns, axis=-1)
    cos, sin = (n("Unsqueeze", n(f, turns), n.constant([1])) for f in ("Cos", "Sin"))
    square = n("ReduceMean", n("Pow", x, n.constant(2.0, np.float32)), n.constant([-1]))
    root = n("Sqrt", n("Add", square, n.constant(1e-6, np.float32)))
    h = n("Mul", n.weight(WIDTH), n("Mul", x, n("Div", n.constant(1.0, np.float32), root)))
    q, k, v = (_split(n, n.linear(h, WIDTH, w), h) for w in (WIDTH, KV, KV))

    def turned(y: str) -> str:
        half = n("Unsqueeze", n("Div", *_scalars(n, y, 3), n.constant(2)), n.constant([0]))
        ends = n.constant([0]), n.constant([1 << 62]), n.constant([3]), n.constant([1])
        first = n("Slice", y, ends[0], half, *ends[2:])
        second = n("Neg", n("Slice", y, half, *ends[1:]))
        other = n("Concat", second, first, axis=-1)
        return n("Add", n("Mul", y, cos), n("Mul", other, sin))

    def repeated(y: str) -> str:
        batch, groups, keys, size = _scalars(n, y, 0, 1, 2, 3)
        each = HEADS // GROUPS
        wide = n("Unsqueeze", y, n.constant([2]))
        wide = _expanded(n, wide, _joined(n, batch, groups, each, keys, size))
        heads = n("Mul", groups, n.constant(each))
        return n("Reshape", wide, _joined(n, batch, heads, keys, size))

    q, k = turned(q), turned(k)
    k, v = repeated(_cached(n, "key", k)), repeated(_cached(n, "value", v))
    x = n("Add", x, n.linear(_attended(n, q, k, v, seen, h), WIDTH, WIDTH))
    return _optimum(n, GROUPS, n("MatMul", x, n.weight_of(WIDTH, WORDS)))


def optimum_whisper() -> Decoder:
    """Whisper's decoder with past: positions from the cache's length, no mask among the inputs."""
    n = _Exporter()
    batch, steps = _scalars(n, "input_ids", 0, 1)
    ids = n("Reshape", "input_ids", _joined(n, -1, steps))
    words = n("Gather", n.weight_of(WORDS, WIDTH), ids)
    own, cross = "past_key_values.0.decoder.", "past_key_values.0.encoder."
    (past,) = _scalars(n, f"{own}key", 2)
    places = n("Range", past, n("Add", past, steps), n.constant(1))
    places = n("Tile", n("Unsqueeze", places, n.constant([0])), _joined(n, batch, 1))
    x = n("Add", words, n("Gather", n.weight_of(LONGEST, WIDTH), places, axis=0))
    seen = _causal(n, words, f"{own}key", masked=False)
    h = n("LayerNormalization", x, n.weight(WIDTH), n.weight(WIDTH), axis=-1, epsilon=1e-5)
    q, k, v = (_split(n, n.linear(h, WIDTH, WIDTH, bias=True), h) for _ in range(3))
    k, v = _cached(n, "key", k, "decoder."), _cached(n, "value", v, "decoder.")
    x = n("Add", x, n.linear(_attended(n, q, k, v, seen, h), WIDTH, WIDTH, bias=True))
    q = _split(n, n.linear(x, WIDTH, WIDTH, bias=True), x)
    scores = n("MatMul", q, n("Transpose", f"{cross}key", perm=[0, 1, 3, 2]))
    y = n("MatMul", n("Softmax", scores, axis=-1), f"{cross}value")
    y = n("Reshape", n("Transpose", y, perm=[0, 2, 1, 3]), _joined(n, *_scalars(n, x, 0, 1), -1))
    x = n("Add", x, n.linear(y, WIDTH, WIDTH))
    n.renamed(n("MatMul", x, n.weight_of(WIDTH, WORDS)), "logits")
    caches = {f"{own}{kind}": f"present.0.decoder.{kind}" for kind in ("key", "value")}
    length = "past_decoder_sequence_length"
    given = (FLOAT, ["batch_size", HEADS, length, SIZE])
    frames = (FLOAT, ["batch_size", HEADS, "encoder_sequence_length", SIZE])
    total = ["batch_size", HEADS, f"{length} + decoder_sequence_length", SIZE]
    model = n.finished(
        {"input_ids": (INT64, ["batch_size", "decoder_sequence_length"]),
         **dict.fromkeys(caches, given), f"{cross}key": frames, f"{cross}value": frames},
        {"logits": None, **dict.fromkeys(caches.values(), total)},
    )  # fmt: skip
    shapes = (f"input_ids:1~2,1~6;{own}key:1~2,{HEADS},0~18,{SIZE};"
              f"{cross}key:1~2,{HEADS},1~9,{SIZE}")  # fmt: skip
    return Decoder(model, shapes, caches)


DECODERS: Mapping[str, Callable[[], Decoder]] = {
    f.__name__: f for f in (
        genai_llama, genai_qwen3, genai_lfm2, genai_qwen3_next, genai_whisper, optimum_gpt2,
        optimum_llama, optimum_whisper,
    )
}  # fmt: skip
