"""Convolution to a few channels, as where images are made: lanes hold input channels.

A vector of output channels would be mostly padding. Here each output is summed in the lanes of a
vector of its own, which are added up at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atc.backends.cpu.conv.blocked import ConvDirect, DirectParams, cheapest
from atc.backends.kernel import Pack, Workload
from atc.backends.render.tile_geometry import Geometry, cut_columns, geometry, tile_row_counts
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

ADD_UP = 7.0
"""Cycles to add up the lanes of a vector and store the sum."""
FINISH = 6.0
"""Cycles to read the sums of a pixel back and to store it."""


class ConvSmallOc(ConvDirect):
    """Tiles of p pixels x all filters, of which there are at most a quarter of a vector."""

    name = "conv_small_oc"
    opens = False
    template = "cpu/conv/small_oc.c.j2"
    accepts_16_bit_weights = False

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Accept ConvDirect's workloads, known filters, from blocks, in one group, to few."""
        if not super().accepts(w, target):
            return False
        op, x, weights = w.op, w.input(0), w.input(1)
        y = w.outputs[0]
        few = 4 * weights.shape[0] <= y.shape[-1] and y.dtype is x.dtype
        return few and w.constant[1] and op.group == 1 and len(x.shape) > op.plain

    def parameters(self, w: Workload[ConvBlocked], target: Target) -> Sequence[DirectParams]:
        """Return the most promising sets."""
        return cheapest(self, self.sets(w, target), w, target, 3)

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[DirectParams]:
        """Return tiles whose sums leave registers for the weights of a tap and an input."""
        filters = _filters(w)
        most = (target.vector_registers - 2 - filters) // filters
        sizes = sorted({most, most // 2, 4, 2, 1} - {0}, reverse=True)
        return [DirectParams(p=p, nv=1, u=1, rb=0, pf=False) for p in sizes if p <= most]

    def packs(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights as [input block][tap][filter][lane]."""
        g = geometry(w, params.p)
        return {1: lambda weights: pack_lanes(weights, g)}

    def packing(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> str:
        """Lanes are the same for any image."""
        return f"lanes of {w.inputs[1]}"

    def values(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> dict[str, object]:
        """Return ConvDirect's values, and blocks of inputs: [(first, count, lanes)]."""
        g = geometry(w, params.p)
        whole, rest = divmod(g.ic, g.block)
        blocks = [(0, whole, 0)] * (whole > 0) + [(whole, 1, rest)] * (rest > 0)
        common = super().values(w, params, target)
        return common | {"filters": _filters(w), "blocks": blocks}

    def striped_params(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target,
        x_rows: int, y_rows: int,
    ) -> DirectParams | None:
        """Images are results: nothing reads their rows next."""
        return None

    def cost(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> float:
        """Estimated cycles: the loads or products of taps, what is more, and the ends of tiles."""
        p, filters = params.p, _filters(w)
        g = geometry(w, p)
        machine, total = target.machine, 0.0
        products = machine.fma_rate(target.vector_bytes)
        loads = machine.load_rate(target.vector_bytes)
        for columns in cut_columns(g.cols, p):
            for rows, times in tile_row_counts(g, p):
                pixels = rows * columns.width
                tap = max(pixels * filters / products, (pixels + filters) / loads) + 1.0
                end = pixels * (filters * ADD_UP + FINISH)
                total += columns.count * times * (g.icb * g.taps * tap + end)
        return g.batch * total


def _filters(w: Workload) -> int:
    return w.input(1).shape[0]


def pack_lanes(w: Array, g: Geometry) -> Array:
    """Return weights [M, C, *kernel] as [input block][tap][filter][lane], padded with zeros."""
    filters, channels = w.shape[:2]
    padded = np.zeros((filters, g.icb * g.block, g.taps), w.dtype)
    padded[:, :channels] = w.reshape(filters, channels, g.taps)
    split = padded.reshape(filters, g.icb, g.block, g.taps)
    return np.ascontiguousarray(split.transpose(1, 3, 0, 2)).reshape(-1)


KERNELS = (ConvSmallOc(),)
