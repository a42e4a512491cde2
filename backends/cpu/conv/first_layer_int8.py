"""First layers of bytes: products of four neighbouring pixels of one channel at a time.

x, a few channels one after the other, is copied to scratch with its zero point around it. Four taps
of a row of the window, zeros behind its last one, meet the four pixels under them: for any stride
that is a word of the copied row. Words of few channels would be partly empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.conv.blocked import PanelParams, cheapest, ungrouped
from atc.backends.cpu.conv.dot_product import Words
from atc.backends.cpu.conv.first_layer_bf16 import PixelWords
from atc.backends.cpu.conv.int8 import (
    QUAD,
    behind_starts,
    byte_values,
    in_int8x4,
    in_whole_words,
    int8x4_cycles,
    int8x4_sets,
    packed_int8x4,
    unsigned_zero,
)
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.tile_geometry import Geometry, geometry
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

COPIED = 0.1
"""Cycles of a byte that is copied."""


@dataclass(frozen=True)
class Copied:
    """An image in scratch: `height` x `width` pixels a channel, of x the first `kept` rows and
    `columns`, `top` rows and `left` columns from its corner."""

    height: int
    width: int
    top: int
    left: int
    kept: int
    columns: int


def copied(g: Geometry) -> Copied:
    """Return where the image of a convolution lies: as much as the words of its windows meet."""
    rows, cols = g.rows, g.cols
    height = (rows.out - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1
    width = (cols.out - 1) * cols.stride + cols.kernel + -cols.kernel % QUAD
    kept = max(0, min(rows.size, height - rows.pad))
    columns = max(0, min(cols.size, width - cols.pad))
    return Copied(height, width, min(rows.pad, height), min(cols.pad, width), kept, columns)


def in_pixels(w: Workload[ConvBlocked], params: PanelParams, target: Target) -> Words:
    """Return the convolution of the copied image as parameters cut it."""
    p, nv = params.p, params.nv
    g = geometry(w, p)
    image = copied(g)
    rows = replace(g.rows, size=image.height, pad=0)
    taps = -(-g.cols.kernel // QUAD)
    cols = replace(g.cols, size=image.width, kernel=taps, dilation=QUAD, pad=0)
    return in_int8x4(PixelWords(replace(g, rows=rows, cols=cols), p, nv, QUAD), target)


class ConvBytesFew(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution of few plain channels of bytes, p pixels x nv vectors."""

    name = "conv_bytes_few"
    op = ConvBlocked
    template = "cpu/conv/first_layer_int8.c.j2"
    portable = False
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Plain bytes, known weights of one group, two spatial axes or one, dense taps across."""
        if not in_whole_words(w, target) or w.op.group != 1:
            return False
        g = geometry(w, 1)
        return g.plain and g.cols.dilation == 1 and g.cols.kernel > 1

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, int8x4_sets(w, target), w, target, 4)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Words of weights in the order of use, behind what the sums start with."""
        words, g, zero = in_pixels(w, params, target), geometry(w, 1), unsigned_zero(w)

        def pack(weights: Array) -> Array:
            dense = ungrouped(weights, g, 1)
            taps = dense.reshape(*dense.shape[:-1], g.rows.kernel, g.cols.kernel)
            return behind_starts(packed_int8x4(words, taps), dense, zero)

        return {1: pack}

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """One image."""
        g = geometry(w, 1)
        image = copied(g)
        return g.ic * image.height * image.width

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the image lies."""
        op, g = w.op, geometry(w, 1)
        return {
            **byte_values(w, in_pixels(w, params, target), target),
            "source": "image", "converted": True, "image": copied(g), "axes": g,
            "padding": op.zero & 255,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        copying = COPIED * w.outputs[0].shape[0] * self.scratch(w, params, target)
        return int8x4_cycles(target.machine, in_pixels(w, params, target)) + copying


KERNELS = (ConvBytesFew(),)
