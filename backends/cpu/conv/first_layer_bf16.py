"""First layers in bfloat16: products of pairs of neighbouring pixels of one channel.

x, a few channels one after the other, is rounded to bfloat16 in scratch with zeros around it. A
pair of taps of a row of the window, the second of the last one zero where their number is odd,
meets the pair of pixels under it: for any stride that is a word of the rounded row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.bf16 import PAIR, ROUNDING, to_bf16
from atc.backends.cpu.conv.blocked import PanelParams, cheapest, ungrouped
from atc.backends.cpu.conv.dot_product import Words, tile_sets
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.tile_geometry import Geometry, geometry, panels
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked


@dataclass(frozen=True)
class PixelWords(Words):
    """A convolution of plain channels in tiles: a word is `per` neighbouring pixels of one channel.

    `g` is that of the image in scratch: no padding, and words of taps across.
    """

    @property
    def depth(self) -> int:
        """The words of weights that one output meets."""
        return self.g.ic * self.g.taps

    @property
    def lines(self) -> int:
        """Nothing is prefetched: there are few weights."""
        return 0

    @property
    def unit(self) -> int:
        """The words of one tap of what `bodies` count."""
        return 1

    def bodies(self) -> list[dict[str, int]]:
        """One loop over the channels."""
        return [{"first": 0, "count": self.g.ic, "steps": 1, "u": 1}]

    def pack(self, dense: Array) -> Array:
        """Return weights [1, blocks * block, ic, rows of taps, taps] in the order of use."""
        g, per = self.g, self.per
        whole = np.pad(dense[0], ((0, 0), (0, 0), (0, 0), (0, -dense.shape[-1] % per)))
        parts = []
        for m, n in zip(range(0, g.mb, self.nv), panels(g.mb, self.nv), strict=True):
            panel = whole[m * g.block : (m + n) * g.block]
            words = panel.reshape(n * g.block, g.ic, g.taps, per)
            parts.append(words.transpose(1, 2, 0, 3).reshape(-1))
        return np.concatenate(parts)


@dataclass(frozen=True)
class Rounded:
    """An image in scratch: `height` x `width` pixels a channel, x `top` rows and `left` columns
    from its corner, of which rows the first `kept`; windows begin `skip` columns from there."""

    height: int
    width: int
    top: int
    left: int
    skip: int
    kept: int


def rounded(g: Geometry) -> Rounded:
    """Return where the rounded image of a convolution lies, rows and x in whole words."""
    rows, cols = g.rows, g.cols
    height = (rows.out - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1
    left = cols.pad + cols.pad % PAIR
    skip = left - cols.pad
    met = skip + (cols.out - 1) * cols.stride + cols.kernel + cols.kernel % PAIR
    width = max(left + cols.size, met)
    kept = max(0, min(rows.size, height - rows.pad))
    return Rounded(height, width + width % PAIR, rows.pad, left, skip, kept)


def in_pixels(w: Workload[ConvBlocked], params: PanelParams) -> PixelWords:
    """Return the convolution of the rounded image as parameters cut it."""
    p, nv = params.p, params.nv
    g = geometry(w, p)
    image = rounded(g)
    rows = replace(g.rows, size=image.height, pad=0)
    taps = -(-g.cols.kernel // PAIR)
    cols = replace(g.cols, size=image.width, kernel=taps, dilation=PAIR, pad=0)
    return PixelWords(replace(g, rows=rows, cols=cols), p, nv, PAIR)


class ConvBf16Few(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution of few plain channels, p pixels x nv vectors, products in bfloat16."""

    name = "conv_bf16_few"
    op = ConvBlocked
    template = "cpu/conv/first_layer_bf16.c.j2"
    portable = False
    bitwise_reproducible = True
    headers = ("bf16",)
    precision = "bf16"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Plain floats, known weights of one group, two spatial axes or one, dense taps across."""
        op, y = w.op, w.outputs[0]
        able = "avx512_bf16" in target.features and y.shape[-1] == lanes(target)
        fits = able and op.window.rank <= 2 and w.constant[1] and sums_floats(w)
        if not fits or op.group != 1:
            return False
        g = geometry(w, 1)
        return g.plain and g.cols.dilation == 1 and g.cols.kernel > 1

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, tile_sets(w, target), w, target, 4)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Pairs of weights in the order of use, two to a float of the result."""
        words, g = in_pixels(w, params), geometry(w, 1)

        def pack(weights: Array) -> Array:
            dense = to_bf16(ungrouped(weights, g, 1))
            taps = dense.reshape(*dense.shape[:-1], g.rows.kernel, g.cols.kernel)
            return words.pack(taps).view(np.float32)

        return {1: pack}

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """One image in bfloat16."""
        g = geometry(w, 1)
        image = rounded(g)
        return g.ic * image.height * image.width * 2

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the rounded image lies."""
        op, g = w.op, geometry(w, 1)
        words, image = in_pixels(w, params), rounded(g)
        epilogue = TileEpilogue(op.epilogue, w, words.g, target)
        return {
            **words.values(), "element": "uint16_t", "weight": "uint16_t",
            "result": w.outputs[0].dtype.c, "sums": "vf32", "dot": "v_dot_pairs_acc",
            "broadcast": "v_cast_f32(v_i32_broadcast({}))",
            "load": "v_load((const float *)(const void *)({}))", "flip": "",
            "start": epilogue.start, "started": False, "starts": 0,
            "source": f"pairs + {image.skip}" if image.skip else "pairs",
            "packed": "(const uint16_t *)(const void *)x1", "converted": True,
            "epilogue": epilogue, "image": image, "axes": g,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        words, g = in_pixels(w, params), geometry(w, 1)
        rounding = g.batch * g.ic * g.rows.size * (g.cols.size / g.block + 4) * ROUNDING
        return words.cycles(target.machine) + rounding


KERNELS = (ConvBf16Few(),)
