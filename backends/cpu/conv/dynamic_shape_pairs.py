"""Convolution of bytes of images of any size where instructions sum two products in 16 bits.

The words and their pairs are those of `int8_pairs`, the loops over tiles those of `dynamic_shape`.
An entry of clipped weights says which channels it meets, as planes of x have any size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from atc.backends.cpu.conv.dynamic_shape import (
    ConvDynamicBytes,
    DynamicParams,
    copy_cycles,
    loop_cycles,
    loop_values,
    plane_values,
)
from atc.backends.cpu.conv.filter_panels import PanelParams, ungrouped
from atc.backends.cpu.conv.int8 import byte_elements, padded, started, zero_point
from atc.backends.cpu.conv.int8_pairs import (
    UnitWords,
    in_units,
    pair_sets,
    pair_slowness,
    places_of_pairs,
    start_of_pairs,
    sums_pairs,
)
from atc.backends.cpu.conv.pair_packing import STARTS, packed_pairs
from atc.backends.cpu.conv.tap_planes import TapPlanes
from atc.backends.kernel import Pack, Workload
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked


class ConvDynamicBytesPairs(ConvDynamicBytes):
    """Convolution of u8 or s8 by s8, two products summed in 16 bits, of images of any size."""

    name = "conv_dynamic_bytes_pairs"

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes that are zero where taps meet padding; AVX2 or AVX-512 without sums of four."""
        able = sums_pairs(target) and super().accepts(w, target)
        return able and (not padded(w) or zero_point(w, target) == 0)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the tiles that fit the registers."""
        return [PanelParams(p=p, nv=nv) for p, nv in pair_sets(w, target)]

    def words(
        self, w: Workload[ConvBlocked], params: DynamicParams, target: Target
    ) -> UnitWords:
        """Return the convolution in words, of what its tiles read."""
        words = in_units(w, params, target)
        return replace(words, g=TapPlanes(words.g).geometry) if params.copied else words

    def packs(
        self, w: Workload[ConvBlocked], params: DynamicParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with; see `packed_pairs`."""
        words, group, zero = self.words(w, params, target), w.op.group, zero_point(w, target)
        return {1: lambda weights: packed_pairs(words, ungrouped(weights, words.g, group), zero)}

    def values(
        self, w: Workload[ConvBlocked], params: DynamicParams, target: Target
    ) -> dict[str, object]:
        """Return the loops over tiles, and where the parts of the packed weights are."""
        words = self.words(w, params, target)
        g, e = words.g, replace(byte_elements(w, words, target), stages=words.stages)
        epilogue = TileEpilogue(w.op.epilogue, w, g, target, DType.INT32)
        sums = words.mirrored or zero_point(w, target) != 0

        def start(vector: int) -> str:
            return started(epilogue, start_of_pairs(words, vector) if sums else "", vector)

        return {
            **loop_values(g, params), **places_of_pairs(w, words, target), "e": e,
            "per": words.per, "unit": words.unit, "bodies": words.bodies(), "joined": words.joined,
            "types": {"x": e.x, "weight": e.weight, "result": e.result},
            "depth": words.depth * words.per, "sums": sums, "start": start, "epilogue": epilogue,
            "weights": f"(x1 + {STARTS * g.supers * g.mb * g.block})", **plane_values(w, params),
            **words.prefetched(words.lines_of(self.tiles(w, params, target))),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> float:
        """Estimated cycles."""
        words = self.words(w, params, target)
        cycles = loop_cycles(target.machine, words.g, params, words.depth) * pair_slowness(words)
        return cycles + copy_cycles(w, params, target)


KERNELS = (ConvDynamicBytesPairs(),)
