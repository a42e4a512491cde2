"""Maximum pooling that tells where the maxima are, as gradients need it: columns in vectors."""

from __future__ import annotations

from math import prod

from atc.backends.cpu.conv.pool_planes import pooled_axes
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Pool

TAP = 1.5
"""Cycles for an element of a window: most of them gather it."""


class PoolPlaces(Kernel[Pool]):
    """The largest float of each window and its index; the number of its tap is kept in a lane."""

    name = "pool_places"
    op = Pool
    template = "cpu/conv/pool_places.c.j2"
    portable = False

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Floats of known shapes, indices by rows, one or two axes, no empty window."""
        op, x = w.op, w.input(0)
        known = not is_dynamic((x, *w.outputs)) and x.dtype is DType.FLOAT and x.size < 2**31
        if op.how != "Max" or len(w.outputs) != 2 or op.storage_order or not known:
            return False
        if op.window.rank > 2 or lanes(target) < 2:
            return False
        rows, cols = pooled_axes(w)
        low, high = cols.interior
        return rows.covered and cols.covered and high - low >= lanes(target)

    def values(self, w: Workload[Pool], params: Params, target: Target) -> dict[str, object]:
        """Rows, columns and those of them that vectors take."""
        rows, cols = pooled_axes(w)
        low, high = cols.interior
        line, width = rows.dilation * cols.size, lanes(target)
        return {
            "outer": prod(w.input(0).shape[:2]), "rows": rows, "cols": cols, "line": line,
            "low": low, "high": high, "lanes": width,
            "columns": [k * cols.stride for k in range(width)],
            "taps": [kh * line + kw * cols.dilation for kh in range(rows.kernel)
                     for kw in range(cols.kernel)],
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: Params, target: Target) -> float:
        """Estimated cycles."""
        return TAP * w.outputs[0].size * prod(w.op.window.kernel)


KERNELS = (PoolPlaces(),)
