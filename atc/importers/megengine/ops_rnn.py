"""Recurrent networks and their cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from atc.importers.megengine.builder import Builder, Var
from atc.importers.megengine.dump import Operator, Params
from atc.importers.megengine.modes import apply_mode
from atc.importers.megengine.translation import Rule

_MAX_LAYERS = 256


@dataclass(frozen=True)
class Weights:
    """One layer's weights as ONNX wants them: (directions, gates H, ...)."""

    input: np.ndarray
    recurrent: np.ndarray
    bias: np.ndarray


def lstm(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate LSTM: inputs x (T, N, I), h, c, weights; outputs y, h, c, reserve.

    MegEngine's gates are input, forget, cell, output; ONNX's input, output, forget, cell.
    """
    params = op.params("LSTM")
    if params.integer("proj_size"):
        raise b.unsupported("an LSTM with a projection is not covered")
    x, h, c, flat = xs
    layers = _layers(b, params, x, flat, (0, 3, 1, 2))
    value = x.value
    states: tuple[list[ir.Value], list[ir.Value]] = ([], [])
    for number, weights in enumerate(layers):
        first = [_state(b, v.value, number, len(weights.input)) for v in (h, c)]
        y, *last = b.add("LSTM", *_arguments(b, value, weights, first, params), 3)
        value = _joined(b, y)
        for states_of_kind, state in zip(states, last, strict=True):
            states_of_kind.append(state)
    dtype = x.dtype
    ends = [Var(_stack(b, kind), dtype) for kind in states]
    return [Var(value, dtype), *ends, None]


def rnn(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate RNN: inputs x (T, N, I), h, weights; outputs y, h, reserve."""
    params = op.params("RNN")
    x, h, flat = xs
    word = {"IDENTITY": "Affine", "RELU": "Relu", "TANH": "Tanh"}[params.word("nonline_mode")]
    value = x.value
    ends: list[ir.Value] = []
    for number, weights in enumerate(_layers(b, params, x, flat, (0,))):
        directions = len(weights.input)
        first = [_state(b, h.value, number, directions)]
        inputs, attributes = _arguments(b, value, weights, first, params)
        attributes["activations"] = [word] * directions
        if word == "Affine":
            attributes["activation_alpha"] = [1.0] * directions
        y, last = b.add("RNN", inputs, attributes, 2)
        value = _joined(b, y)
        ends.append(last)
    return [Var(value, x.dtype), Var(_stack(b, ends), x.dtype), None]


def _arguments(
    b: Builder,
    x: ir.Value,
    weights: Weights,
    states: Sequence[ir.Value],
    params: Params,
) -> tuple[list[ir.Value | None], dict[str, object]]:
    arrays = [b.constant(a) for a in (weights.input, weights.recurrent, weights.bias)]
    attributes: dict[str, object] = {"hidden_size": params.integer("hidden_size")}
    if len(weights.input) == 2:
        attributes["direction"] = "bidirectional"
    return [x, *arrays, None, *states], attributes


def _state(b: Builder, state: ir.Value, layer: int, directions: int) -> ir.Value:
    """Take one layer's part of the states (layers directions, N, H)."""
    if b.extents(state)[0] == directions:
        return state
    bounds = [layer * directions], [(layer + 1) * directions], [0]
    return b.op("Slice", [state, *map(b.integers, bounds)])


def _joined(b: Builder, y: ir.Value) -> ir.Value:
    """Turn (T, directions, N, H) into (T, N, directions H)."""
    steps, directions, batch, size = b.ranked(y, 4)
    return b.reshape(b.transpose(y, (0, 2, 1, 3)), (steps, batch, directions * size))


def _stack(b: Builder, values: Sequence[ir.Value]) -> ir.Value:
    return values[0] if len(values) == 1 else b.op("Concat", values, {"axis": 0})


def _layers(b: Builder, params: Params, x: Var, flat: Var, order: Sequence[int]) -> list[Weights]:
    """Cut the flat weights: per layer, per direction: W_ih, W_hh, b_ih, b_hh."""
    data = b.array(flat.value)
    if data is None:
        raise b.unsupported("recurrent weights that are computed are not covered")
    data = data.ravel()
    layers, hidden = params.integer("num_layers"), params.integer("hidden_size")
    directions = 2 if params.flag("bidirectional") else 1
    if b.rank(x.value) != 3 or not 0 < layers <= _MAX_LAYERS or not 0 < hidden < 1 << 20:
        raise b.error(f"{layers} layers of size {hidden} are out of range")
    found: list[Weights] = []
    width, at = b.extents(x.value)[2], 0
    for _ in range(layers):
        parts: list[Weights] = []
        for _ in range(directions):
            one, at = _direction(b, data, at, (len(order), hidden, width), params.flag("bias"))
            parts.append(_ordered(one, order, hidden))
        found.append(Weights(*(np.stack(p) for p in zip(*map(_parts, parts), strict=True))))
        width = directions * hidden
    if at != data.size:
        raise b.error(f"{data.size} weights where {at} are expected")
    return found


def _parts(w: Weights) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return w.input, w.recurrent, w.bias


def _direction(
    b: Builder, data: np.ndarray, at: int, sizes: tuple[int, int, int], biased: bool
) -> tuple[Weights, int]:
    """Cut one direction's weights from `at` on; return them and where the next begins."""
    gates, hidden, width = sizes
    rows = gates * hidden
    ends = np.cumsum([at, rows * width, rows * hidden, *([rows, rows] if biased else [])]).tolist()
    if ends[-1] > data.size:
        raise b.error(f"{data.size} weights are too few")
    slices = [data[i:j] for i, j in zip(ends, ends[1:], strict=False)]
    bias = np.concatenate(slices[2:]) if biased else np.zeros(2 * rows, data.dtype)
    weights = Weights(slices[0].reshape(rows, width), slices[1].reshape(rows, hidden), bias)
    return weights, ends[-1]


def _ordered(weights: Weights, order: Sequence[int], hidden: int) -> Weights:
    """Bring the gates of all three arrays into ONNX's order."""

    def arrange(array: np.ndarray) -> np.ndarray:
        gates = len(order)
        blocks = array.reshape(len(array) // (gates * hidden), gates, hidden, *array.shape[1:])
        return np.ascontiguousarray(blocks[:, list(order)]).reshape(array.shape)

    return Weights(*(arrange(part) for part in _parts(weights)))


def _gates(b: Builder, xs: Sequence[Var]) -> ir.Value:
    """Return W_ih x + b_ih + W_hh h + b_hh of the inputs x, W_ih, b_ih, h, W_hh, b_hh."""
    x, w_ih, b_ih, h, w_hh, b_hh = (v.value for v in xs[:6])
    products = [b.op("Gemm", pair, {"transB": 1}) for pair in ([x, w_ih], [h, w_hh])]
    sums = [b.op("Add", pair) for pair in zip(products, (b_ih, b_hh), strict=True)]
    return b.op("Add", sums)


def rnn_cell(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate RNNCell."""
    value = _gates(b, xs)
    word = op.params("RNNCell").word("nonline_mode")
    if word != "IDENTITY":
        value = apply_mode(b, word, [value])
    return [Var(value, xs[0].dtype)]


def lstm_cell(b: Builder, op: Operator, xs: Sequence[Var]) -> list[Var | None]:
    """Translate LSTMCell: outputs h, c, gates."""
    gates, dtype = _gates(b, xs), xs[0].dtype
    parts = b.add("Split", [gates], {"axis": -1, "num_outputs": 4}, 4)
    enter, forget, leave = (b.op("Sigmoid", [parts[i]]) for i in (0, 1, 3))
    kept = b.op("Mul", [forget, xs[6].value])
    state = b.op("Add", [kept, b.op("Mul", [enter, b.op("Tanh", [parts[2]])])])
    hidden = b.op("Mul", [leave, b.op("Tanh", [state])])
    return [Var(hidden, dtype), Var(state, dtype), Var(gates, dtype)]


RULES: Mapping[str, Rule] = {
    "LSTM": Rule(lstm, 4),
    "LSTMCell": Rule(lstm_cell, 7),
    "RNN": Rule(rnn, 3),
    "RNNCell": Rule(rnn_cell, 6),
}
