"""`atc.gradcheck` finds derivatives that are wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atc
from atc.errors import OptionError, VerificationError
from atc.lower.gradient import derivatives

X = np.random.default_rng(0).uniform(0.2, 0.9, size=(2, 3))


def test_right_derivatives_pass() -> None:
    assert atc.gradcheck(lambda x, y: atc.array_api.sin(x) * y, [X, X + 1])


@pytest.mark.slow
def test_right_derivatives_of_layers_pass() -> None:
    assert atc.gradcheck(lambda x: atc.functional.layer_norm(x), [X])


def test_a_wrong_derivative_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[tuple[str, str], Any] = {**derivatives.DERIVATIVES, ("", "Sin"): lambda s: [s.g]}
    monkeypatch.setattr("atc.lower.gradient.reverse.DERIVATIVES", wrong)
    with pytest.raises(VerificationError, match=r"element \[0, 0\] of input 0 is"):
        atc.gradcheck(lambda x: atc.array_api.sin(x), [X])


def test_it_is_for_doubles() -> None:
    with pytest.raises(OptionError, match="float64"):
        atc.gradcheck(lambda x: x, [X.astype(np.float32)])
