"""The threads that compute: those of a network that was compiled for several, and ours around."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from atc.load_and_run.arguments import RunArguments
from atc.load_and_run.console import Console
from atc.load_and_run.context import Context
from atc.load_and_run.pool import Pool

Start = Callable[[Callable[[], None]], None]
"""Runs a call, in whichever thread."""


def here(task: Callable[[], None]) -> None:
    """Run a call in the calling thread."""
    task()


def wanted_threads(arguments: RunArguments) -> int:
    """Return how many threads shall compute; 1 where nothing is asked."""
    return max(int(arguments["multithread"]), int(arguments["multithread_default"]), 1)


@contextmanager
def workers(
    context: Context, arguments: RunArguments, console: Console
) -> Iterator[tuple[Start, list[list[int]]]]:
    """Give what runs a call, and the cores of every thread of the pool (none: there is no pool).

    With --multithread the caller waits for a thread that runs the network together with the
    network's own threads; with --multithread_default it is the one that runs it.
    """
    count = wanted_threads(arguments)
    caller = arguments["multithread_default"] > 0
    if not caller and arguments["multithread"] < 1:
        yield here, []
        return
    there, cores = context.engine.threads, arguments["multi_thread_core_ids"]
    if there == 1 and count > 1:
        console.warn("the library computes in one thread: runs of the pool's threads alternate")
    elif there != count:
        console.warn(f"the library was compiled for {there} threads, not for {count}")
    own = 1 if there > 1 else count
    with Pool(own, cores[:own], caller) as pool:
        native = context.start_threads(cores[own:]) if there > 1 else []
        try:
            yield pool.run, [*pool.cores, *native]
        finally:
            context.stop_threads()
