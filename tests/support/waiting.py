"""Waiting for what another process or thread does, as long as a busy machine may need."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE = 120.0
"""Seconds after which what was waited for counts as missing."""
_PAUSE = 0.01


def happens(condition: Callable[[], bool], patience: float = PATIENCE) -> bool:
    """Wait until a condition holds; return whether it did within `patience` seconds."""
    end = time.monotonic() + patience
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(_PAUSE)
    return True
