"""Maximum pooling of bytes: first down whole rows, then across; loops that compilers vectorise."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.axis import Axis, rows_and_columns, window_axes
from atc.backends.render.vector_expr import BYTES, lanes
from atc.backends.target import Target
from atc.dims import Dim, is_dynamic, max_value, maximum
from atc.ir.ops import Pool

UNROLLED = 16
"""The most taps along an axis that are written one by one."""


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
        """Reserve a row of maxima down, and one of those across."""
        axes, inner = _axes(w)
        down, across = rows_and_columns(axes)
        return max_value(across.size * inner) * ((down.kernel > 1) + _strided(across, inner))

    def values(self, w: Workload[Pool], params: Params, target: Target) -> dict[str, object]:
        """Rows and columns, and how their taps are taken."""
        axes, inner = _axes(w)
        down, across = rows_and_columns(axes)
        y = w.outputs[0]
        begin, end = _whole(across)
        known = not is_dynamic((across, inner)) and across.kernel <= UNROLLED
        return {
            "outer": prod(y.shape[:2]), "down": down, "across": across, "inner": inner,
            "rows": range(down.kernel) if down.kernel <= UNROLLED else (),
            "begin": begin, "end": end,
            "before": _places(across, range(begin)) if known else None,
            "behind": _places(across, range(end, across.out)) if known else None,
            "taps_at": lambda name, places: [f"{name}[{k * inner} + j]" for k in places],
            "down_taps": [f"r{k}[j]" for k in range(down.kernel)],
            "strided": _strided(across, inner), "element": y.dtype.c,
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: Params, target: Target) -> float:
        """Estimated cycles: vectors of bytes, down and across."""
        axes, inner = _axes(w)
        taps = sum(a.kernel for a in axes)
        plain = 8.0 if axes[-1].stride == 1 else 4.0
        return prod(w.outputs[0].shape) * taps / (24.0 if inner > 1 else plain)


def _whole(across: Axis) -> tuple[int, int]:
    """Return the outputs [begin, end) whose taps all lie inside the input; none of many taps."""
    if across.kernel > UNROLLED:
        return 0, 0
    begin = across.tap_range(0)[0]
    return begin, maximum(begin, across.tap_range(across.kernel - 1)[1])


def _places(across: Axis, outputs: Iterable[int]) -> list[tuple[int, list[int]]]:
    """Return the places inside the input that each output's taps meet."""
    taps = [
        (o, range(o * across.stride - across.pad, o * across.stride - across.pad + across.kernel))
        for o in outputs
    ]
    return [(o, [k for k in places if 0 <= k < across.size]) for o, places in taps]


def _strided(across: Axis, inner: int | Dim) -> bool:
    """Return whether outputs are some of the maxima of all places, which are read in vectors."""
    begin, end = _whole(across)
    return across.stride > 1 and inner == 1 and begin != end


def _axes(w: Workload[Pool]) -> tuple[list[Axis], int]:
    """Return the axes that are pooled over, and the elements behind each of their places."""
    op, x, y = w.op, w.input(0), w.outputs[0]
    axes = window_axes(op.window, y.shape[2:], x.shape[2:])
    inner = 1
    while len(axes) > 1 and axes[-1] == Axis(axes[-1].size, axes[-1].size):
        inner *= axes.pop().size
    return axes, inner


KERNELS = (PoolBytes(),)
