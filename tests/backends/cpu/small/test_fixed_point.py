"""Bytes added and multiplied in fixed point: every pair of bytes has the bits of the floats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls
from numpy.typing import NDArray
from small_cores import on_host, under_qemu

from atc.backends.cpu.small.fixed_point import byte_bounds, fixed_point
from atc.backends.cpu.small.map import MapFixedPoint
from atc.backends.cpu.small.words import word_steps
from atc.backends.kernel import Workload
from atc.backends.target import Target
from atc.ir.expr import Expr, Input, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import Map
from atc.ir.view import View

Array = NDArray[Any]
I8, U8, F32 = DType.INT8, DType.UINT8, DType.FLOAT
EVERY = {I8: np.arange(-128, 128).astype(np.int8), U8: np.arange(256).astype(np.uint8)}
SCALES = {
    "drawn": (0.7316, 1.1872), "large": (9.7, 3.1), "small": (0.0071, 0.0113),
    "far apart": (0.004, 7.3), "halves": (0.5, 0.5), "quarters": (0.25, 1.5), "fifths": (1.25, 0.8),
    "negative": (-0.61, 0.93),
}  # fmt: skip


def operand(k: int, dtype: DType, zero: int, scale: float) -> Expr:
    """Return a dequantized byte."""
    return call("Mul", call("Sub", cast(Input(dtype, k), F32), const(zero, F32)), const(scale, F32))


def byte(value: Expr, zero: int, dtype: DType) -> Expr:
    """Return a quantized value."""
    rounded = call("Add", call("Round", value), const(zero, F32))
    return replace(call("CastSaturate", rounded), dtype=dtype)


def real(x: Array, zero: int, scale: float) -> Array:
    """Return what the definition computes of a byte, every step rounded to float."""
    return (x.astype(np.float32) - np.float32(zero)) * np.float32(scale)


def quantized(value: Array, zero: int, dtype: DType) -> Array:
    info = np.iinfo(dtype.numpy)
    assert value.dtype == np.float32
    return np.clip(np.rint(value) + zero, info.min, info.max).astype(dtype.numpy)


def pairs(fn: str, relu: bool, scales: tuple[float, float], dtypes: tuple[DType, DType, DType],
          zeros: tuple[int, int, int]) -> tuple[Call, Array]:  # fmt: skip
    """Return a call for all pairs of bytes, and its results by the definition."""
    a, b = (g.reshape(-1) for g in np.meshgrid(EVERY[dtypes[0]], EVERY[dtypes[1]]))
    value = call(fn, *(operand(k, dtypes[k], zeros[k], scales[k]) for k in (0, 1)))
    x, y = real(a, zeros[0], scales[0]), real(b, zeros[1], scales[1])
    want = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply}[fn](x, y)
    if relu:
        value = call("Min", call("Max", value, const(0.0, F32)), const(47.3, F32))
        want = np.clip(want, np.float32(0), np.float32(47.3))
    op = Map((a.size,), byte(value, zeros[2], dtypes[2]), (View((1,)), View((1,))))
    types = tuple(TensorType(d, (a.size,)) for d in dtypes)
    w = Workload(op, types[:2], types[2:], (False, False))
    return Call(MapFixedPoint(), {}, w, [a, b]), quantized(want, zeros[2], dtypes[2])


def cases() -> list[tuple[Call, Array]]:
    """Return sums, differences and products by scales of all kinds."""
    made = []
    kinds = (
        ((I8, I8, I8), (-1, 3, 3)), ((U8, I8, U8), (128, -128, 0)), ((I8, U8, I8), (0, 7, -128)),
    )  # fmt: skip
    for k, scales in enumerate(SCALES.values()):
        for fn in ("Add", "Sub", "Mul"):
            own = (scales[0] / 16, scales[1]) if fn == "Mul" else scales
            made.append(pairs(fn, bool(k % 2), own, *kinds[k % 3]))
    rng = np.random.default_rng(3)
    for k in range(16):
        first, second = map(float, rng.uniform(0.05, 2.0, 2))
        a, b, c = map(int, rng.integers(-128, 128, 3))
        fn = ("Add", "Mul")[k % 2]
        made.append(pairs(fn, False, (first, second), (I8, I8, I8), (a, b, c)))
    for k in range(8):  # the scales that products have whose results fill a byte
        first, second = map(float, rng.uniform(0.05, 0.3, 2))
        made.append(pairs("Mul", False, (first, second), kinds[k % 3][0], (-1, 3, -128)))
    return made


def check(target: Target, every: int = 1) -> None:
    found = cases()[::every]
    for one, _ in found:
        assert one.kernel.accepts(one.workload, target), one
    calls = [one for one, _ in found]
    for (one, want), (got,) in zip(found, run_calls(calls, target), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(one))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["cortex-m3", "cortex-m4f", "cortex-m55"])
def test_every_pair_of_bytes_has_the_bits_of_the_floats(name: str) -> None:
    check(on_host(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m4f", "cortex-m55"])
def test_every_pair_of_bytes_has_them_under_qemu(name: str) -> None:
    check(under_qemu(name), 8)


def test_weights_alone_give_sums_and_products_by_common_scales() -> None:
    guards = [fixed_point(one.workload.op.expr, byte_bounds) for one, _ in cases()[-24:]]
    assert all(found is not None and not found.steps.guard for found in guards)


def test_most_sums_and_products_are_done_in_words() -> None:
    found = [fixed_point(one.workload.op.expr, byte_bounds) for one, _ in cases()[-24:]]
    words = [word_steps(each) for each in found if each is not None]
    assert sum(each is not None for each in words[:16:2]) >= 6, "sums"
    assert sum(each is not None for each in words[16:]) >= 6, "products"


@pytest.mark.parametrize("name", ["cortex-m3", "cortex-m55"])
def test_three_bytes_are_added_at_once(name: str) -> None:
    count, rng = 20003, np.random.default_rng(5)
    x = rng.integers(-128, 128, (3, count)).astype(np.int8)
    parts = [operand(k, I8, 5 * k, 0.31 + 0.2 * k) for k in range(3)]
    value = call("Add", call("Add", parts[0], parts[1]), parts[2])
    op = Map((count,), byte(value, -7, I8), (View((1,)),) * 3)
    w = Workload(op, (TensorType(I8, (count,)),) * 3, (TensorType(I8, (count,)),), (False,) * 3)
    first, second, third = (real(x[k], 5 * k, 0.31 + 0.2 * k) for k in range(3))
    ((got,),) = run_calls([Call(MapFixedPoint(), {}, w, [*x])], on_host(name))
    np.testing.assert_array_equal(got, quantized((first + second) + third, -7, I8))


@pytest.mark.parametrize(
    "value",
    [
        call("Exp", operand(0, I8, 0, 0.1)),
        call("Div", operand(0, I8, 0, 0.1), operand(1, I8, 0, 0.1)),
        call("Mul", call("Mul", operand(0, I8, 0, 0.1), operand(1, I8, 0, 0.1)),
             operand(2, I8, 1, 1.0)),
        call("Mul", operand(0, I8, 0, 0.1), operand(0, I8, 0, 0.1)),
        call("Add", operand(0, I8, 0, 0.1), Input(F32, 1)),
        call("Mul", operand(0, I8, 0, float("inf")), operand(1, I8, 0, 1.0)),
        call("Add", operand(0, I8, 0, 3e8), operand(1, I8, 0, 1.0)),
    ],
    ids=["function", "quotient", "three factors", "square", "float", "infinite", "too large"],
)  # fmt: skip
def test_other_expressions_are_left_to_floats(value: Expr) -> None:
    assert fixed_point(byte(value, 0, I8), byte_bounds) is None
