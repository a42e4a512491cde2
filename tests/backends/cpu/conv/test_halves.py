"""Convolutions and pools of 16-bit floats: the same numbers as of floats that these hold."""

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
from atc.backends.cpu.conv.halves import ConvHalves
from atc.backends.cpu.conv.winograd import ConvWinograd
from atc.backends.kernel import AnyKernel, workload_of
from atc.backends.render.vector_expr import lanes
from atc.ir.graph import DType, TensorType
from atc.passes.layout.store_bf16 import typed

HALVES = (DType.FLOAT16, DType.BFLOAT16)
TARGETS = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse2")


def vectored(cases: Mapping[str, Case], plain: bool = False) -> list[Case]:
    """Return the cases with blocked operands, or also plain ones, and epilogues that vectors can
    do."""
    return [c for c in cases.values() if (plain or not c.plain) and c.epilogue != "libm"]


Kernels = tuple[AnyKernel, AnyKernel, Sequence[Case]]
KERNELS: dict[str, Kernels] = {
    "direct": (ConvDirect(), ConvHalves(), vectored(DIRECT, plain=True)),
    "winograd": (ConvWinograd(), ConvWinograd(), vectored(WINOGRAD)),
    "depthwise": (DepthwiseTiles(), DepthwiseTiles(), vectored(DEPTHWISE)),
    "depthwise, loops": (DepthwiseLoops(), DepthwiseLoops(), vectored(LARGE)),
}
"""Kernels of floats, those of 16 bits with the same order of sums, and for what."""


def calls_of(kernels: Kernels, case: Case, turn: int, target_name: str, dtype: DType) -> list[Call]:
    """Return the call for floats, and that for 16 bits: with blocks of all, or of few rows.

    Which of them changes from turn to turn, type to type and target to target: every two meet.
    """
    target = vector_target(target_name)
    graph, feeds, _ = build(case, lanes(target))
    (node,), given = graph.nodes, dict(zip(graph.inputs, feeds, strict=True))
    given = {k: v.astype(dtype.numpy).astype(np.float32) for k, v in given.items()}
    given |= graph.constants
    before = workload_of(graph, node, graph.constants)
    names = {"x", "other", "y"}
    half = {k: TensorType(dtype, t.shape) for k, t in graph.types.items() if k in names}
    types = {**graph.types, **half}
    stored = replace(node, op=typed(node, graph.types, types))
    after = workload_of(replace(graph, types=types), stored, graph.constants)
    floats, halves, _ = kernels
    if not (floats.accepts(before, target) and halves.accepts(after, target)):
        return []
    params = floats.parameters(before, target)[0]
    own = params
    if isinstance(halves, ConvHalves):
        place = turn + TARGETS.index(target_name) + HALVES.index(dtype)
        own = replace(params, rb=(0, 1, 3)[place % 3], pf=False)
    narrow = {k: given[k].astype(dtype.numpy) for k in given if k in half}
    operands = [{**given, **narrow}[k] for k in node.inputs]
    return [
        Call(floats, params, before, [given[k] for k in node.inputs]),
        Call(halves, own, after, operands),
    ]


def narrowed(case: Case, target_name: str, dtype: DType, turn: int) -> list[Call]:
    """Return calls of x and weights in 16 bits: each weight widened by its tile, or a panel's."""
    target = vector_target(target_name)
    graph, feeds, _ = build(case, lanes(target))
    (node,), given = graph.nodes, dict(zip(graph.inputs, feeds, strict=True))
    half = {k: replace(graph.types[k], dtype=dtype) for k in ("x", "other", "y", "w") if k in
            graph.types}  # fmt: skip
    given = {**given, **graph.constants}
    given |= {k: given[k].astype(dtype.numpy) for k in given if k in half}
    types = {**graph.types, **half}
    stored = replace(node, op=typed(node, graph.types, types))
    w = workload_of(replace(graph, types=types), stored, {**graph.constants, "w": given["w"]})
    if not ConvHalves().accepts(w, target):
        return []
    rows = (0, 1, 3)[turn % 3]
    params = replace(ConvHalves().parameters(w, target)[0], rb=rows, pf=not rows, copy=False)
    operands = [given[k] for k in node.inputs]
    return [Call(ConvHalves(), replace(params, copy=c), w, operands) for c in (False, True)]


def rounding(case: Case, target_name: str, dtype: DType, turn: int) -> list[Call]:
    """Return the call that rounds x itself, and that for x which is rounded."""
    target = vector_target(target_name)
    graph, feeds, _ = build(case, lanes(target))
    (node,) = graph.nodes
    given = {**dict(zip(graph.inputs, feeds, strict=True)), **graph.constants}
    rounds = replace(node, op=replace(node.op, rounds=dtype))
    w = workload_of(graph, rounds, graph.constants)
    if not ConvHalves().accepts(w, target):
        return []
    types = {**graph.types, "x": replace(graph.types["x"], dtype=dtype)}
    stored = workload_of(replace(graph, types=types), node, graph.constants)
    rows = (0, 1, 3)[turn % 3]
    params = replace(ConvHalves().parameters(w, target)[0], rb=rows, pf=not rows)
    operands = [given[k] for k in node.inputs]
    narrow = [given["x"].astype(dtype.numpy), *operands[1:]]
    return [Call(ConvHalves(), params, w, operands), Call(ConvHalves(), params, stored, narrow)]


def check(kind: str, target_name: str, dtype: DType) -> None:
    """Compare the results for 16 bits with those for floats, rounded."""
    found = [
        (calls_of(KERNELS[kind], case, turn, target_name, dtype), case)
        for turn, case in enumerate(KERNELS[kind][2])
    ]
    found = [(calls, case) for calls, case in found if calls]
    assert found
    target = vector_target(target_name)
    results = iter(run_calls([call for calls, _ in found for call in calls], target))
    for calls, case in found:
        (floats,), (got,) = islice(results, len(calls))
        with np.errstate(over="ignore"):
            wanted = from_blocks(floats.astype(dtype.numpy), case.filters)
        halves = from_blocks(got.view(dtype.numpy), case.filters)
        if case.epilogue == "swish" and dtype is DType.FLOAT16:  # as exact as its rounding needs
            steps = halves.view(np.int16).astype(int) - wanted.view(np.int16)
            assert np.abs(steps).max() <= 1, case
            assert (steps != 0).sum() <= 2 + 0.01 * steps.size, case
        else:
            np.testing.assert_array_equal(halves, wanted, str(case))


@pytest.mark.slow
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.label)
@pytest.mark.parametrize("kind", KERNELS)
def test_16_bits_give_the_numbers_of_floats(kind: str, dtype: DType, target_name: str) -> None:
    check(kind, target_name, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("target_name", TARGETS)
def test_tiles_of_any_height_give_the_same_numbers(target_name: str) -> None:
    kernel, target = DepthwiseTiles(), vector_target(target_name)
    tall = Case(24, 24, (30, 13), (5, 5), pad=2, group=24, epilogue="swish")
    found = 0
    for case in (*vectored(DEPTHWISE), tall):
        _, call = calls_of(KERNELS["depthwise"], case, 0, target_name, DType.FLOAT16)
        every = [replace(call, params=p) for p in kernel.sets(call.workload, target)]
        first, *others = (got.tobytes() for (got,) in run_calls(every, target))
        assert {*others} <= {first}, case
        found += max(c.params.r for c in every) >= 7
    assert found


@pytest.mark.slow
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.label)
def test_panels_of_weights_become_floats_where_asked(dtype: DType, target_name: str) -> None:
    cases = enumerate(vectored(DIRECT))
    calls = [call for turn, case in cases for call in narrowed(case, target_name, dtype, turn)]
    results = [got.tobytes() for (got,) in run_calls(calls, vector_target(target_name))]
    assert results
    assert results[::2] == results[1::2]


@pytest.mark.slow
@pytest.mark.parametrize("target_name", TARGETS)
@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.label)
def test_operands_are_rounded_as_they_are_read(dtype: DType, target_name: str) -> None:
    cases = enumerate(vectored(DIRECT, plain=True))
    calls = [call for turn, case in cases for call in rounding(case, target_name, dtype, turn)]
    results = [got.tobytes() for (got,) in run_calls(calls, vector_target(target_name))]
    assert results
    assert results[::2] == results[1::2]
