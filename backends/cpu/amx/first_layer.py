"""First layers on AMX's tiles: convolutions of a few plain channels, a row of taps at a time.

In scratch, pixels are columns of `deep` input rows x all channels, as a row of the window meets
them: so many taps lie one after the other, and a step of a product sums 64 bytes of them. Rows of a
tile are as many bytes apart as results are pixels; where those are fewer than 64, they overlap, and
nothing is copied once per tap. Results are cut into tiles across the ends of their rows.

Floats are multiplied as bfloat16, or as sums of two (bf16x3); pixels whose sums are not finite are
summed once more in float, as a step also meets what is beside the window, times zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.amx.conv import LINE, TILE, product_of
from atc.backends.cpu.amx.cost import COMPARED, end_cycles
from atc.backends.cpu.amx.pixel_rows import Window
from atc.backends.cpu.amx.products import Step, step_lines
from atc.backends.cpu.amx.weights import split
from atc.backends.cpu.conv.bf16 import to_bf16
from atc.backends.cpu.conv.blocked import cheapest, ungrouped
from atc.backends.cpu.conv.int8 import behind_starts
from atc.backends.kernel import Kernel, KernelParams, Pack, Workload
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.tile_geometry import geometry
from atc.backends.render.vector_expr import lanes, typed_epilogue
from atc.backends.target import Target
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

MOST = 16
"""Numbers that a pixel has at most."""


@dataclass(frozen=True, kw_only=True)
class FirstParams(KernelParams):
    """Those of blocks of pixels and panels of weights."""

    deep: int
    """Rows of x in a pixel."""
    rb: int
    """1 where all panels of weights meet a block of pixels before the next one, 0 where all blocks
    meet a panel."""
    tall: bool
    """Whether blocks are of 64 pixels x 16 channels."""


class FirstTiles(Kernel[ConvBlocked, FirstParams]):
    """The common part of first layers on tiles."""

    op = ConvBlocked
    template = "cpu/amx/first_layer.c.j2"
    portable = False
    headers = ("bf16", "tiles")
    sums = DType.FLOAT
    size = 2
    parts = 1

    def window(self, w: Workload[ConvBlocked], params: FirstParams) -> Window:
        """Return the workload's partition by the parameters."""
        g = geometry(w, int(np.prod(w.outputs[0].shape[2:-1])))
        by_panels = params.rb == 0
        deep, tall = params.deep, params.tall
        return Window(g, self.parts, tall, deep, self.size, by_panels)

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Plain floats, known weights of one group, two spatial axes or one, dense taps across."""
        return sums_floats(w) and self._fits(w, target)

    def _fits(self, w: Workload[ConvBlocked], target: Target) -> bool:
        op = w.op
        able = "amx_tile" in target.features and w.outputs[0].shape[-1] == lanes(target) == 16
        if not able or op.window.rank > 2 or not w.constant[1] or op.group != 1:
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

    def pack(self, dense: Array, window: Window, w: Workload[ConvBlocked]) -> Array:
        """Return weights [filters, channels, taps] as the tiles want them."""
        raise NotImplementedError

    def scratch(self, w: Workload[ConvBlocked], params: FirstParams, target: Target) -> int:
        """Reserve a band of pixels, two blocks of sums, and a row of padding."""
        window = self.window(w, params)
        return window.parts * window.lower_offset + 2 * 4 * TILE + self._border(w, window)

    def _border(self, w: Workload[ConvBlocked], window: Window) -> int:
        """Bytes of a row of padding in place of one of x."""
        return -(-window.kept * w.input(0).dtype.itemsize // LINE) * LINE

    def values(
        self, w: Workload[ConvBlocked], params: FirstParams, target: Target
    ) -> dict[str, object]:
        """Return the window, the steps of a product, how pixels are made, and the epilogue."""
        window, op = self.window(w, params), w.op
        epilogue = TileEpilogue(op.epilogue, w, window.g, target, self.sums)
        started = op.zero != 0
        bias = None if started else epilogue.dense_bias()
        if bias is not None:
            epilogue.forget_bias()
        by_panels = params.rb == 0
        asked = by_panels and window.panels > 1
        lines = -(-window.step_bytes // LINE // window.blocks()) if asked else 0
        lower = window.lower_offset
        step = Step(product_of(w), self.parts, window.tall, window.stride, lines, lower)
        return {
            "c": window, "g": window.g, "epilogue": epilogue, "by_panels": by_panels,
            "step": step_lines(step), "element": w.input(0).dtype.c, "lines": lines,
            "result": w.outputs[0].dtype.c, "fill": op.zero % 256, "started": started,
            "starts": window.g.mb * 64 if started else 0, "bias": bias,
            "integers": self.sums is DType.INT32, "rounds": self.precision == "bf16",
            "many": -(-window.block // window.panel_steps),
            "border": self._border(w, window),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: FirstParams, target: Target) -> float:
        """Estimated cycles."""
        window = self.window(w, params)
        return COMPARED * window.g.batch * window.cycles(target.machine, end_cycles(w))


class FirstTilesBf16(FirstTiles):
    """Products in bfloat16."""

    name = "conv_amx_first_bf16"
    precision = "bf16"

    def pack(self, dense: Array, window: Window, w: Workload[ConvBlocked]) -> Array:
        """Return the rounded weights."""
        return window.pack([to_bf16(dense)]).view(np.float32)


class FirstTilesBf16x3(FirstTiles):
    """Products of numbers of 16 to 17 bits, each as three of bfloat16."""

    name = "conv_amx_first_bf16x3"
    precision = "bf16x3"
    parts = 2

    def pack(self, dense: Array, window: Window, w: Workload[ConvBlocked]) -> Array:
        """Weights split in two, lower halves first."""
        upper, lower = split(dense)
        return window.pack([lower, upper]).view(np.float32)


class FirstTilesBytes(FirstTiles):
    """Exact INT32 sums of u8 x s8 or s8 x s8."""

    name = "conv_amx_first_bytes"
    sums = DType.INT32
    size = 1

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Plain bytes, else as floats are; any zero point, as it pads too."""
        fits = w.op.accumulator is DType.INT32 and self._fits(w, target)
        return fits and typed_epilogue(w.op.epilogue, w, 2)

    def pack(self, dense: Array, window: Window, w: Workload[ConvBlocked]) -> Array:
        """Weights, behind what sums start with: minus the zero point times their sum."""
        packed = window.pack([dense])
        return behind_starts(packed, dense, w.op.zero) if w.op.zero else packed


KERNELS = (FirstTilesBf16x3(), FirstTilesBf16(), FirstTilesBytes())
