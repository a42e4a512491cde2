"""Portable kernels of ops that few networks have: sampling, signals, strings, images, trees.

May import `render` and `data`.
"""

from atc.backends.cpu.special import (
    external,
    image,
    linalg,
    ngrams,
    resize,
    sampling,
    signal,
    strings,
    svm,
    trees,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *linalg.KERNELS, *trees.KERNELS, *resize.KERNELS, *sampling.KERNELS, *signal.KERNELS,
    *strings.KERNELS, *image.KERNELS, *ngrams.KERNELS, *external.KERNELS, *svm.KERNELS,
)  # fmt: skip
