"""Matrix products: portable, in register tiles, by dot products, in bf16, int8 and packed weights.

Kernels of MatMul, MatMulPacked and GroupedMatMul. May import `render` and `map`.
"""

from atc.backends.cpu.matmul import (
    bf16,
    dot,
    halves,
    int8,
    packed,
    packed_int8,
    packed_tile,
    portable,
    tile,
    winograd,
)
from atc.backends.cpu.matmul.grouped import grouped as grouped
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *tile.KERNELS, *halves.KERNELS, *dot.KERNELS, *bf16.KERNELS, *int8.KERNELS,
    *packed.KERNELS, *packed_tile.KERNELS, *packed_int8.KERNELS,
    *winograd.KERNELS,
)  # fmt: skip
