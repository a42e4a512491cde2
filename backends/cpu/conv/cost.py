"""What a register tile costs: a model of a core with two FMA units, for choosing unmeasured."""

from __future__ import annotations

from itertools import chain

from atc.backends.cpu.render.tile_geometry import Geometry, cut_columns, panels, tile_row_counts

L2 = 1 << 20
"""Bytes of second-level cache that the model counts on."""
CALL = 12.0
"""Cycles to enter and leave a tile."""
TURN = 0.3
"""Cycles that a step loses to its neighbours."""
LATENCY = 4.0
"""Cycles from one FMA to the next on the same accumulator."""


NEAR, FAR = 28.0, 16.0
"""Bytes of weights per cycle from L2, and while the next ones stream into it."""


def tile_cycles(
    g: Geometry, rows: int, cols: int, vectors: int, depth: int, rate: float = NEAR,
    widening: float = 0.0,
) -> float:
    """Return the cycles of one tile that sums `depth` products per output.

    `rate` is how many bytes of weights arrive per cycle, `widening` the cycles to make floats of a
    vector of weights of 16 bits.
    """
    pixels = rows * cols
    arithmetic = pixels * vectors / 2 + vectors * widening + TURN
    loads = (pixels + vectors) / 2
    weights = vectors * g.block * 4 / rate
    step = max(arithmetic, loads, weights, LATENCY)
    turns = depth / (g.block if not g.plain else 1)
    return CALL + depth * step + turns * 2.0 + pixels * vectors * 1.5


def image_cycles(
    g: Geometry, pixels: int, vectors: int, depth: int, widening: float = 0.0
) -> float:
    """Return the cycles of all tiles, of so many pixels and vectors, of an image and a bundle."""
    columns, rows = cut_columns(g.cols, pixels), tile_row_counts(g, pixels)
    widths = panels(g.mb, vectors)
    tiles = {
        n: [
            c.count * tile_cycles(g, r, c.width, n, depth, NEAR, widening) * k
            for c in columns
            for r, k in rows
        ]
        for n in dict.fromkeys(widths)
    }
    return sum(chain.from_iterable(tiles[n] for n in widths))
