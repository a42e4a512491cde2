"""Gather and Scatter in C: element addresses that are computed, and updates."""

from __future__ import annotations

from atc.backends.kernel import Workload
from atc.backends.render.expr import load, render_expr, store
from atc.backends.render.loops import loop_names, reader
from atc.ir.expr import Expr, Input
from atc.ir.ops.data import Gather, Scatter


def address_values(
    w: Workload, op: Gather | Scatter, first: int, size: int
) -> tuple[list[tuple[str, int]], dict[str, object]]:
    """Return the loops, and how the element address in a tensor of `size` is found.

    The operands of the address start at input `first`.
    """
    loops = loop_names("i", op.shape)
    indices = [v for v, _ in loops]
    dtypes = [t.dtype if t else None for t in w.inputs[first:]]
    views = (*op.views, *op.coordinates)
    lines, value = render_expr(op.address, reader(views, dtypes, indices, first), "a")
    return loops, {
        "loops": loops, "lines": lines, "address": value, "proven": op.proven, "run": op.run,
        "last": size - op.run, "element": w.outputs[0].dtype.c,
    }  # fmt: skip


def combined(expr: Expr, w: Workload, old: str, new: str) -> tuple[list[str], str]:
    """Return the lines and the stored value of an update; `old` and `new` are C places."""
    dtype = w.outputs[0].dtype
    if isinstance(expr, Input):
        return [], old if expr.index == 0 else new
    places = (load(dtype, old), load(dtype, new))
    lines, value = render_expr(expr, lambda k: places[k])
    return lines, store(dtype, value)
