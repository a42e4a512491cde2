"""Convolution in groups of fewer channels than a block has, as many blocks in as out.

As one dense convolution of whole blocks, most products would be with zeros. Here a block of inputs
is permuted so that each lane meets a channel of its own group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from atc.backends.cpu.conv.blocked import ConvDirect, DirectParams, Tile
from atc.backends.kernel import Pack, Workload
from atc.backends.machine import CALL
from atc.backends.render.tile_geometry import Geometry, cut_columns, geometry, tile_row_counts
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

LEAST = 8
"""Lanes below which groups are hardly narrower than a vector."""
SUMS = 4
"""Sums that there must be registers for."""


class ConvSmallGroup(ConvDirect):
    """Tiles of p pixels x one vector of output channels."""

    name = "conv_small_group"
    accepts_16_bit_weights = False

    def accepts(self, w: Workload[ConvBlocked], target: Target) -> bool:
        """Accept ConvDirect's workloads in groups of as many channels in as out, whole blocks."""
        if not super().accepts(w, target):
            return False
        op, x, weights = w.op, w.input(0), w.input(1)
        width, block = weights.shape[1], w.outputs[0].shape[-1]
        square = weights.shape[0] == op.group * width and block % width == 0
        whole = op.group * width % block == 0 and width < block
        fits = _most(w, target) >= SUMS and block >= LEAST
        return square and whole and fits and len(x.shape) > op.plain

    def sets(self, w: Workload[ConvBlocked], target: Target) -> list[DirectParams]:
        """Return tiles that leave registers for a row of weights, an input and its permutation."""
        most = _most(w, target)
        sizes = sorted({most, 14, 12, 10, 8, 7, 4, 2, 1}, reverse=True)
        return [DirectParams(p=p, nv=1, u=1, rb=0, pf=False) for p in sizes if p <= most]

    def packs(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> Mapping[int, Pack]:
        """Weights as [block][tap][channel of the group][lane]."""
        return {1: lambda weights: pack_groups(weights, w.outputs[0].shape[-1])}

    def packing(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> str:
        """Return the reasons for the parameters: groups are the same for any image."""
        return f"groups of {w.inputs[1]}"

    def values(
        self, w: Workload[ConvBlocked], params: DirectParams, target: Target
    ) -> dict[str, object]:
        """Return the values for ConvDirect's loops; only the channels of a group are summed."""
        common, width = super().values(w, params, target), _width(w)
        g = common["g"]
        assert isinstance(g, Geometry)
        body = {"first": 0, "count": 1, "steps": width, "u": 1}
        lanes = range(w.outputs[0].shape[-1])
        places = [lane // width * width + k for k in range(width) for lane in lanes]
        return common | {
            "g": replace(g, ic=width), "bodies": [body], "places": places,
            "columns_of": columns_of, "taps_of": taps_of,
        }  # fmt: skip

    def cost(self, w: Workload[ConvBlocked], params: DirectParams, target: Target) -> float:
        """Estimated cycles: those of products, or of permutations."""
        p, width = params.p, _width(w)
        g = geometry(w, p, params)
        total, rate = 0.0, target.machine.fma_rate(target.vector_bytes)
        for c in cut_columns(g.cols, p):
            for rows, times in tile_row_counts(g, p):
                columns = columns_of(Tile("", rows, 1, c, g))
                products = sum(len(users) for _, users in columns)
                step = max(products / rate, len(columns), target.machine.fma_latency)
                step += len(c.taps) / 2 + 2.0
                tile = CALL + g.rows.kernel * width * step + 1.5 * rows * c.width
                total += c.count * times * tile
        return g.batch * g.supers * total


def _width(w: Workload) -> int:
    return w.input(1).shape[1]


def _most(w: Workload[ConvBlocked], target: Target) -> int:
    op = w.op
    return target.vector_registers - 3 - op.window.kernel[-1]


def columns_of(t: Tile) -> list[tuple[int, list[tuple[str, int]]]]:
    """Return the input vectors that a row of taps meets, and which sums take them at which tap."""
    g, found = t.g, dict[int, list[tuple[str, int]]]()
    for tap, pixels in enumerate(t.columns.taps):
        for r in range(t.rows):
            for c in pixels:
                column = c * g.cols.stride + tap * g.cols.dilation
                place = (r * g.rows.stride * g.cols.size + column) * g.block
                found.setdefault(place, []).append((f"c{r * t.columns.width + c}", tap))
    return sorted(found.items())


def taps_of(t: Tile) -> list[int]:
    """Return the taps of a row that meet any pixel."""
    return [tap for tap, pixels in enumerate(t.columns.taps) if pixels]


def pack_groups(w: Array, block: int) -> Array:
    """Return weights [M, C / group, *kernel] as [block][tap][channel of the group][lane]."""
    split = w.reshape(w.shape[0] // block, block, w.shape[1], -1)
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1)).reshape(-1)


KERNELS = (ConvSmallGroup(),)
