"""The fused RNN operator with its flat parameter vector, and sequences of given lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from atc.importers.mxnet.node_context import NodeContext, translates
from atc.importers.mxnet.tensor import Tensor

MODES = {
    "lstm": ("LSTM", (0, 3, 1, 2)),  # i f g o -> i o f c
    "gru": ("GRU", (1, 0, 2)),  # r z n -> z r h
    "rnn_tanh": ("RNN", (0,)),
    "rnn_relu": ("RNN", (0,)),
}
"""ONNX's operator, and MXNet's place of each of ONNX's gates."""


@dataclass(frozen=True)
class Layer:
    """The parameters of one layer as ONNX wants them."""

    weight: Tensor
    recurrence: Tensor
    bias: Tensor


@translates("RNN", weights=(1,))
def rnn(s: NodeContext) -> list[Tensor]:
    """LSTM, GRU or RNN, a node per layer; data and output are (time, batch, channels)."""
    s.rank(3)
    _refuse_extras(s)
    layers, directions = s.integer("num_layers"), 2 if s.truth("bidirectional", False) else 1
    s.require(0 < layers <= 4096 and s.integer("state_size") > 0, "num_layers or state_size")
    lstm = s.word("mode", None, tuple(MODES)) == "lstm"
    states = [_state(s, s.input(2 + i), layers * directions) for i in range(1 + lstm)]
    lengths = _lengths(s, 3 + lstm)
    parameters = _layers(s, layers, directions)
    x, finals = s.x, []
    for index, layer in enumerate(parameters):
        first = index * directions
        starts = [s.b.slice(state, 0, first, first + directions) for state in states]
        x, *last = _run(s, x, layer, starts, lengths)
        finals.append(last)
    if not s.truth("state_outputs", False):
        return [x]
    return [x, *(s.b.concat(list(t), 0) for t in zip(*finals, strict=True))]


def _refuse_extras(s: NodeContext) -> None:
    if s.has("projection_size"):
        raise s.unsupported("projection_size", "ONNX's LSTM has no projection")
    if s.has("lstm_state_clip_min") or s.has("lstm_state_clip_max"):
        raise s.unsupported("lstm_state_clip", "ONNX's LSTM doesn't clip its state")


def _lengths(s: NodeContext, index: int) -> Tensor | None:
    if not s.truth("use_sequence_length", False):
        return None
    return s.b.cast(s.input(index), np.int32)


def _state(s: NodeContext, state: Tensor, rows: int) -> Tensor:
    """Return a start state (layers·directions, batch, state); a batch of one is repeated."""
    shape = [rows, s.x.shape[1], s.integer("state_size")]
    fits = state.rank == 3 and all(n in (1, d) for n, d in zip(state.shape, shape, strict=True))
    s.require(fits, f"the state has the shape {list(state.shape)}, not {shape}")
    return s.b.expand(state, shape)


def _layers(s: NodeContext, layers: int, directions: int) -> list[Layer]:
    """Cut the vector: all weights by layer, direction, i2h and h2h; then all biases so."""
    gates, hidden = len(MODES[s.word("mode")][1]), s.integer("state_size")
    shapes: list[tuple[int, ...]] = []
    for layer in range(layers):
        inputs = s.x.shape[2] if layer == 0 else hidden * directions
        shapes += [(gates, hidden, inputs), (gates, hidden, hidden)] * directions
    shapes += [(gates, hidden)] * (2 * layers * directions)
    slices = _cut(s, s.input(1), shapes)
    weights, biases = slices[: len(slices) // 2], slices[len(slices) // 2 :]
    step = 2 * directions
    return [
        _layer(s, weights[i : i + step], biases[i : i + step]) for i in range(0, len(weights), step)
    ]


def _cut(s: NodeContext, blob: Tensor, shapes: Sequence[tuple[int, ...]]) -> list[Tensor]:
    """Cut a vector into tensors, with the gates (axis 0) in ONNX's order."""
    sizes = [int(np.prod(shape, dtype=object)) for shape in shapes]
    s.require(blob.shape == (sum(sizes),),
              f"{blob.size} parameters where {sum(sizes)} are needed")  # fmt: skip
    order = list(MODES[s.word("mode")][1])
    slices = []
    start = 0
    for shape, size in zip(shapes, sizes, strict=True):
        part = s.b.reshape(s.b.slice(blob, 0, start, start + size), shape)
        start += size
        if len(order) > 1:
            part = s.b.op("Gather", part, order, axis=0)
        slices.append(s.b.reshape(part, [1, shape[0] * shape[1], *shape[2:]]))
    return slices


def _layer(s: NodeContext, weights: Sequence[Tensor], biases: Sequence[Tensor]) -> Layer:
    both = [s.b.concat(biases[i : i + 2], 1) for i in range(0, len(biases), 2)]
    return Layer(
        s.b.concat(weights[::2], 0), s.b.concat(weights[1::2], 0), s.b.concat(both, 0)
    )


def _run(
    s: NodeContext, x: Tensor, layer: Layer, starts: Sequence[Tensor], lengths: Tensor | None
) -> tuple[Tensor, ...]:
    mode, directions = s.word("mode"), layer.weight.shape[0]
    attributes: dict[str, object] = {
        "hidden_size": s.integer("state_size"),
        "direction": "bidirectional" if directions == 2 else "forward",
    }
    if mode == "gru":
        attributes["linear_before_reset"] = 1
    if mode == "rnn_relu":
        attributes["activations"] = ["Relu"] * directions
    inputs = [x, layer.weight, layer.recurrence, layer.bias, lengths, *starts]
    y, *last = s.b.emit(MODES[mode][0], inputs, attributes, 1 + len(starts))
    time, _, batch, hidden = y.shape
    if directions == 1:
        return s.b.squeeze(y, 1), *last
    joined = s.b.reshape(s.b.transpose(y, [0, 2, 1, 3]), [time, batch, directions * hidden])
    return joined, *last


# ---- sequences ---------------------------------------------------------------------------------


def _time_axis(s: NodeContext) -> int:
    axis = s.integer("axis", 0)
    s.require(axis in (0, 1) and s.x.rank >= 2, f"axis {axis} is not the time's")
    return axis


def _sequence_lengths(s: NodeContext, axis: int) -> Tensor | None:
    """Return the lengths as int64, one for each sequence of the batch."""
    if not s.truth("use_sequence_length", False):
        return None
    lengths = s.b.cast(s.input(1), np.int64)
    s.require(lengths.shape == (s.x.shape[1 - axis],), "there isn't one length for each sequence")
    return lengths


@translates("SequenceMask")
def sequence_mask(s: NodeContext) -> Tensor:
    """Replace what lies behind each sequence's length."""
    axis = _time_axis(s)
    lengths = _sequence_lengths(s, axis)
    if lengths is None:
        return s.b.op("Identity", s.x)
    tail = [1] * (s.x.rank - 2)
    steps, limits = [1, 1, *tail], [1, 1, *tail]
    steps[axis], limits[1 - axis] = s.x.shape[axis], s.x.shape[1 - axis]
    index = s.b.constant(np.arange(s.x.shape[axis], dtype=np.int64).reshape(steps))
    inside = s.b.op("Less", index, s.b.reshape(lengths, limits))
    return s.b.op("Where", inside, s.x, s.b.scalar(s.number("value", 0.0), s.x.dtype))


@translates("SequenceLast")
def sequence_last(s: NodeContext) -> Tensor:
    """Return the last step of each sequence."""
    axis = _time_axis(s)
    lengths = _sequence_lengths(s, axis)
    if lengths is None:
        step = s.b.slice(s.x, axis, s.x.shape[axis] - 1, s.x.shape[axis])
        return s.b.squeeze(step, axis)
    batches = s.b.transpose(s.x, [1, 0, *range(2, s.x.rank)]) if axis == 0 else s.x
    last = s.b.unsqueeze(s.b.op("Sub", lengths, 1), 1)
    return s.b.op("GatherND", batches, last, batch_dims=1)


@translates("SequenceReverse")
def sequence_reverse(s: NodeContext) -> Tensor:
    """Turn each sequence around, within its length."""
    s.require(_time_axis(s) == 0, "axis is not 0")
    lengths = _sequence_lengths(s, 0)
    if lengths is None:
        return s.b.op("Slice", s.x, [-1], [-((1 << 31) - 1)], [0], [-1])
    return s.b.op("ReverseSequence", s.x, lengths, time_axis=0, batch_axis=1)
