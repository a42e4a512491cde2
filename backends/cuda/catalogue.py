"""CUDA kernels by family; `KERNELS` is the catalogue in order of preference among equals."""

from atc.backends.cuda import (
    attention,
    blocked,
    data,
    elementwise,
    im2col,
    loops,
    ordered,
    packed,
    products,
    recurrent,
    rows,
    slim,
    tensor,
    warpgroup,
    windows,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *elementwise.KERNELS, *products.KERNELS, *slim.KERNELS, *tensor.KERNELS, *warpgroup.KERNELS,
    *im2col.KERNELS, *windows.KERNELS, *blocked.KERNELS, *rows.KERNELS, *data.KERNELS,
    *ordered.KERNELS, *loops.KERNELS, *recurrent.KERNELS, *packed.KERNELS, *attention.KERNELS,
)  # fmt: skip
