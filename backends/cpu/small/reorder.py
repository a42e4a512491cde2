"""Block and Unblock of bytes where one block holds all channels: these then lie last."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TypeVar

from atc.backends.kernel import Kernel, StripedParams, Workload
from atc.backends.render.stripes import InStripes, stripes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import TensorType
from atc.ir.ops import Block, Unblock
from atc.ir.ops.blocked import BYTES

ReorderT = TypeVar("ReorderT", Block, Unblock)
AT_ONCE = 4
"""Channels that are moved in one iteration of the loop over pixels."""
BYTE = 2.8
"""Instructions that a byte takes."""


class _ChannelsLast(InStripes[ReorderT, StripedParams], Kernel[ReorderT, StripedParams]):
    template = "cpu/small/reorder.c.j2"

    def accepts(self, w: Workload[ReorderT], target: Target) -> bool:
        """Bytes, all channels in one block."""
        plain, last = _sides(w)
        whole = last.shape[1] == 1 and last.shape[-1] == plain.shape[1]
        return target.bytes_last and plain.dtype in BYTES and whole and not is_dynamic(w)

    def parameters(self, w: Workload[ReorderT], target: Target) -> Sequence[StripedParams]:
        """All rows at once."""
        return (StripedParams(),)

    def values(
        self, w: Workload[ReorderT], params: StripedParams, target: Target
    ) -> dict[str, object]:
        """Extents, and which way the data goes."""
        plain, _ = _sides(w)
        channels, rows = plain.shape[1], plain.shape[2] if len(plain.shape) > 2 else 1
        s, row = stripes(params, rows, rows), prod(plain.shape[3:])
        return {
            "into": isinstance(w.op, Block), "batch": plain.shape[0], "channels": channels,
            "rows": rows, "row": row, "s": s, "element": plain.dtype.c,
            "each": AT_ONCE, "rest": channels % AT_ONCE,
        }  # fmt: skip

    def cost(self, w: Workload[ReorderT], params: StripedParams, target: Target) -> float:
        """Estimated instructions."""
        return BYTE * w.outputs[0].size


class BlockLast(_ChannelsLast[Block]):
    """Planes to channels last."""

    name = "bytes_to_last"
    op = Block


class UnblockLast(_ChannelsLast[Unblock]):
    """Channels last to planes."""

    name = "bytes_to_planes"
    op = Unblock


def _sides(w: Workload[ReorderT]) -> tuple[TensorType, TensorType]:
    """Return the types of the plain and of the other tensor."""
    x = w.input(0)
    return (x, w.outputs[0]) if isinstance(w.op, Block) else (w.outputs[0], x)


KERNELS = (BlockLast(), UnblockLast())
