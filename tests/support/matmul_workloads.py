"""Workloads of MatMul that the tests of several kernels share, and what their epilogues give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import erf
from typing import Any

import numpy as np
from kernel_program import counted

from atc.backends.kernel import Workload
from atc.ir.expr import Expr, Input, call, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Epilogue, MatMul, identity_epilogue
from atc.ir.view import View, dense

F = DType.FLOAT
X, Y = Input(F, 0), Input(F, 1)


def gelu(x: Expr) -> Expr:
    gate = call("Add", call("Erf", call("Div", x, const(2**0.5, F))), const(1, F))
    return call("Mul", call("Mul", x, gate), const(0.5, F))


def bias_relu(loops: Sequence[int]) -> Epilogue:
    bias = View((*(0 for _ in loops[:-1]), 1))
    return Epilogue(call("Max", call("Add", X, Y), const(0, F)), (bias,))


def residual(loops: Sequence[int]) -> Epilogue:
    return Epilogue(call("Add", X, Y), (dense(loops),))


def row_scale_silu(loops: Sequence[int]) -> Epilogue:
    scaled = call("Mul", X, Y)
    per_row = View((*dense(loops[:-1]).strides, 0))
    return Epilogue(call("Mul", scaled, call("Sigmoid", scaled)), (per_row,))


EPILOGUES: dict[str, Callable[[Sequence[int]], Epilogue]] = {
    "none": lambda loops: identity_epilogue(F), "bias, relu": bias_relu, "residual": residual,
    "row scale, silu": row_scale_silu, "gelu": lambda loops: Epilogue(gelu(X)),
}  # fmt: skip

TRUTH: dict[str, Callable[[Any, Any], Any]] = {
    "none": lambda y, e: y, "bias, relu": lambda y, e: np.maximum(y + e, 0),
    "residual": lambda y, e: y + e, "row scale, silu": lambda y, e: y * e / (1 + np.exp(-y * e)),
    "gelu": lambda y, e: y * (1 + np.vectorize(erf, otypes=[float])(y / 2**0.5)) / 2,
}  # fmt: skip


def workload(
    batch: tuple[int, ...], m: int, n: int, k: int, a: View, b: View, epilogue: str,
    constant: bool = False,
) -> Workload:  # fmt: skip
    """Return a MatMul whose operands are as long as their views reach."""
    loops = (*batch, m, n)
    after = EPILOGUES[epilogue](loops)
    op = MatMul(batch, m, n, k, a, b, after)
    spaces = [(a, (*batch, m, k)), (b, (*batch, k, n)), *((v, loops) for v in after.views)]
    types = tuple(TensorType(F, (v.bounds(s)[1] + 1,)) for v, s in spaces)
    constants = (False, constant, *(False for _ in after.views))
    return Workload(op, types, (TensorType(F, loops),), constants)


def counted_rows(w: Workload, high: int) -> Workload:
    """Return a MatMul whose rows, or matrices where there are several, only the run counts."""
    op = w.op
    assert isinstance(op, MatMul)
    if op.batch:
        op = replace(op, batch=(counted(op.batch[0], "n", high), *op.batch[1:]))
    else:
        op = replace(op, m=counted(op.m, "m", high))
    a, *others = w.inputs
    assert a is not None
    reach = op.a_view.bounds((*op.batch, op.m, op.k))[1] + 1
    types = (TensorType(a.dtype, (reach,)), *others)
    return replace(w, op=op, inputs=types, outputs=(replace(w.outputs[0], shape=op.loops),))


def operands(w: Workload, seed: int) -> list[Any]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal(t.shape).astype(np.float32) for t in w.inputs if t is not None]
