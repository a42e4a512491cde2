"""Portable kernel of NGrams: every token is a root from which the tree is walked."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir.ops.ngrams import NGrams


class NGramWalk(Kernel[NGrams]):
    """NGrams in plain C."""

    name = "ngrams"
    op = NGrams
    template = "cpu/special/ngrams.c.j2"

    def values(self, w: Workload[NGrams], params: Params, target: Target) -> dict[str, object]:
        """Extents and lengths."""
        return {"op": w.op}


KERNELS = (NGramWalk(),)
