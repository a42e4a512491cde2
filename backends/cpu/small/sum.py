"""Sums of bytes over pixels, with the channels last (global average pooling): four at a time."""

from __future__ import annotations

from atc.backends.cpu.map.reduce import merged
from atc.backends.cpu.small.requantize import result_lines
from atc.backends.cpu.small.runs import instructions
from atc.backends.kernel import Kernel, Params, Workload, loop_cycles
from atc.backends.render.expr import address
from atc.backends.render.loops import loop_names
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.expr import Call, Input
from atc.ir.graph import DType
from atc.ir.ops import Reduce
from atc.ir.ops.blocked import BYTES
from atc.ir.view import View, dense

FOUR = 4
"""Channels that are summed at a time."""
MOST = 256
"""Bytes whose sum a signed number of 16 bits holds, -32,768 among them; unsigned ones: half."""


class SumLastBytes(Kernel[Reduce]):
    """The sum of each channel over rows of pixels, in pairs of 16 bits or in vectors."""

    name = "sum_last_bytes"
    op = Reduce
    template = "cpu/small/sum.c.j2"
    headers = ("small",)
    bitwise_reproducible = True

    def accepts(self, w: Workload[Reduce], target: Target) -> bool:
        """Return whether bytes are summed in integers, over what lies around four or more."""
        op = w.op
        if not target.bytes_last or instructions(target) == "c" or is_dynamic(w):
            return False
        match op.expr:
            case Call(fn="Cast", dtype=DType.INT32, args=(Input(_, 0) as x,)) if x.dtype in BYTES:
                plain = op.how == "Sum" and len(op.views) == 1 and not op.coordinates
            case _:
                return False
        if not plain or 0 in (*op.shape, *op.reduced):
            return False
        op = merged(op)
        last = len(op.shape) - 1
        return last >= 0 and op.shape[last] >= FOUR and op.views[0].strides[last] == 1

    def values(self, w: Workload[Reduce], params: Params, target: Target) -> dict[str, object]:
        """Return loops, strides and the stored value of a sum."""
        op = merged(w.op)
        kept, unsigned = len(op.shape), w.input(0).dtype is DType.UINT8
        view, outer = op.views[0], loop_names("i", op.shape[:-1])
        around = [v for v, _ in outer]
        reduced, strides = op.reduced or (1,), view.strides[kept:] or (0,)
        inner = loop_names("j", reduced[:-1])
        own = View((*view.strides[: kept - 1], *strides[:-1]), view.offset)
        same = View(dense(op.shape).strides[:-1])

        def result(total: str, channel: str) -> tuple[list[str], str]:
            return result_lines(op.epilogue, w, 1, [*around, channel], total, channel)

        return {
            "kind": instructions(target), "unsigned": unsigned, "element": w.input(0).dtype.c,
            "outer": outer, "inner": inner, "channels": op.shape[-1], "pixels": reduced[-1],
            "step": strides[-1], "most": MOST // 2 if unsigned else MOST, "result": result,
            "made": w.outputs[0].dtype.c,
            "source": address(own, [*around, *(v for v, _ in inner)]),
            "target": address(same, around),
        }  # fmt: skip

    def cost(self, w: Workload[Reduce], params: Params, target: Target) -> float:
        """Return a part of the scalar loops' cycles."""
        return 0.3 * loop_cycles(w)


KERNELS = (SumLastBytes(),)
