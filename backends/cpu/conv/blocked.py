"""Direct convolution in channel blocks: register tiles of pixels x vectors of output channels.

Constant filters are packed when compiling, others in scratch at the begin of each call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

from atc.backends.cpu.conv.cost import image_cycles, rate_of_weights
from atc.backends.cpu.conv.filter_panels import (
    PACKING,
    StripedPanelParams,
    filter_scratch,
    name_of_panels,
    packed_panels,
    widened_panel,
    widening_cycles,
    worth_widening,
)
from atc.backends.cpu.conv.input_blocks import (
    asked_for,
    input_blocks,
    part_of_sum,
    prefetched,
    share_of_tile,
)
from atc.backends.cpu.conv.opened_planes import opened_planes
from atc.backends.cpu.conv.sampled import sampled, sampling_cycles, skipped_cycles
from atc.backends.kernel import AnyKernel, Kernel, Pack, ParamsT, Stripable, Workload
from atc.backends.machine import Machine
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.opening import OpensExtents
from atc.backends.render.stored_weights import FLOATS, stored_weights
from atc.backends.render.tile_geometry import (
    Columns,
    Geometry,
    cut_columns,
    geometry,
    in_rows,
    panel_groups,
    panels,
    tile_rows,
)  # fmt: skip
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import concrete, opened
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked

WIDE = (
    (14, 2),
    (12, 2),
    (10, 2),
    (9, 3),
    (8, 3),
    (7, 3),
    (6, 4),
    (28, 1),
    (14, 1),
    (1, 12),
    (1, 4),
)
NARROW = ((6, 2), (4, 3), (5, 2), (12, 1), (6, 1), (1, 7), (1, 4))
"""Pixels and vectors of a tile, for 32 and for 16 registers."""
BY_LANE = ((7, 3), (4, 6), (9, 2), (5, 4), (8, 2), (6, 3), (4, 4), (14, 1), (7, 1), (1, 4))
"""Those where each pixel's channels have a register, too, and four are left for weights: 64-bit
NEON multiplies by lanes."""


STRIPES = 8
"""Stripes that an image is computed in, about, for each of which panels are widened anew."""
INPUT, BESIDE = 1 / 8, 5 / 8
"""Parts of L2 for inputs that all panels of weights pass over, and weights that it keeps beside."""


@dataclass(frozen=True)
class Run:
    """Taps kw .. kw + count - 1 of a row of taps, which meet the same pixels of a tile.

    `place` is the first pixel's input at tap kw, from the row's; `pixels` are the accumulators and
    the places of their inputs from the first's. Numbers that the run decides are text in C.
    """

    kw: int | str
    count: int | str
    place: int | str
    pixels: tuple[tuple[str, int], ...]

    @property
    def several(self) -> bool:
        """Whether there may be more than one tap."""
        return self.count != 1

    def before(self, each: int) -> str:
        """Return what lies before the first tap in C, so many elements for each."""
        return f"{self.kw} * {each}" if isinstance(self.kw, str) else f"{self.kw * each}"


@dataclass(frozen=True)
class Tile:
    """One tile function: its shape and the taps of its columns."""

    name: str
    rows: int
    vectors: int
    columns: Columns
    g: Geometry

    @property
    def step(self) -> int:
        """Input elements from one pixel to the next."""
        return 1 if self.g.plain else self.g.block

    def runs(self) -> list[Run]:
        """Return the taps of one row: one run, or where padding is met one per tap."""
        cols, taps = self.g.cols, self.columns.taps
        if self.columns.whole:
            return [Run(0, cols.kernel, 0, self._pixels(taps[0]))]
        places = [k * cols.dilation + t[0] * cols.stride if t else 0 for k, t in enumerate(taps)]
        return [Run(k, 1, places[k] * self.step, self._pixels(t)) for k, t in enumerate(taps) if t]

    def _pixels(self, columns: Sequence[int]) -> tuple[tuple[str, int], ...]:
        g = self.g
        return tuple(
            (
                f"c{r * self.columns.width + c}",
                (r * g.rows.stride * g.cols.size + (c - columns[0]) * g.cols.stride) * self.step,
            )
            for r in range(self.rows)
            for c in columns
        )

    def outputs(self) -> list[tuple[str, int, int, int, int]]:
        """Return (accumulator, row, column, vector, place in y) of every result."""
        g, width = self.g, self.columns.width
        return [
            (f"c{r * width + c}_{v}", r, c, v, (r * g.cols.out + c) * g.block + v * g.out_plane)
            for r in range(self.rows)
            for c in range(width)
            for v in range(self.vectors)
        ]


@dataclass(frozen=True, kw_only=True)
class DirectParams(StripedPanelParams):
    """Those of tiles and of the loops over them."""

    u: int
    """Steps of the innermost loop that are unrolled."""
    rb: int
    """Rows that are computed for all channels before the next ones; 0: all, for each panel."""
    pf: bool
    """Whether the next panel is prefetched."""
    sampled: bool = False
    """Whether the pixels that a stride meets are copied before, so that the tiles' are dense."""
    copy: bool = False
    """Whether a panel of 16-bit weights becomes floats in scratch, for all its tiles."""


def opened_rows(params: DirectParams) -> DirectParams:
    """Return parameters with the rows opened that are computed, or in memory, at a time."""
    rows = [n and opened(n, name) for n, name in ((params.x_rows, "xr"), (params.y_rows, "yr"))]
    return replace(params, rb=opened(params.rb, "rb"), x_rows=rows[0], y_rows=rows[1])


def cheapest(
    kernel: AnyKernel, sets: Sequence[ParamsT], w: Workload, target: Target, most: int
) -> list[ParamsT]:
    """Return the parameter sets of least estimated cost, the least first."""
    largest = concrete(w)
    return sorted(sets, key=lambda p: kernel.cost(largest, p, target))[:most]


def ends_of_tiles(w: Workload[ConvBlocked], params: StripedPanelParams) -> list[int]:
    """Return the rows at which stripes may end: they cut no tile of several rows."""
    p = params.p
    g = geometry(w, p, params)
    (low, high), rows = g.rows.interior, tile_rows(g, p)
    last = low + (high - low) // rows * rows
    singly = {*range(low + 1), *range(last, g.rows.out + 1)} - {0}
    return sorted(singly | {*range(low + rows, last, rows)})


def is_depthwise(w: Workload[ConvBlocked]) -> bool:
    """Return whether every channel of a blocked operand has one filter to itself."""
    op, x, weights = w.op, w.input(0), w.input(1)
    return weights.shape[:2] == (op.group, 1) and len(x.shape) > op.plain


def read_at_once(w: Workload[ConvBlocked], target: Target) -> int:
    """Return how many channels of a pixel one load reads."""
    return lanes(target) if by_lane(w, target) else 1


def by_lane(w: Workload[ConvBlocked], target: Target) -> bool:
    """Return whether channels of a pixel are read as a vector, whose lanes are then factors."""
    neon = target.simd == "neon" and target.arch == "aarch64"
    return neon and not geometry(w, 1).plain and geometry(w, 1).ic >= lanes(target)


def tile_values(g: Geometry, p: int, nv: int, multiple: int = 1) -> dict[str, object]:
    """Return the functions of tiles of p pixels x nv vectors, and which of them are where.

    `multiple` pixels of a row are computed together.
    """
    rows, groups = tile_rows(g, p), panel_groups(g.mb, nv)
    columns = cut_columns(g.cols, p, multiple)
    tiles = {
        (r, n, c): Tile(tile_name(r, n, c), r, n, c, g)
        for r in sorted({rows, 1}) for n, _, _ in groups for c in columns
    }  # fmt: skip
    named = {t.name: t for t in tiles.values()}
    return {
        "g": g, "rows": rows, "columns": columns, "tiles": list(named.values()), "groups": groups,
        "tile_of": lambda r, n, c: tiles[r, n, c].name, "step": 1 if g.plain else g.block,
    }  # fmt: skip


class ConvDirect(
    Kernel[ConvBlocked, DirectParams],
    Stripable[ConvBlocked, DirectParams],
    OpensExtents[ConvBlocked, DirectParams],
):
    """Direct convolution with tiles of p pixels x nv vectors; weights may have 16 bits."""

    name = "conv_direct"
    op = ConvBlocked
    template = "cpu/conv/blocked.c.j2"
    portable = False
    batches = True
    bitwise_reproducible = True
    accepts_16_bit_weights = True
    opens: ClassVar[bool] = True
    """Whether extents are opened: not of kernels that few networks have two of."""

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Two spatial axes or one, blocks as wide as vectors, groups of known weights only."""
        op = w.op
        wide = w.outputs[0].shape[-1] == lanes(target) > 1 and sums_floats(w)
        able = w.constant[1] or (op.group == 1 and w.input(1).dtype is DType.FLOAT)
        return wide and op.window.rank <= 2 and able and not is_depthwise(w)

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[DirectParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 6)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[DirectParams]:
        """Return all parameter sets: tiles that fit the registers, row blocks."""
        shapes: Sequence[tuple[int, int]] = WIDE if target.vector_registers >= 32 else NARROW
        if by_lane(w, target):
            shapes = BY_LANE
        forms = dict.fromkeys((w, sampled(w) if w.constant[1] else w))
        found: list[DirectParams] = []
        for form, (p, nv) in product(forms, shapes):
            g = geometry(form, p)
            if nv > g.mb:
                continue
            one, more = (_row_blocks(target.machine, cut, p, nv) for cut in (g, in_rows(g, p)))
            for rb in dict.fromkeys((*one, *more)):
                copies = form is not w
                found.append(DirectParams(p=p, nv=nv, u=4, rb=rb, pf=True, sampled=copies))
        return [*found, *with_widened_panels(found, w)]

    def packs(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        return packed_panels(w, params) if w.constant[1] else {}

    def scratch(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> int:
        """Reserve what filters take that only the run knows, packed; or an image's dense copy."""
        g = self.cut(w, params)
        image = image_bytes(g) if params.sampled else 0
        return image + filter_scratch(w, g) + params.copy * widened_panel(g, params.nv)

    def packing(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> str:
        """Of panels."""
        return name_of_panels(w, params) if w.constant[1] else ""

    def cut(self, w: Workload[ConvBlocked], params: DirectParams) -> Geometry:
        """Return the geometry of direct tiles; blocks of rows along one axis are made of it."""
        g = geometry(sampled(w) if params.sampled else w, params.p, params)
        return in_rows(g, params.p) if params.rb else g

    def with_open_extents(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> tuple[Workload[ConvBlocked], DirectParams]:
        """Open images, channels and rows: loops around tiles, or around their steps."""
        if not self.opens or not w.constant[1] or params.sampled:
            return w, params  # functions that pack or copy have the numbers
        shared = opened_planes(w, self.cut(w, params))
        return shared, params if shared is w else opened_rows(params)

    def values(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> dict[str, object]:
        """Return the geometry, the tiles and the loops over them."""
        op = w.op
        p, nv, u = params.p, params.nv, params.u
        g = self.cut(w, params)
        stored = stored_weights(w)
        lines = prefetched(g, p, nv, u, stored.line) if params.pf else 0
        epilogue = TileEpilogue(op.epilogue, w, g, target)
        return {
            **tile_values(g, p, nv), "rb": params.rb or g.rows.out,
            "bodies": input_blocks(g, u), "lines": lines,
            "share": share_of_tile(g, lines * stored.line, u),
            "epilogue": epilogue, "stored": stored, "weights": FLOATS if params.copy else stored,
            "part": part_of_sum(g) if params.exact else 0, "places": (),
            "unpacked": 0 if w.constant[1] else w.input(1).shape[0], "nv": nv, "load_x": "",
            "strided": geometry(w, p, recut=False) if params.sampled else None,
            "by_lane": by_lane(w, target), **asked_for(target.machine, g, p, by_lane(w, target)),
            "starts": lambda tile: [epilogue.start(v) for _, _, _, v, _ in tile.outputs()],
        }  # fmt: skip

    def precise_params(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> DirectParams:
        """Long sums are made of parts, too."""
        long = part_of_sum(geometry(w, params.p)) != 0
        return replace(params, exact=True) if long else super().precise_params(w, params, target)

    def striped_params(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> DirectParams | None:
        """Tiles of rows and columns; weights stay in the cache from block to block."""
        op = w.op
        if op.window.rank != 2 or TileEpilogue(op.epilogue, w, geometry(w, 1), target).deferred:
            return None
        if not w.constant[1]:  # each block would pack them anew
            return None
        sets = [
            replace(s, rb=0, pf=False, exact=params.exact, x_rows=x_rows, y_rows=y_rows)
            for s in self.sets(w, target)
            if not s.sampled
        ]
        return cheapest(self, sets, w, target, 1)[0]

    def stripe_ends(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> Sequence[int]:
        """Blocks of rows cut no tile of several rows into single ones."""
        return ends_of_tiles(w, params)

    def cost(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> float:
        """Estimated cycles."""
        p, nv = params.p, params.nv
        g = self.cut(w, params)
        once, machine = read_at_once(w, target), target.machine
        widening, copies = widening_costs(w, g, params, target)
        rate = rate_of_weights(machine, g, nv)
        tiles = image_cycles(machine, g, p, nv, g.depth, widening, once, rate=rate)
        tiles *= _locality(sampled(w) if params.sampled else w, machine, g, nv, params.rb)
        if params.sampled:
            return g.batch * (g.supers * tiles + sampling_cycles(w, machine) + copies)
        packing = PACKING * filter_scratch(w, g) / 4
        skipped = 0.0 if params.rb else skipped_cycles(machine, g) * len(panels(g.mb, nv))
        return packing + g.batch * (g.supers * (tiles + skipped) + copies)


def _locality(w: Workload, machine: Machine, g: Geometry, nv: int, rb: int) -> float:
    """Return a factor for what is reread from beyond L2: inputs, or weights."""
    weights = g.mb * g.block * g.depth * 4
    reread = len(panels(g.mb, nv)) > 1 and w.input(0).nbytes > machine.l2.size // 2
    pays = reread and weights <= BESIDE * machine.l2.size
    if rb:
        return 1.0 if pays else 1.03
    return 1.05 if pays else 1.0


def with_widened_panels(
    sets: Sequence[DirectParams], w: Workload[ConvBlocked]
) -> Sequence[DirectParams]:
    """Return parameter sets once more, with floats made of panels of weights where that may pay."""
    return [replace(s, copy=True) for s in sets if worth_widening(w, geometry(w, s.p), s.p)]


def widening_costs(
    w: Workload[ConvBlocked], g: Geometry, params: DirectParams, target: Target
) -> tuple[float, float]:
    """Return the cycles in which a tile widens a vector of weights, and in which all panels of an
    image are widened before."""
    stored = stored_weights(w)
    if not params.copy:
        return stored.widening(target), 0.0
    times = STRIPES if params.rows_held else row_blocks(g, params)
    return 0.0, times * widening_cycles(g, params.nv, stored, target)


def image_bytes(g: Geometry) -> int:
    """Return the bytes of an image, or of the rows of it that are held, in floats."""
    return 4 * g.planes * g.in_plane


def row_blocks(g: Geometry, params: DirectParams) -> int:
    """Return how many blocks of rows there are, for each of which all weights are read."""
    return -(-g.rows.out // (params.rb or g.rows.out))


def tile_name(rows: int, vectors: int, columns: Columns) -> str:
    """Return a tile function's name; tiles at a border are named by their first column."""
    border = "" if columns.whole else f"_at{columns.first}"
    return f"tile_{rows}x{columns.width}x{vectors}{border}"


def _row_blocks(machine: Machine, g: Geometry, p: int, nv: int) -> list[int]:
    """Return the row blocks worth trying: all rows, or as many as stay in L2 for all panels."""
    weights = g.mb * g.block * g.depth * 4
    if len(panels(g.mb, nv)) == 1 or weights > machine.l2.size:
        return [0]
    rows = tile_rows(g, p)
    segments = g.cols.kernel if g.cols.open and g.cols.dilation > g.cols.size else 1
    of_tile = rows * min(g.rows.kernel, g.rows.stride) * g.cols.size * g.ic * 4 * segments
    count = -(-g.rows.out // (max(1, int(INPUT * machine.l2.size) // of_tile) * rows))
    return [0, -(-g.rows.out // (count * rows)) * rows] if count > 1 else [0]


KERNELS = (ConvDirect(),)
