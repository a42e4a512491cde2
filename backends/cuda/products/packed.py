"""CUDA kernels of MatMulPacked: low-bit weights are unpacked in registers."""

from __future__ import annotations

from atc.backends.cuda.gpus import gpu_of
from atc.backends.cuda.kernel import RowKernel, seconds
from atc.backends.cuda.products.tensor import (
    ProductsOfRounded,
    ProductsOfShortened,
    ProductsOfSplit,
)
from atc.backends.cuda.products.tiles import SLIM, ProductTiles, packed_zero
from atc.backends.kernel import Params, Workload
from atc.backends.render.loops import epilogue_lines
from atc.backends.target import Target
from atc.dims import is_dynamic, upper_bound
from atc.ir.ops.quantize import MatMulPacked


class PackedRows(RowKernel[MatMulPacked]):
    """A block sums a column of few rows: its threads share the depth."""

    name = "cuda_matmul_packed"
    op = MatMulPacked
    template = "cuda/products/matmul_packed.cu.j2"
    dynamic = True

    def accepts(self, w: Workload[MatMulPacked], target: Target) -> bool:
        """Few rows or columns: the others are computed in tiles."""
        return min(upper_bound(w.op.m), w.op.n) < SLIM

    def rows(self, w: Workload[MatMulPacked]) -> int:
        """Return the number of columns."""
        return w.op.n

    def values(
        self, w: Workload[MatMulPacked], params: Params, target: Target
    ) -> dict[str, object]:
        """Return how a word, or a byte, of weights is unpacked."""
        op = w.op
        size = op.block * op.bits // 8
        word = 4 if size % 4 == 0 else 1
        after, value = epilogue_lines(op.epilogue, w, "value", ["i", "j"], 4)
        return {
            "op": op, "count": op.n, "indices": [("j", "at")],
            "most_rows": min(upper_bound(op.m), SLIM),
            "whole": not is_dynamic(op.m) and op.m <= SLIM,
            "zero": packed_zero(w), "unit": "uint32_t" if word == 4 else "uint8_t",
            "each": 8 * word // op.bits, "words": size // word, "mask": (1 << op.bits) - 1,
            "after": after, "value": value,
        }  # fmt: skip

    def cost(self, w: Workload[MatMulPacked], params: Params, target: Target) -> float:
        """Return the larger of the seconds for memory and for multiply-adds."""
        op, gpu = w.op, gpu_of(target.device)
        products = op.m * op.n * op.k / (gpu.multiprocessors * gpu.fmas * gpu.clock)
        return seconds(w, 4 * products, gpu)


class PackedTiles(ProductTiles):
    """MatMulPacked in tiles of floats."""

    name = "cuda_matmul_packed_tiles"
    op = MatMulPacked


class PackedSplit(ProductsOfSplit):
    """MatMulPacked of floats split in two bfloat16, on tensor cores."""

    name = "cuda_matmul_packed_bf16x3"
    op = MatMulPacked


class PackedRounded(ProductsOfRounded):
    """MatMulPacked of floats as bfloat16, on tensor cores."""

    name = "cuda_matmul_packed_bf16"
    op = MatMulPacked


class PackedShortened(ProductsOfShortened):
    """MatMulPacked of floats as TF32, on tensor cores."""

    name = "cuda_matmul_packed_tf32"
    op = MatMulPacked


KERNELS = (PackedTiles(), PackedRows(), PackedSplit(), PackedRounded(), PackedShortened())
