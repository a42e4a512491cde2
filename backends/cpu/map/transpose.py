"""Map that moves floats so that rows become columns: squares are transposed in registers.

They may be rounded to 16 bits where they are stored.
"""

from __future__ import annotations

from math import prod

from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address, store
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import STORES, lanes
from atc.backends.target import Target
from atc.dims import lower_bound, upper_bound
from atc.ir.expr import Input, cast
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.view import View, dense


class MapTranspose(Kernel[Map]):
    """Movement whose operand is dense along another loop than the last one."""

    name = "map_transpose"
    op = Map
    template = "cpu/map/transpose.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """One operand of floats that are rounded to 16 bits at most, at least a square of it."""
        op, y = w.op, w.outputs[0].dtype
        x = Input(DType.FLOAT, 0)
        if op.expr != (cast(x, y) if y.is_half else x) or len(w.inputs) != 1 or op.coordinates:
            return False
        if prod(op.shape) == 0 or lanes(target) < 2:
            return False
        return transposed_loop(op, lanes(target)) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return the loops around, both loops of a square, and where it is read and written."""
        op = w.op
        d = transposed_loop(op, lanes(target))
        assert d is not None
        names, y = loop_names("i", op.shape), w.outputs[0].dtype
        kept = [k for k in range(len(op.shape) - 1) if k != d]
        steps, view = dense(op.shape).strides, op.views[0]
        variables = [names[k][0] for k in kept]
        return {
            "element": y.c, "store": STORES[y] if y.is_half else "", "stored": store(y, "value"),
            "outer": [names[k] for k in kept], "rows": op.shape[d], "columns": op.shape[-1],
            "short": min(lower_bound(op.shape[d]), lower_bound(op.shape[-1])) < lanes(target),
            "row_step": steps[d], "column_step": view.strides[-1], "lanes": lanes(target),
            "source": address(View(tuple(view.strides[k] for k in kept), view.offset), variables),
            "target": address(View(tuple(steps[k] for k in kept)), variables),
        }  # fmt: skip

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.2 * loop_cycles(w)


def transposed_loop(op: Map, width: int) -> int | None:
    """Return the loop that reads neighbours, if the last one doesn't and both may fill a vector."""
    strides = op.views[0].strides
    if (
        not strides
        or strides[-1] in (0, 1)
        or lower_bound(strides[-1]) < 0
        or upper_bound(op.shape[-1]) < width
    ):
        return None
    found = [d for d, (s, n) in enumerate(zip(strides, op.shape, strict=True))
             if s == 1 and upper_bound(n) >= width]  # fmt: skip
    return max(found, key=lambda d: upper_bound(op.shape[d]), default=None)


KERNELS = (MapTranspose(),)
