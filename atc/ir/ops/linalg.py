"""Inverse and Determinant of batches of small square matrices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class Inverse(Op):
    """The inverses of x [batch, n, n], by elimination with partial pivoting.

    A singular matrix gives infinities or NaN.
    """

    batch: int
    n: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Operand and result have the same size."""
        x = inputs[0]
        require(x is not None and x.size == outputs[0].size == self.batch * self.n**2, f"{x}")


@dataclass(frozen=True)
class Determinant(Op):
    """The determinants [batch] of x [batch, n, n], by the same elimination.  ONNX Det-22."""

    batch: int
    n: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """One number per matrix."""
        x = inputs[0]
        require(x is not None and x.size == self.batch * self.n**2, f"{x}")
        require(outputs[0].size == self.batch, f"{outputs[0]}")
