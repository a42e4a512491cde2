"""Products on AMX's tiles, in parts of bfloat16 and in int8.

May import every other family of CPU kernels; only the catalogue imports it.
"""

from atc.backends.cpu.amx import (
    attention,
    conv,
    first_layer,
    matmul,
    matmul_int8,
    matmul_packed,
    rnn,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *matmul.KERNELS, *matmul_int8.KERNELS, *matmul_packed.KERNELS, *attention.KERNELS,
    *conv.KERNELS, *first_layer.KERNELS, *rnn.KERNELS,
)  # fmt: skip
