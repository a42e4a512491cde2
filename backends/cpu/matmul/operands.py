"""Facts that kernels of MatMul ask of a workload: its op, and how B is read."""

from __future__ import annotations

from atc.backends.kernel import Workload
from atc.ir.ops import MatMul


def read_mode(w: Workload[MatMul]) -> str:
    """Return how B is read: `packed` when compiling, or copied into scratch from dense `rows`,
    from dense `columns`, or from `any`thing."""
    row, column = w.op.b_view.strides[-2:]
    if w.constant[1]:
        return "packed"
    return "rows" if column == 1 else "columns" if row == 1 else "any"
