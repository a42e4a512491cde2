"""External: an operator that a C function of the user computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import Op, TensorType
from atc.ir.ops.elementwise import require

MAX_RANK = 8
"""Dims of a tensor that the C interface can pass."""


@dataclass(frozen=True)
class External(Op):
    """Calls the C function `symbol` on all operands; `attributes` is a JSON object's text."""

    symbol: str
    attributes: str

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """There is a result, and no tensor has too many dims."""
        tensors = [t for t in (*inputs, *outputs) if t is not None]
        require(bool(outputs) and all(len(t.shape) <= MAX_RANK for t in tensors), f"{tensors}")
