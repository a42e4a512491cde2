"""MatMul: batched matrix products over affine views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import Epilogue, check_epilogue, check_views, require
from atc.ir.view import View


@dataclass(frozen=True)
class MatMul(Op):
    """y[b, m, n] = epilogue(sum over k of (a[b, m, k] - a_zero) * (c[b, k, n] - b_zero)).

    `a_view` is over (*batch, m, k), `b_view` over (*batch, k, n), so transposes and broadcasts cost
    nothing; the epilogue's views are over (*batch, m, n). Integer operands are summed in
    `accumulator` (ONNX MatMul-13, Gemm-13, MatMulInteger-10); only they have zero points.
    """

    batch: tuple[int, ...]
    m: int
    n: int
    k: int
    a_view: View
    b_view: View
    epilogue: Epilogue
    accumulator: DType = DType.FLOAT
    a_zero: int = 0
    b_zero: int = 0

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return (*self.batch, self.m, self.n)

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * prod(self.loops) * self.k

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check that views stay inside the operands."""
        check_views((*self.batch, self.m, self.k), (self.a_view,), inputs[:1])
        check_views((*self.batch, self.k, self.n), (self.b_view,), inputs[1:2])
        check_epilogue(self.epilogue, self.loops, inputs[2:], outputs[0])
        plain = self.a_zero == self.b_zero == 0
        require(plain or not self.accumulator.is_float, "zero points of floats")
        require(prod(self.loops) == outputs[0].size, f"loops {self.loops} don't fill {outputs[0]}")
