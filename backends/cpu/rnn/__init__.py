"""Recurrent layers: portable, in vectors, and many rows of a step together.

Kernels of Recurrent. May import `render` and `matmul`.
"""

from atc.backends.cpu.rnn import batch, portable, vectors
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *vectors.KERNELS, *batch.KERNELS,
)  # fmt: skip
