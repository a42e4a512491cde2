"""CPU kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cpu import conv, data, elementwise, matmul, normalize, resize, rnn, sort, vector_map
from atc.backends.kernel import Kernel

KERNELS: tuple[Kernel, ...] = (
    *elementwise.KERNELS, *matmul.KERNELS, *conv.KERNELS, *data.KERNELS, *normalize.KERNELS,
    *rnn.KERNELS, *vector_map.KERNELS, *resize.KERNELS, *sort.KERNELS,
)  # fmt: skip
