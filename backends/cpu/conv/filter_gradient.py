"""Gradient of a convolution's filters in channel blocks: a product over the pixels of all images.

A register tile holds the sums of some channels of x times vectors of channels of g, for one tap of
the filters; of each pixel it reads those vectors and broadcasts those channels. Pixels are cut into
parts that stay in the L2 cache for all tiles; the sums of a part are added to the filters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from atc.backends.kernel import Kernel, KernelParams, Splittable, Workload, WorkSplit
from atc.backends.render.axis import Axis, rows_and_columns, window_axes
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import ConvFilterGradient

ROWS, VECTORS = (8, 4, 16, 2), (2, 3, 4, 1, 6)
"""Channels of x, and vectors of channels of g, of a tile."""
CALL, ROW = 20.0, 6.0
"""Cycles to enter and leave a tile, and to begin a row of pixels."""
ADDED = 1.5
"""Cycles to add a sum to a filter."""


@dataclass(frozen=True, kw_only=True)
class TileParams(KernelParams):
    """Those of tiles of mr channels x nv vectors, whose panels are shared by some partitions."""

    mr: int
    nv: int
    partitions: int = 1


@dataclass(frozen=True)
class Cut:
    """A part computed at a time: `images` of the batch, of each so many `rows` of pixels."""

    rows_axis: Axis
    cols_axis: Axis
    block: int
    filters: int
    channels: int
    plain: bool
    """Whether the channels of x are strided."""
    images: int
    rows: int
    parts: int

    @property
    def taps(self) -> int:
        """Taps of the window."""
        return self.rows_axis.kernel * self.cols_axis.kernel

    @property
    def step(self) -> int:
        """Elements of x from one pixel to the next."""
        return 1 if self.plain else self.block

    @property
    def each(self) -> int:
        """Channels of x whose sums are kept together."""
        return self.channels if self.plain else self.block

    @property
    def x_plane(self) -> int:
        """Elements of a block of x, or of a channel."""
        return self.rows_axis.size * self.cols_axis.size * self.step

    @property
    def g_plane(self) -> int:
        """Elements of a block of g."""
        return self.rows_axis.out * self.cols_axis.out * self.block

    @property
    def panel_blocks(self) -> int:
        """Blocks of g."""
        return -(-self.filters // self.block)


class FilterGradientTiles(
    Kernel[ConvFilterGradient, TileParams], Splittable[ConvFilterGradient, TileParams]
):
    """ConvFilterGradient of one group in register tiles; threads share the panels of filters."""

    name = "conv_filter_tiles"
    op = ConvFilterGradient
    template = "cpu/conv/filter_gradient_tiles.c.j2"
    portable = False

    def accepts(self, w: Workload[ConvFilterGradient], target: Target) -> bool:
        """Floats in blocks as wide as vectors, x of few channels plain; one or two axes."""
        op, x, g = w.op, w.input(0), w.input(1)
        if op.group != 1 or op.window.rank > 2 or is_dynamic((x, g)) or 0 in (*x.shape, *g.shape):
            return False
        wide = op.blocked(g) and g.shape[-1] == lanes(target) > 1 and g.dtype is DType.FLOAT
        few = not op.blocked(x) and x.shape[1] <= ROWS[0]
        return wide and (few or op.blocked(x) and x.shape[-1] == g.shape[-1])

    def parameters(
        self, w: Workload[ConvFilterGradient], target: Target
    ) -> Sequence[TileParams]:
        """Return the most promising sets."""
        return sorted(self.sets(w, target), key=lambda p: self.cost(w, p, target))[:4]

    def sets(self, w: Workload[ConvFilterGradient], target: Target) -> list[TileParams]:
        """Return the tiles that fit the registers."""
        c = self.cut(w, 1, target)
        return [
            TileParams(mr=mr, nv=nv)
            for mr in dict.fromkeys(min(mr, c.each) for mr in ROWS)
            for nv in VECTORS
            if mr * nv + nv + 1 <= target.vector_registers and nv <= c.panel_blocks
        ]

    def cut(self, w: Workload[ConvFilterGradient], nv: int, target: Target) -> Cut:
        """Return the parts in which the pixels of x and of a panel of g stay in half of L2."""
        op, x, g, y = w.op, w.input(0), w.input(1), w.outputs[0]
        rank, window, block = op.window.rank, op.window, g.shape[-1]
        axes = window_axes(window, g.shape[2:-1], x.shape[2 : 2 + rank])
        if all((a.kernel, a.stride, a.pad, a.out) == (1, 1, 0, a.size) for a in axes):
            pixels = prod(a.out for a in axes)
            axes = [Axis(pixels, pixels)]
        rows, cols = rows_and_columns(axes)
        plain = not op.blocked(x)
        channels = y.shape[1] if plain else -(-y.shape[1] // block) * block
        strides = rows.stride * cols.stride
        room = target.machine.l2.size // 2 // (4 * (channels * strides + nv * block))
        images = max(1, min(x.shape[0], room // (rows.out * cols.out)))
        rounds = -(-x.shape[0] // images)
        images = -(-x.shape[0] // rounds)
        blocks = -(-rows.out // max(1, min(rows.out, room // cols.out)))
        high = -(-rows.out // blocks)
        return Cut(rows, cols, block, y.shape[0], y.shape[1], plain, images, high, rounds * blocks)

    def scratch(
        self, w: Workload[ConvFilterGradient], params: TileParams, target: Target
    ) -> int:
        """Reserve the sums of a panel and a block of channels, for each partition."""
        return 4 * params.partitions * self._sums(w, params, target)

    def _sums(self, w: Workload[ConvFilterGradient], params: TileParams, target: Target) -> int:
        c = self.cut(w, params.nv, target)
        return -(-c.taps * c.each * params.nv * c.block // 16) * 16

    def values(
        self, w: Workload[ConvFilterGradient], params: TileParams, target: Target
    ) -> dict[str, object]:
        """Return the parts, panels, blocks of channels and their tiles."""
        c, nv = self.cut(w, params.nv, target), params.nv
        x = w.input(0)
        blocks = [(0, 1, c.channels)] if c.plain else _grouped(c.channels, c.block)
        panels = _grouped(c.panel_blocks, nv)
        tiles = sorted({(rows, v) for _, _, n in blocks for _, rows in _tiles(n, params.mr)
                        for _, _, v in panels})  # fmt: skip
        return {
            "c": c, "batch": x.shape[0], "blocks": blocks, "panels": panels, "tiles": tiles,
            "tiles_of": lambda n: _tiles(n, params.mr), "nv": nv, "partitions": params.partitions,
            "x_image": c.x_plane * x.shape[1], "g_image": c.g_plane * c.panel_blocks,
            "down": c.rows_axis.tap_ranges, "across": c.cols_axis.tap_ranges,
            "sums": self._sums(w, params, target),
        }  # fmt: skip

    def shared_params(
        self, w: Workload[ConvFilterGradient], params: TileParams, target: Target, threads: int
    ) -> Sequence[TileParams]:
        """Threads share the panels."""
        partitions = min(threads, -(-self.cut(w, params.nv, target).panel_blocks // params.nv))
        return [replace(params, partitions=partitions)] if partitions > 1 else []

    def work_split(
        self, w: Workload[ConvFilterGradient], params: TileParams, target: Target
    ) -> WorkSplit:
        """Partitions of panels."""
        return WorkSplit(params.partitions)

    def cost(
        self, w: Workload[ConvFilterGradient], params: TileParams, target: Target
    ) -> float:
        """Return the cycles of all tiles, and of their sums' way to the filters."""
        machine, size, batch = target.machine, target.vector_bytes, w.input(0).shape[0]
        c = self.cut(w, params.nv, target)
        pixels, rows = batch * c.rows_axis.out * c.cols_axis.out, batch * c.rows_axis.out
        blocks = [(0, 1, c.channels)] if c.plain else _grouped(c.channels, c.block)
        total = 0.0
        for _, panels, v in _grouped(c.panel_blocks, params.nv):
            for _, count, n in blocks:
                for _, mr in _tiles(n, params.mr):
                    loads = mr / machine.loads + v / machine.load_rate(size)
                    lines = (v + 1) * size / machine.l2.rate
                    step = max(mr * v / machine.fma_rate(size), loads, lines, machine.fma_latency)
                    each = pixels * step + rows * ROW + c.parts * CALL
                    total += panels * count * c.taps * each
        return total + ADDED * c.parts * w.outputs[0].size


def _grouped(total: int, most: int) -> list[tuple[int, int, int]]:
    """Cut `total` into slices: (first of them, how many alike, extent), the last one shorter."""
    found = [(0, total // most, most), (total // most, 1, total % most)]
    return [part for part in found if part[1] and part[2]]


def _tiles(count: int, mr: int) -> list[tuple[int, int]]:
    """Cut so many channels into tiles: first channel, channels."""
    return [(k, min(mr, count - k)) for k in range(0, count, mr)]


KERNELS = (FilterGradientTiles(),)
