"""CPU kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cpu import conv, elementwise, matmul
from atc.backends.kernel import Kernel

KERNELS: tuple[Kernel, ...] = (*elementwise.KERNELS, *matmul.KERNELS, *conv.KERNELS)
