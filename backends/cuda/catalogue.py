"""CUDA kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cuda import attention, conv, data, map, normalize, products, rnn, special
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *map.KERNELS, *products.KERNELS, *conv.KERNELS, *normalize.KERNELS, *attention.KERNELS,
    *data.KERNELS, *rnn.KERNELS, *special.KERNELS,
)  # fmt: skip
