"""Random choices, for models that other packages make."""

from __future__ import annotations

from typing import Any

import numpy as np


class Random:
    """Choices of one model."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, p: float = 0.5) -> bool:
        """Return True as often as `p` says."""
        return bool(self.rng.random() < p)

    def divisor(self, n: int) -> int:
        """Return a number that divides n."""
        return int(self.pick(*(d for d in range(1, n + 1) if n % d == 0)))

    def array(self, *shape: int) -> np.ndarray[Any, Any]:
        """Return normal numbers in float64."""
        return np.asarray(self.rng.standard_normal(shape))
