"""The comparison of recomputation trains a ResNet-50, and notices other bits; nothing is timed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from benchmarks import recomputation

WEIGHTS, STATISTICS = 25_557_032, 53_120
"""The numbers that torchvision's ResNet-50 has."""


@pytest.mark.slow
def test_the_network_has_the_weights_of_a_resnet_50() -> None:
    network = recomputation.ResNet50()
    assert sum(w.size for w in network.weights) == WEIGHTS
    assert sum(s.size for s in network.statistics) == STATISTICS


@pytest.mark.slow
def test_the_bytes_of_a_plan_are_all_of_a_step() -> None:
    """Old and new values of weights, momentum and statistics, and the learning rate."""
    plan = recomputation.planned(1, 32, "none", {})
    assert plan.recomputed == 0
    assert 0 <= plan.bytes - plan.arena - 4 * 2 * (2 * WEIGHTS + STATISTICS) <= 8


class Steps:
    """Training whose loss is what it is told."""

    def __init__(self, **config: Any) -> None:
        self.loss = np.float32(config.get("loss", 1.0))
        self.weights = config.get("weights", 0)

    def take(self, images: Any, labels: Any) -> tuple[float, bytes]:
        assert images.shape == (2, 3, 8, 8)
        assert labels.shape == (2,)
        return 1.0 + 0.5 * self.weights, self.loss.tobytes()

    def same(self, other: Steps) -> bool:
        return self.weights == other.weights


@pytest.mark.parametrize(
    ("config", "said"),
    [({"loss": 1.5}, "other bits at step 0 of batch 2"), ({"weights": 1}, "other bits")],
    ids=["loss", "weights"],
)
def test_other_bits_are_an_error(
    config: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recomputation, "Training", Steps)
    with pytest.raises(SystemExit, match=said):
        recomputation.compared(2, 8, 1, 0, config)
