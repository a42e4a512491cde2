"""Numbers of operations and bytes moved of a workload, by its op's definition."""

from __future__ import annotations

from math import prod

from atc.backends.kernel import Workload
from atc.ir.ops import Conv, ConvBlocked, ConvFilterGradient, ConvTranspose, MatMul, Recurrent
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked


def operations(w: Workload) -> int:
    """Return the additions and multiplications by the op's definition; 0 where they don't count.

    Only sums of products count. A fast algorithm (Winograd) does fewer.
    """
    shapes = [() if t is None else t.shape for t in w.inputs]
    match w.op:
        case Conv():
            return 2 * w.outputs[0].size * prod(shapes[1][1:])
        case ConvBlocked():
            y = w.outputs[0].shape
            return 2 * y[0] * prod(y[2:-1]) * prod(shapes[1])
        case ConvTranspose():
            return 2 * prod(shapes[0]) * prod(shapes[1][1:])
        case ConvFilterGradient(window=window):
            pixels = prod(shapes[1][2 : 2 + window.rank])
            return 2 * shapes[1][0] * pixels * w.outputs[0].size
        case MatMul():
            return w.op.flops
        case MatMulPacked():
            return 2 * w.op.m * w.op.n * w.op.k
        case GroupedMatMul():
            return 2 * w.op.product.m * w.op.product.n * w.op.product.k
        case Recurrent():
            return 2 * prod(shapes[0]) * w.op.hidden
    return 0


def traffic(w: Workload) -> int:
    """Return the bytes of all operands and results."""
    return sum(t.nbytes for t in (*w.inputs, *w.outputs) if t is not None)


OPERATIONS_PER_BYTE = 8
"""Operations that take about as long as moving a byte does."""


def work(w: Workload) -> float:
    """Return about how long a workload takes, in bytes moved."""
    return traffic(w) + operations(w) / OPERATIONS_PER_BYTE
