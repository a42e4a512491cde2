"""Kernels of TreeEnsemble: every row walks down every tree."""

from __future__ import annotations

from atc.backends.cpu.vector_expr import lanes
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.target import Target
from atc.ir import DType
from atc.ops.trees import MISSING, MODES, TreeEnsemble

_COMPARISONS = {0: "v_le", 1: "v_lt", 2: "v_ge", 3: "v_gt", 4: "v_eq"}
"""What vectors have of MODES: all of them are false for a NaN."""
_BLOCK = 256
"""Rows, whole vectors, that go down one tree after another: they and it stay in the caches."""


class TreeWalk(Kernel):
    """TreeEnsemble in plain C."""

    name = "tree_ensemble"
    op = TreeEnsemble
    template = "cpu/tree_ensemble.c.j2"

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """The comparisons and the aggregate."""
        op = w.op
        assert isinstance(op, TreeEnsemble)
        return {"missing": MISSING, "modes": [(m, MODES[m]) for m in op.modes], **_tables(w)}


class TreeWalkVectors(Kernel):
    """TreeEnsemble, as many walks at a time as a vector has lanes.

    They are those of rows down one tree, or, of rows that fill no vector, of a row down many trees.
    The sums are in the order of the trees, as in plain C.
    """

    name = "tree_ensemble_simd"
    op = TreeEnsemble
    template = "cpu/tree_ensemble_simd.c.j2"
    portable = False

    def accepts(self, w: Workload, target: Target) -> bool:
        """Floats, one comparison, nothing of NaNs; targets that gather; enough walks."""
        op, x, nodes, roots = w.op, w.inputs[0], w.inputs[1], w.inputs[5]
        assert isinstance(op, TreeEnsemble)
        assert x is not None
        assert nodes is not None
        assert roots is not None
        if lanes(target) < 8 or op.missing or len(op.modes) > 1 or op.modes[0] not in _COMPARISONS:
            return False
        small = nodes.size < 2**30 and lanes(target) * op.features < 2**31
        enough = op.rows >= lanes(target) or 2 * roots.size >= lanes(target)
        floats = x.dtype is DType.FLOAT is w.outputs[0].dtype
        return small and enough and floats and op.features > 0

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """The comparison, the aggregate, the rows that fill vectors and those of a block."""
        op = w.op
        assert isinstance(op, TreeEnsemble)
        return {
            "compare": _COMPARISONS[op.modes[0]], "block": _BLOCK,
            "whole": op.rows // lanes(target) * lanes(target), **_tables(w),
        }  # fmt: skip


def _tables(w: Workload) -> dict[str, object]:
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
        "start": start, "step": step,
    }  # fmt: skip


KERNELS = (TreeWalk(), TreeWalkVectors())
