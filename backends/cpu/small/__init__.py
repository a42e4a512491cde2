"""Kernels of bytes for small cores: channels last, sums of products in pairs or in vectors.

The same C runs anywhere, with instructions of Arm's DSP extension and MVE where the target has
them. May import `render`, `map`, `matmul`, `conv` and what is lower.
"""

from atc.backends.cpu.small import conv, depthwise, map, matmul, pool, reorder, softmax, sum
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *conv.KERNELS, *depthwise.KERNELS, *map.KERNELS, *matmul.KERNELS, *pool.KERNELS,
    *reorder.KERNELS, *softmax.KERNELS, *sum.KERNELS,
)  # fmt: skip
