"""Softmax and normalizations: portable, in vectors, in channel blocks.

Kernels of Softmax, Normalize and NormalizeBlocked. May import `render` and `map`.
"""

from atc.backends.cpu.normalize import blocked, portable, vectors
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *vectors.KERNELS, *blocked.KERNELS,
)  # fmt: skip
