"""Draws recurrent layers with all that their operators say, and computes them in float64.

onnxruntime refuses `layout`, and takes 0 for constants of activations that are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from fuzz.draw import Array, Draw, Made

Function = Callable[[Array], Array]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
DEFAULTS = {
    "RNN": ("Tanh",),
    "GRU": ("Sigmoid", "Tanh"),
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
}
ACTIVATIONS: Mapping[str, Callable[[Array, float, float], Array]] = {
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "Tanh": lambda x, a, b: np.tanh(x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Affine": lambda x, a, b: a * x + b,
    "LeakyRelu": lambda x, a, b: np.where(x < 0, a * x, x),
    "ThresholdedRelu": lambda x, a, b: np.where(x > a, x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "Elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Softplus": lambda x, a, b: np.logaddexp(0, x),
}
CONSTANTS: Mapping[str, tuple[float, ...]] = {
    "Affine": (1.0, 0.0),
    "LeakyRelu": (0.01,),
    "ThresholdedRelu": (1.0,),
    "ScaledTanh": (1.0, 1.0),
    "HardSigmoid": (0.2, 0.5),
    "Elu": (1.0,),
}
"""The defaults of those that have any."""


def draw_recurrence(op: str, d: Draw) -> Made:
    """Return a layer of few steps and small weights, lest its states grow beyond floats."""
    steps, batch, inner, hidden = d.int(1, 4), d.int(1, 4), d.int(1, 9), d.int(1, 17)
    direction = d.pick(("forward", "reverse", "bidirectional"))
    n, gates = 2 if direction == "bidirectional" else 1, GATES[op]
    layout = d.pick((0, 0, 1)) if d.opset >= 14 else 0
    state = (batch, n, hidden) if layout else (n, batch, hidden)
    x = d.like((batch, steps, inner) if layout else (steps, batch, inner), constant=False)
    weights = [
        d.new((d.array((n, gates * hidden, width), "f") * 0.3).astype(np.float32))
        for width in (inner, hidden)
    ]
    bias = d.like((n, 2 * gates * hidden)) if d.chance() else None
    lengths = d.new(d.rng.integers(1, steps + 1, batch).astype(np.int32)) if d.chance() else None
    inputs = [x, *weights, bias, lengths, d.like(state) if d.chance() else None]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
    attributes |= {"layout": 1} if layout else {}
    attributes |= d.some(clip=d.pick((0.3, 1.0, 5.0)))
    if d.chance():
        kinds = [d.pick(tuple(ACTIVATIONS)) for _ in range(n * len(DEFAULTS[op]))]
        attributes["activations"] = kinds
        if d.chance():
            for k, name in enumerate(("activation_alpha", "activation_beta")):
                given = [CONSTANTS[a][k] for a in kinds if len(CONSTANTS.get(a, ())) > k]
                attributes |= {name: [0.75 * v + 0.125 for v in given]} if given else {}
    if op == "LSTM":
        inputs += [d.like(state) if d.chance() else None]
        inputs += [d.like((n, 3 * hidden)) if d.chance(0.4) else None]
        attributes |= d.some(input_forget=d.int(0, 1))
    if op == "GRU":
        attributes |= d.some(linear_before_reset=d.int(0, 1))
    return Made(op, inputs, attributes, 3 if op == "LSTM" else 2)


def computed(made: Made) -> tuple[Array, ...]:
    """Return what the standard says of a drawn layer, in float64 rounded at the end."""
    arrays = [None if v is None else v.array.astype(np.float64) for v in made.inputs]
    x, w, r, bias, lengths, h, c, peepholes = [*arrays, *[None] * (8 - len(arrays))]
    assert x is not None
    assert w is not None
    assert r is not None
    layout = made.attributes.get("layout", 0)
    if layout:
        x, h, c = (None if a is None else a.swapaxes(0, 1) for a in (x, h, c))
        assert x is not None
    steps, batch, _ = x.shape
    n, hidden = w.shape[0], r.shape[2]
    h, c = (np.zeros((n, batch, hidden)) if s is None else s.copy() for s in (h, c))
    bias = np.zeros((n, 2 * GATES[made.op] * hidden)) if bias is None else bias
    peepholes = np.zeros((n, 3 * hidden)) if peepholes is None else peepholes
    y = np.zeros((steps, n, batch, hidden))
    functions = _functions(made)
    for k in range(n):
        cell = _Cell(made, functions[k], w[k], r[k], *np.split(bias[k], 2), peepholes[k])
        for row in range(batch):
            end = steps if lengths is None else int(lengths[row])
            back = k == 1 or made.attributes["direction"] == "reverse"
            for t in range(end)[:: -1 if back else 1]:
                h[k, row], c[k, row] = cell(x[t, row], h[k, row], c[k, row])
                y[t, k, row] = h[k, row]
    if layout:
        y, h, c = y.transpose(2, 0, 1, 3), h.swapaxes(0, 1), c.swapaxes(0, 1)
    return tuple(a.astype(np.float32) for a in (y, h, c)[: made.outputs])


def _functions(made: Made) -> list[list[Function]]:
    """Return the functions of each direction; constants belong to those that have any."""
    each = len(DEFAULTS[made.op])
    n = 2 if made.attributes["direction"] == "bidirectional" else 1
    kinds = made.attributes.get("activations", DEFAULTS[made.op] * n)
    given = [list(made.attributes.get(f"activation_{a}", ())) for a in ("alpha", "beta")]
    found = []
    for kind in kinds:
        known = CONSTANTS.get(kind, ())
        values = [
            g.pop(0) if k < len(known) and g else (*known, 0.0, 0.0)[k] for k, g in enumerate(given)
        ]
        found.append(_bound(ACTIVATIONS[kind], *values))
    return [found[k * each : (k + 1) * each] for k in range(n)]


def _bound(function: Callable[[Array, float, float], Array], a: float, b: float) -> Function:
    return lambda x: function(x, a, b)


class _Cell:
    """One step of one row."""

    def __init__(self, made: Made, functions: Sequence[Function], *parameters: Array) -> None:
        self.made, self.functions = made, functions
        self.w, self.r, self.wb, self.rb, self.peepholes = parameters

    def __call__(self, x: Array, h: Array, c: Array) -> tuple[Array, Array]:
        """Return the next states."""
        attributes, f = self.made.attributes, self.functions
        most = attributes.get("clip", np.inf)

        def clipped(a: Array) -> Array:
            return np.clip(a, -most, most)

        if self.made.op == "RNN":
            return f[0](clipped(self.w @ x + self.r @ h + self.wb + self.rb)), c
        if self.made.op == "GRU":
            (wz, wr, wh), (rz, rr, rh) = (np.split(a, 3) for a in (self.w, self.r))
            (bz, br, bh), (cz, cr, ch) = (np.split(a, 3) for a in (self.wb, self.rb))
            z = f[0](clipped(wz @ x + rz @ h + bz + cz))
            r = f[0](clipped(wr @ x + rr @ h + br + cr))
            late = attributes.get("linear_before_reset")
            inner = r * (rh @ h + ch) if late else rh @ (r * h) + ch
            return (1 - z) * f[1](clipped(wh @ x + inner + bh)) + z * h, c
        i, o, g, n = np.split(self.w @ x + self.r @ h + self.wb + self.rb, 4)
        pi, po, pf = np.split(self.peepholes, 3)
        i = f[0](clipped(i + pi * c))
        g = 1 - i if attributes.get("input_forget") else f[0](clipped(g + pf * c))
        c = g * c + i * f[1](clipped(n))
        return f[0](clipped(o + po * c)) * f[2](c), c
