"""Products with packed weights in tiles: as exact as sums of floats, or than rows of INT8."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.amx.matmul_packed import MatMulPackedAmx, MatMulPackedAmxRounded
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.expr import Input, call
from atc.ir.graph import DType, type_of
from atc.ir.ops import Epilogue, identity_epilogue
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View

AMX = "x86-64-amx"
CASES = [  # rows, columns, depth, block, bits, zero points, a bias, scales of float16
    (24, 70, 64, 32, 4, False, False, True),
    (33, 33, 96, 32, 4, True, False, False),
    (49, 48, 256, 128, 4, True, True, True),
    (64, 33, 512, 256, 8, False, False, False),
    (70, 16, 128, 64, 8, True, True, False),
]
Rows = Callable[[Any], Any]


def prepared(
    case: tuple[Any, ...], rounds: bool, rows: Rows
) -> tuple[Workload[MatMulPacked], list[Any], Any, Any]:
    """Return a workload, its operands, the product in float64, and sums of magnitudes."""
    m, n, k, block, bits, zero, bias, halves = case
    rng = np.random.default_rng(n)
    x = rows(rng.standard_normal((m, k)).astype(np.float32))
    numbers = rng.integers(0, 1 << bits, (n, k // block, block))
    shifted = numbers.reshape(n, k // block, -1, 8 // bits) << np.arange(0, 8, bits)
    scales = rng.uniform(0.5, 2, (n, k // block)).astype(np.float16 if halves else np.float32)
    zeros = rng.integers(0, 1 << bits, (n, k // block)).astype(np.uint8) if zero else None
    arrays = [x, shifted.sum(-1).astype(np.uint8), scales, zeros]
    epilogue = identity_epilogue(DType.FLOAT)
    if bias:
        arrays.append(rng.standard_normal(n).astype(np.float32))
        added = call("Add", Input(DType.FLOAT, 0), Input(DType.FLOAT, 1))
        epilogue = Epilogue(added, (View((0, 1)),))
    op = MatMulPacked(m, n, k, block, bits, epilogue, rounds)
    types = tuple(None if a is None else type_of(a) for a in arrays)
    w = Workload(
        op, types, (type_of(np.zeros((m, n), np.float32)),), (False, *[True] * (len(types) - 1))
    )
    middle = 1 << (bits - 1) if zeros is None else zeros[..., None].astype(int)
    weights = ((numbers - middle) * scales[..., None].astype(np.float64)).reshape(n, k)
    with np.errstate(invalid="ignore"):
        y, total = x.astype(np.float64) @ weights.T, np.abs(x) @ np.abs(weights).T
    return w, arrays, y + (arrays[4] if bias else 0), total


def results(kernel: Any, rounds: bool, rows: Rows) -> list[tuple[Any, Any, Any, Any]]:
    """Return each case, what a kernel gives, what it should, and sums of magnitudes."""
    target, found = vector_target(AMX), []
    for case in CASES:
        w, arrays, want, total = prepared(case, rounds, rows)
        assert kernel.accepts(w, target), case
        found.append((case, Call(kernel, kernel.parameters(w, target)[0], w, arrays), want, total))
    got = run_calls([c for _, c, _, _ in found], target)
    return [(case, y, want, total) for (case, _, want, total), (y,) in zip(found, got, strict=True)]


def test_floats_err_no_more_than_their_sums() -> None:
    spread: Rows = lambda x: x * np.exp2(np.linspace(-60, 60, len(x)))[:, None].astype(np.float32)  # noqa: E731
    for case, got, want, total in results(MatMulPackedAmx(), False, spread):
        assert (np.abs(got - want) <= 2.0**-24 * (3 * total + np.abs(want))).all(), case


def test_rounded_rows_err_less_than_blocks_of_bytes() -> None:
    for case, got, want, total in results(MatMulPackedAmxRounded(), True, lambda x: x):
        assert (np.abs(got - want) <= 2.0**-8 * total + 1e-5).all(), case
        error, bytes_error = (float(np.square(e).mean()) for e in (got - want, in_bytes(case)))
        assert error < bytes_error / 2, case


def in_bytes(case: tuple[Any, ...]) -> Any:
    """Return the error of rows that are rounded to blocks of bytes."""
    block = case[3]

    def rounded(x: Any) -> Any:
        parts = x.reshape(len(x), -1, block)
        step = np.abs(parts).max(-1, keepdims=True) / 127
        return (np.rint(parts / step) * step).reshape(x.shape)

    return prepared(case, True, rounded)[2] - prepared(case, True, lambda x: x)[2]


@pytest.mark.parametrize("kernel", [MatMulPackedAmx(), MatMulPackedAmxRounded()])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_rows_with_nan_or_infinity_stay_alone(kernel: Any, bad: float) -> None:
    def rows(x: Any) -> Any:
        x[1, 7] = bad
        return x

    for case, got, _, _ in results(kernel, kernel.precision == "int8", rows):
        assert not np.isfinite(got[1]).any(), case
        assert np.isfinite(np.delete(got, 1, 0)).all(), case


def test_what_is_rounded_may_overflow() -> None:
    def rows(x: Any) -> Any:
        x[1, 7] = 3.4e38
        return x

    for case, got, _, _ in results(MatMulPackedAmxRounded(), True, rows):
        assert not np.isfinite(got[1]).any(), case
        assert np.isfinite(np.delete(got, 1, 0)).all(), case


def test_few_rows_and_short_blocks_are_left_to_others() -> None:
    w, *_ = prepared(CASES[0], False, lambda x: x)
    target = get_target(AMX)
    assert MatMulPackedAmx().accepts(w, target)
    assert not MatMulPackedAmxRounded().accepts(w, target)
    for op in (replace(w.op, m=8), replace(w.op, block=16)):
        assert not MatMulPackedAmx().accepts(replace(w, op=op), target)
    assert not MatMulPackedAmx().accepts(w, get_target("x86-64-avx512-vnni"))
