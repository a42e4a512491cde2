"""Record what generated C uses while it is written."""

from __future__ import annotations

from dataclasses import dataclass, field

from atc.dims import Dim


@dataclass
class Uses:
    """The needs of a run function and its tasks, collected while they are written."""

    pointers: set[str] = field(default_factory=set)
    """The pointers to inputs, outputs, constants and values, by their names in C."""
    arena: bool = False
    """Whether the arena itself is addressed, for scratch."""
    extents: dict[str, None] = field(default_factory=dict)
    """The run-time extents, as C over the table `d`."""
    places: bool = False
    """Whether a buffer's offset is read from the run-time table `at`."""
    times: bool = False
    """Whether the run function itself measures times."""
    host_times: bool = False
    """Whether any time is that of a call on the processor."""
    device_times: bool = False
    """Whether any is that of a kernel on a GPU."""
    stripe_times: bool = False
    """Whether stripes are counted as one run."""
    rolling_buffers: bool = False
    """Whether rows of results in a cascade are kept for its next stripe."""


def extent_text(uses: Uses, value: int) -> str:
    """Return an extent as C, and record its use."""
    if not isinstance(value, Dim):
        return str(value)
    uses.extents[value.text] = None
    return value.text


def plus(pointer: str, offset: int) -> str:
    """Return the C of an address so many elements after a pointer."""
    return f"{pointer} + {offset}" if offset else pointer
