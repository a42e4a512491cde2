"""Chooses a kernel and its parameters for every node."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from atc.backends.cpu import KERNELS
from atc.backends.kernel import Candidate, Workload, workload_of
from atc.backends.target import Target
from atc.errors import UnsupportedError
from atc.ir import Array, Graph, Node
from atc.ops import Reshape


@dataclass(frozen=True)
class Measurement:
    """One candidate's time in ns; None with the reason when it can't be chosen."""

    label: str
    time_ns: float | None
    reason: str = ""


Timings = Mapping[Workload, tuple[Measurement, ...]]
"""What fast-run measured; workloads with a single candidate are not in it."""


@dataclass(frozen=True)
class Choice:
    """The kernel of one node, and what every candidate was estimated or measured to cost."""

    workload: Workload
    candidate: Candidate
    estimates: tuple[tuple[str, float], ...]
    measurements: tuple[Measurement, ...] = ()


Selection = Mapping[str, Choice]
"""A node's choice by its first output's name, subgraphs included."""


def candidates(w: Workload, target: Target) -> list[Candidate]:
    """Return all kernels with all parameter sets that can do a workload, in catalogue order."""
    return [
        Candidate(kernel, params)
        for kernel in KERNELS
        if isinstance(w.op, kernel.op) and kernel.accepts(w, target)
        for params in kernel.parameters(w, target)
    ]


def select(
    graph: Graph,
    target: Target,
    timings: Timings | None = None,
    outer: Mapping[str, Array] | None = None,
) -> Selection:
    """Choose by measured time where there is one, else by estimated cost.

    Ties go to the earlier kernel of the catalogue.
    """
    constants = {**(outer or {}), **graph.constants}
    chosen: dict[str, Choice] = {}
    memo: dict[Workload, Choice] = {}
    for node in graph.nodes:
        for inner in node.op.subgraphs():
            chosen.update(select(inner, target, timings, constants))
        if isinstance(node.op, Reshape) or node.op.subgraphs():
            continue
        w = workload_of(graph, node, constants)
        if w not in memo:
            memo[w] = _choice(w, node, target, (timings or {}).get(w, ()))
        chosen[node.outputs[0]] = memo[w]
    return chosen


def _choice(w: Workload, node: Node, target: Target, measured: tuple[Measurement, ...]) -> Choice:
    found = candidates(w, target)
    if not found:
        types = ", ".join(str(t) for t in w.inputs)
        raise UnsupportedError(
            f"no kernel for {w.op.kind} of ({types}) on target {target.name}",
            where=f"node '{node.origin[0] if node.origin else ''}'",
        )
    costs = [c.kernel.cost(w, c.params, target) for c in found]
    times = {m.label: m.time_ns for m in measured if m.time_ns is not None}
    timed = [c for c in found if c.label in times]
    best = min(timed, key=lambda c: times[c.label]) if timed else found[costs.index(min(costs))]
    estimates = tuple((c.label, cost) for c, cost in zip(found, costs, strict=True))
    return Choice(w, best, estimates, measured)
