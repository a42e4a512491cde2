"""Engines run one model alternately, each in a process of its own on the same cores.

usage: race.py FILE

FILE is JSON: `engines` (the job of each by name, as worker.py takes it) and `rounds`. Prints what
was found of each by its name: {"times": seconds, "peak_kib": of the process} or {"error": why}. The
engine that does nothing only says its memory.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from peers import BARE

TURN = 0.05
"""Seconds that an engine runs before it is the next one's turn."""
WORKER = Path(__file__).with_name("worker.py")

Process = subprocess.Popen[str]


def race(jobs: Mapping[str, Mapping[str, object]], rounds: int) -> dict[str, dict[str, Any]]:
    """Run all engines alternately, each round in another order."""
    with ExitStack() as stack:
        workers = {name: stack.enter_context(worker(job)) for name, job in jobs.items()}
        found = {name: hear(process) for name, process in workers.items()}
        able = [name for name in jobs if "error" not in found[name]]
        times: dict[str, list[float]] = {name: [] for name in able}
        racing = [name for name in able if jobs[name]["engine"] != BARE]
        for turn in range(rounds):
            for name in racing[turn % len(racing) :] + racing[: turn % len(racing)]:
                count = max(1, min(1000, int(TURN / found[name]["seconds"])))
                times[name] += ask(workers[name], count)["times"]
        return found | {name: {"times": times[name], **ask(workers[name], 0)} for name in able}


@contextmanager
def worker(job: Mapping[str, object]) -> Iterator[Process]:
    """Start an engine's process, and end it at last."""
    command = [sys.executable, str(WORKER), json.dumps(job)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def ask(process: Process, runs: int) -> dict[str, Any]:
    """Let an engine run so many times; with 0 it ends."""
    assert process.stdin is not None
    if hasattr(signal, "SIGCONT"):
        process.send_signal(signal.SIGCONT)
    process.stdin.write(f"{runs}\n")
    process.stdin.flush()
    return hear(process)


def hear(process: Process) -> dict[str, Any]:
    """Return the next thing that an engine's process says."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line.startswith("{"):
        return {"error": f"the process ended with status {process.wait()}"}
    said: dict[str, Any] = json.loads(line)
    if hasattr(signal, "SIGSTOP"):  # threads of a pool may spin on the cores while others run
        process.send_signal(signal.SIGSTOP)
    return said


def main(argv: Sequence[str]) -> int:
    """Run the engines of a file."""
    given = json.loads(Path(argv[0]).read_text("utf-8"))
    print(json.dumps(race(given["engines"], given["rounds"])))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
