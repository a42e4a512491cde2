"""CUDA kernel of GroupedMatMul: threads share the depth of each result."""

from __future__ import annotations

from dataclasses import replace

from atc.backends.cuda.products.slim import SharedDepth
from atc.backends.cuda.products.tiles import Product, index_type, product_of
from atc.backends.kernel import Workload
from atc.ir.ops.grouped import GroupedMatMul
from atc.ir.ops.quantize import MatMulPacked


class GroupedShared(SharedDepth[GroupedMatMul]):
    """Rows that each have a matrix of their own: a word's few, and others one by one."""

    name = "cuda_grouped_shared"
    op = GroupedMatMul
    accepts_16_bit_weights = True

    def product(self, w: Workload[GroupedMatMul]) -> Product:
        """Return the product with one matrix, read where that of row i begins."""
        op, last = w.op, w.op.matrices - 1
        one = Workload(op.product, op.operands_of_one(w.inputs), w.outputs, w.constant[:-1])
        product, wanted = product_of(one), f"x{len(w.inputs) - 1}[i]"
        inside = f"{wanted} < 0 ? 0 : {wanted} < {last} ? {wanted} : {last}"
        matrix = ("matrix", f"({index_type(w)})({inside})")
        if isinstance(op.product, MatMulPacked):
            (name, block), *others = product.b.indices
            first = (name, f"matrix * {op.product.n * op.product.blocks} + {block}")
            b = replace(product.b, indices=(matrix, first, *others))
        else:
            size = one.input(1).size
            b = replace(product.b, indices=(matrix,), place=f"matrix * {size} + {product.b.place}")
        return replace(product, b=b, index=index_type(w))


KERNELS = (GroupedShared(),)
