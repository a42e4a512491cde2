"""Portable kernel of TreeEnsemble: every row walks down every tree."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ops.trees import MISSING, MODES, TreeEnsemble


class TreeWalk(Kernel):
    """TreeEnsemble in plain C."""

    name = "tree_ensemble"
    op = TreeEnsemble
    template = "cpu/tree_ensemble.c.j2"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """The comparisons and the aggregate."""
        op, x, roots = w.op, w.inputs[0], w.inputs[5]
        assert isinstance(op, TreeEnsemble)
        assert x is not None
        assert roots is not None
        start = {"SUM": "0", "MIN": "INFINITY", "MAX": "-INFINITY"}[op.aggregate]
        total = "y[x6[i]]"
        step = {"SUM": f"{total} += x7[i];", "MIN": f"if (x7[i] < {total}) {total} = x7[i];",
                "MAX": f"if (x7[i] > {total}) {total} = x7[i];"}[op.aggregate]  # fmt: skip
        return {
            "op": op, "trees": roots.size, "type": x.dtype.c, "result": w.outputs[0].dtype.c,
            "missing": MISSING, "modes": [(m, MODES[m]) for m in op.modes], "start": start,
            "step": step,
        }  # fmt: skip


KERNELS = (TreeWalk(),)
