"""Recurrent layers: portable, in vectors, and many rows of a step together.

Kernels of Recurrent. May import `render` and `matmul`.
"""

from atc.backends.cpu.rnn import batch, batch_bytes, portable, vectors
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *vectors.KERNELS, *batch.KERNELS, *batch_bytes.KERNELS,
)  # fmt: skip
