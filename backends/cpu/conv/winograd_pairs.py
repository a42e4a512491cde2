"""Transformed filters of Winograd's convolutions, and his inner products of transformed tiles."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atc.backends.cpu.conv.winograd_matrices import transform_filters
from atc.backends.cpu.matmul.cost import Tile, row_tiles, tile_count
from atc.backends.render.inner_product import InnerProduct, balanced_columns
from atc.backends.render.tile_geometry import Geometry, panels
from atc.ir.graph import Array


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
    padded = np.zeros((g.mb * g.block, *w.shape[1:]), w.dtype)
    padded[: w.shape[0]] = w
    return padded


def pack_balanced(w: Array, g: Geometry, m: int) -> Array:
    """Return filters transformed and balanced, as [component][output block][step][block]."""
    components = transform_filters(in_blocks(w, g).swapaxes(0, 1), m)
    blocks = components.reshape(-1, g.ic, g.mb, g.block)
    return balanced_columns(np.moveaxis(blocks, 1, 2)).reshape(-1)


def pack_filters(w: Array, g: Geometry, m: int, nv: int) -> Array:
    """Return filters [M, C, 3, 3] transformed, as [component][panel][channel][vectors * block]."""
    components = transform_filters(in_blocks(w, g).swapaxes(0, 1), m)
    parts = [
        components[..., first * g.block : (first + n) * g.block].reshape(len(components), -1)
        for first, n in zip(range(0, g.mb, nv), panels(g.mb, nv), strict=True)
    ]
    return np.concatenate(parts, axis=1).reshape(-1)
