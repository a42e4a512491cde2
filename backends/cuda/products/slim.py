"""CUDA kernels of products with few rows or columns, which would leave tiles mostly empty."""

from __future__ import annotations

from atc.backends.cuda.kernel import MOST_BLOCKS, DeviceKernel, ElementKernel, grid, unravel
from atc.backends.cuda.products.tiles import (
    MatMulTiles,
    Product,
    epilogue_of,
    multiply_add,
    product_of,
)
from atc.backends.kernel import Launch, Params, Workload
from atc.backends.render.loops import finish
from atc.backends.render.reduction import accumulate
from atc.backends.target import Target
from atc.dims import high
from atc.ir.ops import MatMul

DEEP, FEW, SHARERS = 64, 1 << 15, 256
"""Fewest products of a sum that threads share, most results that don't fill a GPU, threads of a
block."""


class MatMulElements(ElementKernel):
    """A thread for each element of a result with few rows or columns."""

    name = "cuda_matmul_slim"
    op = MatMul
    template = "cuda/products/matmul_slim.cu.j2"
    dynamic = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept what is computed neither in tiles nor by threads that share a result."""
        return not (MatMulTiles().accepts(w, target) or MatMulShared().accepts(w, target))

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices of the result and the statement that adds a product."""
        product = product_of(w)
        loops = [*product.batch, ("i", product.m), ("j", product.n)]
        after, value = finish(epilogue_of(w), w, "total", product.loops, product.first)
        return {
            "product": product, "type": product.accumulator.c, "after": after, "value": value,
            "count": w.outputs[0].size, "indices": unravel("at", loops),
            "step": multiply_add(product.accumulator, "total", product.a.value, product.b.value),
        }  # fmt: skip


class MatMulShared(DeviceKernel):
    """A result with few rows or columns: threads share the depth of each element.

    A decoder's single token times a matrix has too few results for a thread each. The order of
    sums is fixed.
    """

    name = "cuda_matmul_shared"
    op = MatMul
    template = "cuda/products/matmul_shared.cu.j2"
    dynamic = True
    barriers = True
    accepts_16_bit_weights = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Slim results of long sums, and few of them."""
        if MatMulTiles().accepts(w, target):
            return False
        return high(product_of(w).k) >= DEEP and high(w.outputs[0].size) <= FEW

    def _shape(self, product: Product) -> tuple[int, int, bool]:
        """Return the threads of a result, the results of a block, and whether lanes come first.

        Neighbouring threads read neighbours in memory: along the depth where lanes come first.
        """
        wide = high(product.n) >= high(product.m)
        across = (product.b if wide else product.a).along_rows
        return (SHARERS // 32, 32, False) if across else (32, SHARERS // 32, True)

    def launch(self, w: Workload, params: Params, target: Target) -> Launch:
        """Return a block for some results, up to a limit."""
        _, columns, _ = self._shape(product_of(w))
        return grid(-(-w.outputs[0].size // columns), MOST_BLOCKS, SHARERS)

    def values(self, w: Workload, params: Params, target: Target) -> dict[str, object]:
        """Return indices of the results, and the statements that add a product and a share."""
        product, count = product_of(w), w.outputs[0].size
        lanes, columns, lanes_first = self._shape(product)
        loops = [*product.batch, ("i", product.m), ("j", product.n)]
        after, value = finish(epilogue_of(w), w, "total", product.loops, product.first)
        return {
            "product": product, "type": product.accumulator.c, "after": after, "value": value,
            "count": count, "blocks": -(-count // columns), "lanes": lanes, "columns": columns,
            "lanes_first": lanes_first, "indices": unravel("number", loops),
            "step": multiply_add(product.accumulator, "total", product.a.value, product.b.value),
            "join": accumulate("Sum", product.accumulator, "other"),
        }  # fmt: skip


KERNELS = (MatMulElements(), MatMulShared())
