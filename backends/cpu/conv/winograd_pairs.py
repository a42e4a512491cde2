"""Transformed filters of Winograd's convolutions, and his inner products of transformed tiles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.conv.winograd_matrices import (
    matrices,
    transform_filters,
    transformed_filters,
)
from atc.backends.cpu.matmul.cost import Tile, row_tiles, tile_count
from atc.backends.render.inner_product import InnerProduct, balanced_columns
from atc.backends.render.packing import PackInParts
from atc.backends.render.tile_geometry import Geometry, panel_groups
from atc.ir.graph import Array

PART = 1 << 22
"""Floats of transformed filters that are packed at a time, where they are that many."""


@dataclass(frozen=True)
class Pairs:
    """Winograd's inner products of a component's tiles, in groups of at most `lanes` tiles."""

    product: InnerProduct
    cuts: Mapping[int, Sequence[Tile]]
    """The groups of so many tiles."""

    @property
    def sizes(self) -> list[int]:
        """The tiles of a group."""
        return sorted({t.rows for cut in self.cuts.values() for t in cut}, reverse=True)

    def sums(self, size: int) -> list[str]:
        """Return the accumulators of so many tiles."""
        return [f"c{k}" for k in range(size)]

    def tiles(self, block: int) -> int:
        """Return the groups of a block of tiles."""
        return tile_count(self.cuts[block])

    @property
    def rows(self) -> int:
        """Floats of a component's balanced tiles."""
        return max(map(self.tiles, self.cuts)) * self.product.size

    @property
    def gap(self) -> int:
        """Floats behind the transformed tiles that are read, too, where there are few tiles."""
        return max(0, self.product.lanes - max(self.cuts)) * self.product.lanes


def paired(g: Geometry, blocks: Iterable[int]) -> Pairs:
    """Return the inner products of blocks of so many tiles."""
    return Pairs(InnerProduct(g.ic, g.block), {n: row_tiles(n, g.block) for n in blocks if n})


def in_blocks(w: Array, g: Geometry) -> Array:
    """Return filters [M, C, 3, 3] with zeros for what the last block lacks."""
    if w.shape[0] == g.mb * g.block:
        return w
    padded = np.zeros((g.mb * g.block, *w.shape[1:]), w.dtype)
    padded[: w.shape[0]] = w
    return padded


def pack_balanced(w: Array, g: Geometry, m: int) -> Array:
    """Return filters transformed and balanced, as [component][output block][step][block]."""
    components = transform_filters(in_blocks(w, g).swapaxes(0, 1), m)
    blocks = components.reshape(-1, g.ic, g.mb, g.block)
    return balanced_columns(np.moveaxis(blocks, 1, 2)).reshape(-1)


def packed_filters(g: Geometry, m: int, nv: int) -> PackInParts:
    """Return how filters [M, C, 3, 3] are transformed and packed.

    That is as [component][panel][channel][vectors * block].
    """
    total, components = g.mb * g.block, len(matrices(m).filter) ** 2

    def parts(w: Array) -> Iterator[tuple[int, Array]]:
        filters = in_blocks(w, g)
        for width, count, first in panel_groups(g.mb, nv):
            lanes = width * g.block
            step = max(PART // (components * g.ic * lanes), 1) * lanes
            end = first * g.block + count * lanes
            for begin in range(first * g.block, end, step):
                some = filters[begin : min(begin + step, end)]
                for k, panels in enumerate(_transformed_panels(some, m, lanes)):
                    yield (k * total + begin) * g.ic, panels

    return PackInParts(parts, components * total * g.ic)


def _transformed_panels(filters: Array, m: int, lanes: int) -> Array:
    """Return filters [panels * lanes, C, 3, 3] transformed: [component, panels * C * lanes]."""
    channels, components = filters.shape[1], len(matrices(m).filter) ** 2
    result = np.empty((components, len(filters) // lanes, channels, lanes), filters.dtype)
    for k, transformed in enumerate(transformed_filters(filters.swapaxes(0, 1), m)):
        result[:, :, k] = transformed.reshape(components, -1, lanes)
    return result.reshape(components, -1)
