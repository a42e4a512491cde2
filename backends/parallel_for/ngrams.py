"""NGrams, row by row: every token is a root from which the tree is walked."""

from __future__ import annotations

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.target import Target
from atc.ir.ops.ngrams import NGrams


class NGramWalk(ParallelFor[NGrams]):
    """Any NGrams."""

    name = "ngrams"
    op = NGrams
    template = "parallel_for/ngrams.j2"

    def iterations(self, w: Workload[NGrams]) -> int:
        """Return the number of rows."""
        return w.op.rows

    def values(self, w: Workload[NGrams], params: Params, target: Target) -> dict[str, object]:
        """Extents and lengths."""
        return {"op": w.op}
