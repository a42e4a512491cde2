"""Recurrent layers, written out step by step.

MegEngine's own layers have but one choice of activations, no lengths and no peepholes; for what
they do say, the steps compute the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.exporters.megengine.builder import Node, Var
from atc.exporters.megengine.steps import Composition, Steps, constant, integers, like
from atc.lower.rnn import ACTIVATIONS, KINDS

Function = Callable[[Var], Var]

_PLAIN = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign",
          "softplus": "Softplus", "leakyrelu": "LeakyRelu", "thresholdedrelu": "ThresholdedRelu",
          "hardsigmoid": "HardSigmoid", "elu": "Elu"}  # fmt: skip
"""Operators by the activation's name in lower case."""


@dataclass(frozen=True)
class Direction:
    """One direction of a layer of G gates and H units.

    `share` is W x + b of all steps [T, N, G H], `weights` R transposed [H, G H], `apart` the bias
    [H] of a candidate that is reset after the product, `peepholes` those of the gates i, o, f.
    """

    steps: Steps
    node: Node
    functions: Sequence[Function]
    share: Var
    weights: Var
    apart: Var | None
    peepholes: Sequence[Var]

    @property
    def units(self) -> int:
        """H."""
        return self.weights.type.shape[0]

    def sum(self, x: Var, y: Var) -> Var:
        """x + y."""
        return self.steps.op("Add", x, y)

    def times(self, x: Var, y: Var) -> Var:
        """x y by elements."""
        return self.steps.op("Mul", x, y)

    def rest(self, x: Var) -> Var:
        """1 - x."""
        return self.steps.op("Sub", like(1, x), x)

    def split(self, x: Var) -> list[Var]:
        """Return the gates of [N, G H]."""
        count, n = x.type.shape[1] // self.units, self.units
        return [self.steps.part(x, 1, k * n, (k + 1) * n) for k in range(count)]

    def last(self, x: Var) -> Var:
        """Return the last gate of [N, G H]."""
        return self.steps.part(x, 1, x.type.shape[1] - self.units, x.type.shape[1])

    def given(self, t: int) -> Var:
        """Return the share [N, G H] of a step."""
        steps, rows, width = self.share.type.shape
        flat = self.steps.reshaped(self.share, [steps * rows, width])
        return self.steps.part(flat, 0, t * rows, (t + 1) * rows)

    def recurrent(self, h: Var) -> Var:
        """R h."""
        return self.steps.op("MatMul", h, self.weights)


def _rnn(d: Direction, t: int, state: Sequence[Var]) -> list[Var]:
    """h = f(W x + R h + b)."""
    return [d.functions[0](d.sum(d.given(t), d.recurrent(state[0])))]


def _gru(d: Direction, t: int, state: Sequence[Var]) -> list[Var]:
    """h = (1 - z) g(..) + z h; gates z, r, h."""
    (h,), (f, g) = state, d.functions
    given, n = d.given(t), d.units
    if d.apart is not None:
        recurrent = d.recurrent(h)
        z, r, _ = d.split(d.sum(given, recurrent))
        z, r = f(z), f(r)
        fresh = d.times(r, d.sum(d.last(recurrent), d.apart))
    else:
        first, last = d.steps.part(d.weights, 1, 0, 2 * n), d.last(d.weights)
        both = d.sum(d.steps.part(given, 1, 0, 2 * n), d.steps.op("MatMul", h, first))
        z, r = (f(gate) for gate in d.split(both))
        fresh = d.steps.op("MatMul", d.times(r, h), last)
    candidate = g(d.sum(d.last(given), fresh))
    return [d.sum(d.times(d.rest(z), candidate), d.times(z, h))]


def _lstm(d: Direction, t: int, state: Sequence[Var]) -> list[Var]:
    """c = f c + i g(..), h = o h(c); gates i, o, f, c."""
    (h, c), (f, g, last) = state, d.functions
    i, o, forget, cell = d.split(d.sum(d.given(t), d.recurrent(h)))

    def gate(x: Var, k: int, memory: Var) -> Var:
        return f(d.sum(x, d.times(d.peepholes[k], memory)) if d.peepholes else x)

    enter = gate(i, 0, c)
    kept = d.rest(enter) if d.node.get("input_forget", 0) else gate(forget, 2, c)
    memory = d.sum(d.times(kept, c), d.times(enter, g(cell)))
    return [d.times(gate(o, 1, memory), last(memory)), memory]


_CELLS = {"RNN": _rnn, "GRU": _gru, "LSTM": _lstm}


# ---- activations --------------------------------------------------------------------------------


def _functions(s: Steps, node: Node, directions: int) -> list[list[Function]]:
    """Return each direction's functions; all but the last of an LSTM clip what they are given.

    Functions that have an alpha (a beta) take the next of activation_alpha (activation_beta).
    """
    defaults = KINDS[node.op_type].functions
    names = [n.decode() for n in node.get("activations", [])] or defaults * directions
    if len(names) != len(defaults) * directions:
        raise node.refuse(f"it has {len(names)} activations")
    alphas, betas = (iter(node.get(f"activation_{k}", [])) for k in ("alpha", "beta"))
    made = [
        _function(s, node, name.lower(), alphas, betas, clipped=k % len(defaults) < 2)
        for k, name in enumerate(names)
    ]
    return [made[k : k + len(defaults)] for k in range(0, len(made), len(defaults))]


def _function(
    s: Steps, node: Node, name: str, alphas: Iterator[float], betas: Iterator[float], clipped: bool
) -> Function:
    if name not in ACTIVATIONS:
        raise node.refuse(f"the activation '{name}' is unknown")
    kind, limit = ACTIVATIONS[name], node.get("clip", 0.0)
    alpha = 0.0 if kind.alpha is None else next(alphas, kind.alpha)
    beta = 0.0 if kind.beta is None else next(betas, kind.beta)
    given = {"alpha": alpha} if kind.alpha is not None else {}
    given |= {"beta": beta} if kind.beta is not None else {}

    def apply(x: Var) -> Var:
        if clipped and limit > 0:
            x = s.op("Clip", x, like(-limit, x), like(limit, x))
        if name == "affine":
            return s.op("Add", s.op("Mul", x, like(alpha, x)), like(beta, x))
        if name == "scaledtanh":
            return s.op("Mul", s.op("Tanh", s.op("Mul", x, like(beta, x))), like(alpha, x))
        return s.op(_PLAIN[name], x, **given)

    return apply


# ---- layers -------------------------------------------------------------------------------------


def _layer(s: Steps, node: Node, xs: Sequence[Var]) -> list[Var]:
    """ONNX RNN-22, GRU-22, LSTM-22, in all directions and layouts."""
    operands: list[Var | None] = [None] * 8
    operands[: len(xs)] = [x if x.type.size else None for x in xs]
    x, w, r, bias, lengths, *states, peepholes = operands
    if x is None or w is None or r is None:
        raise node.refuse("it is of an empty tensor")
    count = 2 if node.op_type == "LSTM" else 1
    across = [1, 0, 2] if node.get("layout", 0) else [0, 1, 2]
    x = s.transposed(x, across)
    directions, units = r.type.shape[0], r.type.shape[2]
    state_shape = (directions, x.type.shape[1], units)
    zeros = constant(np.zeros(state_shape, x.type.dtype))
    begins = [zeros if v is None else s.transposed(v, across) for v in states[:count]]
    backwards = [False, True] if directions == 2 else [node.get("direction") == "reverse"]
    sequences, ends = list[Var](), list[list[Var]]()
    functions = _functions(s, node, directions)
    for k, reverse in enumerate(backwards):
        operand = [None if v is None else _row(s, v, k) for v in (w, r, bias, peepholes)]
        d = _direction(s, node, x, operand, functions[k])
        begin = [_row(s, v, k) for v in begins]
        sequence, end = _run(d, begin, _masks(s, x, lengths), reverse)
        sequences.append(sequence)
        if lengths is not None and any(v is not None for v in states[:count]):
            # a row of no steps ends in 0, as in onnxruntime; the standard is silent
            some = s.op("Unsqueeze", s.op("Less", np.array(0, np.int32), lengths), integers(1))
            end = [_chosen(s, some, v, like(0, v)) for v in end]
        ends.append(end)
    y = _stacked(s, sequences, 1)
    last = [s.transposed(_stacked(s, v, 0), across) for v in zip(*ends, strict=True)]
    return [s.transposed(y, [2, 0, 1, 3]) if node.get("layout", 0) else y, *last]


def _row(s: Steps, x: Var, k: int) -> Var:
    """Return what belongs to a direction."""
    return s.reshaped(s.part(x, 0, k, k + 1), x.type.shape[1:])


def _stacked(s: Steps, values: Sequence[Var], axis: int) -> Var:
    """Put values side by side along a new axis."""
    shape = values[0].type.shape
    given = [s.reshaped(v, [*shape[:axis], 1, *shape[axis:]]) for v in values]
    return given[0] if len(given) == 1 else s.op("Concat", *given, axis=axis)


def _direction(
    s: Steps, node: Node, x: Var, operands: Sequence[Var | None], functions: Sequence[Function]
) -> Direction:
    """Return a direction with the products of the input of all its steps."""
    w, r, bias, peepholes = operands
    assert w is not None
    assert r is not None
    share = s.op("MatMul", x, s.transposed(w, [1, 0]))
    d = Direction(s, node, functions, share, s.transposed(r, [1, 0]), None, ())
    width, n = share.type.shape[2], d.units
    separate = node.op_type == "GRU" and bool(node.get("linear_before_reset", 0))
    if bias is not None:
        inputs, recurrent = s.part(bias, 0, 0, width), s.part(bias, 0, width, 2 * width)
        if separate:
            d = replace(d, apart=s.part(recurrent, 0, width - n, width))
            joined = s.part(recurrent, 0, 0, width - n)
            recurrent = s.op("Concat", joined, np.zeros(n, x.type.dtype), axis=0)
        d = replace(d, share=s.op("Add", share, s.op("Add", inputs, recurrent)))
    elif separate:
        d = replace(d, apart=constant(np.zeros(n, x.type.dtype)))
    if peepholes is not None:
        d = replace(d, peepholes=[s.part(peepholes, 0, k * n, (k + 1) * n) for k in range(3)])
    return d


def _masks(s: Steps, x: Var, lengths: Var | None) -> list[Var | None]:
    """Return, for each step, which rows [N, 1] still have it; None where all have."""
    steps = x.type.shape[0]
    if lengths is None:
        return [None] * steps
    masks = [s.op("Less", np.array(t, np.int32), lengths) for t in range(steps)]
    return [
        None if m.array is not None and m.array.all() else s.op("Unsqueeze", m, integers(1))
        for m in masks
    ]


def _chosen(s: Steps, mask: Var | None, x: Var, other: Var | np.ndarray) -> Var:
    return x if mask is None else s.op("Where", mask, x, other)


def _run(
    d: Direction, begin: Sequence[Var], masks: Sequence[Var | None], reverse: bool
) -> tuple[Var, list[Var]]:
    """Return a direction's results of all steps [T, N, H] and its last states.

    A row that has no more steps keeps its state, and its results are 0.
    """
    s, state = d.steps, [*begin]
    steps, rows = d.share.type.shape[:2]
    found = dict[int, Var]()
    for t in reversed(range(steps)) if reverse else range(steps):
        new = _CELLS[d.node.op_type](d, t, state)
        found[t] = _chosen(s, masks[t], new[0], like(0, new[0]))
        state = [_chosen(s, masks[t], n, v) for n, v in zip(new, state, strict=True)]
    joined = s.op("Concat", *(found[t] for t in range(steps)), axis=0)
    return s.reshaped(joined, [steps, rows, d.units]), state


COMPOSITIONS: Mapping[str, Composition] = dict.fromkeys(_CELLS, _layer)
