"""Elementwise operators and reductions on GPUs.

Kernels of Map, Reduce and ArgReduce. May import `render`.
"""

from atc.backends.cuda.map import elementwise, reduce
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (*elementwise.KERNELS, *reduce.KERNELS)
