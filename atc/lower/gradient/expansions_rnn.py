"""Recurrent layers in gradients: their steps are written out, one after the other in time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from atc.lower.gradient.derivatives import Variable
from atc.lower.gradient.expansions_control import MOST
from atc.lower.gradient.tape import Site, expands
from atc.lower.rnn import ACTIVATIONS, KINDS

Function = Callable[[Variable], Variable]


@expands("RNN", "GRU", "LSTM")
def recurrent(site: Site) -> list[Variable]:
    """ONNX RNN-22, GRU-22, LSTM-22: one product with the input for all steps, then step by step."""
    at, op = site.at, site.op
    x = site.operands[0]
    layout = at.int("layout")
    if layout:
        x = op("Transpose", x, perm=[1, 0, 2])
    steps, batch, _ = site.shape(x)
    at.require(steps <= MOST, f"the gradient of a layer of more than {MOST} steps")
    word = at.str("direction", "forward").lower()
    reverse = {"forward": [False], "reverse": [True], "bidirectional": [False, True]}.get(word)
    at.require(reverse is not None, f"direction is '{word}'")
    functions = _functions(site, len(reverse or ()))
    sides = [
        _Side(site, x, d, back, functions[d]).run(steps, batch)
        for d, back in enumerate(reverse or ())
    ]
    rows = [site.stacked([each[t] for each, _ in sides]) for t in range(steps)]
    last = zip(*(states for _, states in sides), strict=True)
    results = [site.stacked(rows), *(site.stacked(states) for states in last)]
    if layout:
        orders = ([2, 0, 1, 3], *[[1, 0, 2]] * (len(results) - 1))
        results = [op("Transpose", y, perm=p) for y, p in zip(results, orders, strict=True)]
    return results


@dataclass(frozen=True)
class _Side:
    """One direction of a layer."""

    site: Site
    x: Variable
    number: int
    back: bool
    functions: Sequence[Function]

    def run(self, steps: int, batch: int) -> tuple[list[Variable], list[Variable]]:
        """Return h after each step; the last h, and of an LSTM the last c."""
        site, op = self.site, self.site.op
        units = site.shape(site.operands[2])[-1]
        gates = KINDS[site.node.op_type].gates
        share = op("MatMul", self.x, op("Transpose", self._own(1), perm=[1, 0]))
        bias: Variable | None = None
        self_bias: Variable | None = None
        if site.has(3):
            both = op("Reshape", self._own(3), site.ints(2, gates * units))
            bias, self_bias = site.part(both, 0), site.part(both, 1)
            if site.node.op_type != "GRU":  # whose reset may scale what the state's bias is in
                bias, self_bias = op("Add", bias, self_bias), None
            share = op("Add", share, bias)
        h = self._state(5, batch, units)
        c = self._state(6, batch, units) if site.node.op_type == "LSTM" else None
        weights = op("Transpose", self._own(2), perm=[1, 0])
        collected: list[Variable] = []
        for iteration in range(steps):
            t = steps - 1 - iteration if self.back else iteration
            given = site.part(share, t)
            new_h, new_c = self._cell(given, h, c, weights, self_bias, units)
            if site.has(4):  # rows that have ended keep their state and give 0
                on = op("Unsqueeze", op("Greater", site.operands[4], self._at(t)), site.ints(1))
                collected.append(op("Where", on, new_h, site.like(0)))
                h = op("Where", on, new_h, h)
                c = None if c is None or new_c is None else op("Where", on, new_c, c)
            else:
                h, c = new_h, new_c
                collected.append(h)
        if self.back:
            collected.reverse()
        return collected, [h] if c is None else [h, c]

    def _own(self, k: int) -> Variable:
        return self.site.part(self.site.operands[k], self.number)

    def _at(self, step: int) -> Variable:
        b = self.site.tape.ctx.b
        dtype = b.type(self.site.operands[4].value).dtype.numpy
        return self.site.constant(np.asarray(step, dtype))

    def _state(self, k: int, batch: int, units: int) -> Variable:
        site = self.site
        if not site.has(k):
            return site.like(np.zeros((batch, units)))
        return site.part(site.operands[k], self.number, 1 if site.at.int("layout") else 0)

    def _gate(self, x: Variable, gate: int, units: int) -> Variable:
        places = self.site.ints(gate * units), self.site.ints((gate + 1) * units)
        result: Variable = self.site.op("Slice", x, *places, self.site.ints(-1))
        return result

    def _cell(
        self, given: Variable, h: Variable, c: Variable | None, weights: Variable,
        bias: Variable | None, units: int,
    ) -> tuple[Variable, Variable | None]:  # fmt: skip
        site, op = self.site, self.site.op
        kind = site.node.op_type
        held = op("MatMul", h, weights)
        if bias is not None:
            held = op("Add", held, bias)
        if kind == "GRU":
            return self._gru(given, held, h, weights, bias, units), None
        whole = op("Add", given, held)
        if kind == "RNN":
            return self.functions[0](whole), None
        assert c is not None
        f, g, last = self.functions
        peephole = op("Reshape", self._own(7), site.ints(3, units)) if site.has(7) else None

        def gate(k: int, memory: Variable) -> Variable:
            x = self._gate(whole, k, units)
            if peephole is not None:
                x = op("Add", x, op("Mul", site.part(peephole, k), memory))
            return f(x)

        i = gate(0, c)
        forget = op("Sub", site.like(1), i) if site.at.int("input_forget") else gate(2, c)
        fresh = op("Mul", i, g(self._gate(whole, 3, units)))
        memory = op("Add", op("Mul", forget, c), fresh)
        return op("Mul", gate(1, memory), last(memory)), memory

    def _gru(
        self, given: Variable, held: Variable, h: Variable, weights: Variable,
        bias: Variable | None, units: int,
    ) -> Variable:  # fmt: skip
        site, op = self.site, self.site.op
        f, g = self.functions
        z, r = (
            f(op("Add", self._gate(given, k, units), self._gate(held, k, units))) for k in (0, 1)
        )
        own = self._gate(given, 2, units)
        if site.at.int("linear_before_reset"):
            candidate = g(op("Add", own, op("Mul", r, self._gate(held, 2, units))))
        else:
            part = op("MatMul", op("Mul", r, h), self._gate(weights, 2, units))
            if bias is not None:
                part = op("Add", part, self._gate(bias, 2, units))
            candidate = g(op("Add", own, part))
        fresh = op("Mul", op("Sub", site.like(1), z), candidate)
        result: Variable = op("Add", fresh, op("Mul", z, h))
        return result


# ---- activations --------------------------------------------------------------------------------


def _functions(site: Site, directions: int) -> list[list[Function]]:
    """Return each direction's functions; `atc.lower.rnn` says how parameters are handed out."""
    at, defaults = site.at, KINDS[site.node.op_type].functions
    names = at.strs("activations") or defaults * directions
    alphas, betas = (iter(at.floats(f"activation_{w}") or []) for w in ("alpha", "beta"))
    count, clip = len(defaults), at.float("clip", 0.0)
    made = [
        _function(site, name.lower(), alphas, betas, clip if k % count < 2 else 0.0)
        for k, name in enumerate(names)
    ]
    return [made[d * count : (d + 1) * count] for d in range(directions)]


def _function(
    site: Site, name: str, alphas: Iterator[float], betas: Iterator[float], clip: float
) -> Function:
    kind = ACTIVATIONS.get(name)
    site.at.require(kind is not None, f"the activation '{name}' is unknown")
    assert kind is not None
    alpha = 0.0 if kind.alpha is None else float(np.float32(next(alphas, kind.alpha)))
    beta = 0.0 if kind.beta is None else float(np.float32(next(betas, kind.beta)))
    op, like = site.op, site.like
    plain = {"relu": "Relu", "tanh": "Tanh", "sigmoid": "Sigmoid", "softsign": "Softsign",
             "softplus": "Softplus"}  # fmt: skip
    leaning = {"leakyrelu": "LeakyRelu", "thresholdedrelu": "ThresholdedRelu", "elu": "Elu"}

    def apply(x: Variable) -> Variable:
        if clip > 0:
            x = op("Clip", x, like(-clip), like(clip))
        result: Variable
        if name in plain:
            result = op(plain[name], x)
        elif name in leaning:
            result = op(leaning[name], x, alpha=alpha)
        elif name == "hardsigmoid":
            result = op("HardSigmoid", x, alpha=alpha, beta=beta)
        elif name == "affine":
            result = op("Add", op("Mul", x, like(alpha)), like(beta))
        else:  # scaledtanh
            result = op("Mul", op("Tanh", op("Mul", x, like(beta))), like(alpha))
        return result

    return apply
