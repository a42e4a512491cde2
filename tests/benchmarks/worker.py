"""One engine with one model in a process of its own, a thread per core: run by compare.py.

usage: worker.py JSON, with cores (or null), threads, engine, model, inputs (.npy files by name),
outputs (where to write such files: their paths without the number) and clock (wall or cpu).
Of several threads those that compute stay on a core each: on a busy machine the system may let two
of them alternate on one.
Says {"seconds": of one run} when it is warm. Then each line on standard input is a number of runs,
answered by their times; the last, 0, by the peak of the process's resident memory. After an
error it says {"error": ...} and ends.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

WARM_SECONDS = 0.3
_TASKS = "/proc/self/task"
"""The threads of this process."""


def main() -> None:
    """Prepare, then run on demand."""
    given = json.loads(sys.argv[1])
    if given["cores"] is not None:
        os.sched_setaffinity(0, given["cores"])
    try:
        run = _prepared(given)
    except Exception as error:
        _say({"error": f"{type(error).__name__}: {error}"[:300]})
        return
    clock = time.process_time if given["clock"] == "cpu" else time.perf_counter
    seconds = _warm(run)
    if given["cores"] is not None and given["threads"] > 1 and os.path.exists(_TASKS):
        _spread(given["cores"])
        seconds = _warm(run)
    _say({"seconds": seconds})
    for line in sys.stdin:
        if not int(line):
            break
        _say({"times": _times(run, int(line), clock)})
    _say({"peak_kib": _peak_kib()})


def _prepared(given: dict[str, Any]) -> Any:
    from peers import ENGINES

    run = ENGINES[given["engine"]](given["model"], given["inputs"], given["threads"])
    import numpy as np  # after the engine, which may need it or not

    for number, output in enumerate(run()):
        np.save(f"{given['outputs']}{number}.npy", output)
    return run


def _warm(run: Any) -> float:
    """Run for a while; return the seconds of one run."""
    begin, runs = time.perf_counter(), 0
    while runs < 3 or (runs < 1000 and time.perf_counter() - begin < WARM_SECONDS):
        run()
        runs += 1
    return (time.perf_counter() - begin) / runs


def _spread(cores: Sequence[int]) -> None:
    """Give each of the threads that ran longest so far a core of its own."""
    ran = {}
    for thread in os.listdir(_TASKS):
        with open(f"{_TASKS}/{thread}/schedstat") as file:
            ran[int(thread)] = int(file.read().split()[0])
    busiest = sorted(ran, key=lambda t: -ran[t])[: len(cores)]
    for thread, core in zip(busiest, cores, strict=False):
        os.sched_setaffinity(thread, {core})


def _times(run: Any, count: int, clock: Callable[[], float]) -> list[float]:
    run()  # the caches held another engine's data
    times = []
    for _ in range(count):
        begin = clock()
        run()
        times.append(clock() - begin)
    return times


def _peak_kib() -> int:
    """Return the most resident memory that this program had (getrusage counts its parent's)."""
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as lines:
            found = [line.split() for line in lines if line.startswith("VmHWM:")]
        if found:
            return int(found[0][1])
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _say(what: dict[str, Any]) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
