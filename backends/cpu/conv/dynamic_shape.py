"""Direct convolution of images with dynamic height and width.

The tiles are those of `conv.blocked`, one row high: p pixels where no tap meets padding, then one
tile at most of each power of two below; what meets padding is computed pixel by pixel, with the
range of its taps found when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atc.backends.cpu.conv.blocked import NARROW, Tile, cheapest, is_depthwise
from atc.backends.cpu.conv.cost import tile_cycles
from atc.backends.cpu.conv.filter_panels import PanelParams, name_of_panels, packed_panels
from atc.backends.cpu.conv.input_blocks import input_blocks
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.tile_geometry import Columns, Geometry, geometry, panel_groups, panels
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked

WIDE = ((14, 2), (8, 3), (6, 4), (28, 1))
"""Pixels and vectors of a tile for 32 registers."""


class ConvDynamicShape(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution with tiles of p pixels x nv vectors of images of any size."""

    name = "conv_dynamic_shape"
    op = ConvBlocked
    template = "cpu/conv/dynamic_shape.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Floats, known weights, an image whose extents aren't."""
        x = w.input(0)
        wide = w.outputs[0].shape[-1] == lanes(target) > 1 and sums_floats(w)
        floats = wide and w.outputs[0].dtype is DType.FLOAT and w.constant[1]
        return floats and is_dynamic(x.shape[1:]) and not is_depthwise(w)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        shapes = WIDE if target.vector_registers >= 32 else NARROW
        sets = [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]
        return cheapest(self, sets, w, target, 3)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        return packed_panels(w, params)

    def packing(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> str:
        """Of panels."""
        return name_of_panels(w, params)

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the geometry, the tiles by their width and vectors, and the loops over them."""
        op = w.op
        p, nv = params.p, params.nv
        g = geometry(w, p)
        widths = [p, *rests(p)]
        groups = panel_groups(g.mb, nv)
        low, high = g.cols.interior
        return {
            "g": g, "p": p, "widths": widths, "low": low, "high": high,
            "tiles": [_tile(c, n, g) for n, _, _ in groups for c in widths], "groups": groups,
            "bodies": input_blocks(g, 4), "step": 1 if g.plain else g.block,
            "epilogue": TileEpilogue(op.epilogue, w, g, target),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        p, nv = params.p, params.nv
        g = geometry(w, p)
        low, high = g.cols.interior
        rest = (high - low) % p
        counts = {p: (high - low) // p, 1: g.cols.out - (high - low)}
        for n in rests(p):
            counts[n] = counts.get(n, 0) + rest // n
            rest %= n
        tiles = sum(
            count * tile_cycles(target.machine, g, 1, width, n, g.depth)
            for n in panels(g.mb, nv)
            for width, count in counts.items()
        )
        return g.batch * g.supers * g.rows.out * tiles


def rests(p: int) -> list[int]:
    """Return the widths of the tiles after those of p pixels: the powers of two below."""
    return [1 << k for k in reversed(range((p - 1).bit_length()))]


def _tile(width: int, vectors: int, g: Geometry) -> Tile:
    taps = (tuple(range(width)),) * g.cols.kernel
    return Tile(f"tile_{width}x{vectors}", 1, vectors, Columns(0, 1, width, taps), g)


KERNELS = (ConvDynamicShape(),)
