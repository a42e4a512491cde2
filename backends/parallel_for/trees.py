"""TreeEnsemble, row by row: each walks down every tree."""

from __future__ import annotations

from atc.backends.kernel import Params, Workload
from atc.backends.parallel_for.kernel import ParallelFor
from atc.backends.target import Target
from atc.ir.ops.trees import MISSING, MODES, TreeEnsemble


class TreeWalk(ParallelFor[TreeEnsemble]):
    """Any TreeEnsemble."""

    name = "tree_ensemble"
    op = TreeEnsemble
    template = "parallel_for/tree_ensemble.j2"
    dynamic = True

    def iterations(self, w: Workload[TreeEnsemble]) -> int:
        """Return the number of rows."""
        return w.op.rows

    def values(
        self, w: Workload[TreeEnsemble], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the comparisons and the aggregate."""
        op = w.op
        return {"modes": [(m, MODES[m]) for m in op.modes], **tables_of(w)}


def tables_of(w: Workload[TreeEnsemble]) -> dict[str, object]:
    """Return what the templates of trees need beside the comparisons."""
    op, x, roots = w.op, w.input(0), w.input(5)
    start = {"SUM": "0", "MIN": "INFINITY", "MAX": "-INFINITY"}[op.aggregate]
    total = "y[x6[i]]"
    step = {"SUM": f"{total} += x7[i];", "MIN": f"if (x7[i] < {total}) {total} = x7[i];",
            "MAX": f"if (x7[i] > {total}) {total} = x7[i];"}[op.aggregate]  # fmt: skip
    return {
        "op": op, "missing": MISSING, "trees": roots.size, "type": x.dtype.c,
        "result": w.outputs[0].dtype.c, "start": start, "step": step,
    }  # fmt: skip
