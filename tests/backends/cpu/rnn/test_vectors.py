"""Recurrent layers in vectors against onnxruntime, around the width of a vector."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from ort_cases import Case, compiled, noise

from atc.backends.targets import get_target
from atc.ir.ops import Recurrent
from atc.passes import run_passes
from atc.select.select import select
from support import assert_close, compile_graph, runnable

TARGETS = ["x86-64-avx2", "x86-64-avx512"]
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def layer(op: str, hidden: int, directions: int = 1, **attributes: Any) -> Case:
    """Return a layer of one row with bias, lengths and initial states."""
    gates, steps, batch = GATES[op], 5, 1
    rows, state = gates * hidden, (directions, batch, hidden)
    inputs = [
        noise(steps, batch, 4), noise(directions, rows, 4, seed=1) * 0.5,
        noise(directions, rows, hidden, seed=2) * np.float32(1 / hidden**0.5),
        noise(directions, 2 * rows, seed=3), np.array([4], np.int32), noise(*state, seed=4),
    ]  # fmt: skip
    if op == "LSTM":
        inputs += [noise(*state, seed=5), noise(directions, 3 * hidden, seed=6)]
    direction = "bidirectional" if directions == 2 else "forward"
    constant = tuple(i for i in (1, 2, 3, 7) if i < len(inputs))
    outputs = (np.float32,) * (3 if op == "LSTM" else 2)
    known = {"hidden_size": hidden, "direction": direction, **attributes}
    return Case(op, inputs, constant, known, 14, outputs=outputs)


CASES = {
    **{f"{op} {h} {d}": layer(op, h, d)
       for op in GATES for h in (1, 3, 8, 17, 40) for d in (1, 2)},
    **{f"GRU {h} after": layer("GRU", h, 2, linear_before_reset=1) for h in (8, 33)},
    **{f"{op} clipped": layer(op, 24, clip=0.4) for op in GATES},
    "LSTM of other functions": layer(
        "LSTM", 24, activations=["HardSigmoid", "Softsign", "LeakyRelu"]),
}  # fmt: skip
COMPILED = {t: compiled(CASES, t, chunk=40) for t in TARGETS}


@pytest.mark.few(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_equals_onnxruntime(name: str, target: str) -> None:
    if not runnable(target):
        pytest.skip(f"this CPU can't run {target}")
    got = COMPILED[target][name](CASES[name].feeds)
    assert_close(got, CASES[name].onnxruntime(), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(("hidden", "constant"), [(8, True), (1, True), (8, False)])
def test_vectors_are_chosen_where_they_fit(hidden: int, constant: bool) -> None:
    case = layer("LSTM", hidden)
    if not constant:
        case = Case(case.op, case.inputs, (1, 3, 7), case.attributes, 14, outputs=case.outputs)
    graph = run_passes(compile_graph(case.model))
    (name,) = [n.outputs[0] for n in graph.nodes if isinstance(n.op, Recurrent)]
    kernel = select(graph, get_target("x86-64-avx2"))[name].candidate.kernel
    assert kernel.portable != constant
