"""Workloads that differ only in extents that C takes as numbers share a function."""

from __future__ import annotations

from dataclasses import replace

import pytest
from blocked_convs import Case, build

from atc.backends.cpu.conv.blocked import ConvDirect
from atc.backends.cpu.map.reduce import ReduceColumns
from atc.backends.cpu.map.vectors import MapVectors
from atc.backends.kernel import AnyKernel, Candidate, Workload, workload_of
from atc.backends.kernel_source import KernelSource, render_kernel
from atc.backends.targets import get_target
from atc.ir.expr import Input, call
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Map, Reduce
from atc.ir.ops.elementwise import identity_epilogue
from atc.ir.view import View, dense

F = DType.FLOAT
AVX2 = "x86-64-avx2"


def conv(case: Case, target: str) -> Workload:
    graph, _, _ = build(case, get_target(target).vector_bytes // 4)
    return workload_of(graph, graph.nodes[0], graph.constants)


def source(kernel: AnyKernel, w: Workload, target: str, **given: object) -> KernelSource:
    record = get_target(target)
    assert kernel.accepts(w, record)
    params = kernel.parameters(w, record)[0]
    params = replace(params, **given) if given else params
    return render_kernel(Candidate(kernel, params), w, record)


def scaled(channels: int, pixels: int) -> Workload:
    """Numbers of blocks of 8 channels times one of each channel."""
    shape = (channels // 8, pixels, 8)
    types = TensorType(F, shape), TensorType(F, (channels,))
    op = Map(shape, call("Mul", Input(F, 0), Input(F, 1)), (dense(shape), View((8, 0, 1))))
    return Workload(op, types, types[:1], (False, False))


def summed(channels: int, pixels: int) -> Workload:
    """The sum of all pixels for blocks of 8 channels."""
    shape, kept = (channels // 8, pixels, 8), (channels // 8, 8)
    op = Reduce("Sum", kept, (pixels,), Input(F, 0), (View((8 * pixels, 1, 8)),),
                identity_epilogue(F))  # fmt: skip
    return Workload(op, (TensorType(F, shape),), (TensorType(F, kept),), (False,))


POINTWISE = {"kernel": (1, 1), "pad": 0}
SHARED = {
    "channels": (
        ConvDirect(), conv(Case(64, 48, (9, 12)), AVX2), conv(Case(96, 32, (9, 12)), AVX2), AVX2,
        {"p": 6, "nv": 2, "rb": 0},
    ),
    "rows": (
        ConvDirect(), conv(Case(64, 32, (9, 12)), AVX2), conv(Case(64, 32, (15, 12)), AVX2), AVX2,
        {"p": 6, "nv": 2, "rb": 0},
    ),
    "images of pixels": (
        ConvDirect(), conv(Case(64, 48, (12, 12), (1, 1), pad=0), AVX2),
        conv(Case(80, 32, (24, 6), (1, 1), pad=0), AVX2), AVX2, {"p": 6, "nv": 2, "rb": 0},
    ),
    "elements": (MapVectors(), scaled(64, 49), scaled(96, 196), AVX2, {}),
    "sums": (ReduceColumns(), summed(64, 49), summed(96, 196), AVX2, {}),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_workloads_that_differ_in_extents_alone_share_a_function(name: str) -> None:
    kernel, one, other, target, given = SHARED[name]
    a, b = source(kernel, one, target, **given), source(kernel, other, target, **given)
    assert a == b
    assert a.text == b.text
    assert a.dims != b.dims
    assert all(number.lstrip("-").isdigit() for number in (*a.dims, *b.dims))


def test_what_decides_the_tiles_stays_in_the_text() -> None:
    kernel, given = ConvDirect(), {"p": 6, "nv": 2, "rb": 0}
    found = {
        source(kernel, conv(case, AVX2), AVX2, **given).symbol
        for case in (
            Case(64, 32, (9, 12)),
            Case(64, 32, (9, 13)),  # other tiles of a row
            Case(60, 32, (9, 12)),  # a last block of four channels
            Case(64, 40, (9, 12)),  # a last panel of one vector
            Case(64, 32, (9, 12), stride=2),
            Case(64, 32, (9, 12), epilogue="none"),
        )
    }
    assert len(found) == 6
