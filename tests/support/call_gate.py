"""A queued call that waits until a test lets it through."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import Any

from atc.runtime.queue import CallQueue


class Gate:
    """A call that waits until it is let through."""

    def __init__(self, queue: CallQueue, urgent: bool = False) -> None:
        self.begun, self.open = threading.Event(), threading.Event()
        self.future: Future[Any] = queue.put(self._wait, urgent)

    def _wait(self) -> str:
        self.begun.set()
        assert self.open.wait(20)
        return "through"
