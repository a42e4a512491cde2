"""Portable kernels of Map, Reduce and ArgReduce: plain loop nests in C99."""

from __future__ import annotations

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import address, load, render_expr, store, times, value_type
from atc.backends.render.loops import epilogue_lines, loop_names, reader
from atc.backends.render.reduction import accumulate, better, neutral
from atc.backends.target import Target
from atc.ir.expr import Expr, Input
from atc.ir.ops import ArgReduce, Map, Reduce
from atc.ir.view import dense


class MapLoops(Kernel[Map]):
    """Any Map as a scalar loop nest."""

    name = "map"
    op = Map
    template = "cpu/map/portable.c.j2"
    dynamic = True

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Loops, declarations and the stored value."""
        op = w.op
        loops = loop_names("i", op.shape)
        indices = [v for v, _ in loops]
        views = (*op.views, *op.coordinates)
        read = reader(views, [t.dtype if t else None for t in w.inputs], indices)
        lines, value = render_expr(op.expr, read)
        return {
            "loops": loops,
            "lines": lines,
            "value": store(w.outputs[0].dtype, value),
            "target": address(dense(op.shape), indices),
        }

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Operands read densely at the very place that is written, with the same element size."""
        return in_place_operands(w)


def in_place_operands(w: Workload[Map]) -> tuple[int, ...]:
    """Return the Map operands whose element is read only where the result goes."""
    op = w.op
    out = w.outputs[0]
    return tuple(
        k
        for k, t in enumerate(w.inputs)
        if t is not None
        and t.size == out.size
        and t.dtype.itemsize == out.dtype.itemsize
        and op.views[k].offset == 0
        and op.views[k].is_dense(op.shape)
    )


class ReduceLoops(Kernel[Reduce]):
    """Any Reduce as a scalar loop nest with one accumulator."""

    name = "reduce"
    op = Reduce
    template = "cpu/map/reduce_portable.c.j2"
    dynamic = True

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Loops, accumulator and the stored value."""
        op = w.op
        outer, inner = loop_names("i", op.shape), loop_names("j", op.reduced)
        indices = [v for v, _ in (*outer, *inner)]
        first, views = len(op.views), (*op.views, *op.coordinates)
        read = reader(views, [t.dtype if t else None for t in w.inputs[:first]], indices)
        lines, element = render_expr(op.expr, read)
        kept = [v for v, _ in outer]
        after, value = epilogue_lines(op.epilogue, w, "total", kept, first)
        dtype = op.expr.dtype
        return {
            "outer": outer, "inner": inner, "type": value_type(dtype),
            "start": neutral(op.how, dtype), "lines": lines,
            "step": accumulate(op.how, dtype, _operand(op.expr, element)),
            "after": after, "value": value, "target": address(dense(op.shape), kept),
        }  # fmt: skip


def _operand(expr: Expr, text: str) -> str:
    simple = isinstance(expr, Input) or text.isidentifier()
    return text if simple else f"({text})"


class ArgReduceLoops(Kernel[ArgReduce]):
    """ArgMax and ArgMin as a scalar loop nest; NaN wins, as in numpy."""

    name = "arg_reduce"
    op = ArgReduce
    template = "cpu/map/arg_reduce.c.j2"
    dynamic = True

    def values(self, w: Workload[ArgReduce], params: Params, target: Target) -> dict[str, object]:
        """Extents and the comparison."""
        op, x = w.op, w.input(0)
        return {
            "op": op, "better": better(op, x.dtype), "type": value_type(x.dtype),
            "first": load(x.dtype, "row[0]"),
            "value": load(x.dtype, f"row[{times('k', op.inner)}]"),
            "element": x.dtype.c,
        }  # fmt: skip


KERNELS = (MapLoops(), ReduceLoops(), ArgReduceLoops())
