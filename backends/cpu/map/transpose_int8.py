"""Map that moves bytes so that rows become columns: eight by eight in words of 64 bits.

A square's rows are words, of which compilers take several side by side.
"""

from __future__ import annotations

from atc.backends.cpu.map.transpose import transposed_loop
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.render.vector_expr import BYTES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Input
from atc.ir.ops import Map
from atc.ir.view import View, dense

SIDE = 8
"""Rows and columns of a square."""
WORDS = 8
"""The most squares side by side."""


class MapTransposeBytes(Kernel[Map]):
    """Movement of bytes that lie densely along another loop than the last one."""

    name = "map_transpose_bytes"
    op = Map
    template = "cpu/map/transpose_int8.c.j2"
    portable = False

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """One operand of bytes and known extents, of at least a square."""
        op = w.op
        if not isinstance(op.expr, Input) or w.outputs[0].dtype not in BYTES or is_dynamic(op):
            return False
        if not op.is_movement or target.big_endian or lanes(target) < 2 or not w.outputs[0].size:
            return False
        return transposed_loop(op, SIDE) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return the loops around, both loops of a square, and where it is read and written."""
        op = w.op
        d = transposed_loop(op, SIDE)
        assert d is not None
        names, rows = loop_names("i", op.shape), op.shape[d]
        kept = [k for k in range(len(op.shape) - 1) if k != d]
        steps, view = dense(op.shape).strides, op.views[0]
        variables = [names[k][0] for k in kept]
        return {
            "element": w.outputs[0].dtype.c, "outer": [names[k] for k in kept],
            "rows": rows, "columns": op.shape[-1], "side": SIDE,
            "words": min(WORDS, 1 << (rows // SIDE).bit_length() - 1),
            "beside": next(k for k in (4, 2, 1) if op.shape[-1] >= k * SIDE),
            "row_step": steps[d], "column_step": view.strides[-1],
            "source": address(View(tuple(view.strides[k] for k in kept), view.offset), variables),
            "target": address(View(tuple(steps[k] for k in kept)), variables),
        }  # fmt: skip

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.25 * loop_cycles(w)


KERNELS = (MapTransposeBytes(),)
