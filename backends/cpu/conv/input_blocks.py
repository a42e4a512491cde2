"""Loops over the input channels of a blocked convolution: their steps, parts and prefetches."""

from __future__ import annotations

from collections.abc import Sequence

from atc.backends.machine import Machine
from atc.backends.render.tile_geometry import Columns, Geometry, largest_divisor, tile_count


def input_blocks(g: Geometry, u: int) -> list[dict[str, int | bool]]:
    """Return the loops over input channels: whole blocks, then the rest of the last one."""
    if g.plain:
        return [{"first": 0, "count": g.ic, "steps": 1, "u": 1}]
    whole, rest = g.ic // g.block, int(g.ic) % g.block
    bodies: list[dict[str, int | bool]] = []
    if whole:
        most = largest_divisor(g.block, u)
        bodies.append({"first": 0, "count": whole, "steps": g.block, "u": most})
    if rest:
        bodies.append({"first": whole, "count": 1, "steps": rest, "u": largest_divisor(rest, u)})
    return bodies


PART = 32
"""Products of a part of a long sum, about."""


def part_of_sum(g: Geometry) -> int:
    """Return the input blocks of a part of a tile's sums; -1: a row of taps, 0: all of them."""
    if g.depth <= PART:
        return 0
    block = g.taps * (1 if g.plain else g.block)
    return max(1, PART // block) if block < 2 * PART else -1


LINE = 16
"""Floats in a cache line."""


def prefetched(g: Geometry, p: int, nv: int, u: int, line: int) -> int:
    """Return the lines of the next panel that each `u` steps prefetch; 0 where tiles are many."""
    tiles = tile_count(g, p)
    share = u * nv * g.block / line / tiles
    return int(-(-u * nv * g.block // (line * tiles))) if share > 0.05 else 0


def share_of_tile(g: Geometry, each: int, u: int) -> int:
    """Return by how much a tile moves the place that is prefetched, by `each` in `u` steps."""
    steps = sum(b["count"] * (b["steps"] // b["u"]) for b in input_blocks(g, u))
    return each * steps * g.taps


def asked_for(machine: Machine, g: Geometry, p: int, by_lane: bool) -> dict[str, object]:
    """Return what of an image beyond L2 a tile of p pixels asks for, and what it asks by.

    A tile reads a few pixels of each input block: more streams than a core's own prefetcher sees.
    With a stride a pixel is a line, and as many prefetches cost what they gain. Half of L1 is for
    the next tile.
    """
    large = 4 * g.in_plane * g.icb > machine.l2.size // 2
    asks = large and g.cols.stride == 1 and not (g.plain or by_lane)
    deep = 4 * p * g.taps * g.icb * g.block > machine.l1.size // 2
    return {
        "ahead": lambda tile: next_input(g, tile.rows, tile.columns) if asks else (),
        "ask": "v_prefetch_l2" if deep else "v_prefetch_l1",
    }


def next_input(g: Geometry, rows: int, columns: Columns) -> Sequence[int]:
    """Return the places of the lines that the next tile reads and this one doesn't.

    They are of a row of an input block and count from the first pixel's. Where a tile is as wide as
    a row, the next one lies below.
    """
    reach = columns.width + (g.cols.kernel - 1) * g.cols.dilation
    if columns.width == g.cols.out:
        below = rows * g.rows.stride * g.cols.size
        return range(below * g.block, (below + reach) * g.block, LINE)
    return range(reach * g.block, (reach + columns.width) * g.block, LINE)
