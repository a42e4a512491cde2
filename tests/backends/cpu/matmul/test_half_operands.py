"""Residuals and biases of 16 bits in the epilogues of float products, against numpy."""

from __future__ import annotations

from math import erf
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.amx.matmul import KERNELS as AMX
from atc.backends.cpu.matmul.dot import KERNELS as DOT
from atc.backends.cpu.matmul.tile import KERNELS as TILE
from atc.backends.kernel import Kernel, Workload
from atc.ir.expr import Input, call, cast
from atc.ir.graph import DType, TensorType, type_of
from atc.ir.ops import Epilogue, MatMul
from atc.ir.view import View, dense

F, H = DType.FLOAT, DType.FLOAT16
KERNELS: dict[str, tuple[Kernel, str, float]] = {
    "registers": (TILE[0], "x86-64-avx2", 1e-6),
    "dot products": (DOT[0], "x86-64-avx2", 1e-6),
    "tiles": (AMX[-1], "x86-64-amx", 2e-5),
}
"""A kernel, a target and the error, as a part of the largest result."""


@pytest.mark.few(5)
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(("k", "long"), [(7, False), (64, False), (64, True)])
def test_operands_of_epilogues_may_be_halves(name: str, k: int, long: bool) -> None:
    """A long epilogue has a loop of its own."""
    kernel, target_name, tolerance = KERNELS[name]
    target, rng = vector_target(target_name), np.random.default_rng(k)
    m, n = 5, 45
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    if name == "dot products":
        b = np.ascontiguousarray(b.T)
    residual, bias = (rng.standard_normal(s).astype(np.float16) for s in ((m, n), (n,)))
    expr = call("Add", call("Add", Input(F, 0), cast(Input(H, 1), F)), cast(Input(H, 2), F))
    expr = call("Tanh", call("Erf", call("Tanh", expr))) if long else expr
    views = (dense((m, n)), View((0, 1)))
    b_view = View((1, k)) if name == "dot products" else dense((k, n))
    op = MatMul((), m, n, k, dense((m, k)), b_view, Epilogue(expr, views))
    operands: list[Any] = [a, b, residual, bias]
    w = Workload(op, tuple(map(type_of, operands)), (TensorType(F, (m, n)),), (False,) * 4)
    assert kernel.accepts(w, target)
    params = next(iter(kernel.parameters(w, target)), {})
    ((got,),) = run_calls([Call(kernel, params, w, operands)], target)
    wide = [x.astype(np.float64) for x in (a, b.T if name == "dot products" else b, residual, bias)]
    expected = wide[0] @ wide[1] + wide[2] + wide[3]
    scale = np.abs(expected).max()
    if long:
        expected = np.tanh(np.vectorize(erf)(np.tanh(expected)))
    assert np.abs(got - expected).max() <= tolerance * scale
