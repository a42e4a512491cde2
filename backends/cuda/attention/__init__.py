"""Attention on GPUs: row by row, and in one kernel on tensor cores.

May import `render`, `products` and `normalize`.
"""

from atc.backends.cuda.attention import rows, tensor
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*rows.KERNELS, *tensor.KERNELS)
