"""Common parts of convolutions on AMX's tiles: panels of weights, blocks of results, epilogues.

A block of 32 pixels x 32 channels (2 x 2 tiles), or tall, 64 x 16, is summed; while the next one
is, the pixels of the last go through the epilogue. Floats are multiplied as bfloat16, or as sums of
two (bf16x3) or three (bf16x6).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from atc.backends.cpu.amx.cost import FIRST, RESIDENT, STREAM
from atc.backends.cpu.amx.plane_epilogue import PlanesEpilogue
from atc.backends.cpu.amx.products import LINE, PRODUCTS, TILE, Ahead, Step, step_lines
from atc.backends.cpu.conv.int8 import behind_starts
from atc.backends.kernel import Kernel, KernelParams, Workload
from atc.backends.machine import Machine
from atc.backends.render.bfloat16 import in_parts
from atc.backends.render.tile_geometry import Geometry
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

STREAM_AHEAD = 1 << 16
"""Bytes of weights that a panel asks for before they are read, where they are read once."""
NEAR_STEPS = 2
"""Steps whose weights the first cache is asked for before they are read, where each is read soon
after it comes from memory: tiles' loads find them there, and don't queue behind what comes."""
FEW = 2
"""Blocks of results that ask for the next panel where the run may have more: it has as many."""
LONG = 8
"""Steps of a sum from which on that, and asking for the next step's pixels, pays."""


@dataclass(frozen=True)
class Panels:
    """Output channels in panels of tiles, whose numbers are made of `parts`.

    Blocks of results are `block` pixels x `tile_columns` x 16 channels; tall ones have
    all pixels there.
    """

    g: Geometry
    parts: int
    tall: bool

    @property
    def block(self) -> int:
        """Pixels of a block of results."""
        return 64 if self.tall else 32

    @property
    def tile_columns(self) -> int:
        """Output blocks of 16 channels in a panel."""
        return 1 if self.tall else 2

    @property
    def width(self) -> int:
        """Output channels of a panel."""
        return 16 * self.tile_columns

    @property
    def panels(self) -> int:
        """Panels of output channels in a group."""
        return -(-self.g.mb // self.tile_columns)

    @property
    def products(self) -> int:
        """Products of tiles in a step."""
        return 4 * len(PRODUCTS[self.parts])

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a panel has for a step."""
        return self.tile_columns * self.parts * TILE

    @property
    def panel_steps(self) -> int:
        """Steps that sum a block."""
        raise NotImplementedError

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.panel_steps * self.step_bytes

    def pack(self, parts: Sequence[Array]) -> Array:
        """Return parts of weights, [.., filters, channels, taps], as tiles in the order of use."""
        raise NotImplementedError

    def streamed(self, by_panels: bool, machine: Machine) -> str:
        """Return which operand passes by once, while the other one has the first cache: pixels (A)
        by a panel of weights, whose taps don't read them again, or weights (W), by pixels."""
        if by_panels:
            return "A" if self.g.taps == 1 and self.panel_bytes <= machine.l1_kept else ""
        return "W" if self.panels * self.panel_bytes > machine.l1_kept else ""

    def passing(self, each: float, blocks: int, from_panels: bool) -> float:
        """Estimate the cycles of all blocks, `each` of one, or of the weights waited for."""
        weights = self.panels * self.panel_bytes
        reread = 0 if from_panels or weights <= RESIDENT else blocks
        return max(self.panels * blocks * each, reread * weights / STREAM) + weights / FIRST


@dataclass(frozen=True, kw_only=True)
class BlockParams(KernelParams):
    """Those of blocks of pixels and panels of weights."""

    rb: int
    """1 where all panels of weights meet a block of pixels before the next one, 0 where all blocks
    meet a panel."""
    tall: bool
    """Whether blocks are of 64 pixels x 16 channels."""


ParamsT = TypeVar("ParamsT", bound=BlockParams)
PanelsT = TypeVar("PanelsT", bound=Panels)


class TiledConv(Kernel[ConvBlocked, ParamsT], Generic[ParamsT, PanelsT]):
    """The common part of convolutions on tiles."""

    op = ConvBlocked
    portable = False
    batches = True
    headers = ("bf16", "tiles")
    sums = DType.FLOAT
    parts = 1

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Numbers that it sums exactly so, where tiles fit; any zero point, as it pads too."""
        if self.sums is DType.FLOAT:
            return self._adds_floats(w) and self._fits(w, target)
        exact = w.op.accumulator is DType.INT32 and self._fits(w, target)
        return exact and typed_epilogue(w.op.epilogue, w, 2)

    def _adds_floats(self, w: Workload[ConvBlocked]) -> bool:
        """Return whether a workload's floats are those that it can read and store."""
        raise NotImplementedError

    def _fits(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Return whether the target has tiles, windows and weights are known, and space has one
        axis or two."""
        able = "amx_tile" in target.features and w.outputs[0].shape[-1] == lanes(target) == 16
        known = w.constant[1] and not is_dynamic(w.op.window)
        return able and known and w.op.window.rank <= 2

    def pack(self, dense: Array, c: PanelsT, w: Workload[ConvBlocked]) -> Array:
        """Return the weights' tiles in the order of use.

        Those of bytes lie behind what sums start with: minus the zero point times their sum.
        """
        if self.sums is DType.FLOAT:
            return c.pack(in_parts(dense, self.parts)).view("float32")
        packed = c.pack([dense])
        return behind_starts(packed, dense, w.op.zero) if w.op.zero else packed

    def block_values(
        self, w: Workload[ConvBlocked], params: ParamsT, c: PanelsT, epilogue: PlanesEpilogue,
        target: Target, *, blocks: int | None, pixel: int, lower_offset: int = LINE,
        near: Sequence[Ahead] = (),
    ) -> dict[str, object]:  # fmt: skip
        """Return the values of `cpu/amx/tiled_conv.c.j2`, but those of where results lie.

        An image has `blocks` blocks of results, None where the run counts them. Rows of a tile are
        `pixel` bytes apart, lower parts `lower_offset` bytes behind upper ones. Steps ask for what
        is `near`, beside the weights of the next panel.
        """
        op, by_panels = w.op, params.rb == 0
        started = op.zero != 0
        bias = None if started else epilogue.dense_bias()
        if bias is not None:
            epilogue.forget_bias()
        prefetches = by_panels and c.panels > 1
        asking = FEW if blocks is None else blocks
        lines = -(-c.step_bytes // LINE // asking) if prefetches else 0
        distance = min(STREAM_AHEAD, c.panel_bytes) if blocks == 1 else c.panel_bytes
        streamed = c.streamed(by_panels, target.machine)
        step = Step(product_of(w), c.parts, c.tall, pixel, tuple(near), lower_offset, streamed)
        ahead = replace(step, ahead=(*near, Ahead("next", lines)))
        return {
            "c": c, "g": c.g, "epilogue": epilogue, "by_panels": by_panels, "bias": bias,
            "element": w.input(0).dtype.c, "result": w.outputs[0].dtype.c, "total": self.sums.c,
            "integers": self.sums is DType.INT32, "step": step_lines(step), "lines": lines,
            "step_ahead": step_lines(ahead), "asking": asking, "all_ask": asking == blocks,
            "distance": distance, "many": -(-c.block // c.panel_steps), "fill": op.zero % 256,
            "started": started, "starts": c.g.supers * c.g.mb * 64 if started else 0,
            "open": counts_pixels(w),
        }  # fmt: skip


def counts_pixels(w: Workload[ConvBlocked]) -> bool:
    """Return whether the run decides more than how many images there are."""
    return is_dynamic((w.op, *(t.shape[1:] for t in (w.input(0), *w.outputs))))


def product_of(w: Workload[ConvBlocked]) -> str:
    """Return the product of tiles that multiplies x."""
    products = {DType.UINT8: "TILE_DOT_U8S8", DType.INT8: "TILE_DOT_S8S8"}
    return products.get(w.input(0).dtype, "TILE_DOT_BF16")
