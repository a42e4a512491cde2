"""Kernels whose weights are larger must save the price of the memory, estimated or measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from blocked_convs import Case, build

from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.fast_run.policy import picks
from atc.fast_run.task import workloads
from atc.select.cost import CYCLES, NANOSECONDS, estimate, packing_overhead
from atc.select.select import Limits, Measurement, Timings, candidates, select

TARGET = get_target("x86-64-avx512")
GRAPH = build(Case(64, 64, (20, 20)), 16)[0]


def convolution() -> Workload:
    (w,) = (w for w in workloads(GRAPH, {}) if w.constant[1:2] == (True,))
    return w


def chosen(timings: Timings | None = None) -> str:
    (choice,) = (
        c for c in select(GRAPH, TARGET, timings).values() if c.workload == convolution()
    )  # fmt: skip
    return choice.candidate.label


def test_what_is_larger_are_the_packed_filters() -> None:
    w = convolution()
    weights = w.inputs[1]
    assert weights is not None
    for c in candidates(w, TARGET):
        packs = c.kernel.packs(w, c.params, TARGET)
        if c.kernel.name in ("conv_winograd", "conv_direct"):
            array = GRAPH.constants[next(n for n in GRAPH.nodes if n.op == w.op).inputs[1]]
            assert packs[1](array).nbytes - weights.nbytes == packing_overhead(c, w, TARGET), (
                c.label
            )


def test_estimates_include_the_price() -> None:
    w = convolution()
    found = candidates(w, TARGET)
    for c in found:
        plain = c.kernel.cost(w, c.params, TARGET)
        assert estimate(c, w, TARGET) == pytest.approx(
            plain + CYCLES * packing_overhead(c, w, TARGET)
        )
    assert chosen() == min(found, key=lambda c: estimate(c, w, TARGET)).label


@pytest.mark.parametrize("saved", [0.9, 1.1])
def test_times_include_the_price(saved: float) -> None:
    w = convolution()
    large = max(candidates(w, TARGET), key=lambda c: packing_overhead(c, w, TARGET))
    small = next(c for c in candidates(w, TARGET) if not packing_overhead(c, w, TARGET))
    size = packing_overhead(large, w, TARGET)
    slow = Measurement(small.label, 1e6)
    fast = Measurement(large.label, 1e6 - saved * NANOSECONDS * CYCLES * size, "", size)
    timings = {w: (slow, fast)}
    expected = large.label if saved > 1 else small.label
    assert chosen(timings) == expected
    (pick,) = picks(timings, TARGET).values()
    assert pick.label == expected
    assert replace(fast, time_ns=None).cost(1.0) is None


def test_memory_may_be_free() -> None:
    w = convolution()
    choices = select(GRAPH, TARGET, limits=Limits(weight_price=0)).values()
    (choice,) = (c for c in choices if c.workload == w)
    found = candidates(w, TARGET)
    assert (
        choice.candidate.label == min(found, key=lambda c: c.kernel.cost(w, c.params, TARGET)).label
    )
    assert choice.candidate.label != chosen()
