"""The cores that everything runs on, and the most that one of them computes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from atc.backends.targets import get_target
from atc.fast_run.peak_flops import measured_peak


def pinned_cores(count: int) -> frozenset[int] | None:
    """Return the last cores that this process may use; None where processes can't be pinned."""
    if not hasattr(os, "sched_getaffinity"):
        return None
    return frozenset(sorted(os.sched_getaffinity(0))[-count:])


@contextmanager
def pinned(cores: frozenset[int] | None) -> Iterator[None]:
    """Stay on some cores for a while, with all that is started."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def peak_of(target: str) -> float:
    """Return the measured GFLOP/s of a core with a target's vectors; 0 where it doesn't run."""
    with pinned(pinned_cores(1)):
        return measured_peak(get_target(target), os.environ)
