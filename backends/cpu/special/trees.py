"""Kernel of TreeEnsemble in vectors: every row walks down every tree."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.parallel_for.trees import tables_of
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops.trees import TreeEnsemble

_COMPARISONS = {0: "v_le", 1: "v_lt", 2: "v_ge", 3: "v_gt", 4: "v_eq"}
"""What vectors have of MODES: all of them are false for a NaN."""
_VECTORS = (4, 2, 1)
"""Vectors of walks at a time: a walk waits for its loads, four hide most of that."""
_BLOCK = 256
"""Rows, whole vectors, that go down one tree after another: they and it stay in the caches."""


class TreeWalkVectors(Kernel[TreeEnsemble]):
    """TreeEnsemble, as many walks at a time as some vectors have lanes.

    They are those of rows down one tree, or, of rows too few for that, of a row down many trees.
    The sums are in the order of the trees, as in plain C.
    """

    name = "tree_ensemble_simd"
    op = TreeEnsemble
    template = "cpu/special/tree_ensemble_vectors.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[TreeEnsemble], target: Target) -> bool:
        """Floats, one comparison; targets that gather; enough walks."""
        op, x, nodes = w.op, w.input(0), w.input(1)
        plain = len(op.modes) == 1 and op.modes[0] in _COMPARISONS
        small = nodes.size < 2**30 and lanes(target) * op.features < 2**31
        floats = x.dtype is DType.FLOAT is w.outputs[0].dtype
        walks = op.features > 0 and _grouping(w, target) is not None
        return plain and small and floats and walks

    def values(
        self, w: Workload[TreeEnsemble], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the comparison, the aggregate, and what the walks of a group are."""
        op, grouping = w.op, _grouping(w, target)
        assert grouping is not None
        vectors, by_rows = grouping
        return {
            "compare": _COMPARISONS[op.modes[0]], "vectors": vectors, "by_rows": by_rows,
            "walks": vectors * lanes(target), "block": _BLOCK, **tables_of(w),
        }  # fmt: skip


def _grouping(w: Workload[TreeEnsemble], target: Target) -> tuple[int, bool] | None:
    """Return how many vectors walk at a time, and whether by rows; None where too few would.

    Of rows known only at run time each goes down many trees.
    """
    op, roots, width = w.op, w.input(5), lanes(target)
    rows = 0 if is_dynamic(w) else op.rows
    for vectors in _VECTORS if width >= 8 else ():
        for by_rows, enough in ((True, rows), (False, 2 * roots.size)):
            if enough >= vectors * width:
                return vectors, by_rows
    return None


KERNELS = (TreeWalkVectors(),)
