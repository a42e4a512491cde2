"""Products whose rows choose their matrices, by all kernels and instruction sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.matmul.grouped import rows_in_c
from atc.backends.kernel import Workload
from atc.backends.targets import get_target
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import MatMul, identity_epilogue
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked
from atc.ir.view import View
from atc.select.select import ANY, consider

Array = NDArray[Any]
INDEX = np.array([2, 0, 0, 0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 1, 9, -1, 0], np.int64)
"""The matrices of rows: some twice, some never, two that don't exist."""
MATRICES, N, K = 5, 37, 64
FLOAT = identity_epilogue(DType.FLOAT)


def expected(x: Array, weights: Array) -> Array:
    """Return row i times matrix INDEX[i]."""
    chosen = weights.astype(np.float64)[np.clip(INDEX, 0, MATRICES - 1)]
    return np.einsum("ik,ink->in", x.astype(np.float64), chosen)


def floats(constant: bool, dtype: Any) -> tuple[Workload[GroupedMatMul], list[Array | None], Array]:
    """Return the workload of real weights [matrices, n, k], its operands and its result."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((len(INDEX), K)).astype(np.float32)
    w = rng.standard_normal((MATRICES, N, K)).astype(dtype)
    one = MatMul((), len(INDEX), N, K, View((K, 1)), View((1, K)), FLOAT)
    return workload(one, [x, w, INDEX], constant), [x, w, INDEX], expected(x, w)


def packed(
    bits: int, zeros: bool, rounds: bool = False
) -> tuple[Workload[GroupedMatMul], list[Array | None], Array]:
    """Return the workload of packed weights in blocks of 32, its operands and its result."""
    rng = np.random.default_rng(bits)
    x = rng.standard_normal((len(INDEX), K)).astype(np.float32)
    q = rng.integers(0, 256, (MATRICES, N, 2, 32 * bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (MATRICES, N, 2)).astype(np.float32)
    points = rng.integers(0, 1 << bits, scales.shape).astype(np.uint8) if zeros else None
    fields = (q[..., None] >> np.arange(0, 8, bits)) & ((1 << bits) - 1)
    zero = 1 << (bits - 1) if points is None else points[..., None].astype(int)
    real = (fields.reshape(*scales.shape, -1).astype(int) - zero) * scales[..., None]
    arrays = [x, q, scales, points, INDEX]
    one = MatMulPacked(len(INDEX), N, K, 32, bits, FLOAT, rounds)
    return workload(one, arrays, True), arrays, expected(x, real.reshape(MATRICES, N, K))


def workload(
    one: MatMul | MatMulPacked, arrays: list[Any], constant: bool
) -> Workload[GroupedMatMul]:
    op = GroupedMatMul(one, MATRICES)
    types = tuple(None if a is None else type_of(a) for a in arrays)
    out = TensorType(DType.FLOAT, (len(INDEX), N))
    op.check(types, [out])
    known = (False, *[constant] * (len(arrays) - 2), False)
    return Workload(op, types, (out,), known)


CASES = {
    "constant": lambda: floats(True, np.float32),
    "computed": lambda: floats(False, np.float32),
    "halves": lambda: floats(True, np.float16),
    **{f"{bits} bits{' zeros' * zeros}": lambda bits=bits, zeros=zeros: packed(bits, zeros)
       for bits in (2, 4, 8) for zeros in (False, True)},
    "rounded": lambda: packed(4, True, rounds=True),
}  # fmt: skip


@pytest.mark.parametrize(
    "name",
    ["c99", "x86-64-avx512-vnni",
     *(pytest.param(t, marks=pytest.mark.slow)
       for t in ("x86-64-amx", "x86-64-avx2", "x86-64-sse2", "aarch64-neon", "armv7-neon",
                 "riscv64-rvv"))],
)  # fmt: skip
def test_rows_meet_their_own_matrices(name: str) -> None:
    target = get_target(name) if name == "c99" else vector_target(name)
    calls, wanted = [], []
    for case in CASES.values():
        w, arrays, want = case()
        kernels = set()
        for c in consider(w, target, ANY).found:
            if c.kernel.name not in kernels:
                kernels.add(c.kernel.name)
                shared = c.kernel.shared_params(w, c.params, target, 2)
                calls += [Call(c.kernel, p, w, arrays) for p in (c.params, *shared)]
                wanted += [want] * (1 + len(shared))
    assert len(calls) > 5
    for call, want, (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        rough = 1.5 if call.kernel.precision == "int8" else 1e-2
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=rough, err_msg=str(call))


@pytest.mark.parametrize(
    ("extent", "c"),
    [
        ("d[0]", "rows"),
        ("6 * atc_div(d[0], 6)", "6 * (rows / 6)"),
        ("d[0] - 6 * atc_div(d[0], 6)", "rows - 6 * (rows / 6)"),
        ("atc_mod(atc_mod(d[0], 6), 4)", "rows % 6 % 4"),
    ],
)
def test_extents_are_written_over_the_rows_of_a_run(extent: str, c: str) -> None:
    assert rows_in_c(extent) == c
