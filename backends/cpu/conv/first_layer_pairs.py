"""First layers of bytes where instructions sum two products in 16 bits: rows of up to eight taps.

x lies in scratch as `first_layer` says. A step multiplies the taps of a row of one channel, two
words of them, zeros behind the last, whose pairs are chosen among the eight; see `pair_packing`.
The windows of four neighbouring outputs lie in 16 bytes, which one shuffle makes their words of.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.cost import image_cycles
from atc.backends.cpu.conv.dot_product import WORD, Words
from atc.backends.cpu.conv.filter_panels import PanelParams
from atc.backends.cpu.conv.first_layer import COPIED, FirstLayer, Image, copied
from atc.backends.cpu.conv.int8 import byte_elements, in_whole_words, shift
from atc.backends.cpu.conv.int8_pairs import (
    in_a_row,
    pair_sets,
    pair_slowness,
    pair_values,
    place_at,
    sums_pairs,
)
from atc.backends.cpu.conv.pair_packing import Orders, PairWords, Staging, packed_pairs
from atc.backends.cpu.conv.word_reads import Pixels, Stage
from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.render.tile_geometry import Geometry, geometry
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

ROW = 8
"""Taps of a step: two words."""
TOGETHER = 4
"""Pixels whose windows are shuffled at once."""
LOADED = 16
"""Bytes that are read to that end."""


@dataclass(frozen=True, kw_only=True)
class RowWords(PairWords):
    """Words of rows of taps; `g` is that of the image in scratch, a row of taps one tap."""

    @property
    def depth(self) -> int:
        """The words of weights that one output meets."""
        return self.iterations * ROW // WORD

    @property
    def iterations(self) -> int:
        """The rows of taps of all channels."""
        return self.g.ic * self.g.taps

    @property
    def lines(self) -> int:
        """Nothing is prefetched: there are few weights."""
        return 0

    @property
    def unit(self) -> int:
        """The elements of a row of taps."""
        return ROW

    @property
    def staging(self) -> Staging:
        """Four windows are shuffled at once."""
        return (4, 4, 64), (2, 4, 2), (1, 4, 2)

    @property
    def order_size(self) -> int:
        """The places of the bytes of four pixels, and what changes those of one."""
        return TOGETHER * ROW + ROW

    def cycles(self, machine: Machine) -> float:
        """Estimate the cycles of all tiles, whose loops are over rows of taps, not over words."""
        g = replace(self.g, plain=False)
        return g.batch * image_cycles(machine, g, self.p, self.nv, self.depth)

    def bodies(self) -> list[dict[str, int]]:
        """One loop over the channels."""
        steps = ROW // WORD
        return [{"first": 0, "count": self.g.ic, "steps": steps, "u": steps, "blocks": 1}]

    def units(self, panel: Array) -> Array:
        """Return [lanes, ic, rows, taps] as [ic, rows, ROW, lanes], zeros behind the taps."""
        idle = ROW - panel.shape[-1]
        return np.pad(panel, ((0, 0), (0, 0), (0, 0), (0, idle))).transpose(1, 2, 3, 0)

    def places(self, step: Orders, tap: Orders, word: Orders) -> Orders:
        """Return where words of a channel and a row of taps lie in the image, in bytes."""
        g = self.g
        return step * g.in_plane + tap * g.rows.dilation * g.cols.size + word * WORD

    def orders(self, order: Orders, masks: Array) -> Array:
        """Return the places of the bytes of four pixels, and masks."""
        first = self.g.cols.stride * np.arange(TOGETHER)[:, np.newaxis]
        of_pixels = (order[..., np.newaxis, :] + first).reshape(*order.shape[:2], -1)
        return np.concatenate([of_pixels, masks], -1)

    def shuffles(self, alone: bool) -> list[tuple[str, str]]:
        """Return the vectors that shuffle and change the bytes of a step: name, C."""
        return [
            ("order", "avx_row_order(places)"), ("mask", f"avx_mask(places + {TOGETHER * ROW})"),
        ]  # fmt: skip

    def stages(self, pixels: Pixels, blocks: int) -> list[Stage]:
        """Return how the bytes of pixels go to the stack: of four or two in a row at once."""
        found, to = list[Stage](), 0
        for chunk in in_a_row(pixels, self.g.cols.stride):
            places = (place_at("to", to), place_at("a", chunk[0][1]))
            users = tuple(
                (name, place, tuple(range(to + ROW * k, to + ROW * (k + 1), WORD)))
                for k, (name, place) in enumerate(chunk)
            )
            call = (f"avx_stage_row{len(chunk)}", *places, "order", "mask")
            found.append(Stage(call, users))
            to += ROW * len(chunk)
        return found


class ConvFirstBytesPairs(FirstLayer):
    """Words of four bytes, two products summed in 16 bits."""

    name = "conv_first_bytes_pairs"
    per = WORD
    itemsize = 1

    def able(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes in two whole words a row of taps, four windows of which are read at once."""
        if not sums_pairs(target) or not in_whole_words(w, target):
            return False
        cols = geometry(w, 1).cols
        near = (TOGETHER - 1) * cols.stride + ROW <= LOADED
        return WORD < cols.kernel <= ROW and near

    def image(self, g: Geometry) -> Image:
        """Return where the image of a convolution lies in scratch."""
        return copied(g, ROW)

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """One image, and what the last windows' neighbours would be."""
        return super().scratch(w, params, target) + LOADED

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
        """Return all parameter sets: tiles that fit the registers."""
        return [PanelParams(p=p, nv=nv) for p, nv in pair_sets(w, target)]

    def words(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> RowWords:
        """Return the convolution of the image in scratch as parameters cut it."""
        g = geometry(w, params.p)
        image = self.image(g)
        rows = replace(g.rows, size=image.height, pad=0)
        cols = replace(g.cols, size=image.width, kernel=1, pad=0)
        return RowWords(
            replace(g, rows=rows, cols=cols), params.p, params.nv, WORD, unit_size=ROW, among=ROW,
            mirrored=True, flipped=shift(w, target) != 0,
        )  # fmt: skip

    def pack(
        self, dense: Array, taps: Array, words: Words, zero: int, target: Target
    ) -> Array:
        """Return the bytes as `packed_pairs` does."""
        assert isinstance(words, RowWords)
        return packed_pairs(words, taps, zero)

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and where the copied image lies."""
        words = self.words(w, params, target)
        elements = replace(byte_elements(w, words, target), stages=words.stages)
        values = pair_values(w, words, target, elements)
        return {**values, **self.image_values(w, w.op.zero & 255)}

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        copying = COPIED * w.outputs[0].shape[0] * self.scratch(w, params, target)
        words = self.words(w, params, target)
        return words.cycles(target.machine) * pair_slowness(words) + copying


KERNELS = (ConvFirstBytesPairs(),)
