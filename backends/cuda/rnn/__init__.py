"""Recurrent layers on GPUs, a block for each row of each direction.

May import `render` and `products`.
"""

from atc.backends.cuda.rnn import recurrent
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*recurrent.KERNELS,)
