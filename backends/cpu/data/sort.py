"""Portable kernels of the ops that walk an axis in order: TopK, Cumulate."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import load, times, value_type
from atc.backends.render.ordering import comes_first
from atc.backends.render.reduction import accumulate, neutral
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops.data import Cumulate, TopK


class TopKHeap(Kernel[TopK]):
    """TopK by a heap of the k best so far, the worst of them on top."""

    name = "top_k"
    op = TopK
    template = "cpu/data/top_k.c.j2"
    dynamic = True

    def values(self, w: Workload[TopK], params: Params, target: Target) -> dict[str, object]:
        """Return the order of two elements, NaN being the largest."""
        op, dtype = w.op, w.input(0).dtype
        sign = ">" if op.largest else "<"
        return {
            "op": op,
            "element": dtype.c,
            "type": value_type(dtype),
            "first": comes_first("a", "b", sign, dtype),
            "second": comes_first("b", "a", sign, dtype),
            "a": load(dtype, f"x[{times('i', op.inner)}]"),
            "b": load(dtype, f"x[{times('j', op.inner)}]"),
            "open": is_dynamic(op.inner),
        }

    def scratch(self, w: Workload[TopK], params: Params, target: Target) -> int:
        """Reserve the heap: k indices of at most 8 bytes."""
        return 8 * w.op.k


class CumulateRows(Kernel[Cumulate]):
    """Cumulate step by step along the axis, all inner elements at once."""

    name = "cumulate"
    op = Cumulate
    template = "cpu/data/cumulate.c.j2"
    dynamic = True

    def values(self, w: Workload[Cumulate], params: Params, target: Target) -> dict[str, object]:
        """Extents, the start and the statement that adds one element to `total`."""
        op, dtype = w.op, w.outputs[0].dtype
        return {
            "op": op,
            "type": dtype.c,
            "start": neutral(op.how, dtype),
            "step": accumulate(op.how, dtype, "x0[from]"),
        }


KERNELS = (TopKHeap(), CumulateRows())
