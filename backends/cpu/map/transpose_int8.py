"""Map that moves bytes, or pairs of them, so that rows become columns: squares in words of 64 bits.

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
from atc.ir.graph import DType
from atc.ir.ops import Map
from atc.ir.view import View, dense

WORD = 8
"""Bytes of a word, a row of a square."""
WORDS = 8
"""The most squares side by side."""
MOVED = (*BYTES, DType.UINT16, DType.INT16)
"""Types of elements, beside floats of 16 bits."""


class MapTransposeBytes(Kernel[Map]):
    """Movement of elements of a byte or two that lie densely along another loop than the last."""

    name = "map_transpose_bytes"
    op = Map
    template = "cpu/map/transpose_int8.c.j2"
    portable = False

    def accepts(self, w: Workload[Map], target: Target) -> bool:
        """One operand of bytes or 16 bits and known extents, of at least a square."""
        op, y = w.op, w.outputs[0]
        if not op.is_movement or y.dtype not in MOVED and not y.dtype.is_half or is_dynamic(op):
            return False
        if target.big_endian or lanes(target) < 2 or not y.size:
            return False
        return transposed_loop(op, _side(w)) is not None

    def values(self, w: Workload[Map], params: Params, target: Target) -> dict[str, object]:
        """Return the loops around, both loops of a square, and where it is read and written."""
        op, side = w.op, _side(w)
        d = transposed_loop(op, side)
        assert d is not None
        names, rows = loop_names("i", op.shape), op.shape[d]
        kept = [k for k in range(len(op.shape) - 1) if k != d]
        steps, view = dense(op.shape).strides, op.views[0]
        variables = [names[k][0] for k in kept]
        return {
            "element": w.outputs[0].dtype.c, "outer": [names[k] for k in kept],
            "rows": rows, "columns": op.shape[-1], "side": side,
            "size": WORD // side, "words": min(WORDS, 1 << (rows // side).bit_length() - 1),
            "beside": next(k for k in (4, 2, 1) if op.shape[-1] >= k * side),
            "row_step": steps[d], "column_step": view.strides[-1],
            "source": address(View(tuple(view.strides[k] for k in kept), view.offset), variables),
            "target": address(View(tuple(steps[k] for k in kept)), variables),
        }  # fmt: skip

    def cost(self, w: Workload[Map], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.25 * loop_cycles(w)


def _side(w: Workload[Map]) -> int:
    """Return the rows and columns of a square: the elements of a word."""
    return WORD // w.outputs[0].dtype.itemsize


KERNELS = (MapTransposeBytes(),)
