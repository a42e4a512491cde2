"""Recurrent layers that quantize their states, in vectors and in plain C, bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.rnn.batch_bytes import RecurrentBytes
from atc.backends.cpu.rnn.portable import RecurrentRows
from atc.backends.cpu.rnn.vectors import RecurrentVectors
from atc.backends.kernel import Workload
from atc.ir.expr import Input, call, const
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Cell, Recurrent

Array = NDArray[Any]
F32 = DType.FLOAT
STEPS, SCALES = 4, (0.0078125, 0.013)
RELU = Cell(call("Max", call("Add", Input(F32, 0), Input(F32, 1)), const(0.0, F32)))
LINEAR = Cell(call("Add", Input(F32, 0), Input(F32, 1)), reverse=True)


def operands(hidden: int, batch: int) -> list[Array]:
    """Return x's share, R in bytes, and the first states."""
    rng = np.random.default_rng(hidden)
    share = rng.standard_normal((STEPS, batch, 2, 1, hidden)).astype(np.float32)
    r = rng.integers(-128, 128, (2, hidden, 1, hidden)).astype(np.int8)
    return [share, r, rng.standard_normal((2, batch, hidden)).astype(np.float32)]


def workload(hidden: int, batch: int) -> Workload:
    share, r, h = map(type_of, operands(hidden, batch))
    op = Recurrent(STEPS, batch, hidden, 1, (RELU, LINEAR), scales=SCALES)
    every = TensorType(F32, (STEPS, 2, batch, hidden))
    known = (False, True, True, True, False, True)
    return Workload(op, (share, r, None, None, h, None), (h, every), known)


def expected(hidden: int, batch: int) -> Array:
    """Every h by the definition, in float32."""
    f32 = np.float32
    share, r, first = operands(hidden, batch)
    found = np.zeros((STEPS, 2, batch, hidden), f32)
    for d, b in np.ndindex(2, batch):
        h = first[d, b]
        for t in range(STEPS)[:: -1 if d else 1]:
            low, high = min(h.min(), f32(0)), max(h.max(), f32(0))
            step = (high - low) / f32(255)
            zero = np.rint(-low / step)
            q = np.clip(np.rint(h / step) + zero, 0, 255).astype(np.int64) - int(zero)
            total = q @ r[d, :, 0].astype(np.int64)
            h = share[t, b, d, 0] + total.astype(f32) * (step * f32(SCALES[d]))
            h = h if d else np.maximum(h, f32(0))
            found[t, d, b] = h
    return found


@pytest.mark.parametrize(
    "name",
    ["x86-64-avx512-vnni",
     *(pytest.param(t, marks=pytest.mark.slow)
       for t in ("c99", "x86-64-sse2", "x86-64-avx2", "x86-64-avx512", "aarch64-neon"))],
)  # fmt: skip
def test_states_are_those_of_the_definition(name: str) -> None:
    target = vector_target(name)
    kernels = [RecurrentRows()] if name == "c99" else [RecurrentVectors(), RecurrentBytes()]
    calls = []
    for kernel, (hidden, batch) in product(kernels, ((16, 2), (19, 2), (64, 2), (33, 9))):
        w = workload(hidden, batch)
        share, r, h = operands(hidden, batch)
        assert kernel.accepts(w, target)
        sets = [*kernel.parameters(w, target)[:2]]
        if batch == 9:  # parts of rows, of units and of directions
            sets += kernel.shared_params(w, sets[0], target, 4)
        for params in sets:
            calls.append(Call(kernel, params, w, [share, r, None, None, h, None]))
    for c, (_, got) in zip(calls, run_calls(calls, target), strict=True):
        _, batch, _, _, hidden = c.inputs[0].shape  # type: ignore[union-attr]
        want = expected(hidden, batch)
        np.testing.assert_array_equal(got, want, err_msg=f"{c.kernel.name} {c.params}")


def test_more_than_a_row_shares_the_reading_of_weights() -> None:
    target = vector_target("x86-64-avx512-vnni")
    cost = {
        kernel.name: kernel.cost(w := workload(512, 8), kernel.parameters(w, target)[0], target)
        for kernel in (RecurrentVectors(), RecurrentBytes())
    }
    assert cost["recurrent_bytes"] < cost["recurrent_simd"]
    assert not RecurrentBytes().accepts(workload(64, 1), target)
