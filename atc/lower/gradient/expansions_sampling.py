"""Operators in gradients that sample between elements: sums of weighted neighbours of places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import product
from math import prod

import numpy as np

from atc.ir.graph import Array, DType, row_major
from atc.lower.conv import output_extents, window_of
from atc.lower.gradient.derivatives import Variable
from atc.lower.gradient.tape import Site, expands
from atc.lower.sampling import GRID_MODES, grid_places

CUBIC = -0.75
"""The factor of Keys' kernel in GridSample-22."""
CUT = 2**20
"""Corners of MaxRoiPool's regions beyond it lie there."""


@dataclass(frozen=True)
class _Sampler:
    """Reads x [batch, channels, *spatial] between its elements; ONNX GridSample-22.

    `join` makes one value of a place's weighted neighbours: their sum, or Max.
    """

    site: Site
    spatial: Sequence[int]
    mode: str = "linear"
    padding: str = "zeros"
    aligned: bool = False
    join: str = "Add"

    def __call__(self, x: Variable, places: Sequence[Variable], offset: Variable | None = None,
                 ) -> Variable:  # fmt: skip
        """Return [batch, channels, points] at places [batch, points], in elements of each axis.

        `offset` [batch, points] is added to the index of what is read in x's flat elements.
        """
        op, ints = self.site.op, self.site.ints
        batch, channels = self.site.shape(x)[:2]
        points = self.site.shape(places[0])[1]
        plain = op("Reshape", x, ints(batch, channels, -1))
        add, multiply = partial(op, "Add"), partial(op, "Mul")
        axes = [[*self._neighbours(p, n)] for p, n in zip(places, self.spatial, strict=True)]
        terms = []
        for taps in product(*axes):
            steps = zip(taps, row_major(self.spatial), strict=True)
            indices = [op("Mul", at, ints(step)) for (at, _), step in steps]
            index = reduce(add, indices if offset is None else [offset, *indices])
            every = op("Expand", op("Unsqueeze", index, ints(1)), ints(batch, channels, points))
            weight = op("Unsqueeze", reduce(multiply, [factor for _, factor in taps]), ints(1))
            terms.append(op("Mul", op("GatherElements", plain, every, axis=2), weight))
        result: Variable = reduce(partial(op, self.join), terms)
        return result

    def _neighbours(self, at: Variable, size: int) -> Iterator[tuple[Variable, Variable]]:
        """Yield the index (INT64) of each neighbour on an axis and its weight."""
        op = self.site.op
        if self.mode == "nearest":
            at = op("Round", at)
        if self.mode != "cubic":  # whose neighbours are brought inside, not the place
            at = self._inside(at, size)
        left = op("Floor", at)
        for shift, weight in self._weights(op("Sub", at, left)):
            tap = op("Add", left, self._like(at, shift))
            tap = self._inside(tap, size)
            inner = self._clipped(tap, size)
            if self.padding == "zeros":
                inside = op("Equal", tap, inner)
                weight = op("Where", inside, weight, self._like(at, 0))
            yield op("Cast", inner, to=DType.INT64.code), weight

    def _weights(self, d: Variable) -> Iterator[tuple[int, Variable]]:
        """Yield the neighbours of a place, `d` behind the one on its left, with their weights."""
        op, one = self.site.op, self._like(d, 1)
        e = op("Sub", one, d)
        if self.mode == "nearest":
            yield 0, op("Expand", one, self.site.ints(*self.site.shape(d)))
        elif self.mode == "linear":
            yield 0, e
            yield 1, d
        else:
            far = (CUBIC, -5 * CUBIC, 8 * CUBIC, -4 * CUBIC)
            near = (CUBIC + 2, -CUBIC - 3, 0, 1)
            yield -1, self._polynomial(op("Add", d, one), far)
            yield 0, self._polynomial(d, near)
            yield 1, self._polynomial(e, near)
            yield 2, self._polynomial(op("Add", e, one), far)

    def _polynomial(self, x: Variable, factors: Sequence[float]) -> Variable:
        result = self._like(x, factors[0])
        for factor in factors[1:]:
            result = self.site.op("Add", self.site.op("Mul", result, x), self._like(x, factor))
        return result

    def _inside(self, at: Variable, size: int) -> Variable:
        """Return what a place is replaced by where it is outside."""
        if self.padding == "zeros":
            return at
        return (self._clipped if self.padding == "border" else self._reflected)(at, size)

    def _clipped(self, at: Variable, size: int) -> Variable:
        result: Variable = self.site.op("Clip", at, self._like(at, 0), self._like(at, size - 1))
        return result

    def _reflected(self, at: Variable, size: int) -> Variable:
        """Return a place mirrored at the ends, as often as it takes."""
        op = self.site.op
        low, span = (0.0, size - 1) if self.aligned else (-0.5, size)
        if not span:
            result: Variable = op("Mul", at, self._like(at, 0))
            return result
        away = op("Abs", op("Sub", at, self._like(at, low)))
        beyond = op("Mod", away, self._like(at, 2 * span), fmod=1)
        back = op("Sub", self._like(at, 2 * span), beyond)
        folded = op("Where", op("Greater", beyond, self._like(at, span)), back, beyond)
        return self._clipped(op("Add", folded, self._like(at, low)), size)

    def _like(self, x: Variable, value: float) -> Variable:
        dtype = self.site.tape.ctx.b.type(x.value).dtype.numpy
        return self.site.constant(np.asarray(value, dtype))


def _work(site: Site, k: int) -> Variable:
    """Return an operand as DOUBLE if the first is that, else as FLOAT."""
    double = site.tape.ctx.b.type(site.operands[0].value).dtype is DType.DOUBLE
    to = DType.DOUBLE if double else DType.FLOAT
    result: Variable = site.op("Cast", site.operands[k], to=to.code)
    return result


def _like_first(site: Site, y: Variable) -> Variable:
    result: Variable = site.op("CastLike", y, site.operands[0])
    return result


@expands("GridSample")
def grid_sample(site: Site) -> list[Variable]:
    """Return x at the places that a grid gives in [-1, 1], the last axis first."""
    at, op = site.at, site.op
    x, grid = _work(site, 0), _work(site, 1)
    spatial, points = site.shape(x)[2:], site.shape(grid)[1:-1]
    mode = at.str("mode", "linear")
    aligned = bool(at.int("align_corners"))
    flat = op("Reshape", grid, site.ints(site.shape(x)[0], -1, len(spatial)))
    places = []
    for d, size in enumerate(spatial):
        moved = op("Add", site.part(flat, len(spatial) - 1 - d, 2), _number(site, x, 1))
        half = (size - 1) / 2 if aligned else size / 2
        start = _number(site, x, 0 if aligned else -0.5)
        places.append(op("Add", op("Mul", moved, _number(site, x, half)), start))
    padding = at.str("padding_mode", "zeros")
    sampler = _Sampler(site, spatial, GRID_MODES.get(mode, mode), padding, aligned)
    y = op("Reshape", sampler(x, places), site.ints(*site.shape(x)[:2], *points))
    return [_like_first(site, y)]


def _number(site: Site, x: Variable, value: float | Array) -> Variable:
    dtype = site.tape.ctx.b.type(x.value).dtype.numpy
    return site.constant(np.asarray(value, dtype))


@expands("AffineGrid")
def affine_grid(site: Site) -> list[Variable]:
    """Return a constant grid times each matrix."""
    at, op, theta = site.at, site.op, site.operands[0]
    batch, _, *spatial = at.ints_const(1, "the size")
    base = site.like(grid_places(spatial, bool(at.int("align_corners"))))
    y = op("MatMul", base, op("Transpose", theta, perm=[0, 2, 1]))
    return [op("Reshape", y, site.ints(batch, *spatial, len(spatial)))]


@expands("DeformConv")
def deform_conv(site: Site) -> list[Variable]:
    """Return the product of the filters and x, sampled where each tap is moved to."""
    at, op, ints = site.at, site.op, site.ints
    x, w = _work(site, 0), _work(site, 1)
    (n, channels, *spatial), (m, _, *kernel) = site.shape(x), site.shape(w)
    group, sets, rank = at.int("group", 1), at.int("offset_group", 1), len(spatial)
    window, end = window_of(at, tuple(spatial), kernel)
    out = output_extents(tuple(spatial), window, end)
    taps, points = prod(kernel), prod(out)
    moved = op("Reshape", _work(site, 2), ints(n * sets, taps, rank, points))
    places = []
    for d in range(rank):
        tap = np.indices(kernel)[d].reshape(-1, 1) * window.dilations[d]
        start = np.indices(out)[d].reshape(1, -1) * window.strides[d] - window.pads[d]
        where = op("Add", site.part(moved, d, 2), _number(site, x, tap + start))
        places.append(op("Reshape", where, ints(n * sets, taps * points)))
    split = op("Reshape", x, ints(n * sets, channels // sets, *spatial))
    columns = _Sampler(site, spatial)(split, places)
    if site.has(4):
        mask = op("Reshape", _work(site, 4), ints(n * sets, 1, taps * points))
        columns = op("Mul", columns, mask)
    columns = op("Reshape", columns, ints(n, group, -1, points))
    y = op("MatMul", op("Reshape", w, ints(1, group, m // group, -1)), columns)
    y = op("Reshape", y, ints(n, m, *out))
    if site.has(3):
        y = op("Add", y, op("Reshape", _work(site, 3), ints(m, *[1] * rank)))
    return [_like_first(site, y)]


@expands("RoiAlign")
def roi_align(site: Site) -> list[Variable]:
    """Return the means of samples in the bins of regions, or the maxima of their neighbours."""
    at, op, ints = site.at, site.op, site.ints
    ratio, largest = at.int("sampling_ratio", 0), at.str("mode", "avg").lower() == "max"
    at.require(ratio > 0, "the gradient of a RoiAlign whose sampling_ratio isn't given")
    default = "half_pixel" if site.opset >= 16 else "output_half_pixel"
    half = at.str("coordinate_transformation_mode", default).lower() == "half_pixel"
    x = _work(site, 0)
    n, channels, *spatial = site.shape(x)
    rois = op("Mul", _work(site, 1), _number(site, x, at.float("spatial_scale", 1.0)))
    if half:
        rois = op("Sub", rois, _number(site, x, 0.5))
    regions = site.shape(rois)[0]
    bins = (at.int("output_height", 1), at.int("output_width", 1))
    grid, inside = [], []
    for d, (size, count) in enumerate(zip(spatial, bins, strict=True)):
        first, last = (op("Unsqueeze", site.part(rois, k, 1), ints(1)) for k in (1 - d, 3 - d))
        extent = op("Sub", last, first)
        if not half:
            extent = op("Max", extent, _number(site, x, 1))
        steps = (np.arange(count * ratio) + 0.5) / (count * ratio)
        where = op("Add", first, op("Mul", extent, _number(site, x, steps)))
        shape = [regions, 1, 1, 1, 1]
        shape[1 + 2 * d : 3 + 2 * d] = count, ratio
        where = op("Reshape", where, ints(*shape))
        inside.append(op("And", op("GreaterOrEqual", where, _number(site, x, -1)),
                         op("LessOrEqual", where, _number(site, x, size))))  # fmt: skip
        full = op("Expand", where, ints(regions, bins[0], ratio, bins[1], ratio))
        grid.append(op("Reshape", full, ints(1, -1)))
    image = op("Mul", op("Cast", site.operands[2], to=DType.INT64.code), ints(prod(spatial)))
    every = ints(regions, bins[0], ratio, bins[1], ratio)
    offset = op("Reshape", op("Expand", op("Reshape", image, ints(-1, 1, 1, 1, 1)), every),
                ints(1, -1))  # fmt: skip
    rows = op("Reshape", op("Transpose", x, perm=[1, 0, 2, 3]), ints(1, channels, n, *spatial))
    join = "Max" if largest else "Add"
    read = _Sampler(site, spatial, padding="border", join=join)(rows, grid, offset)
    read = op("Reshape", read, ints(channels, regions, bins[0], ratio, bins[1], ratio))
    read = op("Where", op("And", *inside), read, _number(site, x, 0))
    y = op("ReduceMax" if largest else "ReduceMean", read, ints(3, 5), keepdims=0)
    return [_like_first(site, op("Transpose", y, perm=[1, 0, 2, 3]))]


@expands("MaxRoiPool")
def max_roi_pool(site: Site) -> list[Variable]:
    """Return the maxima of bins, along columns, then along rows: all else counts as -infinity."""
    op, ints = site.op, site.ints
    x, rois = _work(site, 0), _work(site, 1)
    batch, _, *spatial = site.shape(x)
    regions = site.shape(rois)[0]
    images = op("Cast", site.part(rois, 0, 1), to=DType.INT64.code)
    images = op("Clip", images, site.constant(np.int64(0)), site.constant(np.int64(batch - 1)))
    y = op("Gather", x, images, axis=0)
    corners = op("Mul", rois, _number(site, x, site.at.float("spatial_scale", 1.0)))
    corners = _rounded(site, op("Clip", corners, *(_number(site, x, c) for c in (-CUT, CUT))))
    empty, least = _number(site, x, 0), _number(site, x, -np.inf)
    filled = []
    for d, count in reversed([*enumerate(site.at.ints("pooled_shape") or [])]):
        size = spatial[d]
        first, last = (op("Unsqueeze", site.part(corners, k, 1), ints(1)) for k in (2 - d, 4 - d))
        extent = op("Add", op("Sub", last, first), _number(site, x, 1))
        step = op("Div", op("Max", extent, _number(site, x, 1)), _number(site, x, count))
        begin, end = (
            op("Clip", op("Add", first, op(to, op("Mul", step, _number(site, x, bins)))),
               empty, _number(site, x, size))
            for to, bins in (("Floor", np.arange(count)), ("Ceil", np.arange(count) + 1))
        )  # fmt: skip
        index = _number(site, x, np.arange(size))
        within = op("And", op("GreaterOrEqual", index, op("Unsqueeze", begin, ints(2))),
                    op("Less", index, op("Unsqueeze", end, ints(2))))  # fmt: skip
        others = [regions, 1, 1, 1]
        others[3 if d else 2] = count
        filled.append(op("Reshape", op("Less", begin, end), ints(*others)))
        # [regions, channels, rows, bins of columns]: then the rows are the last axis
        mask = op("Reshape", within, ints(regions, 1, 1, count, size))
        y = op("ReduceMax", op("Where", mask, op("Unsqueeze", y, ints(3)), least), ints(4),
               keepdims=0)  # fmt: skip
        y = op("Transpose", y, perm=[0, 1, 3, 2])
    return [_like_first(site, op("Where", op("And", *filled), y, empty))]


def _rounded(site: Site, x: Variable) -> Variable:
    """Return the nearest integers, of two the one further from 0, as C's round does."""
    op, half = site.op, _number(site, x, 0.5)
    away = op("Abs", x)
    whole = op("Floor", away)
    up = op("GreaterOrEqual", op("Sub", away, whole), half)
    more = op("Where", up, op("Add", whole, _number(site, x, 1)), whole)
    result: Variable = op("Mul", op("Sign", x), more)
    return result
