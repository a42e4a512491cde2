"""What written C uses, noted while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from atc.dims import Dim


@dataclass
class Uses:
    """What a run function and its tasks use; it grows while they are written."""

    pointers: set[str] = field(default_factory=set)
    """Of inputs, outputs, constants and values, by their names in C."""
    arena: bool = False
    """Whether the arena itself is addressed, for scratch."""
    extents: dict[str, None] = field(default_factory=dict)
    """The extents of run time, as C over the table `d`."""
    places: bool = False
    """Whether a buffer's place is read from the table `at` of run time."""
    times: bool = False
    """Whether the run function itself takes times."""
    host_times: bool = False
    """Whether any time is that of a call on the processor."""
    device_times: bool = False
    """Whether any is that of a kernel on a GPU."""
    stripe_times: bool = False
    """Whether stripes are counted as one run."""
    rolling_buffers: bool = False
    """Whether rows of results in a cascade are kept for its next stripe."""


def extent_text(uses: Uses, value: int) -> str:
    """Return an extent as C, and note that it is used."""
    if not isinstance(value, Dim):
        return str(value)
    uses.extents[value.text] = None
    return value.text


def plus(pointer: str, offset: int) -> str:
    """Return C of an address so many elements behind a pointer."""
    return f"{pointer} + {offset}" if offset else pointer
