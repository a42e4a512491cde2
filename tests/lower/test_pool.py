"""Pools that the standard has no node tests of, against onnxruntime."""

from __future__ import annotations

import numpy as np
import pytest
from ort_cases import Case, compiled, noise

from atc.errors import AtcError
from support import assert_close, node_model, run_model

X = noise(2, 3, 4, 5)
CASES = {f"p = {p}": Case("GlobalLpPool", [X], (), {"p": p}) for p in (1, 2, 3)}
COMPILED = compiled(CASES)


@pytest.mark.parametrize("name", CASES)
def test_global_lp_pool_equals_onnxruntime(name: str) -> None:
    assert_close(COMPILED[name](CASES[name].feeds), CASES[name].onnxruntime(), rtol=1e-5)


def test_the_first_version_has_a_real_p() -> None:
    model = node_model("GlobalLpPool", [X], opset=1, p=1.0)
    (y,) = run_model(model, [X])
    np.testing.assert_allclose(y[..., 0, 0], np.abs(X).sum((2, 3)), rtol=1e-5)
    with pytest.raises(AtcError, match=r"p is 2\.5"):
        run_model(node_model("GlobalLpPool", [X], opset=1, p=2.5), [X])
