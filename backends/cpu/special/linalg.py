"""Portable kernels of Inverse and Determinant: elimination with partial pivoting."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.linalg import Determinant, Inverse


class Elimination(Kernel[Inverse | Determinant]):
    """The common part of both: a copy of one matrix is reduced in scratch."""

    def scratch(self, w: Workload[Inverse | Determinant], params: Params, target: Target) -> int:
        """One matrix."""
        return max(1, w.op.n**2) * w.outputs[0].dtype.itemsize

    def values(
        self, w: Workload[Inverse | Determinant], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the matrices' extents and type."""
        dtype = w.outputs[0].dtype
        return {"op": w.op, "type": dtype.c, "abs": "fabsf" if dtype.itemsize == 4 else "fabs"}


class InverseElimination(Elimination):
    """Gauss-Jordan elimination beside the identity."""

    name = "inverse"
    op = Inverse
    template = "cpu/special/inverse.c.j2"


class DeterminantElimination(Elimination):
    """The product of the pivots, negated at each exchange of rows."""

    name = "determinant"
    op = Determinant
    template = "cpu/special/determinant.c.j2"


KERNELS = (InverseElimination(), DeterminantElimination())
