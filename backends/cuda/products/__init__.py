"""Matrix products on GPUs, and convolutions as such: on FMA units and on tensor cores.

Kernels of MatMul, MatMulPacked, GroupedMatMul and Conv. May import `render` and `map`.
"""

from atc.backends.cuda.products import grouped, packed, pixels, slim, tensor, tiles, warpgroup
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *tiles.KERNELS, *slim.KERNELS, *tensor.KERNELS, *warpgroup.KERNELS,
    *pixels.KERNELS, *packed.KERNELS, *grouped.KERNELS,
)  # fmt: skip
