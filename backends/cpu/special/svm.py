"""The portable kernel of CouplePairs."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.svm import CouplePairs


class CouplePairsIteration(Kernel[CouplePairs]):
    """A fixed-point iteration per row."""

    name = "couple_pairs"
    op = CouplePairs
    template = "cpu/special/couple_pairs.c.j2"

    def values(self, w: Workload[CouplePairs], params: Params, target: Target) -> dict[str, object]:
        """Return the op."""
        return {"op": w.op}

    def scratch(self, w: Workload[CouplePairs], params: Params, target: Target) -> int:
        """Reserve a square matrix and a vector."""
        return 4 * w.op.classes * (w.op.classes + 1)


KERNELS = (CouplePairsIteration(),)
