"""Direct convolution of plain planes: tiles of filters by vectors of a line of pixels.

For what channel blocks don't suit: a single filter, filters known only at run time, groups of few
channels. Lines of pixels are vectors and filters are broadcast, so neither is rearranged. A block
of rows at a time is copied with its padding into scratch, where no tap needs to look for borders,
and with a stride the pixels of each phase beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod

from atc.backends.cpu.conv.blocked import cheapest
from atc.backends.cpu.conv.portable import operand_types
from atc.backends.cpu.matmul.cost import (
    FMA_WAIT,
    Panel,
    Tile,
    TileParams,
    column_panels,
    crowding,
    loads_beside,
    row_tiles,
)
from atc.backends.cpu.matmul.text import EpilogueFunctions, plus, spot, wrapped
from atc.backends.kernel import Kernel, Workload
from atc.backends.machine import CALL
from atc.backends.render.axis import Axis, plane_axes
from atc.backends.render.stored_weights import Weights
from atc.backends.render.vector_epilogue import vector_epilogue
from atc.backends.render.vector_expr import FLOATS, STORES, lanes
from atc.backends.target import Target
from atc.dims import is_dynamic, max_value, maximum, minimum
from atc.ir.graph import DType
from atc.ir.ops import Conv, Epilogue
from atc.ir.view import View

UNROLLED = 160
"""Multiply-adds of a line of taps that are written one by one."""
VECTORS = (6, 4, 3, 2, 8, 12, 1)
COPIED, PAIRED, APART, UNALIGNED = 8.0, 4.2, 1.4, 1.7
"""Floats copied per cycle, and deinterleaved by a stride of two and by others; loads that a vector
off the cache lines counts for."""
SPARED = 1 / 3
"""Part of what x of 16 bits spares that scratch may take."""
SLACK = 1.2
"""What a tile takes beyond the estimate: loops and waiting for the caches."""


@dataclass(frozen=True)
class Planes:
    """A convolution of planes, those of one dimension with a single row."""

    batch: int
    group: int
    channels: int
    filters: int
    rows: Axis
    cols: Axis
    lanes: int
    near: int
    """Bytes of a block of rows that stay in the L2 cache."""
    copied: bool = False
    """Whether x has to be copied, as its numbers have 16 bits."""

    @property
    def taps(self) -> int:
        """The taps of a filter."""
        return self.channels * self.rows.kernel * self.cols.kernel

    @property
    def whole(self) -> int:
        """The columns of all vectors of a row of outputs."""
        return -(-self.cols.out // self.lanes) * self.lanes

    @property
    def open(self) -> bool:
        """Whether only the run knows the extents of a plane."""
        return is_dynamic((self.rows, self.cols))

    @property
    def direct(self) -> bool:
        """Whether vectors are read from the operand itself."""
        if self.open or self.copied:
            return False
        inside = all(a.inside and a.pad == 0 for a in (self.rows, self.cols))
        return inside and self.cols.out % self.lanes == 0 and self.cols.stride == 1

    @property
    def phase(self) -> int:
        """The floats of a phase of a row, those of a stride apart."""
        return self.whole + self.cols.reach // self.cols.stride

    @property
    def pitch(self) -> int:
        """The floats from row to row."""
        return self.cols.size if self.direct else self.cols.stride * self.phase

    @property
    def plane(self) -> int:
        """The floats from channel to channel."""
        return self.pitch * (self.rows.size if self.direct else self.rows.span(self.row_block))

    @property
    def row_block(self) -> int:
        """The rows of outputs computed from one copy."""
        if self.direct:
            return self.rows.out
        line, rows = self.channels * max_value(self.pitch) * 4, max_value(self.rows.out)
        fitting = (self.near // line - self.rows.reach - 1) // self.rows.stride + 1
        return -(-rows // ceil(rows / max(1, fitting)))

    def place(self, column: int) -> int:
        """Return where a tap of the row begins."""
        steps, phase = divmod(column * self.cols.dilation, self.cols.stride)
        return steps if self.direct else phase * self.phase + steps

    def phases(self) -> list[tuple[int, int, int]]:
        """Return of each phase the first and last column of the input in a row, and its shift."""
        found = []
        for p in range(self.cols.stride):
            shift = p - self.cols.pad
            low = max(0, -(shift // self.cols.stride))
            high = minimum(self.phase, -((shift - self.cols.size) // self.cols.stride))
            found.append((low, maximum(low, high), shift))
        return found

    def pairs(self) -> tuple[int, int, int] | None:
        """Return the columns of which the input has both phases of a stride of two, and the shift
        of the first."""
        if self.cols.stride != 2:
            return None
        (low, high, shift), (first, last, _) = self.phases()
        begin = max(low, first)
        return begin, maximum(begin, minimum(high, last)), shift


def planes_of(w: Workload[Conv], target: Target) -> Planes:
    """Return the convolution of a workload of one or two spatial axes."""
    op = w.op
    x, weights = operand_types(w)
    y = w.outputs[0]
    rows, cols = plane_axes(op.window, y.shape[2:], x.shape[2:])
    filters = weights.shape[0] // op.group
    half, near = x.dtype.is_half, target.machine.l2.size * 3 // 8
    room = min(near, max(target.machine.l1.size, int(SPARED * x.nbytes))) if half else near
    return Planes(
        x.shape[0], op.group, weights.shape[1], filters, rows, cols, lanes(target), room, half
    )


class ConvNchwRows(Kernel[Conv, TileParams]):
    """float Conv over one or two axes, tiles of mr filters x nv vectors."""

    name = "conv_nchw_rows"
    op = Conv
    template = "cpu/conv/nchw_rows.c.j2"
    portable = False
    dynamic = True
    bitwise_reproducible = True

    def accepts(self, w: Workload[Conv], target: Target) -> bool:
        """Floats, or x or results of 16 bits of them, and an epilogue in vectors."""
        op = w.op
        if is_dynamic((op.window, op.group, w.input(1).shape)):
            return False
        known = op.accumulator is DType.FLOAT and w.input(1).dtype is DType.FLOAT
        floats = known and w.input(0).dtype in FLOATS
        some = all(prod(t.shape) for t in (*operand_types(w), w.outputs[0]))
        fits = op.window.rank <= 2 and not op.zero_points and floats and some
        return fits and vector_epilogue(op.epilogue, w, target, op.operands, FLOATS)

    def parameters(self, w: Workload[Conv], target: Target) -> Sequence[TileParams]:
        """Tiles that fill the registers."""
        p = planes_of(w, target)
        sets: list[TileParams] = []
        for nv in VECTORS:
            high = min((target.vector_registers - 1 - nv) // nv, p.filters)
            if high >= 1 and nv <= max_value(p.whole) // p.lanes:
                sets.append(TileParams(mr=row_tiles(p.filters, high)[0].rows, nv=nv))
        return cheapest(self, sets, w, target, 3)

    def scratch(self, w: Workload[Conv], params: TileParams, target: Target) -> int:
        """Reserve a block of rows of all channels of a group."""
        p = planes_of(w, target)
        return 0 if p.direct else max_value(p.channels * p.plane * 4)

    def values(self, w: Workload[Conv], params: TileParams, target: Target) -> dict[str, object]:
        """Return the planes, the tiles and how they are called."""
        op = w.op
        p = planes_of(w, target)
        tiles = row_tiles(p.filters, params.mr)
        panels = column_panels(p.cols.out, params.nv, p.lanes)
        apart = target.arch == "aarch64"
        views = _by_rows(op.epilogue)
        x, y = w.input(0).dtype, w.outputs[0].dtype
        finish = EpilogueFunctions(
            views, ("n", "r"), op.operands, open=p.open, apart=apart, half=y if y.is_half else None
        )
        whole = any(c.vectors > 1 or not c.part for c in panels)
        filters = p.group * p.filters
        row = f"({'n' if filters == 1 else f'n * {filters}'} + i) * {p.rows.out} + r"
        given = [*finish.places, f"y0 + ({row}) * {p.cols.out} + j", *finish.extras]
        return {
            "x": Weights(x), "store_y": STORES[y],
            "p": p, "tiles": tiles, "panels": panels, "width": params.nv * p.lanes,
            "functions": [_function(p, finish, c, t) for c in panels for t in tiles],
            "epilogues": finish.functions(whole, any(c.part for c in panels)),
            "arguments": ", ".join(given), "places": [p.place(k) for k in range(p.cols.kernel)],
        }  # fmt: skip

    def cost(self, w: Workload[Conv], params: TileParams, target: Target) -> float:
        """Estimated cycles."""
        p = planes_of(w, target)
        panels = column_panels(p.cols.out, params.nv, p.lanes)
        row = sum(
            c.count * t.count * (CALL + p.taps * _tap_cycles(target, p, t.rows, c.vectors))
            for c in panels
            for t in row_tiles(p.filters, params.mr)
        )
        blocks = -(-p.rows.out // p.row_block)
        rate = {1: COPIED, 2: PAIRED}.get(p.cols.stride, APART)
        copied = 0.0 if p.direct else blocks * p.channels * p.plane / rate
        return p.batch * p.group * (p.rows.out * row * SLACK + copied)


def _tap_cycles(target: Target, p: Planes, rows: int, vectors: int) -> float:
    """Return the cycles of a tap: multiply-adds, loads, or waiting for the sums."""
    machine, size = target.machine, target.vector_bytes
    loads = UNALIGNED * vectors / machine.load_rate(size) + rows / machine.broadcast_rate(size)
    step = max(rows * vectors / machine.fma_rate(size), loads, machine.fma_latency * FMA_WAIT)
    if target.arch == "aarch64":  # whose products read registers alone
        step += loads_beside(machine, rows + vectors / 2, size)
    return step * crowding(machine, rows, p.taps * 4)


def _by_rows(epilogue: Epilogue) -> Epilogue:
    """Return an epilogue with views over (N, rows, M, columns); one row where there are none."""
    views = []
    for v in epilogue.views:
        n, m, *image = v.strides
        rows, columns = (0, *image)[-2:]
        views.append(View((n, rows, m, columns), v.offset))
    return Epilogue(epilogue.expr, tuple(views))


def _function(p: Planes, finish: EpilogueFunctions, panel: Panel, tile: Tile) -> dict[str, object]:
    """Return a tile's name, head, sums, and where they go."""
    name = f"tile_{panel.name}_{tile.rows}"
    places, memory = finish.parameters
    head = wrapped(
        f"static K_NOINLINE void {name}(", ["const float *x", "const float *w", *places, *memory]
    )
    results = []
    for row in range(tile.rows):
        for vector in range(panel.vectors):
            column, sum_ = vector * p.lanes, f"c{row}_{vector}"
            part = panel.part if vector == panel.vectors - 1 else 0
            place = spot("y", row, p.rows.out * p.cols.out, column)
            results.append({"name": sum_, "place": place, "part": part,
                            "value": finish.value(sum_, row, column, part)})  # fmt: skip
    steps = [[plus("w", r * p.taps), [f"c{r}_{v}" for v in range(panel.vectors)]]
             for r in range(tile.rows)]  # fmt: skip
    unrolled = p.cols.kernel * tile.rows * panel.vectors <= UNROLLED
    return {"name": name, "head": head, "panel": panel, "tile": tile, "results": results,
            "steps": steps, "unrolled": unrolled}  # fmt: skip


KERNELS = (ConvNchwRows(),)
