"""Determinants against numpy."""

from __future__ import annotations

import numpy as np
import pytest
from ort_cases import noise

from atc.errors import ModelError
from support import assert_close, node_model, run_model


def test_determinants_of_regular_and_singular_matrices() -> None:
    x = noise(2, 3, 5, 5)
    x[0, 1, 4] = x[0, 1, 0] * 2
    x[1, 2, :, 3] = 0
    (y,) = run_model(node_model("Det", [x]), [x])
    assert_close([y], [np.linalg.det(x.astype(np.float64)).astype(np.float32)], atol=1e-4)


def test_a_matrix_must_be_square() -> None:
    x = noise(2, 3)
    with pytest.raises(ModelError, match="square"):
        run_model(node_model("Det", [x]), [x])
