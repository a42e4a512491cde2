"""Convolutions and pooling on GPUs, window by window, in channel blocks and by TMA's im2col mode.

Kernels of Conv, ConvTranspose, Pool and ConvBlocked. May import `render`, `map` and `products`.
"""

from atc.backends.cuda.conv import blocked, depthwise, im2col, windows
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *im2col.KERNELS, *depthwise.KERNELS, *windows.KERNELS, *blocked.KERNELS,
)  # fmt: skip
