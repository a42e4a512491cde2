"""Constant weights as float kernels read them: floats, or 16-bit numbers that are widened."""

from __future__ import annotations

from dataclasses import dataclass

from atc.backends.kernel import Workload, weight_type
from atc.backends.machine import CACHE_LINE
from atc.backends.render.expr import load
from atc.backends.target import Target
from atc.ir.graph import DType

CONVERTED, WIDE = 0.5, 64
"""Cycles of the arithmetic units to widen a vector of 16-bit numbers by one instruction; twice as
many for vectors of `WIDE` bytes on cores of Intel's, where two units take part."""
BY_HAND = 4.0
"""How many times as long that takes on a target without such an instruction."""


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
        """The load's name in the vector vocabulary."""
        return f"v_load_{self.dtype.label}" if self.dtype.is_half else "v_load"

    def element(self, place: str) -> str:
        """Return the C expression of one as a float."""
        return load(self.dtype, place)

    @property
    def line(self) -> int:
        """The number of weights in a cache line."""
        return CACHE_LINE // self.dtype.itemsize

    def widening(self, target: Target) -> float:
        """Return the cycles to widen a vector of them to floats."""
        if not self.dtype.is_half:
            return 0.0
        able = {"f16c", "neon"} & target.features or self.dtype is DType.BFLOAT16
        twice = target.vector_bytes >= WIDE and not target.machine.separate_adds
        cycles = CONVERTED * (1 + twice)
        return cycles if able else BY_HAND * cycles


FLOATS = Weights()
"""Weights that are read as they are."""


def stored_weights(w: Workload) -> Weights:
    """Return the form in memory of a workload's weights, input 1."""
    half = weight_type(w)
    return FLOATS if half is None else Weights(half.dtype)
