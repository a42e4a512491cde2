"""Convolutions and pooling, portable and in channel blocks.

Kernels of Conv, ConvTranspose and Pool. May import `render`, `map` and `matmul`.
"""

from atc.backends.cpu.conv import (
    bf16,
    blocked,
    depthwise,
    depthwise_looped,
    depthwise_nhwc,
    dynamic_shape,
    first_layer_bf16,
    first_layer_int8,
    int8,
    nchw_rows,
    pool_int8,
    portable,
    small_group,
    small_oc,
    winograd,
)
from atc.backends.kernel import AnyKernel

KERNELS: tuple[AnyKernel, ...] = (
    *portable.KERNELS, *blocked.KERNELS, *int8.KERNELS, *first_layer_int8.KERNELS, *bf16.KERNELS,
    *first_layer_bf16.KERNELS, *depthwise.KERNELS, *depthwise_looped.KERNELS, *winograd.KERNELS,
    *small_oc.KERNELS, *small_group.KERNELS, *dynamic_shape.KERNELS, *nchw_rows.KERNELS,
    *pool_int8.KERNELS, *depthwise_nhwc.KERNELS,
)  # fmt: skip
