"""What a register tile costs: a model of a core with two FMA units, for choosing unmeasured."""

from __future__ import annotations

from atc.backends.cpu.conv_tile import Geometry

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
    g: Geometry, rows: int, cols: int, vectors: int, depth: int, rate: float = NEAR
) -> float:
    """Return the cycles of one tile that sums `depth` products per output.

    `rate` is how many bytes of weights arrive per cycle.
    """
    pixels = rows * cols
    arithmetic = pixels * vectors / 2 + TURN
    loads = (pixels + vectors) / 2
    weights = vectors * g.block * 4 / rate
    step = max(arithmetic, loads, weights, LATENCY)
    turns = depth / (g.block if not g.plain else 1)
    return CALL + depth * step + turns * 2.0 + pixels * vectors * 1.5
