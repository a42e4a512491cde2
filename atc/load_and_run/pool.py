"""Threads that run what they are given, one call at a time, each on its core."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from atc.errors import OptionError

_Task = Callable[[], None]


@dataclass
class _Worker:
    core: int | None
    tasks: queue.SimpleQueue[_Task | None] = field(default_factory=queue.SimpleQueue)
    done: queue.SimpleQueue[BaseException | None] = field(default_factory=queue.SimpleQueue)
    cores: frozenset[int] = frozenset()
    thread: threading.Thread | None = None

    def loop(self) -> None:
        try:
            self.cores = pin(self.core)
            self.done.put(None)
        except BaseException as error:
            self.done.put(error)
            return
        while (task := self.tasks.get()) is not None:
            try:
                task()
                self.done.put(None)
            except BaseException as error:
                self.done.put(error)


class Pool:
    """Some threads; calls go to them round-robin, and the caller waits for each.

    With `caller` the calling thread is the first of them. Close it after use: it is a context.
    """

    def __init__(self, count: int, cores: Sequence[int] = (), caller: bool = False) -> None:
        """Start the threads and pin them to `cores`, if any; raises OptionError for a wrong one."""
        chosen: list[int | None] = [*cores] or [None] * count
        self.cores: list[list[int]] = []
        self._next = 0
        self._workers: list[_Worker | None] = []
        self._before = os.sched_getaffinity(0) if caller else None
        if caller:
            self.cores.append(sorted(pin(chosen[0])))
            self._workers.append(None)
        try:
            for core in chosen[len(self._workers) :]:
                self._start(_Worker(core))
        except BaseException:
            self.close()
            raise

    def _start(self, worker: _Worker) -> None:
        worker.thread = threading.Thread(target=worker.loop, daemon=True)
        worker.thread.start()
        if (error := worker.done.get()) is not None:
            raise error
        self._workers.append(worker)
        self.cores.append(sorted(worker.cores))

    def run(self, task: _Task) -> None:
        """Let the next thread run a call; raises what it raises."""
        worker = self._workers[self._next % len(self._workers)]
        self._next += 1
        if worker is None:
            task()
            return
        worker.tasks.put(task)
        if (error := worker.done.get()) is not None:
            raise error

    def close(self) -> None:
        """End the threads; the caller may use the cores that it might before."""
        for worker in self._workers:
            if worker is not None and worker.thread is not None:
                worker.tasks.put(None)
                worker.thread.join()
        self._workers = []
        if self._before is not None:
            os.sched_setaffinity(0, self._before)

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def pin(core: int | None) -> frozenset[int]:
    """Bind the calling thread to a core, unless None; return the cores that it may use."""
    if core is not None:
        bind(0, core)
    return frozenset(os.sched_getaffinity(0))


def bind(task: int, core: int) -> None:
    """Bind a thread, by the system's number (0: the calling one), to a core."""
    try:
        os.sched_setaffinity(task, {core})
    except (OSError, ValueError, OverflowError):
        raise _no_core(core) from None


def check_cores(cores: Iterable[int]) -> None:
    """Raise OptionError for a core that this process may not use."""
    for core in cores:
        if core not in os.sched_getaffinity(0):
            raise _no_core(core)


def _no_core(core: int) -> OptionError:
    return OptionError(
        f"there is no core {core} for this process", where="--multi_thread_core_ids",
        hint=f"there are {sorted(os.sched_getaffinity(0))}",
    )  # fmt: skip
