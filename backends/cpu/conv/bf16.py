"""Direct convolution in bfloat16: products of pairs of channels, sums in float32.

x, in blocks, is stored in bfloat16, or rounded to that in scratch, one image at a time; the tiles
are those of the float kernel, with a pair of channels for each number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atc.backends.cpu.conv.blocked import cheapest, is_depthwise
from atc.backends.cpu.conv.dot_product import Elements, Words, in_words, tile_sets
from atc.backends.cpu.conv.filter_panels import PanelParams, ungrouped
from atc.backends.cpu.conv.sampled import sampled
from atc.backends.cpu.conv.word_reads import WordReads
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.bfloat16 import rounded_bits
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.tile_geometry import geometry
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

PAIR = 2
"""Channels whose products a step sums."""
READS = WordReads("v_broadcast((const float *)(const void *)({}))")
"""Reads of pairs, each a float."""
ROUNDING = 1.5
"""Cycles to round a vector of x and store it."""


def pack_bf16x2(w: Array, words: Words, group: int) -> Array:
    """Return weights [M, C / group, *kernel] in pairs of bfloat16, two to a float of the result."""
    packed = words.pack(rounded_bits(ungrouped(w, words.g, group)))
    return packed.view(np.float32)


def sampled_pairs(w: Workload[ConvBlocked]) -> Workload[ConvBlocked]:
    """Return what is convolved: of what a stride meets alone, where that is rounded."""
    return w if is_rounded(w) or has_odd_rest(w) else sampled(w)


def is_rounded(w: Workload[ConvBlocked]) -> bool:
    """Return whether x is stored in bfloat16."""
    return w.inputs[0] is not None and w.inputs[0].dtype is DType.BFLOAT16


def has_odd_rest(w: Workload[ConvBlocked]) -> int:
    """Return the channels of the last block where a pair would hold one that is none."""
    g = geometry(w, 1)
    return g.ic % g.block if g.ic % PAIR else 0


def pair_elements(w: Workload[ConvBlocked], reads: WordReads = READS) -> Elements:
    """Return how pairs of channels are multiplied."""
    return Elements(
        x="uint16_t", weight="uint16_t", result=w.outputs[0].dtype.c, sums="vf32", reads=reads,
        load="v_load((const float *)(const void *)({}))", dot="v_dot_pairs_acc",
    )  # fmt: skip


def pair_values(
    w: Workload[ConvBlocked], words: Words, target: Target, reads: WordReads
) -> dict[str, object]:
    """Return what the template wants to know of a convolution cut into pairs of bfloat16."""
    epilogue = TileEpilogue(w.op.epilogue, w, words.g, target)
    return {
        **words.values(pair_elements(w, reads)),
        "start": lambda vector, tile, column: epilogue.start(vector), "started": False, "starts": 0,
        "packed": "(const uint16_t *)(const void *)x1", "epilogue": epilogue,
    }  # fmt: skip


class ConvBf16(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution with tiles of p pixels x nv vectors, products in bfloat16."""

    name = "conv_bf16"
    op = ConvBlocked
    template = "cpu/conv/bf16.c.j2"
    portable = False
    batches = True
    bitwise_reproducible = True
    headers = ("bf16",)
    precision = "bf16"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Blocked floats, known weights, two spatial axes or one."""
        op = w.op
        able = "avx512_bf16" in target.features and w.outputs[0].shape[-1] == lanes(target)
        kinds = (DType.FLOAT, DType.BFLOAT16)
        fits = able and op.window.rank <= 2 and w.constant[1] and sums_floats(w, kinds)
        if not fits or is_depthwise(w) or geometry(w, 1).plain:
            return False
        return not (is_rounded(w) and has_odd_rest(w))

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, tile_sets(sampled_pairs(w), target), w, target, 5)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        op = w.op
        words = in_words(sampled_pairs(w), params, PAIR)
        return {1: lambda weights: pack_bf16x2(weights, words, op.group)}

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """One image in bfloat16, where x isn't."""
        if is_rounded(w):
            return 0
        g = geometry(sampled_pairs(w), 1)
        return g.supers * g.icb * g.in_plane * 2

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles, and how many vectors of an image are rounded."""
        words = in_words(sampled_pairs(w), params, PAIR)
        g, rest, axes = words.g, has_odd_rest(w), geometry(w, 1)
        return {
            **pair_values(w, words, target, READS),
            "source": "x0" if is_rounded(w) else "pairs", "converted": not is_rounded(w),
            "image": g.supers * g.icb * g.in_plane, "rest": rest,
            "axes": axes if sampled_pairs(w) != w else None,
            "whole": (g.supers * g.icb - (rest > 0)) * g.in_plane,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        words = in_words(sampled_pairs(w), params, PAIR)
        g = words.g
        vectors = g.batch * g.supers * g.icb * g.in_plane / g.block
        return words.cycles(target.machine.of_pairs) + (0 if is_rounded(w) else vectors * ROUNDING)


KERNELS = (ConvBf16(),)
