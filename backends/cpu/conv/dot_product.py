"""Common parts of direct convolutions of elements narrower than 32 bits, in words of channels.

The tiles are those of the float kernel; a step multiplies a word of a pixel, its next channels that
fill 32 bits, broadcast, by vectors of such words of weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np

from atc.backends.cpu.conv.blocked import (
    NARROW,
    WIDE,
    PanelParams,
    StripedPanelParams,
    Tile,
    tile_name,
)
from atc.backends.cpu.conv.cost import image_cycles
from atc.backends.kernel import Workload
from atc.backends.machine import Machine
from atc.backends.render.tile_geometry import (
    Geometry,
    cut_columns,
    geometry,
    panels,
    tile_count,
    tile_rows,
    unroll,
)  # fmt: skip
from atc.backends.target import Target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked

LINE = 64
"""Bytes of a cache line."""
WORD = 4
"""Bytes of a word."""
UNROLLED = 4
"""Words whose steps are unrolled."""


@dataclass(frozen=True)
class Words:
    """A convolution cut into tiles of p pixels x nv vectors, `per` elements to a word."""

    g: Geometry
    p: int
    nv: int
    per: int
    size: int = WORD
    """Bytes of a word of weights."""
    joined: int = 1
    """Blocks of input channels that a step reads, each of them a word."""
    together: int = 1
    """Pixels of a row that instructions multiply together."""

    @property
    def depth(self) -> int:
        """The words of weights that one output meets."""
        return self.g.taps * -(-self.g.ic // self.per)

    @property
    def unit(self) -> int:
        """The elements of a whole block of input channels under a tap."""
        return self.g.block

    @property
    def iterations(self) -> int:
        """The number of steps of a tile: blocks of input channels, those joined as one, by taps."""
        return -(-self.g.icb // self.joined) * self.g.taps

    @property
    def lines(self) -> int:
        """Lines of the next panel that each iteration prefetches; 0 where tiles are many."""
        size = self.nv * self.g.block * self.g.block * self.joined * self.size // self.per
        share = size / LINE / tile_count(self.g, self.p)
        return -(-size // (LINE * tile_count(self.g, self.p))) if share > 0.2 else 0

    def bodies(self) -> list[dict[str, int]]:
        """Return the loops over input blocks: first, count, words in each, unrolled ones, and the
        blocks that each reads."""
        if self.joined > 1:
            whole, rest = divmod(self.g.icb, self.joined)
            joined = ((0, whole, self.joined), (whole * self.joined, 1, rest))
            cuts = [(first, count, n * self.g.block, n) for first, count, n in joined]
        else:
            whole, rest = divmod(self.g.ic, self.g.block)
            cuts = [(0, whole, self.g.block, 1), (whole, 1, rest, 1)]
        most = max(UNROLLED, self.joined)
        return [
            {"first": first, "count": count, "steps": n, "u": unroll(n, most), "blocks": blocks}
            for first, count, channels, blocks in cuts
            if count and (n := -(-channels // self.per))
        ]

    def values(self) -> dict[str, object]:
        """Return the geometry, the tiles and the loops over them, for the template."""
        g, nv = self.g, self.nv
        rows = tile_rows(g, self.p)
        columns = cut_columns(g.cols, self.p, self.together)
        widths = [(n, len(list(same))) for n, same in groupby(panels(g.mb, nv))]
        tiles = {
            (r, n, c): Tile(tile_name(r, n, c), r, n, c, g)
            for r in sorted({rows, 1}) for n, _ in widths for c in columns
        }  # fmt: skip
        named = {t.name: t for t in tiles.values()}
        firsts = [m for m, _ in pairwise((*range(0, g.mb, nv), g.mb))]
        line = LINE * self.per // self.size
        return {
            "g": g, "rows": rows, "columns": columns, "tiles": list(named.values()),
            "groups": [(n, count, firsts[k * widths[0][1]]) for k, (n, count) in enumerate(widths)],
            "tile_of": lambda r, n, c: tiles[r, n, c].name, "interior": g.rows.interior,
            "bodies": self.bodies(), "words": self.depth, "per": self.per, "unit": self.unit,
            "step": 1 if g.plain else g.block,
            "as_int16": False, "bytewise": False, "paired": False, "in_lanes": False,
            "halves": None, "pair_reads": None, "joined": self.joined,
            "apart": g.in_plane if self.joined > 1 else self.per,
            "lines": self.lines, "line": line, "share": self.lines * line * self.iterations,
        }  # fmt: skip

    def pack(self, dense: Array) -> Array:
        """Return weights [supers, blocks * block, ic, taps] in the order of use.

        That is [supers][panel][input blocks of a step][taps][word][vectors * block][per], zeros
        where nothing is.
        """
        g, parts = self.g, []
        for filters in dense:
            for m, n in zip(range(0, g.mb, self.nv), panels(g.mb, self.nv), strict=True):
                panel = filters[m * g.block : (m + n) * g.block]
                for c in range(0, g.ic, g.block * self.joined):
                    part = panel[:, c : c + g.block * self.joined]
                    padded = np.pad(part, ((0, 0), (0, -part.shape[1] % self.per), (0, 0)))
                    words = padded.reshape(len(panel), -1, self.per, g.taps)
                    parts.append(words.transpose(3, 1, 0, 2).reshape(-1))
        return np.concatenate(parts)

    def cycles(self, machine: Machine) -> float:
        """Estimate the cycles of all tiles."""
        g = self.g
        cycles = image_cycles(machine, g, self.p, self.nv, self.depth, multiple=self.together)
        return g.batch * g.supers * cycles


def in_words(w: Workload[ConvBlocked], params: PanelParams, per: int) -> Words:
    """Return the convolution as a kernel's parameters cut it."""
    p, nv = params.p, params.nv
    striped = params if isinstance(params, StripedPanelParams) else None
    return Words(geometry(w, p, striped), p, nv, per)


def tile_sets(w: Workload[ConvBlocked], target: Target) -> list[PanelParams]:
    """Return all parameter sets: tiles that fit the registers."""
    shapes = WIDE if target.vector_registers >= 32 else NARROW
    return [PanelParams(p=p, nv=nv) for p, nv in shapes if nv <= geometry(w, p).mb]
