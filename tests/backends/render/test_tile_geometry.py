"""How output blocks are cut into panels."""

from __future__ import annotations

from atc.backends.render.tile_geometry import panel_groups
from atc.dims import opened


def test_widths_of_panels_are_numbers_of_the_text_where_blocks_are_opened() -> None:
    groups = panel_groups(opened(16, "m"), 6)
    assert [(width, count, first) for width, count, first in groups] == [(6, 2, 0), (4, 1, 12)]
    assert [type(width) for width, _, _ in groups] == [int, int]
