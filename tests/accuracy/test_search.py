"""Which products get a lower precision under an error."""

from __future__ import annotations

import numpy as np
import pytest

from atc.accuracy.search import TRIES, Group, most_within


@pytest.mark.parametrize("allowed", [0.02, 0.1, 0.5])
@pytest.mark.parametrize("off", [0.3, 1.0, 2.5], ids="predicted {} times as much".format)
def test_the_most_gain_within_an_error(allowed: float, off: float) -> None:
    """Errors that add up like noise, of which the weights are `off` by a factor."""
    rng = np.random.default_rng(1)
    errors, gains = rng.uniform(0.001, 0.2, 40), rng.uniform(1, 50, 40)
    found = [Group(frozenset({str(k)}), gain) for k, gain in enumerate(gains)]
    tried = 0

    def error(chosen: object) -> float:
        assert isinstance(chosen, list)
        return float(np.sqrt(sum(errors[int(name)] ** 2 for g in chosen for name in g.nodes)))

    def measure(chosen: object) -> float:
        nonlocal tried
        tried += 1
        return error(chosen)

    every = error(found)
    assert every > allowed
    noise = rng.uniform(0.8, 1.25, 40)
    chosen, measured = most_within(allowed, found, list(errors * noise * off), every, measure)
    assert tried <= TRIES
    assert measured[len(chosen)] == error(list(chosen)) <= allowed
    by_use = sorted(range(40), key=lambda k: gains[k] / errors[k] ** 2, reverse=True)
    best = max(
        sum(gains[by_use[:n]]) for n in range(41)
        if np.sqrt(sum(errors[by_use[:n]] ** 2)) <= allowed
    )  # fmt: skip
    assert sum(group.gain for group in chosen) >= 0.8 * best


def test_none_where_each_is_too_much() -> None:
    found = [Group(frozenset({str(k)}), 1.0) for k in range(8)]
    chosen, _ = most_within(0.01, found, [1.0] * 8, 1.0, lambda chosen: 0.3 * len(chosen))
    assert list(chosen) == []
