"""Inverse and Determinant, matrix by matrix: elimination with partial pivoting."""

from __future__ import annotations

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.target import Target
from atc.ir.ops.linalg import Determinant, Inverse


class Elimination(ParallelFor[Inverse | Determinant]):
    """The common part of both: a copy of one matrix is reduced in scratch."""

    def iterations(self, w: Workload[Inverse | Determinant]) -> int:
        """Return the number of matrices."""
        return w.op.batch

    def iteration_scratch(self, w: Workload[Inverse | Determinant]) -> int:
        """One matrix."""
        return max(1, w.op.n**2) * w.outputs[0].dtype.itemsize

    def values(
        self, w: Workload[Inverse | Determinant], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the matrices' extents and type."""
        dtype = w.outputs[0].dtype
        return {
            "op": w.op, "scratch_bytes": self.iteration_scratch(w), "type": dtype.c,
            "abs": "fabsf" if dtype.itemsize == 4 else "fabs",
        }  # fmt: skip


class InverseElimination(Elimination):
    """Gauss-Jordan elimination beside the identity."""

    name = "inverse"
    op = Inverse
    template = "parallel_for/inverse.j2"


class DeterminantElimination(Elimination):
    """The product of the pivots, negated at each exchange of rows."""

    name = "determinant"
    op = Determinant
    template = "parallel_for/determinant.j2"
