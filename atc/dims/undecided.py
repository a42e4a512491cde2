"""Questions about extents that have no one answer for all shapes of a range."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from atc.errors import UnsupportedError

T = TypeVar("T")

NARROWER = "give a narrower range in --input_shape, or list shapes with --dynamic_dims"
RELATED = (
    'say how extents belong together, e.g. --input_shape="ids:1,s=1~8;past:1,p=0~64;mask:1,s+p", '
    "or give narrower ranges"
)


class Undecided(UnsupportedError):
    """Shapes inside the range would need different code."""


def decided(find: Callable[[], T]) -> T | None:
    """Return what a function finds; None where that depends on the shape."""
    try:
        return find()
    except Undecided:
        return None
