"""Pooling of planes in vectors: every target's against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.conv.pool_planes import PoolPlanes
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Pool, Window

SHAPE = (2, 3)
Axes = tuple[int, ...]
CASES: dict[str, tuple[Axes, Axes, Axes, Axes, Axes, Axes]] = {
    # sizes, kernel, strides, dilations, pads before, pads behind
    "3x3/2": ((19, 40), (3, 3), (2, 2), (1, 1), (1, 1), (1, 1)),
    "3x3": ((7, 37), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "even": ((8, 72), (2, 2), (2, 2), (1, 1), (0, 0), (0, 0)),
    "one axis": ((190,), (4,), (3,), (2,), (2,), (3,)),
    "dilated": ((11, 47), (2, 3), (1, 2), (3, 2), (2, 1), (1, 2)),
    "narrow": ((9, 3), (3, 2), (2, 1), (1, 1), (1, 1), (1, 0)),
    "wide padding": ((5, 21), (5, 5), (1, 2), (1, 1), (4, 3), (4, 4)),
}


def image(sizes: Axes, special: bool) -> NDArray[np.float32]:
    """Return numbers, infinities and NaN among them if wanted."""
    x = np.random.default_rng(0).standard_normal((*SHAPE, *sizes)).astype(np.float32)
    if special:
        x.flat[::17], x.flat[5::23] = np.nan, -np.inf
        x[0, 1] = -np.inf
    return x


def pooled(x: NDArray[Any], op: Pool, out: Axes) -> NDArray[Any]:
    """Return the maxima, or the means in float64."""
    window = op.window
    fill = -np.inf if op.how == "Max" else 0.0
    axes = [*zip(out, window.strides, window.dilations, window.kernel, strict=True)]
    room = [(p, p + s * o + d * k) for p, (o, s, d, k) in zip(window.pads, axes, strict=True)]
    around = [(0, 0), (0, 0), *room]
    padded = np.pad(x.astype(np.float64), around, constant_values=fill)
    counted = np.pad(np.ones_like(x, np.float64), around)
    results, counts = [], []
    for tap in np.ndindex(*window.kernel):
        read = [slice(t * d, t * d + s * o, s) for t, (o, s, d, _) in zip(tap, axes, strict=True)]
        results.append(padded[:, :, *read])
        counts.append(counted[:, :, *read])
    if op.how == "Max":
        return np.max(results, 0)
    total = len(results) if op.count_include_pad else np.sum(counts, 0)
    return np.sum(results, 0) / total


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_planes_are_pooled_as_numpy_has_it(target: str) -> None:
    record, kernel = vector_target(target), PoolPlanes()
    calls, wanted = [], []
    for sizes, size, strides, dilations, pads, ends in CASES.values():
        window = Window(size, strides, dilations, pads)
        spans = zip(sizes, size, strides, dilations, pads, ends, strict=True)
        out = tuple((n + p + e - d * (k - 1) - 1) // s + 1 for n, k, s, d, p, e in spans)
        for how, counted in (("Max", False), ("Average", False), ("Average", True)):
            op, x = Pool(how, window, ends, counted), image(sizes, how == "Max")
            y = TensorType(DType.FLOAT, (*SHAPE, *out))
            w = Workload(op, (type_of(x),), (y,), (False,))
            assert kernel.accepts(w, record)
            for params in kernel.parameters(w, record)[: None if how == "Max" else 1]:
                calls.append(Call(kernel, params, w, [x]))
                wanted.append(pooled(x, op, out))
    for call, (got,), truth in zip(calls, run_calls(calls, record), wanted, strict=True):
        np.testing.assert_allclose(got, truth, 3e-6, 1e-6, err_msg=str(call))


def test_what_has_windows_beside_the_input_is_left_to_plain_c() -> None:
    op = Pool("Max", Window((1,), (1,), (1,), (1,)), (1,))
    x, y = TensorType(DType.FLOAT, (1, 1, 64)), TensorType(DType.FLOAT, (1, 1, 66))
    assert not PoolPlanes().accepts(Workload(op, (x,), (y,), (False,)), get_target("x86-64-avx2"))
