"""Movement of data on GPUs.

Kernels of Concat, Pad, Gather, Resample, Scatter, Cumulate, TopK and MoveRows. May import `render`
and `map`.
"""

from atc.backends.cuda.data import movement, ordered, rows
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*movement.KERNELS, *ordered.KERNELS, *rows.KERNELS)
