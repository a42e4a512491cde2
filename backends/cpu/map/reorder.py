"""Block and Unblock: [N, C, *spatial] to and from [N, C / b, *spatial, b], square by square.

Blocks are as wide as vectors, or hold all channels: these then lie last.
"""

from __future__ import annotations

from math import prod

from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.vector_expr import BYTES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Block, Unblock

WORD = 4
"""Bytes in a word."""
AT_ONCE, INTERLEAVING = 16, 8.0
"""Words that NEON's instructions take apart into vectors of bytes, or put together; cycles."""
STARTED, EXECUTED = 0.2, 0.1
"""Cycles per element of a square: of its instructions, and of vectors as wide as the units."""
ACROSS = 3.0
"""How many times as long as bytes from beyond the L2 cache those take that are read or written
across the order of lines."""
FEW = 4
"""Planes that are read or written at once as any few streams are."""

Relayout = Block | Unblock


class _Reorder(Kernel[Relayout]):
    template = "cpu/map/reorder.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[Relayout], target: Target) -> bool:
        """Floats or bytes in blocks as wide as vectors, or in one block of all channels."""
        plain, blocked = _sides(w)
        known = blocked.dtype in (DType.FLOAT, *BYTES) and lanes(target) > 1
        return known and blocked.shape[-1] in (lanes(target), plain.shape[1])

    def values(self, w: Workload[Relayout], params: Params, target: Target) -> dict[str, object]:
        """Extents, steps in the blocked tensor, and which way the data goes."""
        plain, blocked = _sides(w)
        channels, block, wide = plain.shape[1], blocked.shape[-1], lanes(target)
        pixels = prod(plain.shape[2:])
        return {
            "into": isinstance(w.op, Block), "batch": plain.shape[0], "channels": channels,
            "lanes": wide, "blocks": -(-channels // wide), "pixels": pixels,
            "whole": pixels // wide * wide if plain.dtype is DType.FLOAT else 0,
            "rest": channels % wide, "element": plain.dtype.c, "image": prod(blocked.shape[1:]),
            "step": block, "stride": pixels * wide if block == wide else wide,
            "padded": block == wide,
        }  # fmt: skip

    def cost(self, w: Workload[Relayout], params: Params, target: Target) -> float:
        """Cycles of squares and of what is left over."""
        plain, _ = _sides(w)
        channels, pixels, wide = plain.shape[1], prod(plain.shape[2:]), lanes(target)
        square = plain.dtype is DType.FLOAT
        inside = channels // wide * wide * (pixels // wide * wide) if square else 0
        machine = target.machine
        each = STARTED + EXECUTED * max(1.0, target.vector_bytes / machine.datapath)
        cycles = each * inside + 1.2 * (channels * pixels - inside)
        if wide > FEW and not is_dynamic(plain) and plain.nbytes > machine.nearby:
            cycles += ACROSS * 2 * channels * pixels * plain.dtype.itemsize / machine.far_rate
        return plain.shape[0] * cycles


class BlockChannels(_Reorder):
    """Plain to blocked; lanes past the last channel become zero."""

    name = "block"
    op = Block


class UnblockChannels(_Reorder):
    """Blocked to plain."""

    name = "unblock"
    op = Unblock


class _Bytes(Kernel[Relayout]):
    """Relayouts of bytes, four channels of a vector of pixels in words at a time."""

    template = "cpu/map/reorder_int8.c.j2"
    portable = False
    dynamic = True
    pixel = 2.2
    byte = 0.0

    def accepts(self, w: Workload[Relayout], target: Target) -> bool:
        """Bytes in blocks as wide as vectors, of whole words."""
        plain, blocked = _sides(w)
        lane = blocked.shape[-1] == lanes(target) > 1 and lanes(target) % WORD == 0
        return blocked.dtype in BYTES and lane

    def values(self, w: Workload[Relayout], params: Params, target: Target) -> dict[str, object]:
        """Extents; the blocks by how many channels they have: (first, last, channels)."""
        plain, blocked = _sides(w)
        channels, block = plain.shape[1], blocked.shape[-1]
        full, rest = divmod(channels, block)
        pixels = prod(plain.shape[2:])
        parts = [(0, full, block), (full, full + 1, rest)]
        at_once = AT_ONCE if interleaves(target) else 0
        whole = pixels // (at_once or block) * (at_once or block)
        return {
            "into": isinstance(w.op, Block), "batch": plain.shape[0], "channels": channels,
            "lanes": block, "blocks": blocked.shape[1], "pixels": pixels, "word": WORD,
            "whole": whole, "parts": [p for p in parts if p[1] > p[0] and p[2]],
            "at_once": at_once,
            "again": isinstance(pixels, int) and 0 < at_once < pixels and pixels != whole,
        }  # fmt: skip

    def cost(self, w: Workload[Relayout], params: Params, target: Target) -> float:
        """Cycles of every pixel of a block and of its bytes, as they were measured."""
        plain, blocked = _sides(w)
        pixels = plain.shape[0] * prod(plain.shape[2:])
        if interleaves(target):
            return pixels / AT_ONCE * blocked.shape[1] * INTERLEAVING
        return pixels * (self.pixel * blocked.shape[1] + self.byte * plain.shape[1])


class BlockBytes(_Bytes):
    """Bytes from plain to blocked; lanes past the last channel become zero."""

    pixel = 3.5

    name = "block_bytes"
    op = Block


class UnblockBytes(_Bytes):
    """Bytes from blocked to plain."""

    byte = 0.33

    name = "unblock_bytes"
    op = Unblock


def interleaves(target: Target) -> bool:
    """Return whether instructions take bytes of words apart, and put them together."""
    return target.simd == "neon"


def _sides(w: Workload[Relayout]) -> tuple[TensorType, TensorType]:
    """Return the types of the plain and the blocked tensor."""
    x = w.input(0)
    return (x, w.outputs[0]) if isinstance(w.op, Block) else (w.outputs[0], x)


KERNELS = (BlockChannels(), UnblockChannels(), BlockBytes(), UnblockBytes())
