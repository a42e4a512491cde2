"""Products on AMX's tiles: MatMul, Conv, Attention and Recurrent in bf16, bf16x3, bf16x6 and int8.

May import every other family of CPU kernels; only the catalogue imports it.
"""

from atc.backends.cpu.amx import attention, conv, first_layer, matmul, matmul_int8, rnn
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *matmul.KERNELS, *matmul_int8.KERNELS, *attention.KERNELS, *conv.KERNELS,
    *first_layer.KERNELS, *rnn.KERNELS,
)  # fmt: skip
