"""Numbers that say how long runs took."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Statistics:
    """Times in ms. `spread` is the distance of the quartiles, `sd` unbiased, None for one run."""

    count: int
    total: float
    mean: float
    median: float
    spread: float
    sd: float | None
    least: float
    most: float

    def as_dict(self) -> dict[str, float | int | None]:
        """Return the numbers by name."""
        return asdict(self)


def statistics(times: Sequence[float]) -> Statistics:
    """Return the statistics of one run or more."""
    array = np.asarray(times, np.float64)
    low, middle, high = np.percentile(array, (25, 50, 75))
    return Statistics(
        len(times), float(array.sum()), float(array.mean()), float(middle), float(high - low),
        float(array.std(ddof=1)) if len(times) > 1 else None,
        float(array.min()), float(array.max()),
    )  # fmt: skip
