"""Matrix products of bytes under every instruction set, NEON under an emulator among them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target
from matmul_workloads import counted_rows
from numpy.typing import NDArray

from atc.backends.cpu.matmul.int8 import MatMulBytes
from atc.backends.cpu.matmul.portable import MatMulRows
from atc.backends.kernel import Candidate, Workload
from atc.backends.kernel_source import render_kernel
from atc.backends.machines import MACHINES
from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType, type_of
from atc.ir.ops import Epilogue, MatMul
from atc.ir.view import View, dense, gather_view
from atc.program.partition import partitions

Array = NDArray[Any]
I32, F32 = DType.INT32, DType.FLOAT


@dataclass(frozen=True)
class Case:
    """A product of bytes; `a_t` and `b_t`: stored transposed; `known`: B is a constant; `finish`:
    what its epilogue does; `narrow`: all numbers are the greatest or the least, of B -127."""

    m: int
    n: int
    k: int
    a: Any = np.uint8
    b: Any = np.int8
    zeros: tuple[int, int] = (0, 0)
    batch: tuple[int, ...] = ()
    known: bool = True
    a_t: bool = False
    b_t: bool = False
    shared: bool = False
    finish: str = "sums"
    narrow: bool = False


CASES = {
    "one row": Case(1, 70, 37),
    "tiles": Case(17, 49, 64, zeros=(3, 0)),
    "small": Case(2, 3, 5, a=np.int8, zeros=(-7, 4)),
    "one word": Case(5, 16, 4, finish="bytes"),
    "signed, requantized": Case(9, 40, 33, a=np.int8, zeros=(-128, 0), finish="bytes"),
    "unsigned B": Case(7, 33, 66, b=np.uint8, zeros=(255, 255), finish="signed bytes"),
    "computed B in rows": Case(19, 37, 70, b=np.uint8, zeros=(120, 9), known=False),
    "computed B in columns": Case(12, 35, 67, a=np.int8, zeros=(5, 0), known=False, b_t=True),
    "any order": Case(6, 18, 9, known=False, a_t=True, zeros=(1, -2), finish="floats"),
    "batches": Case(4, 20, 21, batch=(2, 3), known=False, zeros=(0, 7), finish="floats"),
    "batches of one B": Case(4, 20, 12, a=np.int8, batch=(3,), shared=True, finish="floats"),
    "constant batches": Case(3, 17, 8, a=np.int8, batch=(2,), finish="dynamic"),
    "residual": Case(8, 48, 40, zeros=(9, 0), finish="residual"),
    "narrow": Case(9, 37, 70, a=np.int8, narrow=True),
    "a narrow row": Case(1, 70, 45, zeros=(3, 0), narrow=True),
    "two narrow rows": Case(2, 33, 64, a=np.int8, zeros=(-128, 5), narrow=True, finish="floats"),
}


def epilogue(case: Case) -> tuple[Expr, list[Array], list[View]]:
    """Return expression, operands and views of what follows the sums."""
    rng = np.random.default_rng(5)
    loops = (*case.batch, case.m, case.n)
    column, whole, one = View((0,) * (len(loops) - 1) + (1,)), dense(loops), View((0,) * len(loops))
    scale = (2.0 ** rng.integers(-9, -1, case.n)).astype(np.float32)  # many ties
    bias = rng.integers(-3000, 3000, case.n).astype(np.int32)
    sums = Input(I32, 0)
    biased = cast(call("Add", sums, Input(I32, 2)), F32)
    scaled = call("Mul", biased, Input(F32, 1))
    moved = call("Add", call("Round", scaled), const(5.0, F32))
    match case.finish:
        case "bytes" | "signed bytes":
            to = DType.UINT8 if case.finish == "bytes" else DType.INT8
            return cast(moved, to, saturate=True), [scale, bias], [column, column]
        case "floats":
            return call("Max", scaled, const(0.0, F32)), [scale, bias], [column, column]
        case "dynamic":
            point = np.array(77, np.uint8)
            product = call("Mul", cast(Input(DType.UINT8, 2), I32), Input(I32, 1))
            less = cast(call("Sub", sums, product), F32)
            value = call("Mul", less, Input(F32, 3))
            return value, [bias, point, scale], [column, one, column]
        case "residual":
            other = rng.integers(0, 256, loops).astype(np.uint8)
            plus = call("Add", scaled, cast(Input(DType.UINT8, 3), F32))
            rounded = cast(call("Round", plus), DType.UINT8, saturate=True)
            return rounded, [scale, bias, other], [column, column, whole]
        case _:
            return sums, [], []


def prepared(case: Case) -> tuple[Workload, list[Array]]:
    """Return the workload and random operands, extreme values among them."""
    rng = np.random.default_rng(case.m * case.n + case.k)
    loops, arrays, views = (*case.batch, case.m, case.n), [], []
    for dtype, rows, columns, transposed in ((case.a, case.m, case.k, case.a_t),
                                         (case.b, case.k, case.n, case.b_t)):  # fmt: skip
        info = np.iinfo(dtype)
        batch = () if case.shared and columns == case.n and arrays else case.batch
        stored = (*batch, columns, rows) if transposed else (*batch, rows, columns)
        x = rng.integers(info.min, info.max + 1, stored).astype(dtype)
        x[..., 0, :], x[..., -1, :] = info.max, info.min
        if case.narrow:
            x = rng.choice(np.array([info.min + len(arrays), info.max], dtype), stored)
            x[..., -1, :] = x[..., 0, :]
        strides = list(dense(stored).strides)
        if transposed:
            strides[-2:] = strides[:-3:-1]
        full = [0] * (len(case.batch) - len(batch)) + strides
        arrays.append(x)
        views.append(View(tuple(full)))
    expr, extra, more = epilogue(case)
    op = MatMul(case.batch, case.m, case.n, case.k, *views, Epilogue(expr, tuple(more)), I32,
                *case.zeros)  # fmt: skip
    arrays += extra
    out = type_of(np.zeros(loops, expr.dtype.numpy))
    known = (False, case.known, *[True] * len(extra))
    return Workload(op, tuple(type_of(a) for a in arrays), (out,), known, case.narrow), arrays


def sums(w: Workload, arrays: list[Array]) -> Array:
    """Return the exact sums."""
    op = w.op
    assert isinstance(op, MatMul)
    a = gather_view(arrays[0], (*op.batch, op.m, op.k), op.a_view).astype(np.int64) - op.a_zero
    b = gather_view(arrays[1], (*op.batch, op.k, op.n), op.b_view).astype(np.int64) - op.b_zero
    return a @ b


@pytest.mark.slow
def test_the_portable_kernel_sums_exactly() -> None:
    target = vector_target("c99")
    calls, wanted = [], []
    for case in CASES.values():
        w, arrays = prepared(replace(case, finish="sums"))
        calls.append(Call(MatMulRows(), {}, w, arrays))
        wanted.append(sums(w, arrays))
    for want, (got,), c in zip(wanted, run_calls(calls, target), calls, strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(c))


@pytest.mark.parametrize(
    "name",
    [
        "x86-64-avx512-vnni",
        *(pytest.param(t, marks=pytest.mark.slow)
          for t in (*VECTOR_TARGETS, "x86-64-sse2", "x86-64-avx2-vnni", "aarch64-neon-dotprod",
                    "aarch64-neon-i8mm")),
    ],
)  # fmt: skip
def test_tiles_give_the_bits_of_the_portable_kernel(name: str) -> None:
    target = vector_target(name)
    plain, tuned, labels = [], [], []
    for label, case in CASES.items():
        w, arrays = prepared(case)
        assert MatMulBytes().accepts(w, target), label
        count = 1 if "vnni" in name else 3
        for params in MatMulBytes().parameters(w, target)[:count]:
            tuned.append(Call(MatMulBytes(), params, w, arrays))
            plain.append(Call(MatMulRows(), {}, w, arrays))
            labels.append(label)
    found = run_calls([*plain, *tuned], target)
    for label, c, (want,), (got,) in zip(
        labels, tuned, found[: len(plain)], found[len(plain) :], strict=True
    ):
        np.testing.assert_array_equal(got, want, err_msg=f"{label}: {c}")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["x86-64-avx512-vnni", *VECTOR_TARGETS, "x86-64-sse2"])
def test_tiles_ask_for_weights_that_are_far_away(name: str) -> None:
    """Of rows that are known, one tile of them among others, and of those that the run counts."""
    target, kernel = replace(vector_target(name), machine=MACHINES["zen3"]), MatMulBytes()
    plain, tuned = [], []
    for m in (5, 13, 50):
        w, arrays = prepared(Case(m, 310, 1030, zeros=(3, 0)))
        (params, *_) = kernel.parameters(w, target)
        text = render_kernel(Candidate(kernel, params), w, target).text
        asks = target.simd not in ("neon", "rvv") and params.phases == 1
        assert ("v_prefetch_l2(" in text) == asks
        counted = counted_rows(w, 60)
        plain.append(Call(MatMulRows(), {}, w, arrays))
        tuned += [Call(kernel, params, w, arrays),
                  Call(kernel, kernel.parameters(counted, target)[0], counted, arrays)]  # fmt: skip
    found = run_calls([*plain, *tuned], target)
    for k, (got,) in enumerate(found[len(plain) :]):
        (want,) = found[k // 2]
        np.testing.assert_array_equal(got[: len(want)], want, err_msg=str(tuned[k]))


@pytest.mark.parametrize("m", [1, 48])
def test_threads_compute_parts_of_the_whole(m: int) -> None:
    target = vector_target("x86-64-avx512-vnni")
    w, arrays = prepared(replace(CASES["unsigned B"], m=m, n=500, k=700))
    kernel, whole = MatMulBytes(), sums(w, arrays).reshape(-1)
    found = partitions(w, Candidate(kernel, kernel.parameters(w, target)[0]), target, 3)
    assert len(found) == 3
    for partition in found:
        part = partition.workload(w)
        assert kernel.accepts(part, target)
        begin, size = partition.result.begin, partition.result.type.size
        np.testing.assert_array_equal(sums(part, arrays).reshape(-1), whole[begin : begin + size])


def test_results_have_ties_and_saturate() -> None:
    case = CASES["one word"]
    w, arrays = prepared(case)
    value = (sums(w, arrays) + arrays[3]) * arrays[2].astype(np.float64)
    assert (value - np.floor(value) == 0.5).any()
    assert (value + 5 < 0).any()
    assert (value + 5 > 255).any()
