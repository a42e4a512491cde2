"""3x3 convolution of bytes by Winograd's F(m x m, 3 x 3) in integers: with the bits of exact sums.

The matrices are scaled to integers, so that all but the last of the products' components are
`scale` times their fractions; transformed inputs and filters fit 16 bits, and pairs of channels are
multiplied and summed in 32. Sums wrap, which does no harm: the result is scale^2 times the exact
one, modulo 2^32. Its odd factor is taken off by multiplying with the inverse, the even one by
shifting, where the exact sum is known to fit the bits that are left. To that end inputs count from
their middle, 128, and as many channels as might not fit are summed in groups.

A word of transformed inputs has a channel of a block and the same one of the next block, computed
together: what the lower half borrows from the upper one is put back at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from math import lcm

import numpy as np

from atc.backends.cpu.conv.blocked import cheapest, is_depthwise
from atc.backends.cpu.conv.cost import tile_cycles
from atc.backends.cpu.conv.dynamic_shape import rests
from atc.backends.cpu.conv.filter_panels import PanelParams
from atc.backends.cpu.conv.int8 import in_whole_words, splits
from atc.backends.cpu.conv.winograd import (
    TILES,
    Grid,
    component_stride,
    cut_tiles,
    is_3x3,
    is_open,
    products_of,
    row_counts,
)
from atc.backends.cpu.conv.winograd_matrices import (
    INTEGERS,
    Row,
    by_points,
    combinations,
    matrices,
)
from atc.backends.cpu.matmul.int8 import Reading
from atc.backends.kernel import Kernel, Pack, Workload
from atc.backends.machine import CACHE_LINE
from atc.backends.render.axis import Axis
from atc.backends.render.epilogue import TileEpilogue
from atc.backends.render.tile_geometry import Geometry, cut_columns, geometry, panel_groups, panels
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array, DType
from atc.ir.ops import ConvBlocked

SIZES = (4, 2)
"""The extents of a tile of outputs."""
WIDE = ((6, 4), (8, 3), (12, 2), (4, 4))
NARROW = ((6, 2), (4, 2), (4, 3), (3, 3))
"""Tiles and vectors of a product, for 32 and for 16 registers."""
MIDDLE, HIGHEST = 128, 128
"""What inputs count from; the greatest magnitude that they have then, and that weights have."""


@dataclass(frozen=True)
class Exact:
    """Integer matrices of F(m, 3): A^T and B^T, G; results are `scale`^2 times the exact ones."""

    output: tuple[Row, ...]
    input: tuple[Row, ...]
    filter: tuple[tuple[int, ...], ...]
    scale: int

    @property
    def shift(self) -> int:
        """The factors of 2 of a result."""
        factor = self.scale**2
        return (factor & -factor).bit_length() - 1

    @property
    def inverse(self) -> int:
        """The inverse of a result's odd factor, modulo 2^32, as a signed number."""
        found = pow(self.scale**2 >> self.shift, -1, 1 << 32)
        return found - (found >> 31 << 32)

    @property
    def channels(self) -> int:
        """The most channels whose sums fit the bits that are left."""
        return (1 << (31 - self.shift)) // (9 * HIGHEST * HIGHEST)


@cache
def exact_matrices(m: int) -> Exact:
    """Return integer matrices: all rows of G but the last are scaled, and A's last column is."""
    of = matrices(m)
    scale = lcm(*(x.denominator for row in of.filter for x in row))
    scaled = [tuple(int(scale * x) for x in row) for row in of.filter[:-1]]
    last = tuple(int(x) for x in of.filter[-1])
    output = tuple((*row[:-1], scale * row[-1]) for row in of.output)
    return Exact(output, of.input, (*scaled, last), scale)


@dataclass(frozen=True, kw_only=True)
class ExactWinogradParams(PanelParams):
    """Those of tiles of products, and of what is transformed at a time."""

    m: int
    """Rows and columns of a tile of results."""
    rows: int
    """Rows of tiles that are transformed at a time."""
    counted: int = 0
    """Tiles that are transformed at a time where only the run knows how many a row has; else 0."""


@dataclass(frozen=True)
class Plan:
    """The division of an image into tiles, of input channels into pairs of blocks and groups."""

    g: Geometry
    m: int
    grid: Grid

    @property
    def n(self) -> int:
        """Inputs of a tile, along an axis."""
        return self.m + 2

    @property
    def pairs(self) -> int:
        """Pairs of input blocks."""
        return -(-self.g.icb // 2)

    @property
    def groups(self) -> list[tuple[int, int]]:
        """The first pair, and how many, of each group of channels whose sums fit."""
        most = exact_matrices(self.m).channels // (2 * self.g.block)
        count = -(-self.pairs // most)
        each = -(-self.pairs // count)
        return [(k, min(each, self.pairs - k)) for k in range(0, self.pairs, each)]

    @property
    def v_stride(self) -> int:
        """Words from component to component of transformed inputs."""
        return component_stride(self.pairs, self.grid, self.g)

    @property
    def p_stride(self) -> int:
        """Words from component to component of products."""
        return component_stride(self.g.mb, self.grid, self.g)

    @property
    def starts(self) -> int:
        """Bytes before the transformed filters: what each group and each filter start with."""
        return 4 * (len(self.groups) + 1) * self.g.mb * self.g.block


class ConvWinogradBytes(Kernel[ConvBlocked, ExactWinogradParams]):
    """F(m x m, 3 x 3) of u8 or s8 by s8, products in tiles of p x nv."""

    name = "conv_winograd_bytes"
    op = ConvBlocked
    template = "cpu/conv/winograd_int8.c.j2"
    portable = False
    dynamic = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """3x3 windows without strides, where words of two products are summed at once."""
        able = target.simd in ("avx2", "avx512")
        if not able or not in_whole_words(w, target) or is_depthwise(w) or w.op.group > 1:
            return False
        if is_dynamic(w.op.window):
            return False
        return is_3x3(w.op.window) and len(w.input(0).shape) > w.op.plain

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[ExactWinogradParams]:
        """Return the best sets of each size."""
        sets = self.sets(w, target)
        of_sizes = ([p for p in sets if p.m == m] for m in SIZES)
        return [p for each in of_sizes for p in cheapest(self, each, w, target, 2)]

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[ExactWinogradParams]:
        """Return all parameter sets: tile sizes, blocks of tiles, shapes of the products.

        An instruction that sums four products of bytes does twice the work of one of words: small
        tiles don't pay then.
        """
        g = geometry(w, 1, recut=False)
        shapes = WIDE if target.vector_registers >= 32 else NARROW
        found: list[ExactWinogradParams] = []
        for m in SIZES if splits(target) else SIZES[:1]:
            for p, nv in shapes:
                cuts = [(n, 0) for n in row_counts(g, m)] if not is_open(g) else [
                    (0, -(-n // p) * p) for n in TILES
                ]  # fmt: skip
                found += [
                    ExactWinogradParams(m=m, rows=rows, p=p, nv=nv, counted=counted)
                    for rows, counted in cuts if nv <= g.mb
                ]  # fmt: skip
        return found

    def packs(
        self, w: Workload[ConvBlocked], params: ExactWinogradParams, target: Target
    ) -> Mapping[int, Pack]:
        """Return transformed filters in the order of use, behind what sums start with."""
        plan, zero = plan_of(w, params), _zero_point(w)
        return {1: lambda weights: pack_filters(weights, plan, params.nv, zero)}

    def packing_overhead(
        self, w: Workload[ConvBlocked], params: ExactWinogradParams, target: Target
    ) -> int:
        """Components of 16 bits in the place of nine taps of bytes."""
        plan, g = plan_of(w, params), geometry(w, 1)
        words = plan.pairs * g.block * g.mb * g.block
        return plan.starts + 4 * plan.n**2 * words - 9 * g.ic * g.mb * g.block

    def scratch(self, w: Workload[ConvBlocked], params: ExactWinogradParams, target: Target) -> int:
        """One block of transformed inputs, and of products of each group."""
        plan = plan_of(w, params)
        return 4 * plan.n**2 * (plan.v_stride + len(plan.groups) * plan.p_stride)

    def values(
        self, w: Workload[ConvBlocked], params: ExactWinogradParams, target: Target
    ) -> dict[str, object]:
        """Return transforms, products and the loops over blocks of tiles."""
        plan, of, nv = plan_of(w, params), exact_matrices(params.m), params.nv
        g = plan.g
        groups = panel_groups(g.mb, nv)
        blocks = {params.counted} if params.counted else {*plan.grid.blocks}
        cuts = {n: cut_columns(Axis(n, n), params.p) for n in blocks}
        sizes = sorted({c.width for cut in cuts.values() for c in cut}, reverse=True)
        sizes = [params.p, *rests(params.p)] if params.counted else sizes
        epilogue = TileEpilogue(w.op.epilogue, w, g, target, DType.INT32)
        signed = w.input(0).dtype is DType.INT8
        start = "v_i32_load(starts)"
        return {
            "g": g, "plan": plan, "m": plan.m, "n": plan.n, "cuts": cuts, "epilogue": epilogue,
            "products": products_of(sizes, groups), "panels": groups,
            "sizes": sizes, "open": is_open(g),
            "into": combinations(of.input, "d", "v", INTEGERS),
            "back": by_points(of.output, "d", "r", INTEGERS),
            "prefetched": prefetched_lines(g, nv, sum(c.count for c in cuts[plan.grid.block])),
            "inverse": of.inverse, "shift": of.shift,
            "flip": 0x00800080 if signed else 0, "padding": 0x00010001 * _zero_point(w),
            "start": start if epilogue.bias is None else f"v_i32_add({start}, {epilogue.start(0)})",
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: ExactWinogradParams, target: Target) -> float:
        """Estimated cycles."""
        return exact_winograd_cycles(target, w, params)


def _zero_point(w: Workload[ConvBlocked]) -> int:
    """Return the zero point of x, whose bytes are read as unsigned ones."""
    return w.op.zero + Reading().shift(w.input(0).dtype)


def plan_of(w: Workload[ConvBlocked], params: ExactWinogradParams) -> Plan:
    """Return how a convolution is cut."""
    g = geometry(w, 1, recut=False)
    return Plan(g, params.m, cut_tiles(g, params.m, params.rows, params.counted))


def prefetched_lines(g: Geometry, nv: int, calls: int) -> dict[int, int]:
    """Return by a panel's vectors how many lines of the next panel a pair of blocks asks for in
    each of so many calls; 0 where these are many."""
    sizes = {n: 4 * n * g.block**2 for n in panels(g.mb, nv)}
    few = min(sizes.values()) > CACHE_LINE * calls / 5
    return {n: -(-size // (CACHE_LINE * calls)) if few else 0 for n, size in sizes.items()}


def pack_filters(weights: Array, plan: Plan, nv: int, zero: int) -> Array:
    """Return filters [M, C, 3, 3] as tiles read them, in a row of bytes.

    That is for each group what the middle of the inputs adds to its sums, scaled; for each filter
    what it starts with; and transformed filters [component][panel][pair of input blocks][lane]
    [vectors * block][block of the pair], 16 bits each.
    """
    g, of = plan.g, exact_matrices(plan.m)
    lanes, channels = g.mb * g.block, 2 * plan.pairs * g.block
    padded = np.zeros((lanes, channels, 3, 3), np.int64)
    padded[: weights.shape[0], : weights.shape[1]] = weights
    by_pairs = padded.reshape(lanes, plan.pairs, -1).sum(-1)
    middles = [MIDDLE * by_pairs[:, k : k + count].sum(1) for k, count in plan.groups]
    starts = (MIDDLE - zero) * by_pairs.sum(1)
    heads = np.stack([*(m << of.shift for m in middles), starts]).astype(np.int32)
    matrix = np.array(of.filter, np.int32)
    taps = padded.astype(np.int32).transpose(2, 3, 0, 1).reshape(3, -1)
    down = (matrix @ taps).reshape(plan.n, 3, -1)
    components = (matrix @ down).astype(np.int16)
    words = components.reshape(plan.n**2, lanes, plan.pairs, 2, g.block)
    ordered = words.transpose(0, 2, 4, 1, 3)  # [component][pair][lane][filter][block]
    parts = [
        ordered[:, :, :, m * g.block : (m + n) * g.block].reshape(plan.n**2, -1)
        for m, n in zip(range(0, g.mb, nv), panels(g.mb, nv), strict=True)
    ]
    filters = np.concatenate(parts, 1).reshape(-1)
    return np.concatenate([heads.reshape(-1).view(np.int8), filters.view(np.int8)])


TRANSFORMS = {2: (75.0, 60.0), 4: (110.0, 100.0)}
"""Cycles to transform a pair of vectors of a tile's inputs, and a vector of its products, by m."""
STREAM = 0.7
"""Part of memory's rate at which filters come from beyond L2."""


def exact_winograd_cycles(
    target: Target, w: Workload[ConvBlocked], params: ExactWinogradParams
) -> float:
    """Estimate cycles: transforms, products, or the filters' way from memory if it is longer."""
    plan, machine = plan_of(w, params), target.machine
    g, components = plan.g, plan.n**2
    depth = plan.pairs * g.block
    flat = Geometry(1, g.block, 1, depth, g.mb, g.rows, g.cols, plain=False)
    filters = 4.0 * components * depth * g.mb * g.block
    read = filters / (STREAM * machine.far_rate) if filters > machine.l2.size / 2 else 0.0
    into, back = TRANSFORMS[plan.m]
    total = 0.0
    for count in plan.grid.blocks:
        products = components * sum(
            c.count * tile_cycles(machine, flat, 1, c.width, vectors, depth)
            for c in cut_columns(Axis(count, count), params.p)
            for vectors in panels(g.mb, params.nv)
        )
        total += max(products, read)
        total += count * (plan.pairs * into + g.mb * len(plan.groups) * back)
    return g.batch * total


KERNELS = (ConvWinogradBytes(),)
