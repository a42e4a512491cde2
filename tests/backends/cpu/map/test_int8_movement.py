"""Relayouts, copies, transposes, pooling and tables of bytes on every instruction set."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from kernel_program import VECTOR_TARGETS, Call, run_calls, vector_target

from atc.backends.cpu.conv.pool_int8 import PoolBytes
from atc.backends.cpu.map.lookup_table import MapCopy, MapLookupTable
from atc.backends.cpu.map.reorder import BlockBytes, UnblockBytes
from atc.backends.cpu.map.transpose_int8 import MapTransposeBytes
from atc.backends.kernel import Workload
from atc.backends.render.vector_expr import lanes
from atc.ir.expr import Input, call
from atc.ir.graph import Array, DType, TensorType, type_of
from atc.ir.ops import Block, Map, Pool, Unblock, Window
from atc.ir.view import View
from atc.passes.layout.operands import to_blocks

SHAPES = [(1, 3, 20, 9), (2, 20, 5, 7), (1, 32, 8, 8), (1, 50, 33)]
POOLS = [
    ((3, 3), (2, 2), (1, 1)), ((2, 2), (2, 2), (0, 0)), ((5, 5), (1, 1), (2, 2)),
    ((1, 4), (1, 3), (0, 1)), ((13, 3), (4, 3), (6, 1)), ((3, 17), (2, 1), (1, 8)),
    ((17, 2), (1, 1), (8, 0)), ((3, 9), (1, 12), (1, 4)),
]  # fmt: skip


def relayouts(block: int) -> list[tuple[Call, Array]]:
    rng = np.random.default_rng(1)
    found = []
    for shape in SHAPES:
        x = rng.integers(0, 256, shape).astype(np.uint8)
        blocked = to_blocks(x, block)
        blocked[:, -1, ..., block - -shape[1] % block :] = 0  # lanes past the last channel
        there = Workload(Block(block), (type_of(x),), (type_of(blocked),), (False,))
        back = Workload(Unblock(), (type_of(blocked),), (type_of(x),), (False,))
        found += [(Call(BlockBytes(), {}, there, [x]), blocked)]
        found += [(Call(UnblockBytes(), {}, back, [blocked]), x)]
    return found


def pools(block: int) -> list[tuple[Call, Array]]:
    rng = np.random.default_rng(2)
    found = []
    for dtype in (DType.UINT8, DType.INT8):
        for kernel, strides, pads in POOLS:
            low = 0 if dtype is DType.UINT8 else -128
            x = rng.integers(low, low + 256, (2, 2 * block, 11, 13)).astype(dtype.numpy)
            around = [(0, 0), (0, 0), *((p, p) for p in pads)]
            wide = np.pad(x, around, constant_values=low)
            seen = np.lib.stride_tricks.sliding_window_view(wide, kernel, (2, 3))
            y = seen[:, :, :: strides[0], :: strides[1]].max((4, 5))
            plain = Pool("Max", Window(kernel, strides, (1, 1), pads), (0, 0))
            inner = Window((*kernel, 1), (*strides, 1), (1, 1, 1), (*pads, 0))
            blocked = Pool("Max", inner, (0, 0, 0))
            for op, a, b in ((plain, x, y), (blocked, to_blocks(x, block), to_blocks(y, block))):
                w = Workload(op, (type_of(a),), (type_of(b),), (False,))
                found.append((Call(PoolBytes(), {}, w, [a]), b))
    return found


def tables() -> list[tuple[Call, Array]]:
    rng = np.random.default_rng(3)
    found = []
    for dtype in (DType.UINT8, DType.INT8):
        low = 0 if dtype is DType.UINT8 else -128
        x = rng.integers(low, low + 256, 333).astype(dtype.numpy)
        table = rng.permutation(256).astype(np.uint8)
        op = Map((333,), call("Lookup", Input(DType.UINT8, 1), Input(dtype, 0)),
                 (View((1,)), View((0,), -low)))  # fmt: skip
        w = Workload(op, (type_of(x), type_of(table)), (TensorType(DType.UINT8, (333,)),),
                     (False, True))  # fmt: skip
        found.append((Call(MapLookupTable(), {}, w, [x, table]), table[x.astype(int) - low]))
        part = View((111, 1), 40)  # of three rows
        op = Map((3, 70), op.expr, (part, View((0, 0), -low)))
        w = replace(w, op=op, outputs=(TensorType(DType.UINT8, (3, 70)),))
        some = x.astype(int).reshape(3, 111)[:, 40:110] - low
        found.append((Call(MapLookupTable(), {}, w, [x, table]), table[some]))
    return found


def copies() -> list[tuple[Call, Array]]:
    x = np.random.default_rng(4).integers(-99, 99, (4, 6, 30)).astype(np.int16)
    op = Map((6, 4, 25), Input(DType.INT16, 0), (View((30, 180, 1), 3),))
    w = Workload(op, (type_of(x),), (TensorType(DType.INT16, (6, 4, 25)),), (False,))
    return [(Call(MapCopy(), {}, w, [x]), x.transpose(1, 0, 2)[..., 3:28])]


def transposes() -> list[tuple[Call, Array]]:
    rng = np.random.default_rng(5)
    found = []
    for dtype in (DType.UINT8, DType.INT8, DType.UINT16, DType.FLOAT16):
        for shape, order in (
            ((8, 8), (1, 0)), ((9, 70), (1, 0)), ((33, 17), (1, 0)), ((40, 9), (1, 0)),
            ((3, 20, 45), (0, 2, 1)), ((2, 19, 3, 64), (2, 0, 3, 1)),
        ):  # fmt: skip
            bits = rng.integers(0, 1 << 14, shape).astype(f"u{dtype.itemsize}")
            x = bits.view(dtype.numpy)
            steps = np.array(x.strides) // dtype.itemsize
            view = View(tuple(int(steps[d]) for d in order))
            op = Map(tuple(shape[d] for d in order), Input(dtype, 0), (view,))
            w = Workload(op, (type_of(x),), (TensorType(dtype, op.shape),), (False,))
            found.append((Call(MapTransposeBytes(), {}, w, [x]), x.transpose(order)))
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=() if n == "x86-64-avx512" else pytest.mark.slow)
     for n in VECTOR_TARGETS],
)  # fmt: skip
def test_bytes_arrive_where_they_belong(name: str) -> None:
    target = vector_target(name)
    block = lanes(target)
    given = [*relayouts(block), *pools(block), *tables(), *copies(), *transposes()]
    assert all(c.kernel.accepts(c.workload, target) for c, _ in given)
    results = run_calls([c for c, _ in given], target)
    for (made, want), (got,) in zip(given, results, strict=True):
        np.testing.assert_array_equal(got, want.reshape(got.shape), err_msg=str(made))


def test_windows_without_an_element_are_left_to_the_portable_kernel() -> None:
    target = vector_target("x86-64-avx512")
    op = Pool("Max", Window((2, 2), (3, 3), (1, 1), (0, 0)), (2, 2))
    x, y = TensorType(DType.UINT8, (1, 16, 6, 6)), TensorType(DType.UINT8, (1, 16, 3, 3))
    assert not PoolBytes().accepts(Workload(op, (x,), (y,), (False,)), target)
