"""What of the standard's tests a GPU computes, and what is left for the host."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import suite
from cuda_cases import TARGET

from atc.backends.kernel import Workload
from atc.errors import UnsupportedError
from atc.ir.graph import DType
from atc.onnx_backend import AtcBackendRep
from atc.passes import run_passes
from atc.program.build import build_program
from atc.program.placement import on_device
from atc.program.steps import Call, calls
from atc.select.select import select

HOSTED = {"image_decoder"}
"""Kernels that the host runs for lack of others, texts apart; the list may only be shortened."""


def is_excused(w: Workload) -> bool:
    """Return whether a workload has strings, which no GPU reads, or no elements."""
    types = [t for t in (*w.inputs, *w.outputs) if t is not None]
    return any(t.dtype is DType.STRING or t.size == 0 for t in types)


def hosted(names: tuple[str, ...]) -> Iterator[Call]:
    """Yield the calls of cases that the host makes, whose extents are known when compiling."""
    for case in suite.load_cases(names):
        rep = AtcBackendRep(case.model, TARGET.name)
        try:
            graph = run_passes(rep.lower(rep.arrays(case.data[0][0])), width=1, device=True)
        except UnsupportedError:
            continue
        if graph.dims:
            continue
        program = build_program(graph, select(graph, TARGET), TARGET)
        for step in program.steps:
            if isinstance(step, Call) and not on_device(step):
                yield from calls((step,))


@pytest.mark.slow
def test_the_host_is_left_what_no_gpu_can_do() -> None:
    names = tuple(n for n in suite.case_names("node") if n not in suite.read_exceptions())
    left = [c.choice for c in hosted(names) if not is_excused(c.choice.workload)]
    assert {choice.candidate.kernel.name for choice in left} == HOSTED
