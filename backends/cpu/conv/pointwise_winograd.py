"""Convolution in channel blocks by Winograd's inner product (`render/inner_product.py`).

Rows are pixels, or their windows, columns output channels. They are balanced in rows of an image
that the L2 cache holds, those of strides and windows after they have been gathered (im2col).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from atc.backends.cpu.conv.filter_panels import ungrouped
from atc.backends.cpu.matmul.cost import row_tiles, streamed, tile_count
from atc.backends.kernel import Kernel, KernelParams, Pack, Workload
from atc.backends.render.axis import Axis
from atc.backends.render.epilogue import TileEpilogue, sums_floats
from atc.backends.render.inner_product import (
    BALANCING,
    InnerProduct,
    balanced_columns,
    is_paired,
    pairs_pay,
)
from atc.backends.render.stored_weights import stored_weights
from atc.backends.render.tile_geometry import Geometry, geometry, rows_merge
from atc.backends.render.vector_expr import lanes
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

GATHERING = 0.3
"""Cycles to copy a channel of a pixel."""


@dataclass(frozen=True, kw_only=True)
class RowParams(KernelParams):
    """The rows that the pixels of an image are cut into."""

    rows: int


class ConvPointwiseWinograd(Kernel[ConvBlocked, RowParams]):
    """1x1 convolution without groups and padding, by known weights."""

    name = "conv_pointwise_winograd"
    op = ConvBlocked
    template = "cpu/conv/pointwise_winograd.c.j2"
    portable = False
    bitwise_reproducible = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Floats of whole blocks of channels, an epilogue in vectors, units for additions."""
        op, x = w.op, w.input(0)
        if not pairs_pay(target) or is_dynamic(w) or not w.constant[1]:
            return False
        if op.group != 1 or len(x.shape) == op.plain or op.window.rank > 2 or not sums_floats(w):
            return False
        g = geometry(w, 1, recut=False)
        inside = self.takes(g) and all(rows_merge(v, g.cols.out) for v in op.epilogue.views)
        whole = g.block == lanes(target) and g.ic % g.block == 0
        fits = whole and is_paired(g.depth, target)
        enough = g.rows.out * g.cols.out >= lanes(target) and g.batch > 0
        plain = TileEpilogue(op.epilogue, w, g, target).deferred is None
        return inside and fits and enough and plain and bool(self.parameters(w, target))

    def takes(self, g: Geometry) -> bool:
        """Return whether windows are single pixels."""
        return all((a.kernel, a.pad) == (1, 0) and a.size >= a.span(a.out) for a in _axes(g))

    def exact(self, params: RowParams) -> bool:
        """Numbers far below the root mean square of their pixel or channel lose digits."""
        return False

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[RowParams]:
        """Return the fewest rows, of a tile at least, of which half the L2 cache holds one."""
        g, width = geometry(w, 1, recut=False), lanes(target)
        pixels, room = g.rows.out * g.cols.out, target.machine.l2.size // 2
        whole = g.rows.out if _gathered(g) else pixels
        counts = [n for n in range(1, pixels // width + 1) if whole % n == 0]
        fitting = [n for n in counts if pixels // n * g.depth * 4 <= room]
        return [RowParams(rows=n) for n in fitting[:1]]

    def packs(
        self, w: Workload[ConvBlocked], params: RowParams, target: Target
    ) -> Mapping[int, Pack]:
        """Panels of the balanced filters of a block of output channels."""
        g, stored = geometry(w, 1), stored_weights(w)

        def pack(weights: Array) -> Array:
            (filters,) = ungrouped(weights, g, 1)  # [outputs, channels, taps], then a block's taps
            blocks = filters.reshape(g.mb, g.block, g.icb, g.block, g.taps).swapaxes(-1, -2)
            columns = np.swapaxes(blocks.reshape(g.mb, g.block, g.depth), 1, 2)
            return balanced_columns(columns, stored)

        return {1: pack}

    def packing(self, w: Workload[ConvBlocked], params: RowParams, target: Target) -> str:
        """Name what is the same for any image."""
        return f"balanced filters of {w.inputs[1]}"

    def packing_overhead(
        self, w: Workload[ConvBlocked], params: RowParams, target: Target
    ) -> int:  # fmt: skip
        """Add a sum and a scale for each output channel."""
        g = geometry(w, 1)
        return 4 * 2 * g.mb * g.block

    def scratch(self, w: Workload[ConvBlocked], params: RowParams, target: Target) -> int:
        """Reserve a row of balanced pixels, those gathered, and a panel of widened weights."""
        return 4 * (_row_floats(w, params) + _product(w, geometry(w, 1, recut=False)).widened)

    def values(
        self, w: Workload[ConvBlocked], params: RowParams, target: Target
    ) -> dict[str, object]:
        """Return the tiles of a row, the parts of the depth, and the epilogue."""
        g, image = _in_rows(w, params), geometry(w, 1, recut=False)
        product, tiles = _product(w, image), row_tiles(g.cols.out, g.block)
        count = tile_count(tiles)
        streams = _weight_bytes(w, image) > streamed(target.machine)
        return {
            "g": g, "product": product, "tiles": tiles,
            "image": image if _gathered(image) else None, "height": image.rows.out // params.rows,
            "lines": product.lines(count) if streams else 0, "share": product.share(count),
            "widened": _row_floats(w, params),
            "epilogue": TileEpilogue(w.op.epilogue, w, g, target),
            "outputs": [(f"c{r}", 0, r, 0, r * g.block) for r in range(g.block)],
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: RowParams, target: Target) -> float:
        """Cycles of all tiles, of balancing pixels, and of waiting for weights."""
        g, image = _in_rows(w, params), geometry(w, 1, recut=False)
        tiles = [(t.rows, t.count) for t in row_tiles(g.cols.out, g.block)]
        product, machine, read = _product(w, image), target.machine, _weight_bytes(w, image)
        cycles = product.cycles(target, tiles, g.mb)
        cycles += (BALANCING + GATHERING * _gathered(image)) * image.depth * g.cols.out
        if read > streamed(machine):
            cycles = max(cycles, read / machine.far_rate)
        return g.batch * g.rows.out * cycles


def _in_rows(w: Workload[ConvBlocked], params: RowParams) -> Geometry:
    """Return the geometry of so many rows of dense pixels, `plane` of which x has."""
    g, rows = geometry(w, 1, recut=False), params.rows
    columns = g.rows.out * g.cols.out // rows
    return replace(
        g, rows=Axis(rows, rows), cols=Axis(columns, columns), flat=True,
        plane=g.rows.size * g.cols.size,
    )  # fmt: skip


def _axes(g: Geometry) -> tuple[Axis, Axis]:
    return g.rows, g.cols


def _gathered(g: Geometry) -> bool:
    """Return whether results have other places than their pixels, or windows of several."""
    return any(a.out != a.size or a.kernel != 1 for a in _axes(g))


def _product(w: Workload[ConvBlocked], g: Geometry) -> InnerProduct:
    return InnerProduct(g.depth, g.block, stored_weights(w))


def _row_floats(w: Workload[ConvBlocked], params: RowParams) -> int:
    """Return the floats of a row of balanced pixels, and of those gathered."""
    g, image = _in_rows(w, params), geometry(w, 1, recut=False)
    tiles = tile_count(row_tiles(g.cols.out, g.block))
    gathered = image.depth * g.cols.out if _gathered(image) else 0
    return tiles * _product(w, image).size + gathered


def _weight_bytes(w: Workload[ConvBlocked], g: Geometry) -> int:
    return stored_weights(w).dtype.itemsize * g.depth * g.mb * g.block


class ConvGatheredWinograd(ConvPointwiseWinograd):
    """Convolution of windows of several pixels without groups, by known weights."""

    name = "conv_gathered_winograd"

    def takes(self, g: Geometry) -> bool:
        """Return whether windows have several pixels."""
        return g.taps > 1


KERNELS = (ConvPointwiseWinograd(), ConvGatheredWinograd())
