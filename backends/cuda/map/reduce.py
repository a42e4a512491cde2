"""CUDA kernels of Reduce and ArgReduce."""

from __future__ import annotations

from math import prod

from atc.backends.cuda.kernel import ElementKernel, RowKernel, unravel
from atc.backends.kernel import Params, Workload
from atc.backends.render.expr import load, render_expr, times, value_type
from atc.backends.render.loops import epilogue_lines, loop_names, reader
from atc.backends.render.reduction import accumulate, better, neutral
from atc.backends.target import Target
from atc.dims import upper_bound
from atc.ir.ops import ArgReduce, Reduce

LONG_ROW = 64
"""Elements from which a block's threads share a sum."""

MANY_ROWS = 1 << 15
"""Results that fill a GPU with one thread each."""


def _reduce_values(w: Workload[Reduce]) -> dict[str, object]:
    """Return the values of both Reduce kernels: loops, accumulator, stored value."""
    op = w.op
    outer, inner = loop_names("i", op.shape), loop_names("j", op.reduced)
    first = len(w.inputs) - len(op.epilogue.views)
    types = [t.dtype if t else None for t in w.inputs[:first]]
    views = (*op.views, *op.coordinates)
    read = reader(views, types, [v for v, _ in (*outer, *inner)])
    lines, element = render_expr(op.expr, read)
    after, value = epilogue_lines(op.epilogue, w, "total", [v for v, _ in outer], first)
    dtype = op.expr.dtype
    return {
        "count": prod(op.shape), "indices": unravel("at", outer), "length": prod(op.reduced),
        "steps": unravel("step", inner), "type": value_type(dtype),
        "start": neutral(op.how, dtype), "lines": lines,
        "add": accumulate(op.how, dtype, f"({element})"),
        "join": accumulate(op.how, dtype, "other"), "after": after, "value": value,
    }  # fmt: skip


class ReduceElements(ElementKernel[Reduce]):
    """Any Reduce, a thread for each result."""

    name = "cuda_reduce"
    op = Reduce
    template = "cuda/map/reduce.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Short rows, or enough of them to keep a GPU busy."""
        return not _shares_rows(w)

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Loops, accumulator and the stored value."""
        return _reduce_values(w)


class ReduceRows(RowKernel[Reduce]):
    """Any Reduce, a block for each result: its threads' partial results are combined as a tree."""

    name = "cuda_reduce_rows"
    op = Reduce
    template = "cuda/map/reduce_rows.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Long rows, and few of them."""
        return _shares_rows(w)

    def rows(self, w: Workload[Reduce]) -> int:
        """Return the number of results."""
        return w.outputs[0].size

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Loops, accumulator and the stored value."""
        return _reduce_values(w)


def _shares_rows(w: Workload[Reduce]) -> bool:
    op = w.op
    return upper_bound(prod(op.reduced)) >= LONG_ROW and upper_bound(prod(op.shape)) <= MANY_ROWS


class ArgReduceElements(ElementKernel[ArgReduce]):
    """ArgMax and ArgMin, a thread for each result; NaN wins, as in numpy."""

    name = "cuda_arg_reduce"
    op = ArgReduce
    template = "cuda/map/arg_reduce.cu.j2"
    dynamic = True

    def values(self, w: Workload[ArgReduce], params: Params, target: Target) -> dict[str, object]:
        """Extents and the comparison."""
        op, x = w.op, w.input(0)
        return {
            "op": op, "count": op.outer * op.inner, "indices": [], "better": better(op, x.dtype),
            "type": value_type(x.dtype), "element": x.dtype.c,
            "first": load(x.dtype, "row[0]"),
            "value": load(x.dtype, f"row[{times('k', op.inner)}]"),
        }  # fmt: skip


KERNELS = (ReduceElements(), ReduceRows(), ArgReduceElements())
