"""Maximum pooling of bytes with the channels last: four or sixteen channels at a time."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from atc.backends.cpu.small.depthwise import MOST_UNROLLED
from atc.backends.cpu.small.runs import instructions
from atc.backends.kernel import Kernel, StripedParams, Workload
from atc.backends.render.axis import Axis, plane_axes
from atc.backends.render.stripes import InStripes, stripes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Pool
from atc.ir.ops.blocked import BYTES

WIDTHS = {"mve": 16, "dsp": 4, "c": 1}
"""Channels that one instruction compares."""


class PoolLastBytes(InStripes[Pool, StripedParams], Kernel[Pool, StripedParams]):
    """The largest byte of each window, every channel for itself."""

    name = "pool_last_bytes"
    op = Pool
    template = "cpu/small/pool.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Return whether it is a maximum over rows and columns, and no window is empty."""
        op, y = w.op, w.outputs[0]
        if not target.bytes_last or op.how != "Max" or len(w.outputs) > 1 or is_dynamic(w):
            return False
        if y.dtype not in BYTES or op.window.rank != 3 or len(y.shape) != 5 or 0 in y.shape:
            return False
        own, inner = op.window, (op.window.kernel[2], op.window.strides[2], op.window.pads[2])
        return inner == (1, 1, 0) and set(own.dilations) == {1} and all(a.covered for a in _axes(w))

    def parameters(self, w: Workload[Pool], target: Target) -> Sequence[StripedParams]:
        """All rows at once."""
        return (StripedParams(),)

    def values(self, w: Workload[Pool], params: StripedParams, target: Target) -> dict[str, object]:
        """Return the geometry."""
        y, kind = w.outputs[0], instructions(target)
        rows, cols = _axes(w)
        return {
            "outer": prod(y.shape[:2]), "rows": rows, "cols": cols, "channels": y.shape[-1],
            "element": y.dtype.c, "sign": "u" if y.dtype is DType.UINT8 else "s", "kind": kind,
            "wide": WIDTHS[kind], "s": stripes(params, rows.size, rows.out),
            "inside": all(a.interior == (0, a.out) for a in (rows, cols)),
            "straight": rows.kernel * cols.kernel <= MOST_UNROLLED,
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: StripedParams, target: Target) -> float:
        """Estimated instructions."""
        rows, cols = _axes(w)
        taps, wide = rows.kernel * cols.kernel, WIDTHS[instructions(target)]
        return w.outputs[0].size / wide * (3.5 * taps + 5)


def _axes(w: Workload[Pool]) -> tuple[Axis, Axis]:
    """Return rows and columns."""
    x, y = w.input(0), w.outputs[0]
    return plane_axes(w.op.window, y.shape[2:4], x.shape[2:4])


KERNELS = (PoolLastBytes(),)
