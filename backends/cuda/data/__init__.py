"""Movement of data on GPUs.

Kernels of Concat, Pad, Gather, Resample, Scatter, Cumulate and TopK. May import `render` and
`map`.
"""

from atc.backends.cuda.data import movement, ordered
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*movement.KERNELS, *ordered.KERNELS)
