"""3x3 convolution in channel blocks by Winograd's F(m x m, 3 x 3).

Tiles of inputs are transformed, multiplied by the transformed filters, one matrix product for each
of the (m + 2)^2 components, and transformed back. The filters are transformed when compiling, which
makes them (m + 2)^2 / 9 times as large, or in each run. Products are ordinary sums or, of tiles by
output channels, Winograd's inner products (`render/inner_product.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from atc.backends.cpu.conv.blocked import BY_LANE, Run, by_lane, cheapest, read_at_once
from atc.backends.cpu.conv.cost import FAR, NEAR, tile_cycles
from atc.backends.cpu.conv.dynamic_shape import rests
from atc.backends.cpu.conv.filter_panels import PanelParams, name_of_panels, packed_panels
from atc.backends.cpu.conv.input_blocks import LINE, PART, input_blocks
from atc.backends.cpu.conv.winograd_matrices import filter_lines, input_lines, output_lines
from atc.backends.cpu.conv.winograd_pairs import pack_balanced, packed_filters, paired
from atc.backends.cpu.matmul.cost import from_slow_l3, row_tiles, streamed
from atc.backends.kernel import Kernel, Pack, Workload, weight_type
from atc.backends.machine import Machine
from atc.backends.render.axis import Axis
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.inner_product import (
    BALANCING,
    InnerProduct,
    is_paired,
    pairs_pay,
)
from atc.backends.render.stored_weights import stored_weights
from atc.backends.render.tile_geometry import (
    Geometry,
    cut_columns,
    geometry,
    panel_groups,
    panels,
)
from atc.backends.render.vector_expr import LOADS, ROUNDED, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked, Window

SIZES = (6, 4, 2)
"""The extents of a tile of outputs."""
WIDE = ((14, 2), (9, 3), (8, 3), (7, 3), (6, 4), (14, 1), (28, 1))
NARROW = ((6, 2), (4, 3), (12, 1))
"""Tiles and vectors of a product, for 32 and for 16 registers."""
TILES = (12, 24, 48)
"""Tiles that are transformed at a time, about."""


@dataclass(frozen=True)
class Grid:
    """The tiles of an image: `down` rows of `across` tiles, `rows` of them at a time.

    Or `counted` tiles one after the other, where only the run knows how many a row has.
    """

    down: int
    across: int
    rows: int
    counted: int = 0

    @property
    def block(self) -> int:
        """Tiles transformed and multiplied together."""
        return self.counted or self.rows * self.across

    @property
    def rest(self) -> int:
        """Tiles of a last, smaller block; 0 where all are equal."""
        if self.counted:
            return self.down * self.across % self.counted
        return self.down % self.rows * self.across

    @property
    def blocks(self) -> list[int]:
        """The tiles of each block of an image of known size."""
        whole = self.down * self.across // self.block
        return [self.block] * whole + ([self.rest] if self.rest else [])


@dataclass(frozen=True)
class Product:
    """One tile function of the matrix products: transformed tiles x vectors of output channels."""

    tiles: int
    vectors: int

    @property
    def name(self) -> str:
        """The C function's name."""
        return f"multiply_{self.tiles}x{self.vectors}"

    def run(self, block: int) -> Run:
        """Return the accumulators and where their inputs lie."""
        return Run(0, 1, 0, tuple((f"c{k}", k * block) for k in range(self.tiles)))

    def sums(self) -> list[str]:
        """Return the accumulators of all tiles and vectors."""
        return [f"c{k}_{v}" for k in range(self.tiles) for v in range(self.vectors)]


@dataclass(frozen=True)
class RawFilters:
    """Filters that a run transforms: panels of `vectors`, `stride` floats between components.

    A panel has `whole` blocks of input channels and `rest` channels more. With `once` one panel is
    transformed at a time, as there is only one block of tiles; else all are before the first.
    """

    vectors: int
    stride: int
    whole: int
    rest: int
    once: bool
    lines: tuple[str, ...]
    """The one-dimensional transform d -> v in C."""


@dataclass(frozen=True, kw_only=True)
class WinogradParams(PanelParams):
    """Those of tiles of products, and of what is transformed at a time."""

    m: int
    """Rows and columns of a tile of results."""
    rows: int
    """Rows of tiles that are transformed at a time."""
    u: int
    """Steps of the innermost loop that are unrolled."""
    pf: bool
    """Whether the next panel is prefetched."""
    raw: bool = False
    """Whether each run transforms the filters, so that they take no more memory than they do."""
    counted: int = 0
    """Tiles that are transformed at a time where only the run knows how many a row has; else 0."""
    pairs: bool = False
    """Whether products are Winograd's inner products."""


class ConvWinograd(Kernel[ConvBlocked, WinogradParams]):
    """F(m x m, 3 x 3), products in tiles of p x nv."""

    name = "conv_winograd"
    op = ConvBlocked
    template = "cpu/conv/winograd.c.j2"
    portable = False
    dynamic = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """3x3 windows without strides over many channels, known weights."""
        op, x = w.op, w.input(0)
        if is_dynamic(op.window):
            return False
        wide = w.outputs[0].shape[-1] == lanes(target) > 1 and len(x.shape) > op.plain
        wide = wide and sums_floats(w, (DType.FLOAT, *ROUNDED))
        return is_3x3(op.window) and wide and op.group == 1 and w.constant[1]

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[WinogradParams]:
        """Return the best sets of each size, with filters as they are and transformed; for tensors
        of 16 bits also of each number of rows, as scratch counts there."""
        narrow = any(t is not None and t.dtype.is_half for t in (*w.inputs, *w.outputs))
        kinds: dict[tuple[int, ...], list[WinogradParams]] = {}
        for p in self.sets(w, target):
            kinds.setdefault((p.m, p.raw, p.pairs, p.rows * narrow), []).append(p)
        most = 1 if narrow else 2
        return [p for sets in kinds.values() for p in cheapest(self, sets, w, target, most)]

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[WinogradParams]:
        """Return all parameter sets: tile sizes, blocks of tiles, shapes of the products.

        Filters of 16 bits are transformed in the run: transformed, 16 bits no longer hold them.
        """
        g = geometry(w, 1)
        wide: Sequence[tuple[int, int]] = WIDE if target.vector_registers >= 32 else NARROW
        wide = BY_LANE if by_lane(w, target) else wide
        shapes = [(p, nv) for p, nv in wide if nv <= g.mb]
        found: list[WinogradParams] = []
        if is_open(g):
            found = [
                WinogradParams(m=m, rows=0, p=p, nv=nv, u=4, pf=True, counted=-(-n // p) * p)
                for m in SIZES for n in TILES for p, nv in shapes
            ]  # fmt: skip
        for m in SIZES if not found else ():
            for rows in row_counts(g, m):
                for p, nv in shapes:
                    found.append(WinogradParams(m=m, rows=rows, p=p, nv=nv, u=4, pf=True))
        raw: list[WinogradParams] = [replace(p, raw=True) for p in found]
        if is_open(g) and not weight_type(w):  # small images wouldn't be worth transforming them
            return found
        if weight_type(w):
            return raw
        pairs = [
            WinogradParams(m=m, rows=rows, p=lanes(target), nv=1, u=1, pf=True, pairs=True)
            for m in SIZES for rows in row_counts(g, m)
        ] if pairs_pay(target) and is_paired(g.ic, target) else []  # fmt: skip
        return [*found, *raw, *pairs]

    def exact(self, params: WinogradParams) -> bool:
        """F(2 x 2) errs no more than direct convolution; larger tiles some times as much."""
        return params.m == 2 and not params.pairs

    def packs(
        self, w: Workload[ConvBlocked], params: WinogradParams, target: Target
    ) -> Mapping[int, Pack]:
        """Return transformed filters in the order of use, or panels of taps."""
        if params.raw:
            return packed_panels(w, params)
        g, m, nv = geometry(w, 1), params.m, params.nv
        if params.pairs:
            return {1: lambda weights: pack_balanced(weights, g, m)}
        return {1: packed_filters(g, m, nv)}

    def packing(self, w: Workload[ConvBlocked], params: WinogradParams, target: Target) -> str:
        """Of panels, transformed or not."""
        name = name_of_panels(w, params)
        if params.pairs:
            return f"balanced {name}, F({params.m})"
        return name if params.raw else f"{name}, F({params.m})"

    def packing_overhead(
        self, w: Workload[ConvBlocked], params: WinogradParams, target: Target
    ) -> int:
        """(m + 2)^2 components in the place of nine taps."""
        g, components = geometry(w, 1), (params.m + 2) ** 2
        ends = 2 * components if params.pairs else 0
        larger = 0 if params.raw else (components - 9) * g.ic + ends
        return 4 * larger * g.mb * g.block

    def scratch(self, w: Workload[ConvBlocked], params: WinogradParams, target: Target) -> int:
        """One block of transformed inputs and of products; filters that the run transforms."""
        g, m = geometry(w, 1), params.m
        tiles = grid(g, params)
        v, y = strides(g, tiles)
        raw = raw_filters(g, params)
        panels = 0 if raw is None else 1 if raw.once else -(-g.mb // raw.vectors)
        pairs = paired(g, (tiles.block, tiles.rest)) if params.pairs else None
        rows = pairs.rows + pairs.gap if pairs else 0
        return 4 * ((m + 2) ** 2 * (v + y + (raw.stride * panels if raw else 0)) + rows)

    def values(
        self, w: Workload[ConvBlocked], params: WinogradParams, target: Target
    ) -> dict[str, object]:
        """Return transforms, products and the loops over blocks of tiles."""
        op = w.op
        m, p, nv, u = params.m, params.p, params.nv, params.u
        g = geometry(w, 1)
        tiles = grid(g, params)
        groups = panel_groups(g.mb, nv)
        counts = (tiles.block,) if tiles.counted else (tiles.block, tiles.rest)
        cuts = {n: cut_columns(Axis(n, n), p) for n in counts if n}
        sizes = sorted({c.width for cut in cuts.values() for c in cut}, reverse=True)
        sizes = [p, *rests(p)] if tiles.counted else sizes
        bodies = input_blocks(g, u)
        passes, line = sum(c.count for c in cuts[tiles.block]), stored_weights(w).line
        lines = -(-u * nv * g.block // (line * passes)) if params.pf and passes <= 16 else 0
        raw = raw_filters(g, params)
        if raw:  # the next panel of taps while all components of this one are multiplied
            lines = -(-9 * lines // (m + 2) ** 2) if raw.once else 0
        share = lines * line * sum(b["count"] * b["steps"] // b["u"] for b in bodies)
        v, y = strides(g, tiles)
        pairs = paired(g, (tiles.block, tiles.rest)) if params.pairs else None
        if pairs:
            streams = (m + 2) ** 2 * pairs.product.size * g.mb * 4 > streamed(target.machine)
            lines = pairs.product.lines(pairs.tiles(tiles.block)) if streams else 0
            share = pairs.product.share(pairs.tiles(tiles.block)) if streams else 0
        return {
            "g": g, "m": m, "n": m + 2, "grid": tiles, "cuts": cuts, "pairs": pairs,
            "products": products_of(sizes, groups), "groups": groups,
            "bodies": bodies, "lines": lines, "share": share, "v_stride": v, "m_stride": y,
            "sizes": sizes, "open": is_open(g),
            "into": input_lines(m), "back": output_lines(m, params.raw),
            "epilogue": TileEpilogue(op.epilogue, w, g, target),
            "part": PART // g.block if params.exact and g.ic > PART else 0, "raw": raw,
            "weights": stored_weights(w), "element": w.input(0).dtype.c,
            "load": LOADS[w.input(0).dtype], "by_lane": by_lane(w, target),
        }  # fmt: skip

    def precise_params(
        self, w: Workload[ConvBlocked], params: WinogradParams, target: Target
    ) -> WinogradParams:
        """Long sums are made of parts, too."""
        long = geometry(w, 1).ic > PART
        return replace(params, exact=True) if long else super().precise_params(w, params, target)

    def cost(self, w: Workload[ConvBlocked], params: WinogradParams, target: Target) -> float:
        """Estimated cycles."""
        return winograd_cycles(target, w, params)


def is_3x3(window: Window) -> bool:
    """Return whether windows are of 3 x 3 neighbours, moved by one, with padding they may have."""
    dense = (window.kernel, window.strides, window.dilations) == ((3, 3), (1, 1), (1, 1))
    return dense and max(window.pads) <= 2


def products_of(sizes: Iterable[int], groups: Iterable[tuple[int, int, int]]) -> list[Product]:
    """Return the functions for so many tiles, and the vectors of panels."""
    return [Product(t, n) for t in sizes for n in sorted({n for n, _, _ in groups})]


def grid(g: Geometry, params: WinogradParams) -> Grid:
    """Return the tiles of an image."""
    return cut_tiles(g, params.m, params.rows, params.counted)


def cut_tiles(g: Geometry, m: int, rows: int, counted: int = 0) -> Grid:
    """Return the tiles of m x m outputs of an image, so many rows of them at a time."""
    return Grid(-(-g.rows.out // m), -(-g.cols.out // m), rows, counted)


def row_counts(g: Geometry, m: int) -> list[int]:
    """Return how many rows of tiles may be transformed at a time."""
    whole = cut_tiles(g, m, 1)
    return sorted({min(whole.down, -(-n // whole.across)) for n in TILES})


def is_open(g: Geometry) -> bool:
    """Return whether only the run knows how large an image is."""
    return is_dynamic((g.rows, g.cols))


def strides(g: Geometry, tiles: Grid) -> tuple[int, int]:
    """Return the floats from component to component of transformed inputs and of products."""
    return component_stride(g.icb, tiles, g), component_stride(g.mb, tiles, g)


def component_stride(blocks: int, tiles: Grid, g: Geometry) -> int:
    """Return the numbers from component to component of so many blocks of channels.

    One line more than needed, so that the components of a tile don't meet in the same cache set.
    """
    return blocks * tiles.block * g.block + LINE


def raw_filters(g: Geometry, params: WinogradParams) -> RawFilters | None:
    """Return how a run transforms the filters; None where that was done when compiling."""
    if not params.raw:
        return None
    m, nv, tiles = params.m, params.nv, grid(g, params)
    once = not tiles.counted and g.batch == 1 and tiles.rows >= tiles.down
    stride = g.ic * nv * g.block + LINE
    return RawFilters(nv, stride, g.ic // g.block, g.ic % g.block, once, filter_lines(m))


TRANSFORMS = {2: (40.0, 30.0), 4: (110.0, 80.0), 6: (330.0, 260.0)}
"""Cycles to transform one vector of a tile's inputs, and of its products, by m; units as wide."""
READ, READ_SLOWLY = 60.0, 380.0
"""Cycles to read a vector of filters that a run transforms, and of those that come from a third
cache that is slow, what their products wait longer included: measured on a Sapphire Rapids; as many
on a Zen 3, whose L2 loses what was asked for to the transformed tiles that pass by."""
SMALL_L2 = 1 << 20
"""Bytes of an L2 cache before a third one below which that is so."""
NEAR_COMPONENT, FAR_COMPONENT = 3.0, 10.0
"""Cycles to compute a component and write it, where L2 holds U, which is one panel (of vectors as
wide as units), and where U is all or far larger than L2."""
HARDLY_HELD = 2.25
"""How many times larger than L2 that is."""
STREAM = 0.7
"""Part of memory's rate, and of L3's after that, at which filters come from beyond L2."""
WAITING, PAIRS_WAITING = 0.5, 0.2
"""Part of the shorter of products and that way by which it prolongs the longer one: of ordinary
sums, and of inner products."""


def winograd_cycles(target: Target, w: Workload[ConvBlocked], params: WinogradParams) -> float:
    """Estimate cycles: transforms, products, or the filters' way from memory if it is longer."""
    g, m, p, nv = geometry(w, 1), params.m, params.p, params.nv
    machine, at_once = target.machine, read_at_once(w, target)
    tiles = grid(g, params)
    n = (m + 2) ** 2
    total = 0.0
    raw = raw_filters(g, params)
    pairs = InnerProduct(g.ic, g.block) if params.pairs else None
    filters = 4.0 * n * g.ic * g.mb * g.block  # what each block of tiles reads
    reread = filters if filters > machine.l2.size / 2 and not (raw and raw.once) else 0.0
    rate = FAR if reread else NEAR
    blocks = len(tiles.blocks)
    first = machine.far_rate if raw else machine.memory
    streaming = (1 / first + (blocks - 1) / machine.far_rate) / (STREAM * blocks)
    waiting = PAIRS_WAITING if pairs else WAITING
    of_blocks: dict[int, float] = {}
    for count in dict.fromkeys(tiles.blocks):
        if pairs:
            groups = [(t.rows, t.count) for t in row_tiles(count, g.block)]
            products = n * (pairs.cycles(target, groups, g.mb) + BALANCING * count * g.ic)
        else:
            products = n * _product_cycles(
                machine, g.block, g.ic, g.mb, count, p, nv, rate, at_once
            )
        less, more = sorted((products, reread * streaming))
        of_blocks[count] = more + (waiting * less if filters > machine.l2.size else 0.0)
    narrow = max(1.0, 4 * g.block / machine.datapath)
    into, back = (narrow * cycles for cycles in TRANSFORMS[m])
    for count in tiles.blocks:
        total += of_blocks[count]
        total += count * (g.icb * into + g.mb * back)
    workspace = 4.0 * n * tiles.block * g.block * (g.icb + g.mb)
    total *= g.batch * (1.15 if workspace > machine.l2.size else 1.0)
    if machine.slow_l3 and not reread:  # other weights of a network drove them out meanwhile
        total += filters * (1 - 9 / n) / machine.far_rate  # what they are larger than given ones
    if raw:
        larger = 4.0 * n * raw.stride / machine.l2.size if raw.once else HARDLY_HELD
        far = min(max(larger - 1.0, 0.0) / (HARDLY_HELD - 1.0), 1.0)
        near = narrow * NEAR_COMPONENT
        taps = 4 * 9 * g.ic * g.mb * g.block
        small = machine.l3.size > 0 and machine.l2.size < SMALL_L2
        crowded = small and taps >= streamed(machine)
        read = READ_SLOWLY if crowded or from_slow_l3(machine, taps) else READ
        each = read + n * (near + far * (FAR_COMPONENT - near))
        total += g.ic * g.mb * each
    return total


KERNELS = (ConvWinograd(),)


@lru_cache(1 << 12)  # tiles of any size, of filters transformed by anybody, ask for the same
def _product_cycles(
    machine: Machine, block: int, ic: int, mb: int, count: int, p: int, nv: int, rate: float,
    at_once: int,
) -> float:
    """Estimate the cycles of the products of one component for so many tiles."""
    one = Axis(1, 1)
    flat = Geometry(1, block, 1, ic, mb, one, one, plain=False)
    widths = panels(mb, nv)
    tiles_of = [
        {
            vectors: c.count
            * tile_cycles(machine, flat, 1, c.width, vectors, ic, rate, at_once=at_once)
            for vectors in dict.fromkeys(widths)
        }
        for c in cut_columns(Axis(count, count), p)
    ]
    return sum(costs[vectors] for costs in tiles_of for vectors in widths)
