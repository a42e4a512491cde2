"""Convolutions on AMX's tiles: blocked tensors, copied to flat planes in scratch, times weights.

A block of 32 pixels x 32 channels (2 x 2 tiles), or tall, 64 x 16, is summed over the channels and
taps; while the next one is, the pixels of the last go through the epilogue. Floats are multiplied
as bfloat16, or as sums of two (bf16x3: upper * lower, upper * upper and lower * upper part) or of
three (bf16x6: six of the nine products); there a pixel whose sums are not finite is summed once
more in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from atc.backends.cpu.amx.cost import (
    COMPARED,
    PRODUCT,
    REACHED,
    RESIDENT,
    end_cycles,
    far_cycles,
    is_small,
    l2_share,
    splitting,
)
from atc.backends.cpu.amx.flat_planes import Flat
from atc.backends.cpu.amx.plane_epilogue import (
    FlatGiven,
    PlanesEpilogue,
    border_of,
    is_shortcut,
    planes_of,
)
from atc.backends.cpu.amx.products import LINE, TILE, Ahead
from atc.backends.cpu.amx.tiled_conv import (
    LONG,
    NEAR_STEPS,
    BlockParams,
    Panels,
    TiledConv,
)
from atc.backends.cpu.amx.weights import pack_tiles
from atc.backends.cpu.conv.blocked import cheapest, is_depthwise
from atc.backends.cpu.conv.filter_panels import ungrouped
from atc.backends.kernel import (
    Pack,
    PacksActivations,
    Splittable,
    Workload,
    WorkSplit,
)
from atc.backends.machine import Machine
from atc.backends.packed_layout import PackedLayout
from atc.backends.render.tile_geometry import geometry
from atc.backends.render.vector_epilogue import typed_epilogue
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value
from atc.errors import InternalError
from atc.ir.graph import Array, DType, TensorType
from atc.ir.ops import ConvBlocked

SPREAD = 2.0
"""Cycles to copy 32 channels of a pixel to a plane, beside those to round or split them."""
COPIED = 0.5
"""The part of the copies that are made: the others find planes that the call before wrote."""


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
        return self.y.channels // (16 * self.tile_columns) if self.y else 1

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

    def near(self, machine: Machine) -> list[Ahead]:
        """Return what steps of split numbers ask the first cache for.

        Weights, and of one tap the next step's pixels, where the second cache doesn't hold both.
        Pixels of several taps are near, and products of single bfloat16 or bytes hide no more.
        """
        several = self.g.taps > 1
        far = self.panels * self.panel_bytes > RESIDENT
        far = far or max_value(self.steps * self.plane) > l2_share(machine)
        if self.parts == 1 or not far or not (self.tall if several else self.steps >= LONG):
            return []
        size = self.step_bytes
        weights = Ahead("w", size // LINE, NEAR_STEPS * size, level=1)
        pixels = Ahead("a", self.block * self.pixel // LINE, self.plane, level=1)
        return [weights] if several else [weights, pixels]

    def pack(self, parts: Sequence[Array]) -> Array:
        """Return filters of each part as [super][panel][step][tap][part][column][tile]."""
        return pack_tiles(parts, self.channels, self.tile_columns)

    def cycles(self, from_panels: bool, end: float) -> float:
        """Estimate the cycles, `end` of them for each vector of results, without the planes."""
        g = self.g
        each = self.panel_steps * self.products * PRODUCT + self.block * self.tile_columns * end
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
        copied = pixels * (SPREAD + splitting(self.parts)) * (1.0 if strided else COPIED)
        return g.batch * g.supers * (copied + far_cycles(machine, self.steps * self.plane))


@dataclass(frozen=True, kw_only=True)
class TilesParams(BlockParams):
    """Those of blocks of pixels and panels of weights, and of packed layouts."""

    partitions: int = 1
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
    TiledConv[TilesParams, Cut],
    Splittable[ConvBlocked, TilesParams],
    PacksActivations[ConvBlocked, TilesParams],
):
    """The common part of convolutions on tiles."""

    template = "cpu/amx/conv.c.j2"
    dynamic = True
    bitwise_reproducible = True
    channels = 32

    def cut(self, w: Workload[ConvBlocked], params: TilesParams) -> Cut:
        """Return the workload's partition by the parameters."""
        y, tall = w.outputs[0], params.tall
        given = self._given(w, params)
        wanted = None
        if params.planes_y is not None:
            planes = self._planes(w, y)
            wanted = replace(planes, border=params.planes_y, fill=params.fill_y)
        g = geometry(w, 0, recut=not given and wanted is None)
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
        """Return the planes of a tensor that lies as such."""
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
        return kind and typed and images and not self._defers_epilogue(w)

    def packed_params(
        self, params: TilesParams, inputs: Mapping[int, PackedLayout], y: PackedLayout | None
    ) -> TilesParams:
        """Parameters with the borders of planes."""
        borders = tuple((index, planes.border) for index, planes in inputs.items())
        params = replace(params, borders=borders)
        return replace(params, planes_y=y.border, fill_y=y.fill or 0) if y else params

    def shared_params(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target, threads: int
    ) -> Sequence[TilesParams]:
        """Threads share the panels, and the copy of x before."""
        c = self.cut(w, params)
        partitions = min(threads, c.panels // c.units)
        alone = c.g.batch * c.g.supers != 1 or partitions < 2 or self._defers_epilogue(w)
        return () if alone else [replace(params, partitions=partitions)]

    def work_split(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> WorkSplit:
        """Partitions of panels, after a phase for the copy."""
        partitions = params.partitions
        phases = 1 if partitions == 1 or self.cut(w, params).direct else 2
        return WorkSplit(partitions, phases)

    def _adds_floats(self, w: Workload[ConvBlocked]) -> bool:
        types = [t.dtype for t in (w.inputs[0], *w.inputs[2:], *w.outputs) if t is not None]
        return w.op.accumulator is DType.FLOAT and not any(t.is_half for t in types)

    def _fits(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Return whether tiles fit, and x is blocked and no depthwise convolution's."""
        return super()._fits(w, target) and not is_depthwise(w) and not geometry(w, 1).plain

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[TilesParams]:
        """Both orders; tall blocks where all pixels are two of 32 and several taps read them."""
        tall = self.cut(w, TilesParams(rb=0, tall=True)).flat.rows
        shapes = [False, True] if not is_dynamic(tall) and 32 < tall <= 64 else [False]
        sets: list[TilesParams] = [TilesParams(rb=rb, tall=t) for t in shapes for rb in (0, 1)]
        return cheapest(self, sets, w, target, 3)

    def packs(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in tiles, in the order of use."""
        op, c = w.op, self.cut(w, params)
        return {1: lambda weights: self.pack(ungrouped(weights, c.g, op.group), c, w)}

    def _defers_epilogue(self, w: Workload[ConvBlocked]) -> bool:
        """Return whether vectors can't compute the epilogue.

        It follows when all sums are stored.
        """
        return not typed_epilogue(w.op.epilogue, w, 2)

    def scratch(self, w: Workload[ConvBlocked], params: TilesParams, target: Target) -> int:
        """Reserve the planes of one image and group, and two blocks of sums for each thread."""
        c = self.cut(w, params)
        return c.own + params.partitions * 2 * 4 * TILE

    def values(
        self, w: Workload[ConvBlocked], params: TilesParams, target: Target
    ) -> dict[str, object]:
        """Return the planes, the steps of a product and the loops over blocks and panels."""
        c = self.cut(w, params)
        shortcuts = {k: p for k, p in self._given(w, params).items() if k}
        planes = {k - 1: p for k, p in shortcuts.items()}  # as the epilogue counts them
        epilogue = PlanesEpilogue(w, c.g, target, self.sums, planes, c.y)
        shared = self.block_values(
            w, params, c, epilogue, target, pixel=c.pixel, near=c.near(target.machine),
            blocks=None if is_dynamic(c.flat.rows) else c.flat.blocks,
        )  # fmt: skip
        return {
            **shared, "flat": c.flat, "pitch": c.flat.pitch, "exact": c.parts > 1,
            "shifts": [s * c.pixel for s in c.flat.shifts()], "rest": c.g.ic % c.channels,
            "given": c.x, "wanted": c.y, "shortcuts": shortcuts, "units": c.units,
            "result_size": w.outputs[0].dtype.itemsize, "partitions": params.partitions,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: TilesParams, target: Target) -> float:
        """Estimated cycles; tall blocks pay where taps find their pixels in the first cache."""
        c, by_panels = self.cut(w, params), params.rb == 0
        near = c.panels * c.panel_bytes <= RESIDENT
        shape = 1.0 if not c.tall else 0.95 if c.g.taps > 1 and self.sums is DType.FLOAT else 1.08
        order = 1.0
        if near and c.panels > 1:  # panel by panel the next one is asked for meanwhile
            small = is_small(target.machine, c.steps * c.plane)
            several = c.g.taps > 1 and self.sums is DType.FLOAT
            others = 1.1 if small else 1.05 if several else 1.0
            order = (1.0 if small or several else 1.03) if by_panels else others
        products = c.cycles(by_panels, end_cycles(w)) * shape * order
        return COMPARED * (products + c.spreading(target.machine))


class ConvTilesBf16(ConvTiles):
    """Products in bfloat16."""

    name = "conv_amx_bf16"
    precision = "bf16"


class ConvTilesBf16x3(ConvTiles):
    """Products of numbers of 16 to 17 bits, each as three of bfloat16."""

    name = "conv_amx_bf16x3"
    precision = "bf16x3"
    parts = 2


class ConvTilesBf16x6(ConvTiles):
    """Products of numbers of 24 bits, each as six of bfloat16."""

    name = "conv_amx_bf16x6"
    precision = "bf16x6"
    parts = 3


class ConvTilesBytes(ConvTiles):
    """Exact INT32 sums of u8 x s8 or s8 x s8."""

    name = "conv_amx_bytes"
    channels = 64
    sums = DType.INT32


KERNELS = (ConvTilesBf16x3(), ConvTilesBf16x6(), ConvTilesBf16(), ConvTilesBytes())
