"""The loops of `parallel_for` on GPUs, a thread for each iteration.

May import `render` and `parallel_for`.
"""

from atc.backends.cuda.special import loops
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*loops.KERNELS,)
