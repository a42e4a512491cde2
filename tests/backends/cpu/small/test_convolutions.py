"""Convolutions of bytes for small cores: exact, emulated on the host and under qemu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls
from numpy.typing import NDArray
from quantized_convs import CASES, Case, drawn, expected, model, parts
from small_cores import CORES, on_host, under_qemu

from atc.backends.cpu.small import KERNELS
from atc.backends.kernel import workload_of
from atc.backends.target import Target
from atc.ir.graph import DType
from atc.ir.ops import ConvBlocked
from atc.passes import run_passes
from atc.passes.layout import Layouts
from support import compile_graph

Array = NDArray[Any]
OWN = {
    "one channel": Case(1, 16, 5, 1, 2, x=np.int8, y=np.int8, zero=-3, size=12),
    "three channels": Case(3, 6, 3, 2, 1, x=np.int8, y=np.int8, zero=5, size=13),
    "more padding than window": Case(3, 16, 2, 1, 3, zero=2, size=3),
    "dilated": Case(8, 10, 3, 1, 2, dilation=2, zero=-7, x=np.int8, y=np.int8),
    "pointwise, strided": Case(16, 32, 1, 2, x=np.int8, y=np.int8, zero=-128),
    "depthwise, dilated": Case(8, 8, 3, 1, 2, group=8, dilation=2, zero=100),
    "depthwise, large": Case(6, 6, 5, 2, 2, group=6, x=np.int8, y=np.int8, zero=1, size=12),
}
EVERY = {k: c for k, c in CASES.items() if k != "grouped"} | OWN
FEW = {k: EVERY[k] for k in ("odd", "signed, padded", "depthwise", "three channels", "ties")}
DRAWN = {f"drawn {seed}": drawn(seed) for seed in range(24)}
ABLE = {k: c for k, c in DRAWN.items() if c.group in (1, c.channels)}


def check(cases: Mapping[str, Case], target: Target) -> None:
    """Compare all kernels and parameter sets with the definition."""
    calls, wanted = [], []
    for label, case in cases.items():
        graph = run_passes(compile_graph(model(case)), layouts=Layouts(bytes_last=True))
        node = next(n for n in graph.nodes if isinstance(n.op, ConvBlocked))
        w, p = workload_of(graph, node, graph.constants), parts(case)
        last = np.ascontiguousarray(np.moveaxis(p["x"], 1, -1)[:, None])
        operands = [graph.constants.get(i, last) for i in node.inputs[1:]]
        able = [k for k in KERNELS if k.op is ConvBlocked and k.accepts(w, target)]
        assert able, label
        for kernel in able:
            for params in kernel.parameters(w, target):
                calls.append(Call(kernel, params, w, [last, *operands]))
                wanted.append((label, expected(case)))
    for call, (label, want), (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        assert call.workload.outputs[0].dtype in (DType.INT8, DType.UINT8)
        plain = np.moveaxis(got[:, 0], -1, 1)
        np.testing.assert_array_equal(plain, want, err_msg=f"{label}: {call}")


BOTH = pytest.mark.parametrize(
    "cases", [pytest.param(FEW, id="few"), pytest.param(EVERY, id="all", marks=pytest.mark.slow)]
)


@pytest.mark.few(1)
@BOTH
@pytest.mark.parametrize("name", ["cortex-m3", "cortex-m4f", "cortex-m55"])
def test_convolutions_are_exact_with_emulated_instructions(
    name: str, cases: Mapping[str, Case]
) -> None:
    check(cases, on_host(name))


@BOTH
def test_requantization_without_floats_gives_their_bits(cases: Mapping[str, Case]) -> None:
    check(cases, on_host("cortex-m3", "-DATC_EMULATE_SOFT"))


@pytest.mark.slow
@pytest.mark.parametrize("name", CORES)
def test_convolutions_are_exact_under_qemu(name: str) -> None:
    check(EVERY, under_qemu(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cortex-m3", "cortex-m4f", "cortex-m55"])
def test_drawn_convolutions_are_exact(name: str) -> None:
    check(ABLE, on_host(name))
