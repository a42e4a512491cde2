"""Ops that copy, order or count elements: Concat, Pad, Gather, Scatter, TopK, NonZero and the like.

Portable kernels only. May import `render` and `map`.
"""

from atc.backends.cpu.data import data_dependent, movement, sort
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *movement.KERNELS, *sort.KERNELS, *data_dependent.KERNELS,
)  # fmt: skip
