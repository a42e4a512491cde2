"""The profile of the runs as JSON, with the keys that MegEngine's profile tools read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from atc.load_and_run.engine import CallTime, Engine

DEVICE, THREAD = "cpu0", "caller"
"""The names of the only compute node and of the thread that calls it."""


@dataclass(frozen=True)
class ProfiledRun:
    """The kernel calls of one run, when it began and ended, and how long its outputs were copied.

    In seconds of one clock.
    """

    calls: tuple[CallTime, ...]
    begin: float
    end: float
    copied: float = 0.0


def median_run(runs: Sequence[ProfiledRun]) -> ProfiledRun:
    """Return the run that took as long as the median one."""
    ordered = sorted(runs, key=lambda run: run.end - run.begin)
    return ordered[len(ordered) // 2]


def profile_json(engine: Engine, runs: Sequence[ProfiledRun], device: bool = True) -> str:
    """Return the profile of the median run; without `device` only the host's section is filled.

    Times are seconds since the run began. Beside MegEngine's keys there are `run` (the run's own
    time, that inside the library, and the sum of the kernels') and, per operator, its nodes, kernel
    and work. A copy of the outputs has the id `copy_to_host`.
    """
    run = median_run(runs)
    called = [c for c in run.calls if c.runs]
    spans = {str(c.number): _span(c, run.begin) for c in called}
    if run.copied:
        start = run.end - run.begin
        spans["copy_to_host"] = {"start": start, "kern": start, "end": start + run.copied}
    return json.dumps({
        "graph_exec": {"operator": _operators(engine, run.calls), "var": _vars(engine)},
        "profiler": {
            "device": {k: {DEVICE: span} for k, span in spans.items()} if device else {},
            "host": {k: {THREAD: span} for k, span in spans.items()},
            "opr_footprint": {str(c.number): _footprint(c) for c in called},
            "opr_internal_pf": {},
        },
        "run": {
            "seconds": run.end - run.begin,
            "network_seconds": _within(called),
            "kernel_seconds": sum(c.seconds for c in called),
            "runs": len(runs),
        },
    }, indent=1, ensure_ascii=True) + "\n"  # fmt: skip


def _within(called: Sequence[CallTime]) -> float:
    """Return the time from the first kernel call's begin to the last one's end.

    Unlike the run's, it doesn't hold the way into the library. Calls in loops tell of their latest.
    """
    if not called:
        return 0.0
    last = max(called, key=lambda c: c.begin)
    return last.begin + last.seconds / last.runs - min(c.begin for c in called)


def _span(call: CallTime, origin: float) -> dict[str, float]:
    start = call.begin - origin
    return {"start": start, "kern": start, "end": start + call.seconds}


def _operators(engine: Engine, calls: Sequence[CallTime]) -> dict[str, Any]:
    steps = {s.number: s for s in engine.steps}
    found: dict[str, Any] = {}
    for call in calls:
        step = steps.get(call.number)
        found[str(call.number)] = {
            "name": call.nodes, "type": call.op, "kernel": call.kernel,
            "input": [str(k) for k in step.reads] if step else [],
            "output": [str(k) for k in step.writes] if step else [],
        }  # fmt: skip
    return found


def _vars(engine: Engine) -> dict[str, Any]:
    return {
        str(v.number): {
            "name": v.tensor.name, "shape": list(v.tensor.shape), "dtype": v.tensor.dtype.name,
            "storage": "static",
        }
        for v in engine.values
    }  # fmt: skip


def _footprint(call: CallTime) -> dict[str, Any]:
    seconds = max(call.seconds, 1e-12)
    return {
        "computation": call.operations, "memory": call.bytes, "runs": call.runs,
        "gflops": call.operations / seconds * 1e-9,
        "gbytes_per_second": call.bytes / seconds * 1e-9,
    }  # fmt: skip
