"""The processes that run at the moment, so that whoever is interrupted can end them."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress


class Running:
    """Process groups by their leaders; once they are ended, those that start later are, too."""

    def __init__(self) -> None:
        self._leaders: set[int] = set()
        self._over = False
        self._mutex = threading.Lock()

    @property
    def leaders(self) -> frozenset[int]:
        """The leaders of those that run now."""
        with self._mutex:
            return frozenset(self._leaders)

    def started(self, leader: int) -> None:
        """Note a process that leads a group of its own."""
        with self._mutex:
            self._leaders.add(leader)
            if self._over:
                end_group(leader)

    def finished(self, leader: int) -> None:
        """Forget a process."""
        with self._mutex:
            self._leaders.discard(leader)

    def end(self) -> None:
        """End all of them at once."""
        with self._mutex:
            self._over = True
            for leader in self._leaders:
                end_group(leader)


def end_group(leader: int) -> None:
    """End a process and its children (a compiler driver's passes, say)."""
    with suppress(ProcessLookupError):
        os.killpg(leader, signal.SIGKILL)


_CRASHES = {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE}
"""Signals that end a program by a fault of its own."""


def crashed(status: int) -> bool:
    """Return whether a program has crashed, or one that it ran: a shell adds 128 to the signal."""
    return -status in _CRASHES or status - 128 in _CRASHES
