"""Convolutions and pools of float16: the same numbers as of floats that float16 holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
import pytest
from blocked_convs import DEPTHWISE, DIRECT, LARGE, WINOGRAD, Case, build, from_blocks
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.conv.blocked import ConvDirect
from atc.backends.cpu.conv.depthwise import DepthwiseTiles
from atc.backends.cpu.conv.depthwise_looped import DepthwiseLoops
from atc.backends.cpu.conv.float16 import ConvFloat16
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.kernel import AnyKernel, workload_of
from atc.backends.render.vector_expr import lanes
from atc.ir.graph import Array, DType, TensorType
from atc.passes.layout.store_bf16 import typed

F16 = DType.FLOAT16
TARGETS = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse2")


def vectored(cases: Mapping[str, Case]) -> list[Case]:
    """Return the cases with blocked operands and epilogues that vectors can do."""
    return [c for c in cases.values() if not c.plain and c.epilogue != "libm"]


Kernels = tuple[AnyKernel, AnyKernel, Sequence[Case]]
KERNELS: dict[str, Kernels] = {
    "direct": (ConvDirect(), ConvFloat16(), vectored(DIRECT)),
    "winograd": (ConvWinograd(), ConvWinograd(), vectored(WINOGRAD)),
    "depthwise": (DepthwiseTiles(), DepthwiseTiles(), vectored(DEPTHWISE)),
    "depthwise, loops": (DepthwiseLoops(), DepthwiseLoops(), vectored(LARGE)),
}
"""Kernels of floats, those of float16 with the same order of sums, and for what."""


def rounded(x: Array) -> Array:
    """Return floats rounded to float16."""
    return x.astype(np.float16).astype(np.float32)


def calls_of(kernels: Kernels, case: Case, target_name: str) -> list[Call]:
    """Return the call for floats, and those for float16: with blocks of all, and of few rows."""
    target = vector_target(target_name)
    graph, feeds, _ = build(case, lanes(target))
    (node,), given = graph.nodes, dict(zip(graph.inputs, feeds, strict=True))
    given = {k: rounded(v) for k, v in given.items()} | graph.constants
    before = workload_of(graph, node, graph.constants)
    names = {"x", "other", "y"}
    half = {k: TensorType(F16, t.shape) for k, t in graph.types.items() if k in names}
    types = {**graph.types, **half}
    stored = replace(node, op=typed(node, graph.types, types))
    after = workload_of(replace(graph, types=types), stored, graph.constants)
    floats, halves, _ = kernels
    if not (floats.accepts(before, target) and halves.accepts(after, target)):
        return []
    params = floats.parameters(before, target)[0]
    own = [params]
    if isinstance(halves, ConvFloat16):
        own = [replace(params, rb=rb, pf=False) for rb in (0, 1, 3)]
    narrow = {k: given[k].astype(np.float16) for k in given if k in half}
    operands = [{**given, **narrow}[k] for k in node.inputs]
    return [
        Call(floats, params, before, [given[k] for k in node.inputs]),
        *(Call(halves, p, after, operands) for p in own),
    ]


def check(kind: str, target_name: str, most: int) -> None:
    """Compare the results for float16 with those for floats, rounded."""
    found = [(calls_of(KERNELS[kind], c, target_name), c) for c in KERNELS[kind][2]]
    found = [(calls, case) for calls, case in found if calls][:most]
    assert found
    target = vector_target(target_name)
    results = iter(run_calls([call for calls, _ in found for call in calls], target))
    for calls, case in found:
        (floats,), *others = islice(results, len(calls))
        with np.errstate(over="ignore"):
            wanted = from_blocks(floats.astype(np.float16), case.filters)
        for (got,) in others:
            halves = from_blocks(got.view(np.float16), case.filters)
            np.testing.assert_array_equal(halves, wanted, str(case))


@pytest.mark.slow
def test_a_block_of_rows_of_float16_gives_the_numbers_of_floats() -> None:
    check("direct", "x86-64-avx2", 1)


@pytest.mark.slow
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("kind", KERNELS)
def test_float16_gives_the_numbers_of_floats(kind: str, target_name: str) -> None:
    check(kind, target_name, 100)
