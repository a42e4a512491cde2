"""Operators that are lowered through the standard's own function bodies."""

from __future__ import annotations

import numpy as np
import pytest
from ort_cases import noise

from support import assert_close, node_model, run_model


def test_an_output_that_the_body_leaves_out_keeps_the_places_of_the_others() -> None:
    scores, labels = noise(4, 3), np.array([0, 2, 1, 1])
    model = node_model("SoftmaxCrossEntropyLoss", [scores, labels], 2, reduction="sum")
    loss, logs = run_model(model, [scores, labels])
    wide = scores.astype(np.float64)
    expected = wide - np.log(np.exp(wide).sum(1, keepdims=True))
    assert_close([logs], [expected.astype(np.float32)], rtol=1e-5)
    assert np.isclose(loss, -expected[np.arange(4), labels].sum())


@pytest.mark.parametrize("operator", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_losses_of_halves_are_summed_in_floats(operator: str, reduction: str) -> None:
    scores = np.zeros((3000, 2), np.float16)
    scores[:, 1] = -50
    labels = np.where(np.arange(3000) % 3, 1, 7)  # the sum is 100000
    model = node_model(operator, [scores, labels], 1, reduction=reduction, ignore_index=7)
    (found,) = run_model(model, [scores, labels])
    assert found.dtype == np.float16
    expected = 50 if reduction == "mean" else np.where(labels == 1, 50, 0)
    np.testing.assert_array_equal(found, np.full_like(found, expected))
