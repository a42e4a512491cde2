"""CUDA kernels of products with few rows or columns, which would leave tiles mostly empty."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import (
    MOST_BLOCKS,
    DeviceKernel,
    ElementKernel,
    grid,
    seconds,
    unravel,
)
from atc.backends.cuda.products.tiles import (
    RESIDENT,
    MatMulTiles,
    Product,
    epilogue_of,
    multiply_add,
    product_of,
)
from atc.backends.kernel import Launch, OpT, Params, Workload
from atc.backends.render.loops import epilogue_lines
from atc.backends.render.reduction import accumulate
from atc.backends.target import Target
from atc.dims import is_dynamic, upper_bound
from atc.ir.ops import Conv, MatMul

DEEP, FEW, SHARERS = 64, 1 << 15, 256
"""Fewest products of a sum that threads share, most results that don't fill a GPU, threads of a
block."""

JOINING = 400
"""Clocks of a block in which its threads wait for memory, and for each other's shares."""


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
        after, value = epilogue_lines(epilogue_of(w), w, "total", product.loops, product.first)
        return {
            "product": product, "type": product.accumulator.c, "after": after, "value": value,
            "count": w.outputs[0].size, "indices": unravel("at", loops),
            "step": multiply_add(product.accumulator, "total", product.a.value, product.b.value),
        }  # fmt: skip


class SharedDepth(DeviceKernel[OpT]):
    """Results too few for a thread each: threads share the depth of each; the order is fixed."""

    template = "cuda/products/matmul_shared.cu.j2"
    dynamic = True
    barriers = True

    def product(self, w: Workload[OpT]) -> Product:
        """Return the op as a product of matrices."""
        return product_of(w)

    def _shape(self, product: Product) -> tuple[int, int, bool]:
        """Return the threads of a result, the results of a block, and whether lanes come first.

        Neighbouring threads read neighbours in memory: along the depth where lanes come first.
        """
        wide = upper_bound(product.n) >= upper_bound(product.m)
        across = (product.b if wide else product.a).along_rows
        return (SHARERS // 32, 32, False) if across else (32, SHARERS // 32, True)

    def launch(self, w: Workload[OpT], params: Params, target: Target) -> Launch:
        """Return a block for some results, up to a limit."""
        _, columns, _ = self._shape(self.product(w))
        return grid(-(-w.outputs[0].size // columns), MOST_BLOCKS, SHARERS)

    def values(
        self, w: Workload[OpT], params: Params, target: Target
    ) -> dict[str, object]:
        """Return indices of the results, and the statements that add a product and a share."""
        product, count = self.product(w), w.outputs[0].size
        lanes, columns, lanes_first = self._shape(product)
        loops = [*product.batch, ("i", product.m), ("j", product.n)]
        if isinstance(w.op, MatMul):
            product = replace(product, target="number")
        after, value = epilogue_lines(epilogue_of(w), w, "total", product.loops, product.first)
        return {
            "product": product, "type": product.accumulator.c, "after": after, "value": value,
            "count": count, "blocks": -(-count // columns), "lanes": lanes, "columns": columns,
            "lanes_first": lanes_first, "indices": unravel("number", loops),
            "step": multiply_add(product.accumulator, "total", product.a.value, product.b.value),
            "join": accumulate("Sum", product.accumulator, "other"),
        }  # fmt: skip


class MatMulShared(SharedDepth[MatMul]):
    """A result with few rows or columns, such as a decoder's single token times a matrix."""

    name = "cuda_matmul_shared"
    op = MatMul
    accepts_16_bit_weights = True

    def accepts(self, w: Workload, target: Target) -> bool:
        """Slim results of long sums, and few of them."""
        if MatMulTiles().accepts(w, target):
            return False
        return upper_bound(product_of(w).k) >= DEEP and upper_bound(w.outputs[0].size) <= FEW


class ConvShared(SharedDepth[Conv]):
    """A Conv of few results, one pixel of each image perhaps: threads share the depth of each."""

    name = "cuda_conv_shared"
    op = Conv

    def accepts(self, w: Workload, target: Target) -> bool:
        """Accept few results of long sums."""
        few = upper_bound(w.outputs[0].size) <= FEW and not is_dynamic(w.input(1))
        return few and product_of(w).k >= DEEP

    def cost(self, w: Workload[Conv], params: Params, target: Target) -> float:
        """Return the seconds that blocks take to read both operands, and to join shares."""
        product, gpu = product_of(w), gpu_of(target.device)
        lanes, columns, _ = self._shape(product)
        blocks = -(-w.outputs[0].size // columns)
        assert isinstance(w.op, Conv)
        step = 2 if prod(w.op.window.kernel) == 1 else 8  # where a tap is takes divisions
        clocks = step * SHARERS // 32 * -(-product.k // lanes) + JOINING
        return seconds(w, gpu.compute_ns(blocks, RESIDENT, clocks), gpu)


KERNELS = (MatMulElements(), MatMulShared(), ConvShared())
