"""The profile of the runs as JSON, in the form that MegEngine's tools read.

Tried with those of MegEngine 1.13: `profile_analyze` tabulates it, `draw_graph` draws its graph.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from atc.load_and_run.engine import CallTime, Engine

DEVICE, THREAD = "cpu0", "caller"
"""The names of the only compute node and of the thread that calls it."""
_COPY = "copy_to_host"
_SOURCES = {0: "Host2DeviceCopy", 1: "ImmutableTensor"}
"""MegEngine's operators that give inputs and weights, by the kinds of values."""


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


def profile_json(
    engine: Engine, runs: Sequence[ProfiledRun], device: bool = True, waits_alone: bool = False
) -> str:
    """Return the profile of the median run; without `device` only the host's section is filled.

    With `waits_alone` only what waits for another stream has times: copies, and the host's calls in
    a network for a GPU.
    Times are seconds since the run began; a call waits for nothing, so its kernel begins (`kern`)
    when it does (`start`). Operators are the kernel calls by their numbers; behind them come a copy
    of the outputs, if there was one, and what gives inputs and weights, without times. Beside
    MegEngine's keys there are `run` (the run's own time, that inside the library, and the sum of
    the kernels') and, per operator, its kernel and how fast it was.
    """
    run = median_run(runs)
    called = [c for c in run.calls if c.runs]
    shown = [c for c in called if not waits_alone or _waits(engine, c)]
    spans = {str(c.number): _span(c, run.begin) for c in shown}
    operators = [_operator(engine, call) for call in run.calls]
    footprints = {str(c.number): _footprint(engine, c) for c in shown}
    if run.copied:
        start, copy = run.end - run.begin, _copy(engine, len(operators))
        operators.append(copy)
        spans[copy["id"]] = {"start": start, "kern": start, "end": start + run.copied}
        footprints[copy["id"]] = _copied(engine)
    operators += _givers(engine, len(operators))
    return json.dumps({
        "graph_exec": {"operator": {o["id"]: o for o in operators}, "var": _vars(engine)},
        "profiler": {
            "device": {k: {DEVICE: span} for k, span in spans.items()} if device else {},
            "host": {k: {THREAD: span} for k, span in spans.items()},
            "opr_footprint": footprints,
            "opr_internal_pf": {},
        },
        "run": {
            "seconds": run.end - run.begin,
            "network_seconds": _within(called),
            "kernel_seconds": sum(c.seconds for c in called),
            "runs": len(runs),
        },
    }, indent=1, ensure_ascii=True) + "\n"  # fmt: skip


def _waits(engine: Engine, call: CallTime) -> bool:
    """Return whether a call begins when another stream has ended: on the host, beside a GPU."""
    return "target=cuda" in engine.build_info and not call.kernel.startswith("cuda_")


def _within(called: Sequence[CallTime]) -> float:
    """Return the time from the first kernel call's begin to the last one's end.

    Unlike the run's, it doesn't hold the way into the library. Of calls in loops the latest
    iteration counts.
    """
    if not called:
        return 0.0
    last = max(called, key=lambda c: c.begin)
    return last.begin + last.seconds / last.runs - min(c.begin for c in called)


def _span(call: CallTime, origin: float) -> dict[str, float]:
    start = call.begin - origin
    return {"start": start, "kern": start, "end": start + call.seconds}


def _operator(engine: Engine, call: CallTime) -> dict[str, Any]:
    """Return a kernel call as an operator of the graph."""
    step = engine.steps[call.number] if engine.steps else None
    reads, writes = (step.reads, step.writes) if step else ((), ())
    return {
        **operator(call.number, call.nodes, call.op, reads, writes), "kernel": call.kernel
    }  # fmt: skip


def _copy(engine: Engine, number: int) -> dict[str, Any]:
    outputs = [v.number for v in engine.values if v.is_output]
    return operator(number, _COPY, "Copy", outputs, ())


def _givers(engine: Engine, number: int) -> list[dict[str, Any]]:
    """Return operators that give the values which no call makes, numbered from `number` on."""
    made = {k for step in engine.steps for k in step.writes}
    given = [v for v in engine.values if v.number not in made]
    return [
        operator(k, v.tensor.name, _SOURCES.get(v.kind, "Alloc"), (), (v.number,))
        for k, v in enumerate(given, start=number)
    ]


def operator(
    number: int, name: str, kind: str, reads: Sequence[int], writes: Sequence[int]
) -> dict[str, Any]:
    """Return an operator in MegEngine's form; it reads and writes variables by number."""
    return {
        "id": str(number), "name": name, "type": kind, "node_type": "operator",
        "input": [str(k) for k in reads], "output": [str(k) for k in writes], "extra": {},
    }  # fmt: skip


def variable(number: int, name: str, shape: Sequence[int], dtype: str) -> dict[str, Any]:
    """Return a variable in MegEngine's form; `dtype` is numpy's name of its type."""
    strides, stride = list[int](), 1
    for extent in reversed(shape):
        strides.insert(0, stride)
        stride *= extent
    layout = {"shape": [*shape], "stride": strides, "dtype": dtype.capitalize()}
    return {
        "id": str(number), "name": name, "node_type": "var", "comp_node": DEVICE,
        "mem_plan": {"layout": layout, "offset_byte": 0},
    }  # fmt: skip


def _vars(engine: Engine) -> dict[str, Any]:
    return {
        str(v.number): variable(v.number, v.tensor.name, v.tensor.shape, v.tensor.dtype.name)
        for v in engine.values
    }


def _footprint(engine: Engine, call: CallTime) -> dict[str, Any]:
    seconds = max(call.seconds, 1e-12)
    step = engine.steps[call.number] if engine.steps else None
    return {
        "computation": call.operations, "memory": call.bytes,
        "in_shapes": _shapes(engine, step.reads if step else ()),
        "out_shapes": _shapes(engine, step.writes if step else ()),
        "runs": call.runs, "gflops": call.operations / seconds * 1e-9,
        "gbytes_per_second": call.bytes / seconds * 1e-9,
    }  # fmt: skip


def _copied(engine: Engine) -> dict[str, Any]:
    shapes = [list(t.shape) for t in engine.outputs]
    size = sum(prod(t.shape) * t.stored.itemsize for t in engine.outputs)
    return {"computation": 0, "memory": 2 * size, "in_shapes": shapes, "out_shapes": shapes}


def _shapes(engine: Engine, numbers: Sequence[int]) -> list[list[int]]:
    return [list(engine.values[k].tensor.shape) for k in numbers]
