"""Products with packed weights under every instruction set, NEON under an emulator among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target
from numpy.typing import NDArray

from atc.backends.cpu.matmul_packed_simd import MatMulUnpackingTile
from atc.backends.kernel import Candidate, Workload
from atc.expr import Input, call
from atc.ir import DType, TensorType, type_of
from atc.ops import Epilogue, identity_epilogue
from atc.ops.quantize import MatMulPacked
from atc.parallel import pieces
from atc.view import View

Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """Rows, columns, depth, block, bits; `zero`: none, bytes or floats; with a bias."""

    m: int
    n: int
    k: int
    block: int
    bits: int
    zero: str = ""
    bias: bool = False


CASES = (
    Case(1, 70, 64, 16, 4),
    Case(3, 33, 75, 32, 4, "bytes"),
    Case(1, 16, 100, 64, 8, "bytes", bias=True),
    Case(17, 40, 40, 16, 2, "floats"),
    Case(2, 100, 300, 256, 4, "floats", bias=True),
    Case(5, 20, 37, 128, 8),
    Case(6, 17, 1024, 128, 4, "bytes"),
)


def prepared(case: Case) -> tuple[Workload, list[Array | None]]:
    """Return the workload and random operands."""
    rng = np.random.default_rng(case.n)
    blocks = -(-case.k // case.block)
    x = rng.standard_normal((case.m, case.k)).astype(np.float32)
    q = rng.integers(0, 256, (case.n, blocks, case.block * case.bits // 8)).astype(np.uint8)
    scales = rng.uniform(0.5, 2, (case.n, blocks)).astype(np.float32)
    zero = rng.integers(0, 1 << case.bits, (case.n, blocks))
    zeros = {"bytes": zero.astype(np.uint8), "floats": zero.astype(np.float32) + 0.25}
    arrays: list[Array | None] = [x, q, scales, zeros.get(case.zero)]
    epilogue = identity_epilogue(DType.FLOAT)
    if case.bias:
        arrays.append(rng.standard_normal(case.n).astype(np.float32))
        sum_ = call("Add", Input(DType.FLOAT, 0), Input(DType.FLOAT, 1))
        epilogue = Epilogue(sum_, (View((0, 1)),))
    op = MatMulPacked(case.m, case.n, case.k, case.block, case.bits, epilogue)
    types = tuple(None if a is None else type_of(a) for a in arrays)
    out = TensorType(DType.FLOAT, (case.m, case.n))
    known = (False, *[True] * (len(types) - 1))
    return Workload(op, types, (out,), known), arrays


def expected(case: Case, arrays: list[Array | None]) -> tuple[Array, Array]:
    """Return the product in float64, and the sums of magnitudes that bound its error."""
    x, q, scales, zeros, *bias = arrays
    assert x is not None
    assert q is not None
    assert scales is not None
    shifts = np.arange(0, 8, case.bits)
    fields = (q[..., None].astype(int) >> shifts) & ((1 << case.bits) - 1)
    zero = np.float64(1 << (case.bits - 1)) if zeros is None else zeros[..., None]
    blocks = fields.reshape(*scales.shape, -1) - zero
    weights = (blocks * scales[..., None].astype(np.float64)).reshape(case.n, -1)[:, : case.k]
    y = x.astype(np.float64) @ weights.T
    total = np.abs(x) @ np.abs(weights).T
    return (y + bias[0] if bias and bias[0] is not None else y), total


@pytest.mark.parametrize(
    "name",
    [
        "x86-64-avx512",
        *(pytest.param(t, marks=pytest.mark.slow)
          for t in ("x86-64-sse2", "x86-64-avx2", "aarch64-neon")),
    ],
)
def test_tiles_err_no_more_than_sums_of_floats(name: str) -> None:
    target = vector_target(name)
    calls, wanted = [], []
    for case in CASES:
        w, arrays = prepared(case)
        assert MatMulUnpackingTile().accepts(w, target), case
        for params in MatMulUnpackingTile().parameters(w, target)[:2]:
            calls.append(Call(MatMulUnpackingTile(), params, w, arrays))
            wanted.append((case, *expected(case, arrays)))
    for (case, want, total), (got,), c in zip(
        wanted, run_calls(calls, target), calls, strict=True
    ):
        bound = 2.0**-24 * (case.k + 4) * total + 1e-6
        assert (np.abs(got - want) <= bound).all(), str(c)


@pytest.mark.parametrize("m", [1, 40])
def test_threads_cut_rows_or_columns(m: int) -> None:
    target = vector_target("c99")
    w, _ = prepared(replace(CASES[0], m=m, n=1 << 12))
    found = pieces(w, Candidate(MatMulUnpackingTile()), replace(target, vector_bytes=32), 3)
    assert len(found) == 3
    assert sum(p.result.type.size for p in found) == m << 12
    for piece in found:
        part = piece.workload(w)
        part.op.check(part.inputs, part.outputs)
        begin = piece.operands[0 if m > 1 else 1].begin
        rows = piece.result.begin // (1 << 12) if m > 1 else piece.result.begin
        assert begin == rows * (64 if m > 1 else 4 * 8)
