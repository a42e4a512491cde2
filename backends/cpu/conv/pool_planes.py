"""Pooling of plain planes: tiles of some rows of results by a vector of columns.

A row of inputs is combined across once, and then given to all the results of a tile that it
concerns. Vectors whose windows meet padding read copies of their rows, filled up with what changes
no result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from atc.backends.cpu.conv.window_tiles import UNROLLED
from atc.backends.kernel import Kernel, KernelParams, Workload
from atc.backends.machine import CALL
from atc.backends.render.axis import Axis, plane_axes
from atc.backends.render.expr import literal
from atc.backends.render.tile_geometry import Columns, cut_columns
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import DType
from atc.ir.ops import Pool

ROWS = (4, 2, 1)
"""Rows of a tile."""
GATHERED = 1.2
"""Cycles for a number that is read on its own."""
COPY = 4.0
"""Cycles to copy a row's numbers that meet windows beside padding."""


@dataclass(frozen=True, kw_only=True)
class RowsParams(KernelParams):
    """Those of tiles of r rows of results."""

    r: int


@dataclass(frozen=True)
class Spot:
    """A run of vectors in a row of results: `count` of them from `column` on.

    Those that meet padding are single; of theirs `size` numbers from `begin` on are copied, behind
    `before` that fill up.
    """

    column: int
    count: int
    begin: int = 0
    size: int = 0
    before: int = 0

    @property
    def copied(self) -> bool:
        """Whether the vector reads a copy."""
        return self.size > 0


@dataclass(frozen=True)
class Line:
    """A row of inputs that a tile reads, counted from its first, and the results it concerns."""

    row: int
    users: tuple[int, ...]


@dataclass(frozen=True)
class Across:
    """The columns of a pooling window, taken a vector of results at a time."""

    cols: Axis
    lanes: int

    @property
    def pairs(self) -> bool:
        """Whether numbers are read in pairs, every other one a vector."""
        return self.cols.stride == 2

    @cached_property
    def reads(self) -> dict[int, list[int]]:
        """The columns of the window that each read holds, by the read's place in a row."""
        found: dict[int, list[int]] = {}
        for k in range(self.cols.kernel):
            at = k * self.cols.dilation
            found.setdefault(at - at % 2 if self.pairs else at, []).append(at)
        return found

    @cached_property
    def span(self) -> int:
        """The numbers of a row from the first to the last that is read for a vector."""
        width = {1: self.lanes, 2: 2 * self.lanes}.get(
            self.cols.stride, (self.lanes - 1) * self.cols.stride + 1
        )
        return max(self.reads) + width

    def spots(self) -> list[Spot]:
        """Return the vectors of a row, those in a row that meet no padding together."""
        out, found = self.cols.out, list[Spot]()
        for column in dict.fromkeys(min(c, max(out - self.lanes, 0))
                                    for c in range(0, out, self.lanes)):  # fmt: skip
            first = column * self.cols.stride - self.cols.pad
            begin, end = max(0, first), min(self.cols.size, first + self.span)
            if end - begin < self.span or out < self.lanes:
                found.append(Spot(column, 1, begin, end - begin, begin - first))
            elif found and not (last := found[-1]).copied and (
                column == last.column + last.count * self.lanes
            ):
                found[-1] = Spot(last.column, last.count + 1)
            else:
                found.append(Spot(column, 1))
        return found

    def lines(self, combine: str) -> list[str]:
        """Return the C statements that combine a row at `a` to the vector `s`."""
        lines, value = list[str](), ""
        for at, places in self.reads.items():
            place = f"a + {at}" if at else "a"
            if self.pairs:
                lines.append(f"v_load_pairs({place}, &even, &odd);")
                terms = ["odd" if p > at else "even" for p in places]
            else:
                read = "v_load({})" if self.cols.stride == 1 else "v_gather({}, columns)"
                terms = [read.format(place)]
            for term in terms:
                value = f"{combine}(s, {term})" if value else term
                lines.append(f"s = {value};")
        return lines


def lines_of(tile: Columns, rows: Axis) -> list[Line]:
    """Return the rows of inputs that a tile reads, in order."""
    found: dict[int, list[int]] = {}
    for tap, users in enumerate(tile.taps):
        for r in users:
            found.setdefault(r * rows.stride + tap * rows.dilation, []).append(r)
    return [Line(row, tuple(users)) for row, users in sorted(found.items())]


class PoolPlanes(Kernel[Pool, RowsParams]):
    """Maxima or means of floats, r rows of results by a vector of columns at a time."""

    name = "pool_planes"
    op = Pool
    template = "cpu/conv/pool_planes.c.j2"
    portable = False
    bitwise_reproducible = True

    def accepts(self, w: Workload[Pool], target: Target) -> bool:
        """Floats of known shapes, one or two axes, no indices, no empty window."""
        op, x, y = w.op, w.input(0), w.outputs[0]
        if op.how not in ("Max", "Average") or len(w.outputs) > 1 or y.dtype is not DType.FLOAT:
            return False
        if is_dynamic((x, y)) or y.size == 0 or op.window.rank > 2 or lanes(target) < 2:
            return False
        rows, cols = pooled_axes(w)
        if not rows.covered or not cols.covered or rows.kernel * cols.kernel > UNROLLED:
            return False
        whole = all(
            a.span(a.out) - a.pad <= a.size + end
            for a, end in zip((rows, cols)[-op.window.rank :], op.end_pads, strict=True)
        )
        return op.how == "Max" or not op.count_include_pad or whole

    def parameters(self, w: Workload[Pool], target: Target) -> Sequence[RowsParams]:
        """Return tiles that aren't too long."""
        rows, cols = pooled_axes(w)
        every = rows.kernel * cols.kernel
        sets = [RowsParams(r=r) for r in ROWS if r == 1 or r * every <= UNROLLED and r <= rows.out]
        return sorted(sets, key=lambda p: self.cost(w, p, target))

    def scratch(self, w: Workload[Pool], params: RowsParams, target: Target) -> int:
        """Reserve the copies of a tile's rows for each vector that meets padding."""
        rows, cols = pooled_axes(w)
        across = Across(cols, lanes(target))
        copies = sum(s.copied for s in across.spots())
        return 4 * copies * across.span * rows.span(params.r)

    def values(self, w: Workload[Pool], params: RowsParams, target: Target) -> dict[str, object]:
        """Return the tiles, the vectors of a row, and what becomes of each result."""
        op = w.op
        rows, cols = pooled_axes(w)
        across, largest = Across(cols, lanes(target)), op.how == "Max"
        combine = "v_max" if largest else "v_add"
        even = largest or op.count_include_pad or rows.inside and cols.inside
        tiles = cut_columns(rows, params.r)

        def finish(tile: Columns, row: int) -> str:
            if largest:
                return f"c{row}"
            if even:
                part = literal(1 / (rows.kernel * cols.kernel), DType.FLOAT)
                return f"v_mul(c{row}, v_set1({part}))"
            inside = literal(sum(row in t for t in tile.taps), DType.FLOAT)
            return f"v_div(c{row}, v_mul(v_load(counts), v_set1({inside})))"

        return {
            "outer": prod(w.input(0).shape[:2]), "rows": rows, "cols": cols, "tiles": tiles,
            "lines": [lines_of(t, rows) for t in tiles], "across": across,
            "steps": across.lines(combine), "combine": combine, "spots": across.spots(),
            "finish": finish, "lanes": across.lanes, "tall": rows.span(params.r),
            "part": cols.out if cols.out < across.lanes else 0,
            "counts": [] if even else _counts(cols, across.lanes),
            "fill": "-INFINITY" if largest else "0",
            "columns": [k * cols.stride for k in range(across.lanes)] if cols.stride > 2 else [],
        }  # fmt: skip

    def cost(self, w: Workload[Pool], params: RowsParams, target: Target) -> float:
        """Estimated cycles."""
        rows, cols = pooled_axes(w)
        across, size, machine = Across(cols, lanes(target)), target.vector_bytes, target.machine
        loads = len(across.reads) * (2 if across.pairs else 1) / machine.load_rate(size)
        if cols.stride > 2:
            loads = cols.kernel * across.lanes * GATHERED
        total, spots = 0.0, across.spots()
        for tile in cut_columns(rows, params.r):
            lines = lines_of(tile, rows)
            users = sum(len(line.users) for line in lines)
            steps = (len(lines) * (cols.kernel - 1) + users) / machine.fma_rate(size)
            each = max(len(lines) * loads, steps) + 1.5 * tile.width + 1.0
            for spot in spots:
                copy = COPY + across.span / across.lanes
                total += tile.count * (CALL + spot.count * each + spot.copied * len(lines) * copy)
        return prod(w.input(0).shape[:2]) * total


def _counts(cols: Axis, lanes: int) -> list[int]:
    """Return how many columns of each window lie inside the input, ones behind the last."""
    inside = [sum(cols.valid(c, k) for k in range(cols.kernel)) for c in range(cols.out)]
    return [*inside, *[1] * max(0, lanes - cols.out)]


def pooled_axes(w: Workload[Pool]) -> tuple[Axis, Axis]:
    """Return the rows and the columns that are pooled over."""
    x, y = w.input(0), w.outputs[0]
    return plane_axes(w.op.window, y.shape[2:], x.shape[2:])


KERNELS = (PoolPlanes(),)
