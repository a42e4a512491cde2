"""Softmax and Normalize of 16-bit floats: the same numbers as of floats that these hold."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np
import pytest
from kernel_program import Call, run_calls, vector_target

from atc.backends.cpu.normalize import KERNELS
from atc.backends.kernel import AnyKernel, Workload
from atc.backends.target import Target
from atc.ir.expr import Expr, Input, call, cast
from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops import Epilogue, Normalize, NormalizeBlocked, Softmax
from atc.ir.view import View

F = DType.FLOAT
TARGETS = ("x86-64-avx512", "x86-64-avx2", "x86-64-sse2")
HALVES = (DType.FLOAT16, DType.BFLOAT16)
SUM: Expr = call("Add", call("Mul", Input(F, 0), Input(F, 1)), Input(F, 1))


def softmax(inner: int, log: bool) -> Op:
    """Return a softmax of 3 rows or matrices of 21."""
    return Softmax(3, 21, inner, log, Epilogue(SUM, (View((0, 0, 0)),)))


def normalize(how: str, inner: tuple[int, ...]) -> Op:
    """Return a normalisation of 5 rows or matrices of 3 x 19."""
    view = View((0,) * (3 + len(inner)))
    return Normalize(how, (5,), (3, 19), inner, 1e-3, Epilogue(SUM, (view,)))


OPS = {
    **{f"softmax-{i}-{log}": softmax(i, log) for i in (1, 13) for log in (False, True)},
    **{f"{how}-{i}": normalize(how, i) for how in ("Variance", "L1") for i in ((), (2, 3))},
}


def ops(block: int) -> dict[str, tuple[Op, tuple[int, ...]]]:
    """Return ops with the shape of what they normalise."""
    found = {name: (op, tuple(op.loops)) for name, op in OPS.items()}
    for how in ("Variance", "MeanSquare"):
        for single in (False, True):
            shape = (2, 2, 3, 5, block)
            channels = 2 * block - 3 * single
            op = NormalizeBlocked(
                how, channels, 1 if single else 4, single, 1e-3, Epilogue(SUM, (View((0,) * 5),))
            )
            found[f"blocked-{how}-{single}"] = op, shape
    return found


def with_results(op: Op, half: DType, y: DType) -> Op:
    """Return an op whose results are rounded to 16 bits, and stored as `y`."""
    rounded = cast(op.epilogue.expr, half)
    expr = rounded if y is half else cast(rounded, F)
    return type(op)(**{**vars(op), "epilogue": Epilogue(expr, op.epilogue.views)})


def calls_of(
    kernels: Sequence[AnyKernel], op: Op, shape: tuple[int, ...], half: DType, target: Target
) -> list[Call]:
    """Return the calls of all kernels for an op, of floats and of halves; each of floats first."""
    x = (3 * np.random.default_rng(prod(shape)).standard_normal(shape)).astype(half.numpy)
    other = np.array([0.75], np.float32)
    found = []
    for kernel in kernels:
        if not isinstance(op, kernel.op):
            continue
        for given in (x.astype(np.float32), x):
            for y in (F, half):
                types = TensorType(F if given is not x else half, shape), TensorType(F, (1,))
                made = with_results(op, half, y)
                w = Workload(made, types, (TensorType(y, shape),), (False, False))
                if kernel.accepts(w, target):
                    params = kernel.parameters(w, target)[0]
                    found.append(Call(kernel, params, w, [given, other]))
    return found


@pytest.mark.few(4)
@pytest.mark.parametrize("half", HALVES, ids=lambda d: d.label)
@pytest.mark.parametrize("target_name", TARGETS)
def test_16_bits_give_the_numbers_of_floats(target_name: str, half: DType) -> None:
    target = vector_target(target_name)
    calls = [
        c for op, shape in ops(target.vector_bytes // 4).values()
        for c in calls_of(KERNELS, op, shape, half, target)
    ]  # fmt: skip
    results = run_calls(calls, target)
    assert {c.kernel.name for c in calls} == {k.name for k in KERNELS}
    first: dict[tuple[str, str], np.ndarray] = {}
    for made, (got,) in zip(calls, results, strict=True):
        op = made.workload.op
        numbers = got.view(half.numpy) if got.dtype.itemsize == 2 else got
        known = first.setdefault((made.kernel.name, str(op)[:60]), numbers.astype(np.float32))
        np.testing.assert_array_equal(numbers.astype(np.float32), known, str(made))
    assert len(calls) == 4 * len(first)  # every kernel takes all four
