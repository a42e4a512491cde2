"""Queued calls: threads of a network's own run them, futures hold what they return.

A part of `atc/runtime/network.py`; generated projects carry both in one module.
"""

from __future__ import annotations

import os
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from atc.runtime.values import Array, number_of

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


def captured(arrays: Sequence[Array], given: Sequence[Any]) -> list[Array]:
    """Return inputs that nobody can change any more: copies of what may be the caller's own.

    Arrays that can't be written are taken as they are.
    """
    own = {id(value) for value in given}
    return [
        a.copy() if a.flags.writeable and (id(a) in own or not a.flags.owndata) else a
        for a in arrays
    ]


class CallQueue:
    """Runs calls in the order in which they come; urgent ones overtake, in threads of their own.

    What it does follows MegEngine's and MXNet's variables, as they are when it is made:
    MEGENGINE_INTERP_ASYNC_LEVEL (0, as MXNET_ENGINE_TYPE=NaiveEngine: calls run at once, in their
    caller's thread; 1: wrong arguments raise at once; 2: all errors are the futures'),
    MEGENGINE_ASYNC_QUEUE_SIZE (calls that may be unfinished before callers wait),
    MEGENGINE_CATCH_WORKER_EXEC (0: an error of a queued call ends the process where it is) and
    MXNET_CPU_PRIORITY_NTHREADS (urgent calls at the same time).
    """

    def __init__(self, name: str) -> None:
        level = number_of("MEGENGINE_INTERP_ASYNC_LEVEL", 2, 0)
        self.level = 0 if os.environ.get("MXNET_ENGINE_TYPE") == "NaiveEngine" else level
        self._name = name
        self._catches = number_of("MEGENGINE_CATCH_WORKER_EXEC", 1, 0) != 0
        self._room = threading.BoundedSemaphore(number_of("MEGENGINE_ASYNC_QUEUE_SIZE", 10000, 1))
        self._urgent_threads = number_of("MXNET_CPU_PRIORITY_NTHREADS", 4, 1)
        self._threads: dict[bool, ThreadPoolExecutor] = {}
        self._lock = threading.Lock()

    def put(self, call: Callable[[], Any], urgent: bool) -> Future[Any]:
        """Return the future of a call; waits while too many of those before are unfinished.

        Urgent calls neither wait for that nor count.
        """
        if urgent:
            return self._executor(urgent).submit(self._run, call)
        self._room.acquire()
        try:
            future = self._executor(urgent).submit(self._run, call)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def done(self, result: Any = None, error: Exception | None = None) -> Future[Any]:
        """Return the future of a call that has ended."""
        from concurrent.futures import Future  # deferred: it loads slower than the network

        future: Future[Any] = Future()
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)
        return future

    def close(self) -> None:
        """Take no more calls; those that are queued are still run."""
        with self._lock:
            for threads in self._threads.values():
                threads.shutdown(wait=False)

    def _executor(self, urgent: bool) -> ThreadPoolExecutor:
        from concurrent.futures import ThreadPoolExecutor  # deferred, too

        with self._lock:
            if urgent not in self._threads:
                count = self._urgent_threads if urgent else 1
                name = f"{self._name}-{'urgent' if urgent else 'calls'}"
                self._threads[urgent] = ThreadPoolExecutor(count, name)
            return self._threads[urgent]

    def _run(self, call: Callable[[], Any]) -> Any:
        """Run a call in this thread."""
        try:
            return call()
        except BaseException:
            if self._catches:
                raise
            traceback.print_exc()
            os.abort()
