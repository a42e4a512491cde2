"""Direct convolution in bfloat16 of images with dynamic height and width.

Each image is rounded to pairs of channels in scratch, unless it is stored so; the tiles are those
of `dynamic_shape`, with a pair for each number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc.backends.cpu.conv.bf16 import (
    PAIR,
    ROUNDING,
    ConvBf16,
    has_odd_rest,
    is_rounded,
    pack_bf16x2,
    pair_elements,
)
from atc.backends.cpu.conv.blocked import cheapest
from atc.backends.cpu.conv.dot_product import in_words
from atc.backends.cpu.conv.dynamic_shape import (
    loop_cycles,
    loop_values,
    tile_sets,
    tiles_of_half,
)
from atc.backends.cpu.conv.filter_panels import PanelParams
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import geometry
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.ops import ConvBlocked

WITHIN = ConvBf16()
"""The kernel of images whose extents are known."""


class ConvDynamicBf16(Kernel[ConvBlocked, PanelParams]):
    """Convolution in bfloat16 with tiles of p pixels x nv vectors of images of any size."""

    name = "conv_dynamic_bf16"
    op = ConvBlocked
    template = "cpu/conv/dynamic_shape.c.j2"
    portable = False
    dynamic = True
    headers = ConvBf16.headers
    precision = "bf16"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Blocked floats, whole pairs of channels, known weights, an image whose extents aren't."""
        open_ = is_dynamic(w.input(0).shape[1:]) and not has_odd_rest(w)
        return open_ and WITHIN.accepts(w, target)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, tile_sets(w, target), w, target, 3)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        words = in_words(w, params, PAIR)
        return {1: lambda weights: pack_bf16x2(weights, words, w.op.group)}

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """Reserve an image in bfloat16, where x isn't."""
        g = geometry(w, 1)
        return 0 if is_rounded(w) else g.icb * g.in_plane * 2

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return those of floats, for pairs."""
        words = in_words(w, params, PAIR)
        g, e = words.g, pair_elements(w)
        epilogue = TileEpilogue(w.op.epilogue, w, g, target)
        tiles = tiles_of_half(in_words(concrete(w), params, PAIR))
        return {
            **loop_values(g, params), "e": e, "per": words.per, "unit": words.unit,
            "types": {"x": e.x, "weight": e.weight, "result": e.result},
            "bodies": words.bodies(), "depth": words.depth * words.per,
            "weights": f"(const {e.weight} *)(const void *)x1", "sums": False,
            "start": epilogue.start, "epilogue": epilogue, "apart": words.per, "planes": None,
            "rounded": not is_rounded(w), **words.prefetched(words.lines_of(tiles)),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        words = in_words(w, params, PAIR)
        g = words.g
        vectors = 0 if is_rounded(w) else g.batch * g.supers * g.icb * g.in_plane / g.block
        return loop_cycles(target.machine.of_pairs, g, params, words.depth) + vectors * ROUNDING


KERNELS = (ConvDynamicBf16(),)
