"""CouplePairs, row by row."""

from __future__ import annotations

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.target import Target
from atc.ir.ops.svm import CouplePairs


class CouplePairsIteration(ParallelFor[CouplePairs]):
    """A fixed-point iteration per row."""

    name = "couple_pairs"
    op = CouplePairs
    template = "parallel_for/couple_pairs.j2"
    dynamic = True

    def values(self, w: Workload[CouplePairs], params: Params, target: Target) -> dict[str, object]:
        """Return the op."""
        return {"op": w.op, "scratch_bytes": self.iteration_scratch(w)}

    def iterations(self, w: Workload[CouplePairs]) -> int:
        """Return the number of rows."""
        return w.op.rows

    def iteration_scratch(self, w: Workload[CouplePairs]) -> int:
        """Reserve a square matrix and a vector."""
        return 4 * w.op.classes * (w.op.classes + 1)
