"""TreeEnsemble: decision trees as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require

MODES = ("<=", "<", ">=", ">", "==", "!=")
"""Comparisons of a feature with a node's threshold, by their numbers."""

MISSING = 1 << 30
"""What the feature of a node that a NaN leaves by the true branch has added."""

AGGREGATES = ("SUM", "MIN", "MAX")


@dataclass(frozen=True)
class TreeEnsemble(Op):
    """Sums (minima, maxima) [rows, targets] of the leaves that each row of x reaches, one per tree.

    Operands: x [rows, features]; per node its feature (INT32, -1 for a leaf, plus MISSING), its
    threshold (the type of x), two INT32, the nodes where the comparison holds and where not, and
    which of MODES that is (UINT8); the INT32 roots. For a leaf the two numbers are where its
    part of the last two operands begins and ends: targets (INT32) and their weights (the type of
    the result).  ai.onnx.ml TreeEnsemble-5.
    """

    rows: int
    features: int
    targets: int
    aggregate: str
    modes: tuple[int, ...]
    """The comparisons that occur."""
    missing: bool
    """Whether a NaN leaves any node by the true branch."""

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Tables agree in length and type."""
        require(self.aggregate in AGGREGATES, f"aggregate {self.aggregate}")
        require(len(inputs) == 8 and None not in inputs, f"{len(inputs)} operands")
        x, feature, threshold, children, modes, roots, target, weight = inputs
        assert x is not None
        assert feature is not None
        assert threshold is not None
        assert children is not None
        assert modes is not None
        assert roots is not None
        assert target is not None
        assert weight is not None
        require(x.size == self.rows * self.features, f"x is {x}")
        require(self.features <= MISSING, f"{self.features} features")
        nodes = feature.size
        require((threshold.size, children.size, modes.size) == (nodes, 2 * nodes, nodes), "nodes")
        require(target.size == weight.size, "leaves")
        wanted = (DType.INT32, x.dtype, DType.INT32, DType.UINT8, DType.INT32, DType.INT32)
        found = tuple(t.dtype for t in (feature, threshold, children, modes, roots, target))
        require(found == wanted, f"types {found}")
        require(outputs[0].size == self.rows * self.targets, f"{outputs[0]}")
        require(weight.dtype is outputs[0].dtype, "weights")
