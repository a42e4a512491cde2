"""Direct convolution of images with dynamic height and width, of floats and of bytes.

The tiles are those of `conv.blocked`, one row high: p pixels where no tap meets padding, then some
of the powers of two below, the last of which reach back to pixels that are computed already; what
meets padding is computed pixel by pixel, with the range of its taps found when it runs. Bytes may
be copied to planes of taps before (`tap_planes`), in which nothing is padding.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.blocked import NARROW, Run, Tile, cheapest, is_depthwise
from atc.backends.cpu.conv.cost import tile_cycles
from atc.backends.cpu.conv.dot_product import Words
from atc.backends.cpu.conv.filter_panels import (
    PACKING,
    PanelParams,
    filter_scratch,
    name_of_panels,
    packed_panels,
)
from atc.backends.cpu.conv.input_blocks import input_blocks
from atc.backends.cpu.conv.int8 import (
    ConvBytes,
    in_whole_words,
    packed_behind,
    padded,
    started,
    zero_point,
)
from atc.backends.cpu.conv.tap_planes import TapPlanes
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.machine import Machine
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.tile_geometry import (
    Columns,
    Geometry,
    geometry,
    panel_groups,
    panels,
    rows_merge,
)
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import concrete, is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

WIDE = ((14, 2), (8, 3), (6, 4), (28, 1))
"""Pixels and vectors of a tile for 32 registers."""
FLOAT_TYPES = {"x": "float", "weight": "float", "result": "float"}
"""C types of what the kernel of floats reads and stores."""
WITHIN = ConvBytes()
"""The kernel of bytes of images whose extents are known: how it multiplies words of them."""


class ConvDynamicShape(Kernel[ConvBlocked, PanelParams]):
    """Direct convolution with tiles of p pixels x nv vectors of images of any size."""

    name = "conv_dynamic_shape"
    op = ConvBlocked
    template = "cpu/conv/dynamic_shape.c.j2"
    portable = False
    dynamic = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Floats, an image whose extents only the run knows, groups of known weights only."""
        op, x, filters = w.op, w.input(0), w.input(1)
        wide = w.outputs[0].shape[-1] == lanes(target) > 1 and sums_floats(w)
        single = op.group == 1 and filters.dtype is DType.FLOAT and not is_dynamic(filters.shape)
        floats = wide and w.outputs[0].dtype is DType.FLOAT and (w.constant[1] or single)
        return floats and is_dynamic(x.shape[1:]) and not is_depthwise(w)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the most promising sets."""
        return cheapest(self, tile_sets(w, target), w, target, 3)

    def packs(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        return packed_panels(w, params) if w.constant[1] else {}

    def packing(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> str:
        """Of panels."""
        return name_of_panels(w, params) if w.constant[1] else ""

    def scratch(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> int:
        """Reserve what filters take that only the run knows, packed."""
        return filter_scratch(w, geometry(w, params.p))

    def values(
        self, w: Workload[ConvBlocked], params: PanelParams, target: Target
    ) -> dict[str, object]:
        """Return the geometry, the tiles by their width and vectors, and the loops over them."""
        g = geometry(w, params.p)
        epilogue, step = TileEpilogue(w.op.epilogue, w, g, target), 1 if g.plain else g.block
        return {
            **loop_values(g, params), "types": FLOAT_TYPES, "e": None, "per": 1, "unit": step,
            "bodies": [{**body, "blocks": 1} for body in input_blocks(g, 4)],
            "unpacked": 0 if w.constant[1] else w.input(1).shape[0], "nv": params.nv,
            "depth": g.depth, "weights": "x1" if w.constant[1] else "packed", "sums": False,
            "start": epilogue.start, "epilogue": epilogue, "planes": None, "lines": 0,
            "rounded": False,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: PanelParams, target: Target) -> float:
        """Estimated cycles."""
        g = geometry(w, params.p)
        packing = PACKING * filter_scratch(w, g) / 4
        return packing + loop_cycles(target.machine, g, params, g.depth)


@dataclass(frozen=True, kw_only=True)
class DynamicParams(PanelParams):
    """Those of tiles of images of any size."""

    copied: bool = False
    """Whether images are copied to planes of taps before."""


class ConvDynamicBytes(Kernel[ConvBlocked, DynamicParams]):
    """Convolution of u8 or s8 by s8 with tiles of p pixels x nv vectors of images of any size."""

    name = "conv_dynamic_bytes"
    op = ConvBlocked
    template = "cpu/conv/dynamic_shape.c.j2"
    portable = False
    dynamic = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Bytes and known weights, an image whose extents aren't."""
        open_ = is_dynamic(w.input(0).shape[1:]) and not is_depthwise(w)
        return open_ and in_whole_words(w, target) and not geometry(w, 1).plain

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[DynamicParams]:
        """Return the most promising sets."""
        ways = (False, True) if can_be_copied(w) else (False,)
        sets = [
            DynamicParams(p=s.p, nv=s.nv, copied=copied)
            for s in self.sets(w, target) for copied in ways
        ]  # fmt: skip
        return cheapest(self, sets, w, target, 3)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> Sequence[PanelParams]:
        """Return the tiles that fit the registers."""
        return WITHIN.sets(w, target)

    def words(self, w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> Words:
        """Return the convolution in words, of what its tiles read."""
        words = WITHIN.words(w, params, target)
        return replace(words, g=TapPlanes(words.g).geometry) if params.copied else words

    def tiles(self, w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> int:
        """Return the tiles of an image of half the largest extents."""
        return tiles_of_half(self.words(concrete(w), params, target))

    def scratch(self, w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> int:
        """Reserve the planes of an image."""
        return TapPlanes(geometry(w, 1)).size if params.copied else 0

    def packs(
        self, w: Workload[ConvBlocked], params: DynamicParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use, behind what the sums start with."""
        words = self.words(w, params, target)
        return packed_behind(_starts(w, words.g, params, target).table, words, w, target)

    def values(
        self, w: Workload[ConvBlocked], params: DynamicParams, target: Target
    ) -> dict[str, object]:
        """Return those of floats, for words of bytes."""
        words, read = self.words(w, params, target), WITHIN.reading(w, target)
        g, e = words.g, WITHIN.elements(w, words, target, read)
        epilogue = TileEpilogue(w.op.epilogue, w, g, target, DType.INT32)
        starts = _starts(w, g, params, target)
        packed = f"(x1 + {starts.size})" if starts.size else "x1"
        if e.weight != "int8_t":
            packed = f"(const {e.weight} *)(const void *){packed}"

        def start(vector: int) -> str:
            return started(epilogue, starts.place(vector), vector)

        return {
            **loop_values(g, params), "e": e, "per": words.per, "unit": words.unit,
            "types": {"x": e.x, "weight": e.weight, "result": e.result},
            "bodies": words.bodies(), "depth": words.depth * words.per, "weights": packed,
            "sums": starts.size > 0, "start": start, "epilogue": epilogue,
            "apart": g.in_plane if words.joined > 1 else words.per, **plane_values(w, params),
            **words.prefetched(words.lines_of(self.tiles(w, params, target))),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> float:
        """Estimated cycles."""
        words = self.words(w, params, target)
        cycles = WITHIN.cycles(
            w, words, target, lambda m: loop_cycles(m, words.g, params, words.depth)
        )
        return cycles + copy_cycles(w, params, target)


@dataclass(frozen=True)
class _Starts:
    """The start of sums: minus the zero point times the weights of the taps inside the input.

    Where taps may be outside it is made of a table of the sums of all taps above and left of each.
    """

    g: Geometry
    zero: int
    padded: bool

    @property
    def size(self) -> int:
        """The bytes of the table; 0 where sums start with 0."""
        return 4 * self._rows * self._filters if self.zero else 0

    @property
    def _rows(self) -> int:
        return (self.g.rows.kernel + 1) * (self.g.cols.kernel + 1) if self.padded else 1

    @property
    def _filters(self) -> int:
        return self.g.supers * self.g.mb * self.g.block

    def table(self, dense: Array) -> Array:
        """Return the bytes of the table for weights [supers, filters, ic, taps]."""
        if not self.zero:
            return np.zeros(0, np.int8)
        sums = -self.zero * dense.astype(np.int64).sum(-2).reshape(self._filters, -1)
        if self.padded:
            taps = sums.reshape(-1, self.g.rows.kernel, self.g.cols.kernel)
            above = np.pad(taps.cumsum(1).cumsum(2), ((0, 0), (1, 0), (1, 0)))
            found = above.reshape(self._filters, -1).T
        else:
            found = sums.sum(1)
        table: Array = np.ascontiguousarray(found.astype(np.int32)).reshape(-1).view(np.int8)
        return table

    def place(self, vector: int) -> str:
        """Return the C expression of what a vector of a tile starts with; "" for 0."""
        lane = f"{vector * self.g.block}"
        if not self.zero:
            return ""
        if not self.padded:
            return f"v_i32_load(starts + {lane})"

        def at(kh: str, kw: str) -> str:
            row = f"({kh} * {self.g.cols.kernel + 1} + {kw}) * {self._filters}"
            return f"v_i32_load(starts + ({row} + {lane}))"

        right, left = (f"v_i32_sub({at('kh1', kw)}, {at('kh0', kw)})" for kw in ("kw1", "kw0"))
        return f"v_i32_sub({right}, {left})"


def _starts(
    w: Workload[ConvBlocked], g: Geometry, params: DynamicParams, target: Target
) -> _Starts:
    zero = zero_point(w, target, WITHIN.reading(w, target))
    return _Starts(g, zero, padded(w) and not params.copied)


def can_be_copied(w: Workload[ConvBlocked]) -> bool:
    """Return whether outputs may be one row, and aren't yet."""
    g = geometry(w, 1)
    return not g.flat and all(rows_merge(v, g.cols.out) for v in w.op.epilogue.views)


def plane_values(w: Workload[ConvBlocked], params: DynamicParams) -> dict[str, object]:
    """Return what the template wants to know of planes of taps."""
    g = geometry(w, params.p)
    planes = TapPlanes(g) if params.copied else None
    return {"planes": planes, "axes": g, "padding": w.op.zero & 255, "rounded": False}


def copy_cycles(w: Workload[ConvBlocked], params: DynamicParams, target: Target) -> float:
    """Return the cycles that copying takes."""
    return TapPlanes(geometry(w, 1)).cycles(target.machine, 1) if params.copied else 0.0


def tile_sets(w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
    """Return the tiles of floats that fit the registers."""
    shapes = WIDE if target.vector_registers >= 32 else NARROW
    return [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]


def tiles_of_half(largest: Words) -> int:
    """Return the tiles of an image of half the extents of the largest one."""
    g = largest.g
    return -(-g.rows.out * -(-g.cols.out // largest.p) // 4)


def loop_values(g: Geometry, params: PanelParams) -> dict[str, object]:
    """Return the tiles and what loops over them need."""
    widths, groups = [params.p, *rests(params.p)], panel_groups(g.mb, params.nv)
    low, high = g.cols.interior
    return {
        "g": g, "p": params.p, "widths": widths, "low": low, "high": high,
        "tiles": [_tile(c, n, g) for n, _, _ in groups for c in widths], "groups": groups,
        "cuts": list(zip(widths, (*widths[1:], 0), strict=True)),
        "step": 1 if g.plain else g.block, "unpacked": 0,
    }  # fmt: skip


def loop_cycles(machine: Machine, g: Geometry, params: PanelParams, depth: int) -> float:
    """Return the cycles of all tiles, which sum `depth` products of words for each result."""
    if g.flat:  # one row, which known extents may have cut
        whole = replace(g.cols, out=g.rows.out * g.cols.out, open=True)
        g = replace(g, rows=replace(g.rows, out=1, open=True), cols=whole)
    low, high = g.cols.interior
    alone, rows = g.cols.out - (high - low), g.rows.part_inside
    part = 1 - (1 - g.cols.part_inside) * g.cols.out / max(1, alone)  # of single pixels' columns
    counts = [(1, alone, part), *((n, k, 1.0) for n, k in tile_counts(params.p, high - low))]
    tiles = sum(
        count * tile_cycles(machine, g, 1, width, n, depth * rows * inside)
        for n in panels(g.mb, params.nv)
        for width, count, inside in counts
    )
    return g.batch * g.supers * g.rows.out * tiles


def tile_counts(p: int, most: int) -> list[tuple[int, float]]:
    """Return the widths of tiles, and how many of each a row of so many pixels has.

    That is by the mean of shorter rows, as many as a tile has pixels: a range has all of them.
    """
    lengths = range(max(1, most - p + 1), most + 1)
    widths, found = [p, *rests(p)], list[tuple[int, float]]()
    left = {n: n for n in lengths}
    for width, following in zip(widths, (*widths[1:], 0), strict=True):
        total = 0
        for n in lengths:
            count = max(0, -((following - left[n]) // width)) if n >= width else 0
            left[n] = max(0, left[n] - count * width)
            total += count
        found.append((width, total * most / max(1, sum(lengths))))
    return found


def rests(p: int) -> list[int]:
    """Return the widths of the tiles after those of p pixels: the powers of two below."""
    return [1 << k for k in reversed(range((p - 1).bit_length()))]


class OpenTile(Tile):
    """A tile of a row of any image, for the taps kw0 .. kw1 - 1 of each row of them."""

    def runs(self) -> list[Run]:
        """Return the taps of one row."""
        (whole,) = super().runs()
        place = f"kw0 * {self.g.cols.dilation * self.step}"
        return [replace(whole, kw="kw0", count="(kw1 - kw0)", place=place)]


def _tile(width: int, vectors: int, g: Geometry) -> OpenTile:
    taps = (tuple(range(width)),) * g.cols.kernel
    return OpenTile(f"tile_{width}x{vectors}", 1, vectors, Columns(0, 1, width, taps), g)


KERNELS = (ConvDynamicShape(), ConvDynamicBytes())
