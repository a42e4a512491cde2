"""Maximum pooling of bytes: first down whole rows, then across; loops that compilers vectorise."""

from __future__ import annotations

from math import prod

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.axis import Axis, rows_and_columns, window_axes
from atc.backends.render.vector_expr import BYTES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.ir.graph import DType
from atc.ir.ops import Pool


class PoolBytes(Kernel[Pool]):
    """The largest byte of each window, of blocked and of plain tensors."""

    name = "pool_bytes"
    op = Pool
    template = "cpu/conv/pool_int8.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Bytes, one or two axes to pool over, no dilation, no indices, no empty window."""
        op, y = w.op, w.outputs[0]
        if op.how != "Max" or len(w.outputs) > 1 or y.dtype not in BYTES or lanes(target) < 2:
            return False
        if is_dynamic(y.shape[1:2]) or set(op.window.dilations) != {1}:
            return False
        axes, _ = _axes(w)
        some = is_dynamic(y.size) or y.size > 0
        return 0 < len(axes) <= 2 and some and all(a.covered for a in axes)

    def scratch(self, w: Workload[Pool], params: Params, target: Target) -> int:
        """Reserve a row of maxima."""
        axes, inner = _axes(w)
        return max_value(axes[-1].size * inner)

    def values(self, w: Workload[Pool], params: Params, target: Target) -> dict[str, object]:
        """Rows and columns, and the outputs that each tap across reaches."""
        axes, inner = _axes(w)
        down, across = rows_and_columns(axes)
        y = w.outputs[0]
        return {
            "outer": prod(y.shape[:2]), "down": down, "across": across, "inner": inner,
            "taps": [(k, *across.tap_range(k)) for k in range(across.kernel)],
            "open": is_dynamic(across.out),
            "element": y.dtype.c, "lowest": "0" if y.dtype is DType.UINT8 else "INT8_MIN",
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: Params, target: Target) -> float:
        """Estimated cycles: vectors of bytes, down and across."""
        axes, inner = _axes(w)
        taps = sum(a.kernel for a in axes)
        return prod(w.outputs[0].shape) * taps / (24.0 if inner > 1 else 4.0)


def _axes(w: Workload[Pool]) -> tuple[list[Axis], int]:
    """Return the axes that are pooled over, and the elements behind each of their places."""
    op, x, y = w.op, w.input(0), w.outputs[0]
    axes = window_axes(op.window, y.shape[2:], x.shape[2:])
    inner = 1
    while len(axes) > 1 and axes[-1] == Axis(axes[-1].size, axes[-1].size):
        inner *= axes.pop().size
    return axes, inner


KERNELS = (PoolBytes(),)
