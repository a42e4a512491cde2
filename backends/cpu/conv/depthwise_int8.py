"""Depthwise convolution of bytes on NEON: products of 16 bits, summed in 32.

A load reads the channels of four pixels, blocks of four; each pair of them, less the zero point, is
a vector of integers of 16 bits, whose halves are multiplied by the weights of their taps.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from atc.backends.cpu.conv.depthwise import (
    Depthwise,
    Step,
    Windowed,
    WindowTiles,
    channelwise,
    element_values,
    is_bytes,
    pack_lanes,
)
from atc.backends.cpu.conv.dot_product import WORD
from atc.backends.cpu.conv.window_tiles import Tile, WindowParams, input_place, tile_values
from atc.backends.cpu.conv.word_reads import WordReads
from atc.backends.kernel import Pack, Workload
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

FASTER = 0.6
"""Cycles beside those of floats, which bytes must be made first."""
READS = WordReads(
    "v_i32_broadcast({})", "neon_words2({})", "neon_words4({})", WORD, input_place
)


class DepthwiseBytes(WindowTiles, Depthwise[WindowParams]):
    """Depthwise convolution of bytes, r x c outputs at a time."""

    name = "conv_depthwise_bytes"
    template = "cpu/conv/depthwise.c.j2"
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes, where halves of vectors of 16 bits are multiplied."""
        return target.simd == "neon" and is_bytes(w) and super().accepts(w, target)

    def packs(
        self, w: Workload[ConvBlocked], params: WindowParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights of 16 bits as [block][tap][lane], the lanes of each tap twice."""
        block = w.outputs[0].shape[-1]

        def pack(q: Array) -> Array:
            return np.tile(pack_lanes(q.astype(np.int16), block), 2).view(q.dtype)

        return {1: pack}

    def values(
        self, w: Workload[ConvBlocked], params: WindowParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles; each tap is a multiplication."""
        op = w.op
        g = channelwise(w, params)
        kind = w.input(0).dtype.label
        zero = f"v_i32_set1((int32_t)0x{op.zero % 256 * 0x01010101:08x}u)"

        def steps(tile: Tile) -> list[Step]:
            taps = tile.taps()
            pixels = [(str(k), tap.place) for k, tap in enumerate(taps)]
            found: list[Step] = []
            for read in READS.reads(pixels):
                lines = [f"q = {read.words};"]
                for half, part in enumerate(("first", "last")):
                    users = [
                        (c, f"neon_mla_{'high' if lane % 2 else 'low'}({c}, s, w{k})")
                        for number, lane in read.users
                        if lane // 2 == half
                        for c, k in taps[int(number)].users
                    ]
                    if users:
                        lines.append(f"s = neon_{part}_{kind}(q, zero);")
                        found.append((lines, users))
                        lines = []
            return found

        return {
            **tile_values(g, params), "weighted": True,
            "steps": steps, "variables": f"const vi32 zero = {zero};\n  vi32 q;\n  int16x8_t s;",
            "averaged": False, "sums": "vi32", "start": None,
            "epilogue": TileEpilogue(op.epilogue, w, g, target, DType.INT32),
            **element_values(w, "{0}"),
            "weights": "(const int16_t *)(const void *)x1", "weight": "int16_t",
            "tap": "int16x8_t", "tap_load": "vld1q_s16", "tap_size": 2 * g.block,
        }  # fmt: skip

    def cost(self, w: Workload[Windowed], params: WindowParams, target: Target) -> float:
        """Estimated cycles."""
        return FASTER * super().cost(w, params, target)


KERNELS = (DepthwiseBytes(),)
