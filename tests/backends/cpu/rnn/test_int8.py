"""Recurrent layers that quantize their states, in vectors and in plain C, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.rnn.portable import RecurrentRows
from atc.backends.cpu.rnn.vectors import RecurrentVectors
from atc.backends.kernel import Workload
from atc.ir.expr import Input, call, const
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Cell, Recurrent

Array = NDArray[Any]
F32 = DType.FLOAT
STEPS, BATCH, SCALES = 4, 2, (0.0078125, 0.013)
RELU = Cell(call("Max", call("Add", Input(F32, 0), Input(F32, 1)), const(0.0, F32)))
LINEAR = Cell(call("Add", Input(F32, 0), Input(F32, 1)), reverse=True)


def operands(hidden: int) -> list[Array]:
    """Return x's share, R in bytes, and the first states."""
    rng = np.random.default_rng(hidden)
    share = rng.standard_normal((STEPS, BATCH, 2, 1, hidden)).astype(np.float32)
    r = rng.integers(-128, 128, (2, hidden, 1, hidden)).astype(np.int8)
    return [share, r, rng.standard_normal((2, BATCH, hidden)).astype(np.float32)]


def workload(hidden: int) -> Workload:
    share, r, h = map(type_of, operands(hidden))
    op = Recurrent(STEPS, BATCH, hidden, 1, (RELU, LINEAR), scales=SCALES)
    every = TensorType(F32, (STEPS, 2, BATCH, hidden))
    known = (False, True, True, True, False, True)
    return Workload(op, (share, r, None, None, h, None), (h, every), known)


def expected(hidden: int) -> Array:
    """Every h by the definition, in float32."""
    f32 = np.float32
    share, r, first = operands(hidden)
    found = np.zeros((STEPS, 2, BATCH, hidden), f32)
    for d, b in np.ndindex(2, BATCH):
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
    kernel = RecurrentRows() if name == "c99" else RecurrentVectors()
    calls = []
    for hidden in (16, 19, 64):
        w = workload(hidden)
        share, r, h = operands(hidden)
        assert kernel.accepts(w, target)
        for params in kernel.parameters(w, target)[:2]:
            calls.append(Call(kernel, params, w, [share, r, None, None, h, None]))
    for c, (_, got) in zip(calls, run_calls(calls, target), strict=True):
        want = expected(c.inputs[0].shape[-1])  # type: ignore[union-attr]
        np.testing.assert_array_equal(got, want, err_msg=str(c.params))
