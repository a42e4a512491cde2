"""What tests of convolutions on AMX's tiles share: rounding as tiles do, workloads of cases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

import numpy as np
from blocked_convs import Case, build
from c_compiler import CFLAGS
from kernel_program import Call, counted, run_calls, vector_target
from simd_program import find

from atc.backends.kernel import AnyKernel, Candidate, Workload, workload_of
from atc.backends.kernel_source import render_kernel
from atc.backends.render.bfloat16 import rounded_bits, split
from atc.backends.targets import get_target
from atc.ir.graph import Array
from atc.ir.ops import ConvBlocked
from atc.ir.view import View, dense
from atc.templates import verbatim

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


def check_counted_batches(calls: Sequence[Call]) -> None:
    """Expect the same bits of images that only the run counts."""
    target = vector_target(AMX)
    found = []
    for call in calls:
        w = call.workload
        (y,), images = w.outputs, counted(w.outputs[0].shape[0], "n", 5)
        *inputs, result = (
            replace(t, shape=(images, *t.shape[1:])) if t and (k == 0 or t.shape == y.shape) else t
            for k, t in enumerate((*w.inputs, y))
        )
        assert result is not None
        open_ = replace(w, inputs=tuple(inputs), outputs=(result,))
        assert call.kernel.supports_extents(open_)
        assert call.kernel.accepts(open_, target)
        found.append(replace(call, workload=open_))
    results = run_calls([*calls, *found], target)
    for call, (want,), (got,) in zip(calls, results, results[len(calls) :], strict=False):
        np.testing.assert_array_equal(got[: len(want)], want, str(call))


def counted_image(w: Workload, case: Case, most: int) -> Workload:
    """Return a case's workload for images of at most so many rows and columns, which the run
    counts."""
    size, out = [], []
    for name, n, kernel in zip("hw", case.size, case.kernel, strict=False):
        reach = (kernel - 1) * case.dilation - 2 * case.pad - case.end
        size.append(counted(n, name, most, max(1, reach + 1)))
        out.append((size[-1] - reach - 1) // case.stride + 1)
    x, other, y = w.inputs[0], w.inputs[-1], w.outputs[0]
    assert x is not None
    rank = len(size)
    given = (replace(x, shape=(*x.shape[:2], *size, *x.shape[2 + rank :])), *w.inputs[1:])
    result = replace(y, shape=(*y.shape[:2], *out, y.shape[-1]))
    op, place = w.op, dense(result.shape)
    assert isinstance(op, ConvBlocked)
    views = op.epilogue.views
    if len(views) == 2 and other is not None:
        shared = views[1].strides[-1] == 0  # by all channels of a pixel
        own = View((prod(out), 0, *dense(out).strides, 0)) if shared else place
        shape = (y.shape[0], 1, *out) if shared else result.shape
        op = replace(op, epilogue=replace(op.epilogue, views=(views[0], own)))
        given = (*given[:-1], replace(other, shape=shape))
    return replace(w, op=op, inputs=given, outputs=(result,))


def check_counted_images(cases: Iterable[Case], kernel: AnyKernel, most: int) -> None:
    """Expect the same bits of images whose rows and columns only the run counts, for each set of
    parameters."""
    target, known, open_ = vector_target(AMX), list[Call](), list[Call]()
    for case in cases:
        w, operands = fed(case, kernel)
        counts = counted_image(w, case, most)
        assert kernel.supports_extents(counts)
        assert kernel.accepts(counts, target)
        for params in kernel.parameters(counts, target):
            known.append(Call(kernel, params, w, operands))
            open_.append(Call(kernel, params, counts, operands))
    results = run_calls([*known, *open_], target)
    for call, (want,), (got,) in zip(open_, results, results[len(known) :], strict=False):
        np.testing.assert_array_equal(
            got.ravel()[: want.size], want.ravel(), f"{call} of {call.workload.inputs[0]}"
        )


IMAGES = ((1, 1), (2, 31), (17, 3), (5, 40), (33, 32), (40, 16))
"""Sizes of images that a run counts."""
FEW_IMAGES = {"bf16": IMAGES[1:2], "bf16x3": IMAGES[::2], "bf16x6": IMAGES[3:4]}
"""Some of them for each precision."""


def resized(case: Case, size: Sequence[int]) -> Case:
    """Return a case with images of another size, or the least at which windows fit."""
    reach = [(k - 1) * case.dilation - 2 * case.pad - case.end for k in case.kernel]
    return replace(case, size=tuple(max(n, r + 1) for n, r in zip(size, reach, strict=False)))


def check_own_tiles(
    compiler: str, kernels: Iterable[tuple[Candidate, Workload]], folder: Path
) -> None:
    """Compile kernels for the machine's own tiles; skips without the compiler."""
    find(compiler)
    target = get_target(AMX)
    for name, header in (("kernel", "cpu/kernel"), ("simd", "simd/avx512"),
                         ("simd_math", "simd/math"), ("simd_bf16", "simd/bf16"),
                         ("simd_tiles", "simd/tiles")):  # fmt: skip
        (folder / f"{name}.h").write_text(verbatim(f"{header}.h"))
    (folder / "src").mkdir()
    sources = []
    for k, (candidate, w) in enumerate(kernels):
        sources.append(f"src/k{k}.c")
        (folder / sources[-1]).write_text(render_kernel(candidate, w, target).text)
    command = [compiler, *CFLAGS, *target.cflags, "-c", *sources]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
