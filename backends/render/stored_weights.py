"""Constant weights as kernels of floats read them: floats, or numbers of 16 bits made floats."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.kernel import Workload, weight_type
from atc.backends.target import Target
from atc.ir.graph import DType

CACHE_LINE = 64
"""Bytes."""
CONVERTED = 0.5
"""Cycles of the arithmetic units to make a vector of floats of 16 bits each, by one instruction."""
BY_HAND = 4.0
"""Times that, where a target has no such instruction."""


@dataclass(frozen=True)
class Weights:
    """The form of weights in memory: the C type of one, and the load of a vector as floats."""

    dtype: DType = DType.FLOAT

    @property
    def c(self) -> str:
        """The C type."""
        return self.dtype.c

    @property
    def load(self) -> str:
        """The name of the vocabulary."""
        return f"v_load_{self.dtype.label}" if self.dtype.is_half else "v_load"

    @property
    def line(self) -> int:
        """The number of weights in a cache line."""
        return CACHE_LINE // self.dtype.itemsize

    def widening(self, target: Target) -> float:
        """Return the cycles that a vector of them takes to become floats."""
        if not self.dtype.is_half:
            return 0.0
        able = {"f16c", "neon"} & target.features or self.dtype is DType.BFLOAT16
        return CONVERTED if able else BY_HAND * CONVERTED


def stored_weights(w: Workload) -> Weights:
    """Return how the weights of a workload, input 1, lie in memory."""
    half = weight_type(w)
    return Weights() if half is None else Weights(half.dtype)
