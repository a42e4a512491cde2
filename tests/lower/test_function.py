"""Operators that are lowered through the standard's own function bodies."""

from __future__ import annotations

import numpy as np
import pytest
from ort_cases import noise

from atc.lower import LOWERINGS
from support import Batch, assert_close, node_cases, node_model, pinned, run_model

OPS = ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss")
NODES = {n: (m, runs[0]) for n, m, runs in node_cases(OPS)}
COMPILED = Batch({n: pinned(m, run[0]) for n, (m, run) in NODES.items()}, chunk=32)


@pytest.mark.parametrize("name", NODES)
def test_standard_node(name: str) -> None:
    inputs, expected = NODES[name][1]
    assert ("", NODES[name][0].graph.node[0].op_type) not in LOWERINGS
    assert_close(COMPILED[name](inputs), expected)


def test_an_output_that_the_body_leaves_out_keeps_the_places_of_the_others() -> None:
    scores, labels = noise(4, 3), np.array([0, 2, 1, 1])
    model = node_model("SoftmaxCrossEntropyLoss", [scores, labels], 2, reduction="sum")
    loss, logs = run_model(model, [scores, labels])
    wide = scores.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    assert_close([logs], [expected.astype(np.float32)], rtol=1e-5)
    assert np.isclose(loss, -expected[np.arange(4), labels].sum())
