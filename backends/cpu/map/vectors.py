"""Map in vectors along its last loop."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from atc.backends.cpu.map.portable import in_place_operands
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address, behind
from atc.backends.render.loops import loop_names
from atc.backends.render.opening import OpensExtents, opened_types, opened_view
from atc.backends.render.vector_expr import (
    lanes,
    readable_typed,
    render_vector,
    store_vector,
    stored,
    vector_reader,
    vectorisable,
)  # fmt: skip
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value, opened
from atc.ir.expr import Input, walk
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.view import dense

LONG = 16
"""Vectors of a loop from which on C takes its extent as a number: compilers unroll others."""

SHORT, UNROLLED = 2, 4
"""Lines of a loop up to which NEON computes so many vectors between jumps: each vector's addresses
and the jump take as many instructions as such a line or more."""


class MapVectors(Kernel[Map], OpensExtents[Map, Params]):
    """A Map whose operands are dense or constant along the last loop."""

    name = "map_simd"
    op = Map
    template = "cpu/map/vectors.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """Floats, bytes and INT32 read as such, a last loop of half a vector or more."""
        op = w.op
        wide = lanes(target) > 1 and bool(op.shape) and 2 * max_value(op.shape[-1]) >= lanes(target)
        value = stored(op.expr)
        if op.coordinates or not wide or prod(op.shape) == 0:
            return False
        computed = value is not None and vectorisable(value)
        return computed and readable_typed(op.views, w.inputs)

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Outer loops, what is read once per row, the bodies for whole vectors and for the rest."""
        op = w.op
        outer = loop_names("i", op.shape[:-1])
        indices = [v for v, _ in outer]
        fixed, moving = _sorted_operands(op)
        types = [t.dtype for t in w.inputs if t is not None]
        expr = stored(op.expr) or op.expr
        whole, rest = op.shape[-1] // lanes(target), op.shape[-1] % lanes(target)

        def body(at: str, count: str) -> dict[str, Any]:
            read = vector_reader(op.views, [*indices, at], count=count, types=types)
            lines, value = render_vector(expr, lambda k: f"c{k}" if k in fixed else read(k))
            place = behind("y0", address(dense(op.shape), [*indices, at]))
            return {"lines": lines, "store": store_vector(w.outputs[0].dtype, place, value, count)}

        once, vector = vector_reader(op.views, [*indices, "0"], types=types), body("j", "")
        many = is_dynamic(whole) or whole >= LONG
        short = target.simd == "neon" and many and len(vector["lines"]) <= SHORT
        kinds = {k: "vi32" if types[k] is DType.INT32 else "vf32" for k in fixed}
        return {
            "outer": outer, "once": [f"const {kinds[k]} c{k} = {once(k)};" for k in sorted(fixed)],
            "whole": whole, "rest": rest, "body": vector,
            "unrolled": UNROLLED if short else 1,
            "tail": body(str(whole * lanes(target)), str(rest)) if rest else None,
        }  # fmt: skip

    def with_open_extents(
        self, w: Workload[Map], params: Params, target: Target
    ) -> tuple[Workload[Map], Params]:
        """Open the outer loops, a long last one of whole vectors, and strides.

        The innermost loop's own strides stay, and those of the loop around one that is unrolled.
        """
        op, last = w.op, w.op.shape[-1]
        long = last % lanes(target) == 0 and last >= LONG * lanes(target)
        outer = tuple(opened(n, f"n{d}") for d, n in enumerate(op.shape[:-1]))
        kept = 1 if long else 2
        views = tuple(opened_view(v, f"x{k}", kept) for k, v in enumerate(op.views))
        op = replace(op, shape=(*outer, opened(last, "n") if long else last), views=views)
        return replace(opened_types(w), op=op), params

    def in_place(self, w: Workload[Map]) -> tuple[int, ...]:
        """Operands read densely at the very place that is written."""
        return in_place_operands(w)

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.5 * loop_cycles(w)


def _sorted_operands(op: Map) -> tuple[set[int], set[int]]:
    """Return the operands that don't vary along the last loop, and the others."""
    read = {e.index for e in walk(op.expr) if isinstance(e, Input)}
    fixed = {k for k in read if op.views[k].strides[-1] == 0}
    return fixed, read - fixed


KERNELS = (MapVectors(),)
