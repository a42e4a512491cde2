"""Portable kernel of MatMulPacked: one row of weights is unpacked, then meets every row of x."""

from __future__ import annotations

from atc.backends.cpu.matmul.portable import product_rate
from atc.backends.kernel import Kernel, Params, Workload
from atc.backends.render.expr import load
from atc.backends.render.loops import epilogue_lines
from atc.backends.target import Target
from atc.dims import is_dynamic
from atc.ir.ops.quantize import MatMulPacked

LANES = 16
"""Partial sums of a dot product, which a compiler can keep in vectors."""
UNPACKING = 1.0
"""Cycles to unpack a weight."""


class MatMulUnpacking(Kernel[MatMulPacked]):
    """MatMulPacked in plain C."""

    name = "matmul_packed"
    op = MatMulPacked
    template = "cpu/matmul/packed.c.j2"
    dynamic = True

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Leave no more than the rows for the run to know."""
        return not is_dynamic((w.op.n, w.op.k))

    def scratch(self, w: Workload[MatMulPacked], params: Params, target: Target) -> int:
        """One row of unpacked weights, in whole blocks."""
        op = w.op
        return op.blocks * op.block * 4

    def values(
        self, w: Workload[MatMulPacked], params: Params, target: Target
    ) -> dict[str, object]:
        """Return the unpacking of a byte."""
        op, zeros = w.op, w.inputs[3]
        zero = str(1 << (op.bits - 1)) if zeros is None else load(zeros.dtype, "x3[at]")
        after, value = epilogue_lines(op.epilogue, w, "value", ["i", "j"], 4)
        return {
            "op": op, "lanes": LANES, "whole": op.k // LANES * LANES, "zero": zero,
            "scale": load(w.input(2).dtype, "x2[at]"),
            "bytes": op.block * op.bits // 8, "per_byte": 8 // op.bits, "mask": (1 << op.bits) - 1,
            "after": after, "value": value,
        }  # fmt: skip

    def cost(self, w: Workload[MatMulPacked], params: Params, target: Target) -> float:
        """Cycles of the multiplications and of the weights that are unpacked."""
        op = w.op
        return op.n * op.k * (op.m / product_rate(target) + UNPACKING)


KERNELS = (MatMulUnpacking(),)
