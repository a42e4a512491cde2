"""Convolutions on AMX's tiles: blocked tensors, copied to flat planes in scratch, times weights.

A block of 32 pixels x 32 channels (2 x 2 tiles), or tall, 64 x 16, is summed over the channels and
taps; while the next one is, the pixels of the last go through the epilogue. Floats are multiplied
as bfloat16, or as sums of two (bf16x3: upper * lower, upper * upper and lower * upper part); there
a pixel whose sums are not finite is summed once more in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.amx.cost import (
    COMPARED,
    FIRST,
    PRODUCT,
    REACHED,
    RESIDENT,
    STREAM,
    end_cycles,
    far_cycles,
    halving,
)
from atc.backends.cpu.amx.flat_planes import Flat
from atc.backends.cpu.amx.plane_epilogue import (
    FlatGiven,
    PlanesEpilogue,
    border_of,
    is_shortcut,
    planes_of,
)
from atc.backends.cpu.amx.products import Step, step_lines
from atc.backends.cpu.amx.weights import pack_halves, pack_int8x4, pack_rounded
from atc.backends.cpu.conv.blocked import cheapest, is_depthwise, ungrouped
from atc.backends.cpu.conv.int8 import behind_starts
from atc.backends.kernel import (
    Kernel,
    KernelParams,
    Pack,
    PacksActivations,
    Splittable,
    Workload,
    WorkSplit,
)
from atc.backends.machine import Machine
from atc.backends.packed_layout import PackedLayout
from atc.backends.render.tile_geometry import Geometry, geometry
from atc.backends.render.vector_expr import lanes, typed_epilogue
from atc.backends.target import Target
from atc.errors import InternalError
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import ConvBlocked

LINE = 64
"""Bytes of a cache line, and of a tile's row."""
TILE = 1024
"""Bytes of a tile."""
SPREAD = 2.0
"""Cycles to copy 32 channels of a pixel to a plane, beside those to make halves of them."""
COPIED = 0.5
"""The part of the copies that are made: the others find planes that the call before wrote."""


@dataclass(frozen=True)
class Panels:
    """Output channels in panels of tiles, whose numbers are made of `parts`.

    Blocks of results are `block` pixels x `halves` x 16 channels; tall ones have all pixels there.
    """

    g: Geometry
    parts: int
    tall: bool

    @property
    def block(self) -> int:
        """Pixels of a block of results."""
        return 64 if self.tall else 32

    @property
    def halves(self) -> int:
        """Output blocks of 16 channels in a panel."""
        return 1 if self.tall else 2

    @property
    def panels(self) -> int:
        """Panels of output channels in a group."""
        return -(-self.g.mb // self.halves)

    @property
    def products(self) -> int:
        """Products of tiles in a step."""
        return 12 if self.parts == 2 else 4

    @property
    def step_bytes(self) -> int:
        """Bytes of weights that a panel has for a step."""
        return self.halves * self.parts * TILE

    @property
    def panel_steps(self) -> int:
        """Steps that sum a block."""
        raise NotImplementedError

    @property
    def panel_bytes(self) -> int:
        """Bytes of a panel."""
        return self.panel_steps * self.step_bytes

    def passing(self, each: float, blocks: int, from_panels: bool) -> float:
        """Estimate the cycles of all blocks, `each` of one, or of the weights waited for."""
        weights = self.panels * self.panel_bytes
        reread = 0 if from_panels or weights <= RESIDENT else blocks
        return max(self.panels * blocks * each, reread * weights / STREAM) + weights / FIRST


@dataclass(frozen=True)
class Cut(Panels):
    """A convolution cut into blocks for tiles.

    `channels` are summed by one product. `x` and `y` are given or wanted as planes.
    """

    flat: Flat
    channels: int
    x: PackedLayout | None = None
    y: PackedLayout | None = None

    @property
    def direct(self) -> bool:
        """Whether products read x itself."""
        return isinstance(self.flat, FlatGiven)

    @property
    def own(self) -> int:
        """Bytes of the planes that an image is copied to."""
        return 0 if self.direct else self.steps * self.plane

    @property
    def units(self) -> int:
        """Panels that no two threads share: those of a plane of results."""
        return self.y.channels // (16 * self.halves) if self.y else 1

    @property
    def steps(self) -> int:
        """Blocks of input channels."""
        return -(-self.g.ic // self.channels)

    @property
    def panel_steps(self) -> int:
        """Blocks of input channels times taps."""
        return self.steps * self.g.taps

    @property
    def pixel(self) -> int:
        """Bytes of a pixel's block of channels in the planes."""
        return LINE * self.parts

    @property
    def plane(self) -> int:
        """Bytes of all planes of a block of channels."""
        return max(len(self.flat.phases), 1) * self.flat.size * self.pixel

    def cycles(self, from_panels: bool, end: float) -> float:
        """Estimate the cycles, `end` of them for each vector of results, without the planes."""
        g = self.g
        each = self.panel_steps * self.products * PRODUCT + self.block * self.halves * end
        if g.taps == 1:
            each += self.steps * self.block * self.pixel / REACHED
        return g.batch * g.supers * self.passing(each, self.flat.blocks, from_panels)

    def spreading(self, machine: Machine) -> float:
        """Estimate the cycles to bring the input near, and to copy it to planes.

        The solver of layouts can't know which call before writes planes: it is every other one.
        """
        g, flat = self.g, self.flat
        pixels = self.steps * len(flat.phases) * flat.lines * flat.pitch
        strided = max(g.rows.stride, g.cols.stride) > 1
        copied = pixels * (SPREAD + halving(self.parts)) * (1.0 if strided else COPIED)
        return g.batch * g.supers * (copied + far_cycles(machine, self.steps * self.plane))


def product_of(w: Workload[ConvBlocked]) -> str:
    """Return the product of tiles that multiplies x."""
    products = {DType.UINT8: "TILE_DOT_U8S8", DType.INT8: "TILE_DOT_S8S8"}
    return products.get(w.input(0).dtype, "TILE_DOT_BF16")


@dataclass(frozen=True, kw_only=True)
class TilesParams(KernelParams):
    """Those of blocks of pixels and panels of weights, and of packed layouts."""

    rb: int
    """1 where all panels of weights meet a block of pixels before the next one, 0 where all blocks
    meet a panel."""
    tall: bool
    """Whether blocks are of 64 pixels x 16 channels."""
    pieces: int = 1
    """Threads that share a call."""
    borders: tuple[tuple[int, int], ...] = ()
    """The inputs that are planes, and their borders; in the text `planes0` and so on."""
    planes_y: int | None = None
    """The border of the results' planes; None where they are none."""
    fill_y: int | None = None
    """What that border is filled with."""

    def shown(self) -> dict[str, int | str | bool]:
        """Return what the parameters' text names."""
        found = super().shown()
        found.pop("borders", None)
        return found | {f"planes{index}": border for index, border in self.borders}


class ConvTiles(
    Kernel[ConvBlocked, TilesParams],
    Splittable[ConvBlocked, TilesParams],
    PacksActivations[ConvBlocked, TilesParams],
):
    """The common part of convolutions on tiles."""

    op = ConvBlocked
    template = "cpu/amx/conv.c.j2"
    portable = False
    bitwise_reproducible = True
    headers = ("bf16", "tiles")
    channels = 32
    parts = 1
    sums = DType.FLOAT

    def cut(self, w: Workload[ConvBlocked], params: TilesParams) -> Cut:
        """Return the workload's partition by the parameters."""
        y, tall = w.outputs[0], params.tall
        given = self._given(w, params)
        wanted = None
        if params.planes_y is not None:
            planes = self._planes(w, y)
            wanted = replace(planes, border=params.planes_y, fill=params.fill_y)
        g = geometry(w, int(np.prod(y.shape[2:-1])), recut=not given and wanted is None)
        x, block, border_read = given.get(0), 64 if tall else 32, border_of(g)
        direct = x is not None and border_read is not None and border_read <= x.border
        flat = FlatGiven(g, block, x) if x is not None and direct else Flat(g, block)
        return Cut(g, self.parts, tall, flat, self.channels, x, wanted)

    def _given(self, w: Workload[ConvBlocked], params: TilesParams) -> dict[int, PackedLayout]:
        """Return the inputs that are planes."""
        found = {}
        for index, border in params.borders:
            found[index] = replace(self._planes(w, w.input(index)), border=border)
        return found

    def _planes(self, w: Workload[ConvBlocked], type_: TensorType) -> PackedLayout:
        """Return the planes of a tensor that was said to be such."""
        planes = planes_of(type_, self.channels, self.parts, None)
        if planes is None:
            raise InternalError(f"{type_} of {w.op.kind} can't be planes")
        return planes

    def accepted_layouts(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> Mapping[int, PackedLayout]:
        """x with the border that taps meet, copied once more where they stride; shortcuts."""
        op, g = w.op, geometry(w, 1)
        if len(w.outputs[0].shape) != 5 or g.supers != 1:
            return {}
        found = {}
        for index, type_ in enumerate(w.inputs):
            if type_ is None or type_.dtype.itemsize != (4 if self.channels == 32 else 1):
                continue
            planes = None
            if index == 0:
                planes = planes_of(type_, self.channels, self.parts, op.zero % 256)
                unmerged = geometry(w, 1, recut=False)
                planes = planes and replace(planes, border=border_of(unmerged) or 0)
            elif index > 1 and is_shortcut(w, index):
                planes = planes_of(type_, self.channels, self.parts, None)
            if planes is not None:
                found[index] = planes
        return found

    def produces_layout(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target, planes: PackedLayout
    ) -> bool:
        """Return whether its epilogue is one of vectors, and its numbers are of the same parts."""
        c, y = self.cut(w, params), w.outputs[0]
        kind = (planes.channels, planes.parts) == (self.channels, self.parts)
        typed = y.dtype is DType.FLOAT if self.channels == 32 else y.dtype.itemsize == 1
        images = c.g.supers == 1 and len(y.shape) == 5
        return kind and typed and images and not self._late(w)

    def packed_params(
        self, params: TilesParams, inputs: Mapping[int, PackedLayout], y: PackedLayout | None
    ) -> TilesParams:
        """Parameters with the borders of planes."""
        borders = tuple((index, planes.border) for index, planes in inputs.items())
        params = replace(params, borders=borders)
        return replace(params, planes_y=y.border, fill_y=y.fill or 0) if y else params

    def cuts(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target, threads: int
    ) -> Sequence[TilesParams]:
        """Threads share the panels, and the copy of x before."""
        c = self.cut(w, params)
        pieces = min(threads, c.panels // c.units)
        alone = c.g.batch * c.g.supers > 1 or pieces < 2 or self._late(w)
        return () if alone else [replace(params, pieces=pieces)]

    def work_split(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> WorkSplit:
        """Pieces of panels, after a phase for the copy."""
        pieces = params.pieces
        phases = 1 if pieces == 1 or self.cut(w, params).direct else 2
        return WorkSplit(pieces, phases)

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Blocked floats, known weights, two spatial axes or one."""
        types = [t.dtype for t in (w.inputs[0], *w.inputs[2:], *w.outputs) if t is not None]
        floats = w.op.accumulator is DType.FLOAT and not any(t.is_half for t in types)
        return floats and self._fits(w, target)

    def _fits(self, w: Workload[ConvBlocked], target: Target) -> bool:
        able = "amx_tile" in target.features and w.outputs[0].shape[-1] == lanes(target) == 16
        fits = able and w.op.window.rank <= 2 and w.constant[1] and not is_depthwise(w)
        return fits and not geometry(w, 1).plain

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[TilesParams]:
        """Both orders; tall blocks where all pixels are two of 32 and several taps read them."""
        tall = self.cut(w, TilesParams(rb=0, tall=True)).flat.rows
        shapes = [False, True] if 32 < tall <= 64 else [False]
        sets: list[TilesParams] = [TilesParams(rb=rb, tall=t) for t in shapes for rb in (0, 1)]
        return cheapest(self, sets, w, target, 3)

    def packs(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in tiles, in the order of use."""
        op, c = w.op, self.cut(w, params)
        return {1: lambda weights: self.pack(ungrouped(weights, c.g, op.group), c, w)}

    def pack(self, dense: Array, c: Cut, w: Workload[ConvBlocked]) -> Array:
        """Return weights [supers, filters, channels, taps] as the tiles want them."""
        raise NotImplementedError

    def _late(self, w: Workload[ConvBlocked]) -> bool:
        """Return whether vectors can't compute the epilogue.

        It follows when all sums are stored.
        """
        return not typed_epilogue(w.op.epilogue, w, 2)

    def scratch(self, w: Workload[ConvBlocked], params: TilesParams, target: Target) -> int:
        """Reserve the planes of one image and group, and two blocks of sums for each thread."""
        c = self.cut(w, params)
        return c.own + params.pieces * 2 * 4 * TILE

    def values(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> dict[str, object]:
        """Return the planes, the steps of a product and the loops over blocks and panels."""
        c = self.cut(w, params)
        op, sums = w.op, self.sums
        shortcuts = {k: p for k, p in self._given(w, params).items() if k}
        planes = {k - 1: p for k, p in shortcuts.items()}  # as the epilogue counts them
        epilogue = PlanesEpilogue(w, c.g, target, sums, planes)
        started = op.zero != 0
        bias = None if started else epilogue.dense_bias()
        if bias is not None:
            epilogue.forget_bias()
        by_panels = params.rb == 0
        lines = -(-c.step_bytes // LINE // c.flat.blocks) if by_panels and c.panels > 1 else 0
        rest = c.g.ic % c.channels
        step = Step(product_of(w), c.parts, c.tall, c.pixel, lines)
        return {
            "c": c, "g": c.g, "flat": c.flat, "epilogue": epilogue, "by_panels": by_panels,
            "step": step_lines(step), "element": w.input(0).dtype.c,
            "shifts": [s * c.pixel for s in c.flat.shifts()], "lines": lines,
            "result": w.outputs[0].dtype.c, "fill": op.zero % 256, "rest": rest,
            "many": -(-c.block // c.panel_steps), "started": started,
            "starts": c.g.supers * c.g.mb * 64 if started else 0,
            "integers": sums is DType.INT32, "bias": bias, "given": c.x, "shortcuts": shortcuts,
            "wanted": c.y,
            "result_size": w.outputs[0].dtype.itemsize, "units": c.units,
            "pieces": params.pieces,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: TilesParams, target: Target) -> float:
        """Estimated cycles; tall blocks pay where taps find their pixels in the first cache."""
        c, by_panels = self.cut(w, params), params.rb == 0
        near = c.panels * c.panel_bytes <= RESIDENT
        shape = 1.0 if not c.tall else 0.95 if c.g.taps > 1 and self.sums is DType.FLOAT else 1.08
        order = 1.03 if by_panels and near and c.panels > 1 else 1.0
        products = c.cycles(by_panels, end_cycles(w)) * shape * order
        return COMPARED * (products + c.spreading(target.machine))


class ConvTilesBf16(ConvTiles):
    """Products in bfloat16."""

    name = "conv_amx_bf16"
    precision = "bf16"

    def pack(self, dense: Array, c: Cut, w: Workload[ConvBlocked]) -> Array:
        """Return the rounded weights."""
        return pack_rounded(dense, c.channels, c.halves).view(np.float32)


class ConvTilesBf16x3(ConvTiles):
    """Products of numbers of 16 to 17 bits, each as three of bfloat16."""

    name = "conv_amx_bf16x3"
    precision = "bf16x3"
    parts = 2

    def pack(self, dense: Array, c: Cut, w: Workload[ConvBlocked]) -> Array:
        """Weights split in two."""
        return pack_halves(dense, c.channels, c.halves).view(np.float32)


class ConvTilesBytes(ConvTiles):
    """Exact INT32 sums of u8 x s8 or s8 x s8."""

    name = "conv_amx_bytes"
    channels = 64
    sums = DType.INT32

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Blocked bytes, known weights, two spatial axes or one; any zero point, as it pads too."""
        fits = w.op.accumulator is DType.INT32 and self._fits(w, target)
        return fits and typed_epilogue(w.op.epilogue, w, 2)

    def pack(self, dense: Array, c: Cut, w: Workload[ConvBlocked]) -> Array:
        """Weights, behind what sums start with: minus the zero point times their sum."""
        packed = pack_int8x4(dense, c.channels, c.halves)
        return behind_starts(packed, dense, w.op.zero) if w.op.zero else packed


KERNELS = (ConvTilesBf16x3(), ConvTilesBf16(), ConvTilesBytes())
