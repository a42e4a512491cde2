"""Other layers of bytes for small cores, and whole networks: the bits of the portable kernels."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from kernel_program import Call, run_calls
from numpy.typing import NDArray
from small_cores import on_host, under_qemu

from atc.backends.cpu.small.map import MapCopyBytes, MapLookupTableBytes
from atc.backends.cpu.small.matmul import MatMulRuns
from atc.backends.cpu.small.pool import PoolLastBytes
from atc.backends.cpu.small.reorder import BlockLast, UnblockLast
from atc.backends.cpu.small.softmax import SoftmaxTable
from atc.backends.cpu.small.sum import SumLastBytes
from atc.backends.kernel import StripedParams, Workload
from atc.backends.target import Target
from atc.ir.expr import Input, call, cast, const
from atc.ir.graph import DType, TensorType
from atc.ir.ops import (
    Block,
    Epilogue,
    Map,
    MatMul,
    Pool,
    Reduce,
    Softmax,
    Unblock,
    Window,
    identity_epilogue,
)
from atc.ir.view import View
from atc.passes.quantized.softmax import MOST, integer_softmax

Array = NDArray[Any]
KINDS = ("cortex-m3", "cortex-m4f", "cortex-m55")
I8, U8, I32, F32 = DType.INT8, DType.UINT8, DType.INT32, DType.FLOAT


def pool(x: Array, kernel: tuple[int, int], stride: int, pads: tuple[int, int]) -> Call:
    """Return a maximum pooling of x [N, 1, H, W, C]."""
    n, _, height, width, channels = x.shape
    out = [(s + 2 * p - k) // stride + 1
           for s, k, p in zip((height, width), kernel, pads, strict=True)]  # fmt: skip
    window = Window((*kernel, 1), (stride, stride, 1), (1, 1, 1), (*pads, 0))
    kind = DType.from_numpy(x.dtype)
    w = Workload(Pool("Max", window, (*pads, 0)), (TensorType(kind, x.shape),),
                 (TensorType(kind, (n, 1, *out, channels)),), (False,))  # fmt: skip
    return Call(PoolLastBytes(), StripedParams(), w, [x])


def pooled(call_: Call) -> Array:
    """Return the definition's result of a pooling."""
    (x,), op, y = call_.inputs, call_.workload.op, call_.workload.outputs[0].shape
    assert isinstance(op, Pool)
    assert x is not None
    (kh, kw, _), (sh, sw, _), (ph, pw, _) = op.window.kernel, op.window.strides, op.window.pads
    result = np.empty(y, x.dtype)
    for i, j in np.ndindex(y[2], y[3]):
        top, left = i * sh - ph, j * sw - pw
        part = x[:, :, max(top, 0) : top + kh, max(left, 0) : left + kw]
        result[:, :, i, j] = part.max((2, 3))
    return result


def product(m: int, k: int, n: int, dtype: DType, clamp: bool) -> tuple[Call, Array]:
    """Return a fully connected layer and its exact result."""
    rng = np.random.default_rng(m * k + n)
    info = np.iinfo(dtype.numpy)
    a = rng.integers(info.min, info.max + 1, (m, k)).astype(dtype.numpy)
    b = rng.integers(-128, 128, (k, n)).astype(np.int8)
    bias = rng.integers(-4000, 4000, n).astype(np.int32)
    scale = (rng.uniform(0.5, 1.5, n) / 160 / k**0.5).astype(np.float32)
    zero = 7
    total = cast(call("Add", Input(I32, 0), Input(I32, 1)), F32)
    value = call("Mul", total, Input(F32, 2))
    value = call("Max", value, const(0.0, F32)) if clamp else value
    rounded = call("Add", call("Round", value), const(-11.0, F32))
    expr = replace(call("CastSaturate", rounded), dtype=I8)
    column = View((0, 1))
    op = MatMul((), m, n, k, View((k, 1)), View((n, 1)), Epilogue(expr, (column, column)),
                accumulator=I32, a_zero=zero)  # fmt: skip
    types = (TensorType(dtype, (m, k)), TensorType(I8, (k, n)), TensorType(I32, (n,)),
             TensorType(F32, (n,)))  # fmt: skip
    w = Workload(op, types, (TensorType(I8, (m, n)),), (False, True, True, True))
    sums = (a.astype(np.int64) - zero) @ b.astype(np.int64) + bias
    real = sums.astype(np.float32) * scale
    real = np.maximum(real, 0) if clamp else real
    want = np.clip(np.rint(real) - 11, -128, 127).astype(np.int8)
    return Call(MatMulRuns(), {}, w, [a, b, bias, scale]), want


def softmax(
    shape: tuple[int, int, int], source: DType, scale: float, y_scale: float, zero: int
) -> tuple[Call, Array]:
    """Return a Softmax between bytes over the middle axis, and its quantized results unrounded."""
    dtype = I8 if zero < 0 else U8
    info = np.iinfo(source.numpy)
    x = np.random.default_rng(prod(shape)).integers(info.min, info.max + 1, shape)
    made = integer_softmax(Softmax(*shape, False, identity_epilogue(F32)), scale, y_scale, zero)
    assert made is not None
    op, table = made
    types = TensorType(source, shape), TensorType(DType.UINT32, (256,)), TensorType(dtype, shape)
    e = np.exp(scale * (x - x.max(1, keepdims=True)))
    want = e / e.sum(1, keepdims=True) / y_scale + zero
    info = np.iinfo(dtype.numpy)
    call_ = Call(SoftmaxTable(), {}, Workload(op, types[:2], types[2:], (False, True)),
                 [x.astype(source.numpy), table])  # fmt: skip
    return call_, np.clip(want, info.min, info.max)


def check_softmax(target: Target) -> None:
    made = [
        softmax((5, 12, 1), I8, 0.1, 1 / 256, -128), softmax((3, 10, 1), U8, 0.05, 1 / 255, 0),
        softmax((2, 7, 6), I8, 0.7, 1 / 256, -128), softmax((1, 1000, 1), I8, 0.02, 1 / 256, -128),
        softmax((4, 1, 1), U8, 0.1, 1 / 256, 0), softmax((9, 2, 1), I8, 1e-3, 0.01, 7),
        softmax((2, 30, 1), I8, 40.0, 1 / 400, -128), softmax((64, 3, 1), U8, 0.03, 0.7, -5),
    ]  # fmt: skip
    for (_, want), (got,) in zip(made, run_calls([c for c, _ in made], target), strict=True):
        assert np.abs(got - want).max() <= 0.5 + MOST
        assert np.mean(np.rint(want) != got) < 0.01


@pytest.mark.few(1)
def test_softmax_is_within_its_bound_of_the_exact_one() -> None:
    check_softmax(on_host("cortex-m3"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m55"])
def test_softmax_is_so_under_qemu(name: str) -> None:
    check_softmax(under_qemu(name))


def test_softmax_of_long_rows_and_fine_steps_is_left_to_floats() -> None:
    def made(count: int, y_scale: float) -> object:
        return integer_softmax(
            Softmax(1, count, 1, False, identity_epilogue(F32)), 0.1, y_scale, 0
        )

    assert made(1024, 1 / 256) is not None
    assert made(4096, 1 / 256) is None
    assert made(12, 1 / 60000) is None


def table(size: int, source: DType, dtype: DType) -> tuple[Call, Array]:
    """Return a function of a byte, and its results."""
    rng = np.random.default_rng(size)
    info = np.iinfo(source.numpy)
    x = rng.integers(info.min, info.max + 1, size).astype(source.numpy)
    values = rng.integers(0, 256, 256).astype(np.uint8).view(dtype.numpy)
    expr = call("Lookup", Input(dtype, 1), Input(source, 0))
    op = Map((size,), expr, (View((1,)), View((0,), -info.min)))
    types = TensorType(source, (size,)), TensorType(dtype, (256,)), TensorType(dtype, (size,))
    w = Workload(op, types[:2], types[2:], (False, True))
    return Call(MapLookupTableBytes(), {}, w, [x, values]), values[x.astype(int) - info.min]


def part(rows: int, size: int, begin: int, end: int, dtype: DType) -> tuple[Call, Array]:
    """Return a part of each row of bytes, copied, and what it is."""
    info = np.iinfo(dtype.numpy)
    x = np.random.default_rng(size).integers(info.min, info.max + 1, (rows, size))
    x = x.astype(dtype.numpy)
    op = Map((rows, end - begin), Input(dtype, 0), (View((size, 1), begin),))
    types = TensorType(dtype, x.shape), TensorType(dtype, (rows, end - begin))
    w = Workload(op, types[:1], types[1:], (False,))
    return Call(MapCopyBytes(), {}, w, [x]), x[:, begin:end]


def mean(shape: tuple[int, ...], dtype: DType) -> tuple[Call, Array]:
    """Return the means over the pixels of [N, H, W, C], requantized, and what they are."""
    n, height, width, channels = shape
    info = np.iinfo(dtype.numpy)
    x = np.random.default_rng(prod(shape)).integers(info.min, info.max + 1, shape)
    x[0, ..., 0] = info.min  # the sums of 16 bits are at their ends
    x[0, ..., -1] = info.max
    zero, count = 3 * height * width, height * width
    total = call("Sub", cast(Input(I32, 0), F32), const(float(zero), F32))
    value = call("Div", call("Mul", total, const(0.75, F32)), const(float(count), F32))
    rounded = call("Add", call("Round", value), const(-11.0, F32))
    expr = replace(call("CastSaturate", rounded), dtype=I8)
    view = View((prod(shape[1:]), 1, width * channels, channels))
    op = Reduce("Sum", (n, channels), (height, width), cast(Input(dtype, 0), I32), (view,),
                Epilogue(expr, ()))  # fmt: skip
    w = Workload(op, (TensorType(dtype, shape),), (TensorType(I8, (n, channels)),), (False,))
    real = (x.sum((1, 2)) - zero).astype(np.float32) * np.float32(0.75) / np.float32(count)
    want = np.clip(np.rint(real) - 11, -128, 127).astype(np.int8)
    return Call(SumLastBytes(), {}, w, [x.astype(dtype.numpy)]), want


def check_layers(target: Target) -> None:
    rng = np.random.default_rng(1)
    calls: list[Call] = []
    wanted: list[Array] = []
    for size, source, dtype_ in ((8, I8, I8), (37, U8, I8), (128, I8, U8), (303, U8, U8)):
        one, want = table(size, source, dtype_)
        assert one.kernel.accepts(one.workload, target)
        calls.append(one)
        wanted.append(want)
    for rows, size, begin, end in ((1, 64, 3, 64), (3, 37, 5, 27), (5, 48, 16, 48), (2, 30, 0, 9)):
        for dtype_ in (I8, U8):
            one, want = part(rows, size, begin, end, dtype_)
            assert one.kernel.accepts(one.workload, target)
            calls.append(one)
            wanted.append(want)
    for dtype, channels, kernel, stride, pads in (
        (np.int8, 16, (2, 2), 2, (0, 0)), (np.uint8, 21, (3, 3), 2, (1, 1)),
        (np.int8, 3, (3, 2), 1, (2, 1)), (np.uint8, 32, (5, 1), 3, (0, 0)),
    ):  # fmt: skip
        info = np.iinfo(dtype)
        x = rng.integers(info.min, info.max + 1, (2, 1, 9, 7, channels)).astype(dtype)
        calls.append(pool(x, kernel, stride, pads))
        wanted.append(pooled(calls[-1]))
    for m, k, n in ((1, 128, 32), (1, 37, 10), (5, 64, 12), (4, 19, 7)):
        for dtype_, clamp in ((I8, False), (U8, True)):
            one, want = product(m, k, n, dtype_, clamp)
            assert one.kernel.accepts(one.workload, target)
            calls.append(one)
            wanted.append(want)
    for shape in ((2, 5, 7, 8), (1, 32, 32, 4), (3, 16, 17, 7)):
        for dtype_ in (I8, U8):
            one, want = mean(shape, dtype_)
            if "dsp" in target.features:
                assert one.kernel.accepts(one.workload, target)
                calls.append(one)
                wanted.append(want)
    for channels in (1, 4, 6):
        planes = rng.integers(-128, 128, (2, channels, 3, 5)).astype(np.int8)
        last = np.ascontiguousarray(np.moveaxis(planes, 1, -1)[:, None])
        types = TensorType(I8, planes.shape), TensorType(I8, last.shape)
        there = Workload(Block(channels), types[:1], types[1:], (False,))
        back = Workload(Unblock(), types[1:], types[:1], (False,))
        calls += [Call(BlockLast(), StripedParams(), there, [planes]),
                  Call(UnblockLast(), StripedParams(), back, [last])]  # fmt: skip
        wanted += [last, planes]
    for one, want, (got,) in zip(calls, wanted, run_calls(calls, target), strict=True):
        np.testing.assert_array_equal(got, want, err_msg=str(one))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", KINDS)
def test_layers_are_exact_with_emulated_instructions(name: str) -> None:
    check_layers(on_host(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_layers_are_exact_under_qemu(name: str) -> None:
    check_layers(under_qemu(name))
