"""Costs of register tiles on a core, in cycles, for choosing unmeasured."""

from __future__ import annotations

from itertools import chain

from atc.backends.cpu.matmul.cost import from_slow_l3
from atc.backends.machine import CALL, Machine
from atc.backends.render.tile_geometry import Geometry, cut_columns, panels, tile_row_counts

STEP_LOSS = 0.3
"""Cycles that a step loses to its neighbours."""
MISSING = 1.15
"""How much longer loads take than if the L1 cache had all they read."""
CROWDED = 0.94
"""Part of a step's arithmetic up to which its loads don't hinder those that convert, too."""
NEAR, FAR = 7 / 8, 1 / 2
"""Parts of the L2 cache's rate that weights get, and while the next ones stream into it."""
BEYOND = 0.9
"""Part of the L3 cache's rate at which tiles read weights there: some 14 bytes a cycle on a Zen 3.
"""


def tile_cycles(
    machine: Machine, g: Geometry, rows: int, cols: int, vectors: int, depth: float,
    rate: float = NEAR, widening: float = 0.0, at_once: int = 1,
) -> float:
    """Return the cycles of one tile that sums `depth` products per output.

    `rate` is the part of the L2 cache's rate at which weights arrive, `widening` the cycles to make
    floats of a vector of weights of 16 bits; `at_once` numbers of a pixel are read by one load.
    """
    pixels = rows * cols
    size = g.block * 4
    arithmetic = pixels * vectors / machine.fma_rate(size) + vectors * widening + STEP_LOSS
    read = pixels / at_once / machine.broadcast_rate(size)
    loads = MISSING * (read + vectors / machine.load_rate(size))
    weights = vectors * size / (machine.l2.rate * rate)
    step = max(arithmetic, loads, weights, machine.fma_latency)
    if widening:
        step += max(0.0, loads - CROWDED * arithmetic)
    iterations = depth / (g.block if not g.plain else 1)
    return CALL + depth * step + iterations * 2.0 + pixels * vectors * 1.5


def image_cycles(
    machine: Machine, g: Geometry, pixels: int, vectors: int, depth: int, widening: float = 0.0,
    at_once: int = 1, multiple: int = 1, rate: float = NEAR,
) -> float:
    """Return the cycles of all tiles, of so many pixels and vectors, of an image and a bundle.

    Tiles compute `multiple` pixels of a row together; weights arrive at that part of L2's rate.
    """
    columns, rows = cut_columns(g.cols, pixels, multiple), tile_row_counts(g, pixels)
    widths = panels(g.mb, vectors)
    tiles = {
        n: [
            c.count * k
            * tile_cycles(
                machine, g, r, -(-c.width // multiple) * multiple, n, depth, rate, widening, at_once
            )
            for c in columns
            for r, k in rows
        ]
        for n in dict.fromkeys(widths)
    }
    return sum(chain.from_iterable(tiles[n] for n in widths))


def rate_of_weights(machine: Machine, g: Geometry, nv: int) -> float:
    """Return the part of L2's rate at which tiles read their panel of weights.

    Each tile reads it from the third cache where L2 doesn't hold it and the next one, which is
    prefetched meanwhile.
    """
    if _streams(machine, g):
        return FAR
    panel_and_next = 4 * min(2 * nv, g.mb) * g.block * g.depth
    if not machine.l3.size or panel_and_next <= machine.l2.size:
        return NEAR
    return min(NEAR, BEYOND * machine.l3.rate / machine.l2.rate)


def _streams(machine: Machine, g: Geometry) -> bool:
    """Return whether weights come from a slow third cache while tiles read others from L2.

    Vectors narrower than units need half as many bytes a cycle, and have time for both.
    """
    weights = 4 * g.mb * g.block * g.depth
    return 4 * g.block == machine.datapath and from_slow_l3(machine, weights)
