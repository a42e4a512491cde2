"""What tiles of convolutions ask for ahead is what the next tile reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
from blocked_convs import Case, build

from atc.backends.cpu.conv.blocked import Tile
from atc.backends.cpu.conv.input_blocks import LINE, asked_for
from atc.backends.kernel import workload_of
from atc.backends.machines import get_machine
from atc.backends.render.tile_geometry import Geometry, cut_columns, geometry, in_rows

BLOCK = 8
LARGE = {
    "pointwise": (Case(256, 64, (56, 56), (1, 1), pad=0), 4),
    "pointwise, rows of tiles": (Case(512, 64, (28, 28), (1, 1), pad=0), 6),
    "windows": (Case(128, 64, (40, 40), pad=0), 6),
    "dilated": (Case(128, 64, (44, 44), pad=0, dilation=3), 4),
}


def cut(case: Case, p: int) -> Geometry:
    """Return a convolution's geometry for tiles of p pixels."""
    graph, _, _ = build(case, BLOCK)
    (node,) = graph.nodes
    return geometry(workload_of(graph, node, graph.constants), p)


def lines(g: Geometry, row: int, first: int, width: int) -> set[int]:
    """Return the lines of a plane that pixels of an input row's window lie in."""
    at = (row * g.cols.size + first) * g.block
    reach = width + (g.cols.kernel - 1) * g.cols.dilation
    return {n // LINE for n in range(at, at + reach * g.block)}


def places(g: Geometry, p: int, tile: Tile) -> list[int]:
    """Return what a tile asks for on a Zen 3."""
    ahead = asked_for(get_machine("zen3"), g, p, False)["ahead"]
    return list(cast("Callable[[Tile], range]", ahead)(tile))


@pytest.mark.parametrize("name", LARGE)
def test_a_tile_asks_for_what_the_next_one_reads(name: str) -> None:
    """All but a line, whose begin a tile has read."""
    case, p = LARGE[name]
    g = in_rows(cut(case, p), p)
    tiles = [(c.first + k * c.width, c) for c in cut_columns(g.cols, p) for k in range(c.count)]
    row = 3
    for (at, columns), (then, following) in zip(tiles, tiles[1:], strict=False):
        own = lines(g, row, at, columns.width)
        start = (row * g.cols.size + at) * g.block
        asked = {(start + k) // LINE for k in places(g, p, Tile("", 1, 1, columns, g))}
        wanted = lines(g, row, then, following.width) - own
        assert wanted
        assert len(wanted - asked) <= 1
        assert len(asked - wanted) <= 1
    if len(tiles) == 1:
        asked = {(row * g.cols.size * g.block + k) // LINE
                 for k in places(g, p, Tile("", 1, 1, tiles[0][1], g))}  # fmt: skip
        assert lines(g, row + 1, 0, tiles[0][1].width) - lines(g, row, 0, p) <= asked


@pytest.mark.parametrize(
    "case",
    [
        Case(64, 64, (14, 14), (1, 1), pad=0),
        Case(256, 512, (56, 56), (1, 1), stride=2, pad=0),
        Case(256, 64, (56, 56), (1, 1), pad=0, plain=True),
    ],
    ids=["small", "strided", "plain"],
)
def test_others_ask_for_nothing(case: Case) -> None:
    """L2 has small images, lines of strided ones cost as much, and plain rows are dense."""
    g = cut(case, 4)
    tile = Tile("", 1, 1, cut_columns(g.cols, 4)[0], g)
    assert not places(g, 4, tile)
