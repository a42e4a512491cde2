"""Attention in one kernel: scores of a few queries at a time, never the whole matrix.

Kernels of Attention. May import `render`, `map`, `matmul` and `normalize`.
"""

from atc.backends.cpu.attention import bf16, halves, portable, tile
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *tile.KERNELS, *halves.KERNELS, *bf16.KERNELS,
)  # fmt: skip
