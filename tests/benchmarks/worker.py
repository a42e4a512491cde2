"""One engine with one model in a process of its own, a thread per core: run by compare.py.

usage: worker.py JSON, with cores (or null), threads, engine, model, inputs (.npy files by name),
outputs (where to write such files: their paths without the number), expected (such files of what
is right: an engine that computes something else isn't timed) and clock (wall or cpu).
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
WRONG = 0.5
"""Errors, as parts of the output's largest magnitude, of what isn't the model's function."""
_TASKS = "/proc/self/task"
"""The threads of this process."""
_ANSWERS = os.fdopen(os.dup(1), "w")
"""What standard output was: engines may print."""


def main() -> None:
    """Prepare, then run on demand."""
    given = json.loads(sys.argv[1])
    os.dup2(2, 1)
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

    outputs = run()
    for number, output in enumerate(outputs):
        np.save(f"{given['outputs']}{number}.npy", output)
    for number, path in enumerate(given["expected"]):
        _check(number, outputs[number], np.load(path))
    return run


def _check(number: int, output: Any, expected: Any) -> None:
    """Raise ValueError for an output that isn't the model's."""
    if output.shape != expected.shape:
        raise ValueError(f"output {number} has shape {output.shape}, not {expected.shape}")
    if expected.size and expected.dtype.kind in "fiu" and abs(expected).max() < float("inf"):
        error = abs(output.astype("float64") - expected).max()
        if not error <= WRONG * abs(expected.astype("float64")).max():
            raise ValueError(f"output {number} is wrong: it differs by {error:.3g}")


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
    print(json.dumps(what), file=_ANSWERS, flush=True)


if __name__ == "__main__":
    main()
