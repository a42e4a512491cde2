"""Convolutions of planes in vectors, against sums of products in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.conv.nchw_rows import ConvNchwRows
from atc.backends.kernel import Workload
from atc.ir.expr import Input, call
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Conv, Epilogue, Window
from atc.ir.view import View, dense

F = DType.FLOAT
KERNEL = ConvNchwRows()
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], Window, int, tuple[int, ...]]] = {
    "one filter": ((2, 5, 9, 37), (1, 5, 3, 3), Window((3, 3), (1, 1), (1, 1), (1, 1)), 1, (9, 37)),
    "many": ((1, 4, 8, 70), (29, 4, 3, 5), Window((3, 5), (1, 1), (1, 1), (1, 2)), 1, (8, 70)),
    "groups": ((1, 6, 8, 20), (9, 2, 3, 3), Window((3, 3), (1, 1), (1, 1), (1, 1)), 3, (8, 20)),
    "strides": ((1, 3, 17, 41), (5, 3, 5, 3), Window((5, 3), (2, 3), (1, 1), (2, 1)), 1, (9, 14)),
    "strides of two": ((1, 3, 9, 61), (5, 3, 3, 5), Window((3, 5), (2, 2), (1, 1), (1, 2)), 1,
                       (5, 31)),
    "dilated": ((1, 2, 12, 30), (3, 2, 3, 3), Window((3, 3), (1, 2), (2, 3), (2, 3)), 1, (12, 15)),
    "in place": ((1, 3, 6, 40), (4, 3, 2, 9), Window((2, 9), (1, 1), (1, 1), (0, 0)), 1, (5, 32)),
    "long taps": ((1, 2, 1, 90), (20, 2, 1, 33), Window((1, 33), (1, 1), (1, 1), (0, 16)), 1,
                  (1, 90)),
    "one axis": ((2, 8, 50), (1, 8, 7), Window((7,), (1,), (1,), (3,)), 1, (50,)),
    "cropped": ((1, 2, 9, 20), (2, 2, 2, 2), Window((2, 2), (1, 1), (1, 1), (-1, -2)), 1, (7, 17)),
    "far away": ((1, 1, 3, 5), (2, 1, 2, 2), Window((2, 2), (1, 1), (6, 8), (3, 4)), 1, (3, 5)),
}  # fmt: skip


def expected(x: Any, w: Any, window: Window, group: int, out: tuple[int, ...]) -> Any:
    """Return the convolution in float64, tap by tap."""
    pads = window.pads
    reach = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in
             zip(out, window.strides, window.kernel, window.dilations, strict=True)]  # fmt: skip
    x = x[(..., *(slice(max(0, -p), None) for p in pads))].astype(np.float64)
    ends = [max(0, r - max(0, p) - n) for r, p, n in zip(reach, pads, x.shape[2:], strict=True)]
    x = np.pad(x, [(0, 0), (0, 0), *((max(0, p), e) for p, e in zip(pads, ends, strict=True))])
    n, c, m = x.shape[0], w.shape[1], w.shape[0] // group
    y = np.zeros((n, w.shape[0], *out))
    for g, tap in product(range(group), product(*map(range, window.kernel))):
        at = tuple(slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, o, s in
                   zip(tap, window.dilations, out, window.strides, strict=True))  # fmt: skip
        part = x[(slice(None), slice(g * c, g * c + c), *at)]
        taps = w[(slice(g * m, g * m + m), slice(None), *tap)].astype(np.float64)
        y[:, g * m : g * m + m] += np.einsum("nc...,mc->nm...", part, taps)
    return y


@pytest.mark.few(1)
@pytest.mark.parametrize("target", VECTOR_TARGETS)
def test_sums_equal_those_of_all_taps(target: str) -> None:
    record = vector_target(target)
    small = replace(record.machine.l2, size=16000)  # blocks of few rows
    record = replace(record, machine=replace(record.machine, l2=small))
    calls, truths = [], []
    for seed, (shape, filters, window, group, out) in enumerate(CASES.values()):
        rng = np.random.default_rng(seed)
        x, w = (rng.uniform(-1, 1, s).astype(np.float32) for s in (shape, filters))
        y = (shape[0], filters[0], *out)
        shift, bias = (rng.uniform(-1, 1, s).astype(np.float32) for s in (y, filters[:1]))
        added = call("Add", call("Add", Input(F, 0), Input(F, 1)), Input(F, 2))
        views = (dense(y), View((0, 1, *[0] * len(out))))
        op = Conv(window, group, Epilogue(call("Max", added, Input(F, 1)), views))
        given = [x, w, shift, bias]
        types = tuple(TensorType(F, a.shape) for a in given)
        workload = Workload(op, types, (TensorType(F, y),), (False,) * 4)
        assert KERNEL.accepts(workload, record)
        truth = expected(x, w, window, group, out)
        truth = truth + shift + bias.reshape(-1, *[1] * len(out))
        for params in KERNEL.parameters(workload, record):
            calls.append(Call(KERNEL, params, workload, given))
            truths.append(np.maximum(truth, shift))
    for each, (got,), want in zip(calls, run_calls(calls, record), truths, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=str(each))
