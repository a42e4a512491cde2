"""Gradient of a depthwise convolution's filters in channel blocks.

A tile of g stays in registers beside a sum for each tap: every vector of x that it meets is loaded
once and multiplied by all of g that it concerns. Sums of tiles are added up image by image.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.conv.blocked import cheapest
from atc.backends.cpu.conv.window_tiles import Tile, groups_of_blocks, is_short, tiles_of
from atc.backends.kernel import Kernel, KernelParams, Splittable, Workload, WorkSplit
from atc.backends.machine import CALL
from atc.backends.render.tile_geometry import Geometry
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import ConvFilterGradient

SHAPES = ((2, 7), (1, 14), (2, 4), (1, 7), (4, 2), (2, 2), (1, 4), (1, 2), (1, 1))
"""Rows and columns of tiles of g."""


@dataclass(frozen=True, kw_only=True)
class DepthwiseParams(KernelParams):
    """Those of tiles of r x c pixels of g; threads share the blocks of channels in `partitions`."""

    r: int
    c: int
    partitions: int = 1


class FilterGradientDepthwise(
    Kernel[ConvFilterGradient, DepthwiseParams], Splittable[ConvFilterGradient, DepthwiseParams]
):
    """ConvFilterGradient of one filter for each channel; threads share the blocks of channels."""

    name = "conv_filter_depthwise"
    op = ConvFilterGradient
    template = "cpu/conv/filter_gradient_depthwise.c.j2"
    portable = False

    def accepts(self, w: Workload[ConvFilterGradient], target: Target) -> bool:
        """Floats, both operands in blocks as wide as vectors; one or two axes."""
        op, x, g, y = w.op, w.input(0), w.input(1), w.outputs[0]
        if op.window.rank > 2 or is_dynamic((x, g)) or 0 in (*x.shape, *g.shape):
            return False
        depthwise = op.group == y.shape[0] and y.shape[1] == 1
        wide = op.blocked(x) and x.shape[-1] == g.shape[-1] == lanes(target) > 1
        return depthwise and wide and x.dtype is DType.FLOAT and bool(self.sets(w, target))

    def parameters(
        self, w: Workload[ConvFilterGradient], target: Target
    ) -> Sequence[DepthwiseParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 4)

    def sets(self, w: Workload[ConvFilterGradient], target: Target) -> list[DepthwiseParams]:
        """Return the tiles that fit the registers beside the sums, or else the least."""
        g = _geometry(w)
        room = max(target.vector_registers - g.taps - 1, 1)
        shapes = [(r, c) for r, c in SHAPES if r * c <= room and is_short(g, r, c)]
        found = [DepthwiseParams(r=r, c=c) for r, c in shapes]
        return [p for p in found if p.r <= g.rows.out and p.c <= g.cols.out] or found[-1:]

    def values(
        self, w: Workload[ConvFilterGradient], params: DepthwiseParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles."""
        g = _geometry(w)
        down, _, tiles = tiles_of(g, params.r, params.c)
        met = [t for t in tiles if t.used()]
        rows = [(d, [(t.across, t) for t in met if t.down is d]) for d in down]
        return {
            "g": g, "rows": [(d, found) for d, found in rows if found], "met": _met,
            "channels": w.outputs[0].shape[0], "partitions": params.partitions,
        }  # fmt: skip

    def shared_params(
        self, w: Workload[ConvFilterGradient], params: DepthwiseParams, target: Target, threads: int
    ) -> Sequence[DepthwiseParams]:
        """Threads share the blocks of channels."""
        partitions = min(threads, _geometry(w).supers)
        return [replace(params, partitions=partitions)] if partitions > 1 else []

    def work_split(
        self, w: Workload[ConvFilterGradient], params: DepthwiseParams, target: Target
    ) -> WorkSplit:
        """Partitions of blocks."""
        return WorkSplit(params.partitions)

    def cost(
        self, w: Workload[ConvFilterGradient], params: DepthwiseParams, target: Target
    ) -> float:
        """Return the cycles of all tiles: arithmetic, loads, sums added up, and what spills."""
        g, machine = _geometry(w), target.machine
        size, total = g.block * 4, 0.0
        for tile in tiles_of(g, params.r, params.c)[2]:
            taps, used = tile.taps(), len(tile.used())
            uses, pixels = sum(len(t.users) for t in taps), tile.down.width * tile.across.width
            spilled = max(0, pixels + used + 1 - target.vector_registers) * len(taps) / 2
            loads = (len(taps) + pixels + used) / machine.load_rate(size)
            chains = machine.fma_latency * uses / max(used, 1)
            work = max((uses + used) / machine.fma_rate(size), loads, chains)
            total += (CALL + work + used + spilled) * tile.down.count * tile.across.count
        return g.batch * g.supers * total


def _geometry(w: Workload[ConvFilterGradient]) -> Geometry:
    """Return the geometry of the convolution whose results g are the slopes of."""
    return groups_of_blocks(w.op.window, w.input(1), w.input(0))


def _met(tile: Tile) -> list[tuple[str, int]]:
    """Return the pixels of g in a tile that meet x, and their places."""
    users = {user for tap in tile.taps() for user, _ in tap.users}
    return [(c, place) for c, _, _, _, place in tile.outputs() if c in users]


KERNELS = (FilterGradientDepthwise(),)
