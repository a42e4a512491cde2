"""Softmax and normalisations on GPUs, a block for each row. May import `render` and `map`."""

from atc.backends.cuda.normalize import rows
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*rows.KERNELS,)
