"""GroupedMatMul: a product whose matrix each row chooses when the network runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from atc.ir.graph import DType, Op, TensorType
from atc.ir.ops.elementwise import require
from atc.ir.ops.matmul import MatMul
from atc.ir.ops.quantize import MatMulPacked


@dataclass(frozen=True)
class GroupedMatMul(Op):
    """y[i] = product of row i and matrix index[i]: a grouped GEMM, as mixtures of experts have it.

    Operands: those of `product`, a MatMul without batch or a MatMulPacked, without operands of its
    epilogue, of m rows in all; what belongs to its matrix has `matrices` of these one after the
    other. The last operand is the index, INT64 [m]; one outside is that of the nearest matrix.
    Neighbours with the same index are multiplied together, so sorted rows read each matrix once.
    """

    product: MatMul | MatMulPacked
    matrices: int

    @property
    def loops(self) -> tuple[int, ...]:
        """The index space of the output."""
        return self.product.loops

    def check(self, inputs: Sequence[TensorType | None], outputs: Sequence[TensorType]) -> None:
        """Check the index, and the product with one matrix."""
        product, index = self.product, inputs[-1]
        require(self.matrices > 0, f"{self.matrices} matrices")
        require(not product.epilogue.views, "an epilogue with operands")
        batch = isinstance(product, MatMul) and product.batch
        require(not batch, "a product with a batch")
        require(index is not None and index.dtype is DType.INT64, f"the index is {index}")
        require(index is not None and index.size == product.m, f"{index} of {product.m} rows")
        product.check(self.operands_of_one(inputs), outputs)

    def operands_of_one(
        self, inputs: Sequence[TensorType | None]
    ) -> tuple[TensorType | None, ...]:
        """Return the types of the product's operands with one matrix."""
        return (inputs[0], *(t and self._of_one(t) for t in inputs[1:-1]))

    def _of_one(self, type_: TensorType) -> TensorType:
        require(type_.size % self.matrices == 0, f"{self.matrices} matrices in {type_}")
        if type_.shape[0] == self.matrices:
            return replace(type_, shape=type_.shape[1:])
        return replace(type_, shape=(type_.size // self.matrices,))
