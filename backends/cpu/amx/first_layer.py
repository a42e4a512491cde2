"""First layers on AMX's tiles: convolutions of a few plain channels, a row of taps at a time.

In scratch, pixels are columns of `deep` input rows x all channels, as a row of the window meets
them: so many taps lie one after the other, and a step of a product sums 64 bytes of them. Rows of a
tile are as many bytes apart as results are pixels; where those are fewer than 64, they overlap, and
nothing is copied once per tap. Results are cut into tiles across the ends of their rows.

Floats are multiplied as bfloat16, or as sums of two (bf16x3) or three (bf16x6); pixels whose sums
are not finite are summed once more in float, as a step also meets what is beside the window, times
zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atc.backends.cpu.amx.cost import COMPARED, end_cycles
from atc.backends.cpu.amx.pixel_rows import Window
from atc.backends.cpu.amx.plane_epilogue import PlanesEpilogue
from atc.backends.cpu.amx.products import LINE, TILE
from atc.backends.cpu.amx.tiled_conv import BlockParams, TiledConv
from atc.backends.cpu.conv.blocked import cheapest
from atc.backends.cpu.conv.filter_panels import ungrouped
from atc.backends.kernel import Pack, Workload
from atc.backends.render.epilogue import sums_floats
from atc.backends.render.tile_geometry import geometry
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked

MOST = 16
"""Numbers that a pixel has at most."""
BYTES = 1.4
"""How many times as long as estimated bytes took on Sapphire Rapids: few steps hide what finishes
results, which are converted and rounded."""


ONE_COLUMN = 1.3
"""The same of floats with 16 filters, whose blocks have one step or two, too."""


@dataclass(frozen=True, kw_only=True)
class FirstParams(BlockParams):
    """Those of blocks of pixels and panels of weights."""

    deep: int
    """Rows of x in a pixel."""


class FirstTiles(TiledConv[FirstParams, Window]):
    """The common part of first layers on tiles."""

    template = "cpu/amx/first_layer.c.j2"
    dynamic = True
    size = 2

    def window(self, w: Workload[ConvBlocked], params: FirstParams) -> Window:
        """Return the workload's partition by the parameters."""
        g = geometry(w, 0)
        by_panels = params.rb == 0
        deep, tall = params.deep, params.tall
        return Window(g, self.parts, tall, deep, self.size, by_panels)

    def _adds_floats(self, w: Workload[ConvBlocked]) -> bool:
        return sums_floats(w)

    def _fits(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Return whether tiles fit, x is plain and of one group, and taps lie densely across."""
        if not super()._fits(w, target) or w.op.group != 1:
            return False
        g = geometry(w, 1)
        return g.plain and (g.cols.dilation == 1 or g.cols.kernel == 1)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[FirstParams]:
        """Return the most promising numbers of rows, shapes of blocks and orders."""
        g = geometry(w, 1)
        kernel, ic = g.rows.kernel, g.ic
        shapes = [True] if w.outputs[0].shape[1] == 1 else [False]
        sets: list[FirstParams] = [
            FirstParams(deep=deep, rb=rb, tall=tall)
            for deep in range(1, min(kernel, max(MOST // ic, 1)) + 1)
            for tall in shapes
            for rb in (1, 0)
        ]
        return cheapest(self, sets, w, target, 4)

    def packs(
        self, w: Workload[ConvBlocked], params: FirstParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in tiles, in the order of use."""
        window = self.window(w, params)
        return {1: lambda weights: self.pack(ungrouped(weights, window.g, 1)[0], window, w)}

    def scratch(self, w: Workload[ConvBlocked], params: FirstParams, target: Target) -> int:
        """Reserve the pixels of a block of rows, two blocks of sums, and a row of padding."""
        window = self.window(w, params)
        return window.parts * window.lower_offset + 2 * 4 * TILE + self._border(w, window)

    def _border(self, w: Workload[ConvBlocked], window: Window) -> int:
        """Bytes of a row of padding in place of one of x."""
        return -(-window.kept * w.input(0).dtype.itemsize // LINE) * LINE

    def values(
        self, w: Workload[ConvBlocked], params: FirstParams, target: Target
    ) -> dict[str, object]:
        """Return the window, the steps of a product, how pixels are made, and the epilogue."""
        window = self.window(w, params)
        epilogue = PlanesEpilogue(w, window.g, target, self.sums)
        shared = self.block_values(
            w, params, window, epilogue, target, pixel=window.stride,
            lower_offset=window.lower_offset,
            blocks=None if is_dynamic(window.g.rows.out) else window.blocks(),
        )  # fmt: skip
        return {
            **shared, "pitch": window.pitch, "exact": self.sums is DType.FLOAT,
            "rounds": self.precision == "bf16", "border": self._border(w, window),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: FirstParams, target: Target) -> float:
        """Estimated cycles."""
        window = self.window(w, params)
        cycles = window.g.batch * window.cycles(target.machine, end_cycles(w))
        unhidden = BYTES if self.size == 1 else ONE_COLUMN if params.tall else 1.0
        return COMPARED * cycles * unhidden


class FirstTilesBf16(FirstTiles):
    """Products in bfloat16."""

    name = "conv_amx_first_bf16"
    precision = "bf16"


class FirstTilesBf16x3(FirstTiles):
    """Products of numbers of 16 to 17 bits, each as three of bfloat16."""

    name = "conv_amx_first_bf16x3"
    precision = "bf16x3"
    parts = 2


class FirstTilesBf16x6(FirstTiles):
    """Products of numbers of 24 bits, each as six of bfloat16."""

    name = "conv_amx_first_bf16x6"
    precision = "bf16x6"
    parts = 3


class FirstTilesBytes(FirstTiles):
    """Exact INT32 sums of u8 x s8 or s8 x s8."""

    name = "conv_amx_first_bytes"
    sums = DType.INT32
    size = 1


KERNELS = (FirstTilesBf16x3(), FirstTilesBf16x6(), FirstTilesBf16(), FirstTilesBytes())
