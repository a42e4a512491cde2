"""CPU kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cpu import amx, attention, conv, data, map, matmul, normalize, rnn, small, special
from atc.backends.kernel import AnyKernel
from atc.backends.parallel_for import KERNELS as LOOPS

KERNELS: tuple[AnyKernel, ...] = (
    *map.KERNELS, *matmul.KERNELS, *attention.KERNELS, *conv.KERNELS, *data.KERNELS,
    *normalize.KERNELS, *rnn.KERNELS, *LOOPS, *special.KERNELS,
    *amx.KERNELS, *small.KERNELS, *matmul.grouped((*matmul.KERNELS, *amx.KERNELS)),
)  # fmt: skip
