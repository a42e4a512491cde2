"""What tests of convolutions on AMX's tiles share: rounding as tiles do, workloads of cases."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from blocked_convs import Case, build
from kernel_program import vector_target

from atc.backends.kernel import AnyKernel, Workload, workload_of
from atc.backends.render.bfloat16 import rounded_bits, split
from atc.ir.graph import Array

AMX = "x86-64-amx"


def rounded(x: Array) -> Array:
    """Return floats rounded to bfloat16."""
    return (rounded_bits(x).astype(np.uint32) << 16).view(np.float32)


def joined(x: Array) -> Array:
    """Return floats rounded to the sum of two bfloat16."""
    upper, lower = (part.astype(np.uint32) << 16 for part in split(x))
    return upper.view(np.float32) + lower.view(np.float32)


ROUNDING = {"bf16": rounded, "bf16x3": joined, "bf16x6": np.asarray}


def fed(
    case: Case, kernel: AnyKernel, feed: Callable[[Array], Array] = np.asarray
) -> tuple[Workload, list[Array]]:
    """Return a workload for the kernel, and its operands; the input goes through `feed`."""
    graph, feeds, _ = build(case, 16)
    w = workload_of(graph, graph.nodes[0], graph.constants)
    assert kernel.accepts(w, vector_target(AMX)), case
    given = dict(zip(graph.inputs, feeds, strict=True)) | graph.constants
    given["x"] = feed(given["x"])
    return w, [given[i] for i in graph.nodes[0].inputs]
