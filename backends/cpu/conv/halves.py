"""Direct convolution of halves: blocks of rows become floats in scratch, then tiles as of floats.

Every number is computed as from a tensor of floats.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from atc.backends.cpu.conv.blocked import (
    BESIDE,
    NARROW,
    WIDE,
    ConvDirect,
    DirectParams,
    image_bytes,
    is_depthwise,
    row_blocks,
    widening_costs,
    with_widened_panels,
)
from atc.backends.cpu.conv.cost import image_cycles
from atc.backends.cpu.conv.filter_panels import packed_panels, widened_panel
from atc.backends.kernel import Pack, Workload
from atc.backends.machine import Machine
from atc.backends.render.epilogue import sums_floats
from atc.backends.render.tile_geometry import Geometry, geometry, tile_rows
from atc.backends.render.vector_expr import LOADED_PARTS, LOADS, ROUNDED, lanes
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked

ROW_BLOCK = 1 / 3
"""Part of the first-level cache of a block of rows, if the weights stay in the second."""
LARGE = 1 / 4
"""Part of the second-level cache that one may take whose rows are reread, by the next block, or
that meets more weights."""
WHOLE = 5 / 16
"""Part of the second-level cache up to which the pixels of an image may be a single row, which
needs all of them in scratch: 14 x 14 pixels, as mobile networks have many, fill tiles so."""
SPARED = 1 / 3
"""Part of what halves spare that scratch may take: of x, and of results of 16 bits."""
LITTLE = 1 / 16
"""Part of the second-level cache that it may always take; `LARGE` with a panel of weights."""
WIDENING, FARTHER, NEAR, WIDE_BYTES = 2.5, 4.5, 1 / 2, 64
"""Cycles to widen a vector of x of so many bytes and store it, in the first cache or beyond it, and
the part of the first cache that a block of rows may be to stay there."""
ROUNDING = 1.0
"""Cycles more where x are floats to be rounded."""
OVERLAP = 1 / 8
"""Part of a block's rows that the next one reads, too, up to which blocks are large enough."""


class ConvHalves(ConvDirect):
    """Direct convolution of halves with tiles of p pixels x nv vectors, rb rows at a time."""

    name = "conv_halves"
    opens = False
    rounds_operands = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """16-bit floats, or floats to be rounded to so many; two spatial axes or one, known
        weights."""
        op = w.op
        kinds = ROUNDED if op.rounds is None else (DType.FLOAT,)
        wide = w.outputs[0].shape[-1] == lanes(target) > 1 and sums_floats(w, kinds)
        return wide and op.window.rank <= 2 and w.constant[1] and not is_depthwise(w)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[DirectParams]:
        """Return all parameter sets: tiles that fit registers, blocks of rows that fit caches."""
        found: list[DirectParams] = []
        for p, nv in WIDE if target.vector_registers >= 32 else NARROW:
            g = geometry(w, p)
            if image_bytes(g) > WHOLE * target.machine.l2.size:
                g = _in_rows(g, w, p)
            if nv <= g.mb:
                rb = _row_block(w, g, p, target.machine)
                found.append(DirectParams(p=p, nv=nv, u=4, rb=rb, pf=not rb))
        beside, machine = with_widened_panels(found, w), target.machine
        room = max(_room(w, machine), int(LARGE * machine.l2.size))
        return [*found, *(s for s in beside if self.scratch(w, s, target) <= room)]

    def packs(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights in the order of use."""
        return packed_panels(w, params)

    def scratch(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> int:
        """Reserve a block of rows of an image in floats, and perhaps a panel of weights."""
        g = _in_row_blocks(w, params)
        return image_bytes(g) + params.copy * widened_panel(g, params.nv)

    def striped_params(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> DirectParams | None:  # fmt: skip
        """Tiles of rows and columns; a stripe is widened in blocks of its own."""
        found = super().striped_params(w, params, target, x_rows, y_rows)
        if found is None:
            return None
        g = _in_rows(geometry(w, found.p, found), w, found.p, found)
        return replace(found, rb=_row_block(w, g, found.p, target.machine) or g.rows.out)

    def cut(self, w: Workload[ConvBlocked], params: DirectParams) -> Geometry:
        """Return the geometry of an image whose blocks of rows lie in scratch."""
        return _in_row_blocks(w, params)

    def values(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> dict[str, object]:
        """Return what the float kernel's template needs, and how x is read."""
        rows = _geometry(w, params).rows.size
        x, rounds = w.input(0).dtype, w.op.rounds

        def rounded(load: str) -> str:
            return f"{ROUNDED[rounds]}({load})" if rounds else load

        return {
            **super().values(w, params, target), "x_type": x.c, "held": params.x_rows or rows,
            "load_x": lambda place: rounded(f"{LOADS[x]}({place})"),
            "load_part": lambda place, count: rounded(f"{LOADED_PARTS[x]}({place}, {count})"),
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> float:
        """Estimate cycles: of the tiles, of widening, and of weights that are reread."""
        machine, g = target.machine, _in_row_blocks(w, params)
        blocks = row_blocks(g, params)
        widening, copies = widening_costs(w, g, params, target)
        tiles = image_cycles(machine, g, params.p, params.nv, g.depth, widening)
        weights = g.supers * g.mb * g.block * g.depth * 4
        reread = (blocks - 1) * weights / machine.far_rate
        rows = blocks * g.x_rows if params.rb else g.rows.size
        read = g.planes * rows * g.cols.size * g.in_pixel / g.block
        each = WIDENING if image_bytes(g) <= NEAR * machine.l1.size else FARTHER
        each *= max(1 / 2, 4 * g.block / WIDE_BYTES)
        far = reread if weights > BESIDE * machine.l2.size else 0.0
        widened = read * (each + ROUNDING * (w.op.rounds is not None))
        return g.batch * (g.supers * tiles + widened + copies + far)


def _in_rows(
    g: Geometry, w: Workload[ConvBlocked], pixels: int, params: DirectParams | None = None
) -> Geometry:
    """Return the geometry of an image whose rows can be cut, not that of a single row."""
    whole = not g.flat or g.rows.out > 1
    return g if whole else geometry(w, pixels, params, recut=False)


def _geometry(w: Workload[ConvBlocked], params: DirectParams) -> Geometry:
    g = geometry(w, params.p, params)
    return _in_rows(g, w, params.p, params) if params.rb else g


def _in_row_blocks(w: Workload[ConvBlocked], params: DirectParams) -> Geometry:
    g = _geometry(w, params)
    if not params.rows_held and not 0 < params.rb < g.rows.out:
        return g
    reach = (params.rb - 1) * g.rows.stride + (g.rows.kernel - 1) * g.rows.dilation + 1
    return replace(g, x_rows=min(reach, g.rows.size))


def _room(w: Workload[ConvBlocked], machine: Machine) -> int:
    """Return the bytes that scratch may take: part of what halves spare, or of the first cache."""
    spared = sum(t.nbytes for t in (w.input(0), *w.outputs) if t.dtype.is_half)
    return int(max(ROW_BLOCK * machine.l1.size, LITTLE * machine.l2.size, SPARED * spared))


def _row_block(w: Workload[ConvBlocked], g: Geometry, pixels: int, machine: Machine) -> int:
    """Return the rows of results of a block; 0: all."""
    weights = 4 * g.supers * g.mb * g.block * g.depth
    row = 4 * g.planes * g.cols.size * g.in_pixel
    image, reread = row * g.rows.size, g.rows.reach + 1 - g.rows.stride
    enough = max(ROW_BLOCK * machine.l1.size, reread / OVERLAP * row)
    large = LARGE * machine.l2.size
    most = large if weights > BESIDE * machine.l2.size else min(enough, large)
    most = min(most, _room(w, machine))
    rows = tile_rows(g, pixels)
    rb = -(-g.rows.out // (-(-image // int(most)) * rows)) * rows
    return rb if rb < g.rows.out else 0


KERNELS = (ConvHalves(),)
