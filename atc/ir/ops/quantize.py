"""MatMulPacked: a product with weights of few bits, stored in blocks that share a scale.

SoftmaxBytes: a Softmax between bytes, computed in integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.blocked import BYTES
from atc.ir.ops.elementwise import Epilogue, check_epilogue, require


@dataclass(frozen=True)
class MatMulPacked(Op):
    """y[m, n] = epilogue(sum over k of x[m, k] * (q[n, k] - zero) * scale).

    com.microsoft MatMulNBits-1. Operands: x [m, k]; q, UINT8 [n, blocks, block * bits / 8], its
    numbers from the low bits up; the scales [n, blocks]; their zero points [n, blocks] of UINT8 or
    of the type of x, or none, which means 2^(bits - 1). The epilogue's views are over (m, n).

    With `rounds` kernels may round each block of a row of x to INT8 (the attribute
    accuracy_level=4): by its largest magnitude / 127, in steps of that.
    """

    m: int
    n: int
    k: int
    block: int
    bits: int
    epilogue: Epilogue
    rounds: bool = False

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return (self.m, self.n)

    @property
    def blocks(self) -> int:
        """Blocks of a row of weights; the last may be longer than what is left of k."""
        return -(-self.k // self.block)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Sizes and types of the operands."""
        require(self.bits in (2, 4, 8), f"{self.bits} bits")
        require(self.block * self.bits % 8 == 0, f"blocks of {self.block}")
        blocks = self.n * self.blocks
        sizes = (self.m * self.k, blocks * self.block * self.bits // 8, blocks, blocks)
        for k, (type_, size) in enumerate(zip(inputs[:4], sizes, strict=True)):
            optional = k == 3 and type_ is None
            require(optional or (type_ is not None and type_.size == size), f"operand {k}: {type_}")
        require(inputs[1] is not None and inputs[1].dtype is DType.UINT8, "q is not UINT8")
        require(outputs[0].size == self.m * self.n, f"{outputs[0]}")
        check_epilogue(self.epilogue, self.loops, inputs[4:], outputs[0])


@dataclass(frozen=True)
class SoftmaxBytes(Op):
    """A Softmax over k of what bytes x stand for, quantized to bytes, in integers of 32 bits:

    y[o, k, i] = clamp((((e >> shift) * r + half) >> bits) + zero), e = table[m - x], m the maximum
    over k, r = round(numerator / sum over k of e), half = 2^(bits - 1). The clamp is to what y's
    type holds. Operands: x; the table, UINT32 [256], which falls from a power of two.
    """

    outer: int
    axis: int
    inner: int
    numerator: int
    shift: int
    bits: int
    zero: int

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return (self.outer, self.axis, self.inner)

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check the operands' types and sizes."""
        x, table = inputs
        size = self.outer * self.axis * self.inner
        require(x is not None and x.dtype in BYTES and x.size == size, f"{x}")
        require(table == TensorType(DType.UINT32, (256,)), f"the table is {table}")
        require(outputs[0].dtype in BYTES and outputs[0].size == size, f"{outputs[0]}")
