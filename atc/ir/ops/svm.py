"""The probabilities of classes out of those between pairs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require


@dataclass(frozen=True)
class CouplePairs(Op):
    """y [rows, classes]: probabilities p that fit x [rows, classes, classes] best.

    x[i, j] is the probability of class i where it can only be i or j. Second method of Wu, Lin and
    Weng, "Probability Estimates for Multi-class Classification by Pairwise Coupling", 2004, with
    the stopping rule of libsvm.
    """

    rows: int
    classes: int

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """There is a matrix for each row of results."""
        x, y = inputs[0], outputs[0]
        require(x == TensorType(DType.FLOAT, (self.rows, self.classes, self.classes)), f"{x}")
        require(y == TensorType(DType.FLOAT, (self.rows, self.classes)), f"{y}")
