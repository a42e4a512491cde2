"""Kernels of ops that few networks have: resampling, strings, images, trees.

May import `render` and `data`.
"""

from atc.backends.cpu.special import (
    external,
    image,
    resize,
    strings,
    trees,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *trees.KERNELS, *resize.KERNELS, *strings.KERNELS, *image.KERNELS, *external.KERNELS,
)  # fmt: skip
