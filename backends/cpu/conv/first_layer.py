"""First layers: products of neighbouring pixels of one channel, as many as fill a word.

x, a few channels one after the other, is copied to scratch with its zero point around it: bytes as
they are, floats rounded to bfloat16. So many taps of a row of the window, zeros behind its last
one, meet the pixels under them: for any stride that is a word of the copied row. Words of few
channels would be partly empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.bf16 import PAIR, ROUNDING, pair_values
from atc.backends.cpu.conv.blocked import cheapest
from atc.backends.cpu.conv.dot_product import WORD, Words, tile_sets
from atc.backends.cpu.conv.filter_panels import PanelParams, ungrouped
from atc.backends.cpu.conv.int8 import (
    behind_starts,
    byte_elements,
    byte_values,
    in_int8x4,
    in_whole_words,
    int8x4_cycles,
    int8x4_sets,
    packed_int8x4,
    reading_of,
    splits,
    zero_point,
)
from atc.backends.cpu.conv.word_reads import WordReads
from atc.backends.cpu.matmul.int8 import Reading, reading
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.bfloat16 import rounded_bits
from atc.backends.render.epilogue import sums_floats
from atc.backends.render.tile_geometry import Geometry, geometry, panels
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

COPIED = 0.1
"""Cycles of a byte that is copied."""


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
        """The elements of one tap of what `bodies` count."""
        return self.per

    def bodies(self) -> list[dict[str, int]]:
        """One loop over the channels."""
        return [{"first": 0, "count": self.g.ic, "steps": 1, "u": 1, "blocks": 1}]

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
class Image:
    """An image in scratch: `height` x `width` elements a channel.

    Of x it has the first `kept` rows and `columns`, `top` rows and `left` columns from its corner;
    windows begin `skip` columns from there.
    """

    height: int
    width: int
    top: int
    left: int
    kept: int
    columns: int
    skip: int = 0


def copied(g: Geometry, per: int) -> Image:
    """Return where the image of a convolution lies: as much as the words of its windows meet."""
    rows, cols = g.rows, g.cols
    height = (rows.out - 1) * rows.stride + (rows.kernel - 1) * rows.dilation + 1
    width = (cols.out - 1) * cols.stride + cols.kernel + -cols.kernel % per
    kept = max(0, min(rows.size, height - rows.pad))
    columns = max(0, min(cols.size, width - cols.pad))
    return Image(height, width, min(rows.pad, height), min(cols.pad, width), kept, columns)


def in_whole_pairs(g: Geometry) -> Image:
    """Return such an image whose rows, and those of x in it, are whole pairs of elements."""
    met, cols = copied(g, PAIR), g.cols
    left = cols.pad + cols.pad % PAIR
    skip = left - cols.pad
    width = max(left + cols.size, skip + met.width)
    return replace(met, width=width + width % PAIR, left=left, columns=cols.size, skip=skip)


class FirstLayer(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution of few plain channels with tiles of p pixels x nv vectors.

    `per` pixels of `itemsize` bytes make a word.
    """

    op = ConvBlocked
    template = "cpu/conv/first_layer.c.j2"
    portable = False
    batches = True
    bitwise_reproducible = True
    per: int
    itemsize: int

    def able(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Return whether words of such elements can be multiplied on a target."""
        raise NotImplementedError

    def image(self, g: Geometry) -> Image:
        """Return where the image of a convolution lies in scratch."""
        return copied(g, self.per)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
        """Return all parameter sets: tiles that fit the registers."""
        return tile_sets(w, target)

    def words(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> Words:
        """Return the convolution of the image in scratch as parameters cut it."""
        g = geometry(w, params.p)
        image = self.image(g)
        rows = replace(g.rows, size=image.height, pad=0)
        taps = -(-g.cols.kernel // self.per)
        cols = replace(g.cols, size=image.width, kernel=taps, dilation=self.per, pad=0)
        idle = -g.cols.kernel % self.per
        return PixelWords(
            replace(g, rows=rows, cols=cols), params.p, params.nv, self.per, idle=idle
        )

    def pack(
        self, dense: Array, taps: Array, words: Words, zero: int, target: Target
    ) -> Array:
        """Return weights, in rows of `taps` and not, in the order of use."""
        raise NotImplementedError

    def reading(self, w: Workload[ConvBlocked], target: Target) -> Reading:
        """Return how the bytes of x are read."""
        return reading_of(w, target)

    def image_values(self, w: Workload[ConvBlocked], padding: int) -> dict[str, object]:
        """Return how the image is made, with a byte of padding."""
        g = geometry(w, 1)
        image = self.image(g)
        return {
            "source": f"image + {image.skip}" if image.skip else "image", "converted": True,
            "image": image, "axes": g, "padding": padding, "given": w.input(0).dtype.c,
            "itemsize": self.itemsize, "rounds": self.precision == "bf16",
        }  # fmt: skip

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Plain channels, known weights of one group, one or two axes, dense taps across."""
        fits = w.op.window.rank <= 2 and w.constant[1] and w.op.group == 1
        if not fits or not self.able(w, target):
            return False
        g = geometry(w, 1)
        return g.plain and g.cols.dilation == 1 and g.cols.kernel > 1

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Words of weights in the order of use."""
        words, g = self.words(w, params, target), geometry(w, 1)
        zero = zero_point(w, target, self.reading(w, target))

        def pack(weights: Array) -> Array:
            dense = ungrouped(weights, g, 1)
            taps = dense.reshape(*dense.shape[:-1], g.rows.kernel, g.cols.kernel)
            return self.pack(dense, taps, words, zero, target)

        return {1: pack}

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """One image."""
        g = geometry(w, 1)
        image = self.image(g)
        return g.ic * image.height * image.width * self.itemsize


class ConvFirstBytes(FirstLayer):
    """Words of four bytes."""

    name = "conv_first_bytes"
    per = WORD
    itemsize = 1

    def able(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes in whole words."""
        return in_whole_words(w, target)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
        """Return all parameter sets: tiles that fit the registers, as words are multiplied."""
        return int8x4_sets(w, target)

    def words(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> Words:
        """Return words with weights as they are multiplied on a target."""
        return in_int8x4(super().words(w, params, target), target)

    def reading(self, w: Workload[ConvBlocked], target: Target) -> Reading:
        """Return how bytes are read: taps meet the zero point where others meet padding."""
        return reading_of(w, target) if splits(target) else reading(target)

    def pack(
        self, dense: Array, taps: Array, words: Words, zero: int, target: Target
    ) -> Array:
        """Return the bytes, behind what the sums start with."""
        return behind_starts(packed_int8x4(words, taps, target), dense, zero)

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the copied image lies."""
        words, read = self.words(w, params, target), self.reading(w, target)
        values = byte_values(w, words, target, byte_elements(w, words, target, read), read)
        return {**values, **self.image_values(w, w.op.zero & 255)}

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        copying = COPIED * w.outputs[0].shape[0] * self.scratch(w, params, target)
        return int8x4_cycles(target, self.words(w, params, target)) + copying


class ConvFirstBf16(FirstLayer):
    """Words of two numbers of bfloat16."""

    name = "conv_first_bf16"
    headers = ("bf16",)
    precision = "bf16"
    per = PAIR
    itemsize = 2

    def able(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Floats, on a target that multiplies bfloat16."""
        wide = w.outputs[0].shape[-1] == lanes(target)
        return "avx512_bf16" in target.features and wide and sums_floats(w)

    def image(self, g: Geometry) -> Image:
        """Return where the image lies: it is rounded by pairs."""
        return in_whole_pairs(g)

    def pack(
        self, dense: Array, taps: Array, words: Words, zero: int, target: Target
    ) -> Array:
        """Return pairs of weights, each in a float of the result."""
        return words.pack(rounded_bits(taps)).view(np.float32)

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the rounded image lies."""
        reads = WordReads("v_cast_f32(v_i32_broadcast({}))")
        values = pair_values(w, self.words(w, params, target), target, reads)
        return {**values, **self.image_values(w, 0)}

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        words, g = self.words(w, params, target), geometry(w, 1)
        rounding = g.batch * g.ic * g.rows.size * (g.cols.size / g.block + 4) * ROUNDING
        return words.cycles(target.machine.of_pairs) + rounding


KERNELS = (ConvFirstBytes(), ConvFirstBf16())
